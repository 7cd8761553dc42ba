//! `gleaner calibrate power`. In: samples of power, from a file or from RAPL. Out: a power model fitted to them. Called
//! by [`super`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gleaner_daemon::output::note;
use gleaner_planner::power::{PowerSample, fit};
use gleaner_types::text::counted;

use crate::args::CalibrateCommand;
use crate::documents::print;
use crate::exit::End;
use crate::format;

/// Where the kernel shows the energy of CPU packages.
const RAPL: &str = "/sys/class/powercap";
/// Most lines of a file of samples.
const MOST_SAMPLES: usize = 100_000;

pub(super) fn run(command: &CalibrateCommand, json: bool) -> anyhow::Result<End> {
    let CalibrateCommand::Power { samples, seconds } = command;
    let samples = match samples {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
            parse(&text).with_context(|| format!("{} is no file of samples", path.display()))?
        }
        None => measure(Path::new(RAPL), Duration::from_secs(*seconds), json)?,
    };
    let fitted = fit(&samples)?;
    if json {
        print(&serde_json::to_string(&serde_json::json!({ "fit": fitted, "samples": samples }))?)?;
        return Ok(End::Good);
    }
    let rows: Vec<Vec<String>> = samples
        .iter()
        .take(40)
        .map(|sample| {
            let ghz = sample.ghz.map_or_else(|| "-".into(), |ghz| format!("{ghz:.2}"));
            let model = fitted.model.watts_at(sample.utilisation, sample.ghz.unwrap_or(fitted.model.base_ghz));
            vec![
                format!("{:.0} %", sample.utilisation * 100.0),
                ghz,
                format!("{:.1} W", sample.watts),
                format!("{model:.1} W"),
            ]
        })
        .collect();
    print(&format::table(&["UTILISATION", "GHZ", "MEASURED", "MODEL"], &rows))?;
    print(&format!("off by {:.2} W in the mean square over {} samples", fitted.error_w, fitted.samples))?;
    print(&format!("model: {}", serde_json::to_string(&fitted.model)?))?;
    Ok(End::Good)
}

/// Lines `utilisation,ghz,watts`; blank ones, comments and a heading are skipped.
fn parse(text: &str) -> anyhow::Result<Vec<PowerSample>> {
    let mut samples = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || (index == 0 && line.starts_with(char::is_alphabetic)) {
            continue;
        }
        ensure!(samples.len() < MOST_SAMPLES, "more than {MOST_SAMPLES} samples");
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let &[utilisation, ghz, watts] = fields.as_slice() else {
            bail!("line {}: {line:?} is not utilisation,ghz,watts", index + 1);
        };
        let number = |name: &str, text: &str| {
            let value: f64 = text.parse().with_context(|| format!("line {}: {name}: {text:?}", index + 1))?;
            ensure!(value.is_finite(), "line {}: {name}: {text:?} is not finite", index + 1);
            Ok(value)
        };
        let ghz = if ghz.is_empty() { None } else { Some(number("ghz", ghz)?) };
        samples.push(PowerSample {
            utilisation: number("utilisation", utilisation)?,
            ghz,
            watts: number("watts", watts)?,
        });
    }
    Ok(samples)
}

/// Counters of energy of whole packages, in microjoules.
fn packages(powercap: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(powercap).into_iter().flatten().flatten();
    let zones = entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // `intel-rapl:0` is a package; `intel-rapl:0:1` a part of one.
        name.starts_with("intel-rapl:") && name.matches(':').count() == 1
    });
    zones.map(|zone| zone.join("energy_uj")).filter(|file| std::fs::read_to_string(file).is_ok()).collect()
}

fn joules(packages: &[PathBuf]) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for file in packages {
        let text = std::fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
        let micro: f64 = text.trim().parse().with_context(|| format!("{}: {text:?}", file.display()))?;
        sum += micro / 1e6;
    }
    Ok(sum)
}

/// Clock of the CPUs in GHz, where the kernel shows it.
fn clock_ghz() -> Option<f64> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").ok()?;
    text.trim().parse::<f64>().ok().map(|khz| khz / 1e6)
}

/// Loads the CPUs in steps and reads the energy of each.
fn measure(powercap: &Path, step: Duration, quiet: bool) -> anyhow::Result<Vec<PowerSample>> {
    let packages = packages(powercap);
    ensure!(
        !packages.is_empty(),
        "no package energy counter (RAPL) is readable in {}; measure with a meter and give the samples with --samples \
         FILE, or run as root on hardware that has one",
        powercap.display()
    );
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut samples = Vec::new();
    for tenth in 0..=10_u32 {
        let utilisation = f64::from(tenth) / 10.0;
        if !quiet {
            let cpus = counted(cpus, "CPU");
            note(format_args!("{:.0} % of {cpus} for {:.0} s", utilisation * 100.0, step.as_secs_f64()));
        }
        let stop = AtomicBool::new(false);
        let sample = std::thread::scope(|scope| {
            for _ in 0..cpus {
                scope.spawn(|| load(utilisation, &stop));
            }
            std::thread::sleep(Duration::from_millis(500));
            let (before, start) = (joules(&packages), Instant::now());
            std::thread::sleep(step);
            let (after, elapsed, ghz) = (joules(&packages), start.elapsed(), clock_ghz());
            stop.store(true, Ordering::Relaxed);
            anyhow::Ok((after? - before?, elapsed, ghz))
        });
        let (energy, elapsed, ghz) = sample?;
        // The counter of one package wraps now and then; that step is lost.
        if energy > 0.0 {
            samples.push(PowerSample { utilisation, ghz, watts: energy / elapsed.as_secs_f64() });
        }
    }
    Ok(samples)
}

/// Busy for a part of every 10 ms.
fn load(utilisation: f64, stop: &AtomicBool) {
    const PERIOD: Duration = Duration::from_millis(10);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        while start.elapsed() < PERIOD.mul_f64(utilisation) {
            std::hint::spin_loop();
        }
        std::thread::sleep(PERIOD.saturating_sub(start.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_mistakes_named() {
        let samples = parse("utilisation,ghz,watts\n# a comment\n0,,90\n0.5, 2.1 ,110\n1,2.1,130\n").unwrap();
        assert_eq!(samples.len(), 3);
        assert_eq!((samples[0].ghz, samples[1].ghz), (None, Some(2.1)));
        for (text, part) in [("0,1", "line 1"), ("0,,x", "watts"), ("nan,,1", "utilisation"), ("0,y,1", "ghz")] {
            let said = format!("{:#}", parse(&format!("\n{text}")).unwrap_err());
            assert!(said.contains(part.replace("line 1", "line 2").as_str()), "{said}");
        }
    }

    #[test]
    fn a_machine_without_rapl_gets_advice() {
        let folder = tempfile::tempdir().unwrap();
        let said = measure(folder.path(), Duration::from_millis(1), true).unwrap_err().to_string();
        assert!(said.contains("--samples"), "{said}");
    }

    #[test]
    fn packages_are_distinguished_from_their_parts() {
        let folder = tempfile::tempdir().unwrap();
        for zone in ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl:1", "dtpm"] {
            std::fs::create_dir(folder.path().join(zone)).unwrap();
            std::fs::write(folder.path().join(zone).join("energy_uj"), "5000000\n").unwrap();
        }
        let found = packages(folder.path());
        assert_eq!(found.len(), 2);
        assert!((joules(&found).unwrap() - 10.0).abs() < 1e-9);
    }
}
