//! The sets of hosts that forecasts are judged on. In: a folder of traces, if there is one, and a seed. Out: hosts by sets, each
//! at the pace it was recorded. Called by [`super`].
//!
//! The constants of the default method were chosen on one half of the Google, PlanetLab and service series (by a hash of
//! their names); only the other half is judged here. Nothing was chosen on the generated sessions, the data centres, or a
//! user's own files: all of these are judged.

use std::path::Path;

use gleaner_simulator::foreground::{Session, SessionTrace};
use gleaner_simulator::traces::TraceError;
use gleaner_simulator::traces::hosts::{self, HostSeries};

/// Generated hosts, and for how long one session runs on them before the next user comes, in seconds.
const GENERATED: u64 = 6;
const SESSION_S: usize = 7_200;
const SESSIONS: u64 = 12;

/// What of a lookahead a promise must hold for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// CPU: its mean over the lookahead.
    Cpu,
    /// Memory: its largest value within the lookahead.
    Memory,
}

/// Hosts that are judged together.
#[derive(Debug, Clone, PartialEq)]
pub struct HostSet {
    /// Name for tables.
    pub name: &'static str,
    /// What the series are of.
    pub resource: Resource,
    /// The hosts.
    pub hosts: Vec<HostSeries>,
    /// They were recorded.
    pub recorded: bool,
}

/// All sets there are: generated ones always, recorded ones where the folder has them.
///
/// # Errors
/// [`TraceError`] for a trace that is there and cannot be read.
pub fn sets(folder: Option<&Path>, seed: u64) -> Result<Vec<HostSet>, TraceError> {
    let set = |name, resource, hosts, recorded| HostSet { name, resource, hosts, recorded };
    let mut all =
        vec![set("generated sessions", Resource::Cpu, (0..GENERATED).map(|n| generated(seed, n)).collect(), false)];
    let Some(folder) = folder else { return Ok(all) };
    type Load = fn(&Path) -> Result<Vec<HostSeries>, TraceError>;
    let known: [(&str, &str, Resource, bool, Load); 5] = [
        ("google-vm-cpu-mem", "Google CPU", Resource::Cpu, true, hosts::google_cpu),
        ("google-vm-cpu-mem", "Google memory", Resource::Memory, true, hosts::google_memory),
        ("planetlab", "PlanetLab", Resource::Cpu, true, hosts::planetlab_hosts),
        ("crane-dsp", "diurnal services", Resource::Cpu, true, hosts::services),
        ("dc-aggregates", "data centres", Resource::Cpu, false, hosts::data_centres),
    ];
    for (subfolder, name, resource, halved, load) in known {
        if folder.join(subfolder).is_dir() {
            let mut found = load(folder)?;
            found.retain(|host| !halved || held_out(&host.name));
            all.push(set(name, resource, found, true));
        }
    }
    let own = hosts::own(folder)?;
    if !own.is_empty() {
        all.push(set("own traces", Resource::Cpu, own, true));
    }
    Ok(all)
}

/// A day of sessions after one another, second by second.
fn generated(seed: u64, number: u64) -> HostSeries {
    let kinds = (0..).zip(Session::ALL.into_iter().cycle()).skip_while(|(place, _)| *place < number);
    let mut values = Vec::new();
    for (session, (_, kind)) in (0..SESSIONS).zip(kinds) {
        values.extend(SessionTrace::new(kind, seed + number * SESSIONS + session).take(SESSION_S));
    }
    HostSeries { name: format!("sessions {number}"), step_s: 1.0, values }
}

/// Nothing was tuned on this series: half of the names, by their 64-bit FNV-1a hash.
fn held_out(name: &str) -> bool {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash >> 32) % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_folder_there_are_generated_hosts_of_a_day() {
        let found = sets(None, 3).unwrap();
        assert_eq!((found.len(), found[0].hosts.len(), found[0].hosts[0].values.len()), (1, 6, 86_400));
        assert_eq!(sets(None, 3).unwrap(), found);
        assert_ne!(sets(None, 4).unwrap(), found);
    }

    #[test]
    fn the_halves_are_fixed() {
        assert_eq!(
            ["crane input0.csv.gz", "crane input2.csv.gz", "crane input10.csv.gz"].map(held_out),
            [true, false, false]
        );
    }
}
