//! What a volunteer costs the foreground, in words. In: a host's harm as it was reported. Out: text. Used by the commands that show
//! hosts, jobs and applications. Pure.

use gleaner_types::harm::HarmInterval;
use gleaner_types::id::HostId;
use gleaner_types::report::{HostHarm, Reading, WorkloadHarm};
use gleaner_types::text::{counted, duration};

use crate::format::clean;

/// Harm in words: "foreground 0.4 % ± 0.3 % slower", or why it is not known.
pub(crate) fn harm(harm: &Reading<HarmInterval>) -> String {
    match harm {
        Reading::Value(harm) => format!("foreground {harm} slower ({})", counted(harm.trials, "pause")),
        Reading::Absent(absence) => {
            format!("how much slower the foreground was is not known, because {}", clean(&absence.reason.text()))
        }
    }
}

/// What the volunteer costs the foreground of one host: together, and each workload where there are several.
pub(crate) fn host_harm(host: &HostId, harm: &HostHarm) -> String {
    let budget = match &harm.foreground {
        Reading::Value(_) => format!("; budget {} %", harm.budget_percent),
        Reading::Absent(_) => String::new(),
    };
    let mut lines = vec![format!("harm on {host}: {}{budget}", self::harm(&harm.foreground))];
    if harm.workloads.len() > 1 {
        let one = |own: &WorkloadHarm| match &own.harm {
            Reading::Value(harm) => format!("  {}: {harm} slower", own.workload),
            Reading::Absent(absence) => format!("  {}: {}", own.workload, clean(&absence.to_string())),
        };
        lines.extend(harm.workloads.iter().map(one));
    }
    if let (Reading::Value(_), Some(cpi)) = (&harm.foreground, &harm.cpi) {
        lines.push(match &cpi.foreground {
            Reading::Value(harm) => format!("  of that by cycles per instruction: {harm}"),
            Reading::Absent(absence) => {
                format!("  cycles per instruction are not in it, because {}", clean(&absence.reason.text()))
            }
        });
    }
    if harm.paused_s > 0.0 {
        lines.push(format!("  pauses to measure it cost the volunteer {} so far", duration(harm.paused_s)));
    }
    lines.extend(harm.protection.as_ref().map(|protection| format!("on {host} {}", clean(&protection.reason))));
    lines.extend(harm.scheduling_points.as_ref().map(|points| format!("on {host} {}", clean(&points.reason))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use gleaner_planner::controller::HostView;
    use gleaner_types::report::{CpiHarm, Protection, Reason, SchedulingPoints};
    use gleaner_types::time::Timestamp;

    use super::*;
    use crate::fixtures::host_view;
    use crate::format::{self, CpuUnit};

    fn hosts(view: HostView) -> String {
        format::hosts(&[view], None, Timestamp(0), CpuUnit::Cores)
    }

    #[test]
    fn a_host_says_how_its_volunteer_is_held() {
        let host = HostId::new("h").unwrap();
        let mut harm = HostHarm::because(Reason::VolunteerNeverRan);
        assert_eq!(host_harm(&host, &harm).lines().count(), 1);
        let reason = "the volunteer has at most 50 % of the machine, because".to_owned();
        harm.protection = Some(Protection { spare_cpus: 0, share_percent: 50.0, reason });
        let shown = host_harm(&host, &harm);
        assert!(shown.ends_with("\non h the volunteer has at most 50 % of the machine, because"), "{shown}");
        let mut report = gleaner_test_support::report::report(&host, 1);
        report.harm = harm;
        let shown = hosts(host_view(report));
        let said = "] the volunteer has at most 50 % of the machine, because";
        let note = shown.lines().find(|line| line.ends_with(said)).unwrap();
        let mark = note.split(' ').next().unwrap();
        assert_eq!(shown.matches(mark).count(), 2, "{shown}");
    }

    #[test]
    fn a_host_says_what_of_its_harm_is_by_cycles_per_instruction() {
        let host = HostId::new("h").unwrap();
        let interval = |mean: f64| Reading::Value(HarmInterval::new(mean, mean - 1.0, mean + 1.0, 40).unwrap());
        let cpi = |foreground| Some(CpiHarm { foreground, workloads: Vec::new() });
        let mut harm = HostHarm { cpi: cpi(interval(2.0)), ..HostHarm::because(Reason::VolunteerNeverRan) };
        assert_eq!(host_harm(&host, &harm).lines().count(), 1, "a part of nothing");
        harm.foreground = interval(3.0);
        assert!(host_harm(&host, &harm).ends_with("\n  of that by cycles per instruction: 2.0 % ± 1.0 %"));
        harm.cpi = cpi(Reading::because(Reason::NoCounters));
        let said = "\n  cycles per instruction are not in it, because this machine has no such counters";
        assert!(host_harm(&host, &harm).contains(said), "{}", host_harm(&host, &harm));
    }

    #[test]
    fn a_host_says_whether_scheduling_points_are_forced_and_why() {
        let host = HostId::new("h").unwrap();
        let mut report = gleaner_test_support::report::report(&host, 1);
        let reason = "no scheduling points can be forced, although guard.scheduling_points is set: denied".to_owned();
        report.harm.scheduling_points = Some(SchedulingPoints { forced: false, reason: reason.clone() });
        assert!(host_harm(&host, &report.harm).ends_with(&format!("\non h {reason}")));
        let view = host_view(report);
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!(json["report"]["harm"]["scheduling_points"]["forced"], false);
        let shown = hosts(view);
        assert!(shown.lines().any(|line| line.ends_with(&format!("] {reason}"))), "{shown}");
    }
}
