//! Grants are amounts: what else is applied or removed, a host that comes back another size, a disk whose capacity becomes
//! known and an upgrade change no limit by themselves.

use gleaner_types::application::{Amount, BalanceDecision, Resource};
use gleaner_types::units::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::controller::DiskCapacities;

/// Limits in force on the CPU, in percent of a core, and on the disk, in MB/s.
fn held(services: &Services) -> (f64, f64) {
    (services.limits["shop"], services.disks["shop"])
}

fn decision(services: &Services) -> BalanceDecision {
    services.bench.controller.application(&name("shop")).unwrap().decision.clone().unwrap()
}

fn with_disk(text: &str, floor: f64, ceiling: f64) -> ApplicationSpec {
    let mut spec = application(text, 200.0);
    spec.tiers[0].disk_mb_s = Some(Bounds { floor, ceiling });
    spec
}

fn capacities(entries: &[&str]) -> DiskCapacities {
    DiskCapacities::from_entries(&entries.iter().map(|entry| (*entry).to_owned()).collect::<Vec<_>>()).unwrap()
}

fn configure(services: &mut Services, disks: &[&str]) {
    let settings = Settings { disks: capacities(disks), ..services.bench.controller.settings().clone() };
    services.bench.controller.set_settings(settings);
}

/// A shop with a disk share, between two decisions.
fn shop(disks: &[&str]) -> Services {
    let mut services = Services::new(&[("shop", 100.0), ("big", 50.0)], 400.0);
    configure(&mut services, disks);
    services.send(Input::ApplicationRemoved { application: name("big") });
    services.send(Input::ApplicationApplied(Box::new(with_disk("shop", 2.0, 50.0))));
    services.seconds(30 * 10 + 5);
    assert!(held(&services).1 < 50.0, "it moves: {:?}", services.disks);
    services
}

/// A disk share was a part of the largest ceiling on its host, so that a neighbour's changed everybody's limit.
#[test]
fn applying_and_removing_an_application_leaves_its_neighbours_limits() {
    for disks in [&[][..], &["h1=80"]] {
        let mut services = shop(disks);
        let (before, learned) = (held(&services), decision(&services));
        services.send(Input::ApplicationApplied(Box::new(with_disk("big", 2.0, 500.0))));
        services.seconds(5);
        assert_eq!(held(&services), before, "{disks:?}: another is applied");
        services.seconds(30);
        let after = decision(&services);
        assert!(after.rows > learned.rows && after.shares[1].whole == learned.shares[1].whole, "{after:?}");
        let before = held(&services);
        services.send(Input::ApplicationRemoved { application: name("big") });
        services.seconds(5);
        assert_eq!(held(&services), before, "{disks:?}: another is removed");
    }
}

/// The CPU waits while the disk is the bottleneck: relief looked at the CPU alone.
#[test]
fn a_surge_that_first_fills_the_disk_is_relieved_within_seconds() {
    let mut services = shop(&["h1=200"]);
    services.disk_needs.insert("shop", 10.0);
    services.seconds(30 * 30);
    let before = held(&services);
    assert!(before.1 < 20.0 && services.mean_ms("shop") < 125.0, "{before:?}, {} ms", services.mean_ms("shop"));
    services.events.clear();
    services.disk_needs.insert("shop", 45.0);
    services.seconds(8);
    let relieved = |event: &&Event| matches!(event, Event::SurgeRelieved { .. });
    assert_eq!(services.events.iter().filter(relieved).count(), 1);
    assert!(held(&services).1 > 49.0, "up to its ceiling: {:?}", held(&services));
    // What was answered in that interval had waited before: it says nothing of the larger shares, and the next one does.
    let number = decision(&services).number;
    let next = |services: &mut Services, number: u32| {
        while decision(services).number == number {
            services.seconds(1);
        }
        decision(services).error
    };
    assert_eq!(next(&mut services, number), None);
    assert!(next(&mut services, number + 1).is_some());
}

#[test]
fn a_disk_whose_capacity_becomes_known_keeps_its_limit_and_what_was_learned() {
    let (mut told, mut untold) = (shop(&[]), shop(&[]));
    configure(&mut told, &["h1=200"]);
    told.seconds(1);
    assert_eq!(held(&told), held(&untold));
    told.seconds(29);
    untold.seconds(30);
    let (told, untold) = (decision(&told), decision(&untold));
    assert_eq!(told.shares[1].whole, Some(Amount::of(Resource::Disk, 200.0)));
    assert_eq!(untold.shares[1].whole, Some(Amount::of(Resource::Disk, 50.0)));
    assert_eq!(told.rows, untold.rows);
    assert!((told.shares[1].present * 4.0 - untold.shares[1].present).abs() < 1e-9, "{told:?}, {untold:?}");
    let (told, untold) = (told.predicted.unwrap(), untold.predicted.unwrap());
    assert!((told / untold - 1.0).abs() < 0.1, "{told} and {untold} are expected");
}

/// With twice the cores it is held where it was, and with half of them it fits.
#[test]
fn a_host_that_comes_back_another_size() {
    for cores in [8, 2] {
        let mut services = Services::new(&[("shop", 100.0)], 400.0);
        services.seconds(30 * 30 + 5);
        let before = services.limits["shop"];
        let mut facts = services.bench.controller.hosts()[0].facts.clone();
        facts.cores = cores;
        services.send(Input::HostJoined { host: id(), incarnation: 2, facts: Box::new(facts) });
        services.seconds(10);
        let expected = before * f64::from(cores.min(4)) / 4.0;
        assert!((services.limits["shop"] - expected).abs() < 1e-9, "{:?} from {before}", services.limits);
        services.seconds(30 * 20);
        assert!((services.limits["shop"] / before - 1.0).abs() < 0.15, "{:?} from {before}", services.limits);
    }
}

fn join(services: &mut Services, incarnation: u64, cores: u32) {
    let mut facts = services.bench.controller.hosts()[0].facts.clone();
    facts.cores = cores;
    services.send(Input::HostJoined { host: id(), incarnation, facts: Box::new(facts) });
}

/// The first decision after each change restores what it had, as far as the host has it.
#[test]
fn a_host_that_comes_back_another_size_and_then_its_own_leaves_what_there_was() {
    for (cores, is_silent) in [(8, false), (8, true), (2, false), (2, true), (1, true), (0, true), (0, false)] {
        let mut services = Services::new(&[("shop", 200.0)], 400.0);
        services.seconds(30 * 30 + 5);
        let before = services.limits["shop"];
        services.silent = is_silent;
        join(&mut services, 2, cores);
        services.seconds(30);
        join(&mut services, 3, 4);
        services.seconds(30);
        let after = services.limits["shop"];
        assert!((after / before - 1.0).abs() < 0.06, "{cores}, {is_silent}: {after} from {before}");
    }
}

/// A host that says it has next to no memory is not believed, and what is on it is controlled as before.
#[test]
fn a_size_that_cannot_be_is_not_believed() {
    let mut services = Services::new(&[("shop", 200.0)], 400.0);
    let mut spec = application("shop", 400.0);
    spec.tiers[0].memory_mib = Some(Bounds { floor: 1.0, ceiling: 4096.0 });
    services.send(Input::ApplicationApplied(Box::new(spec)));
    services.seconds(30 * 10 + 5);
    let (before, whole) = (services.limits["shop"], decision(&services).shares[1].whole);
    let mut facts = services.bench.controller.hosts()[0].facts.clone();
    facts.memory = Bytes(1);
    services.send(Input::HostJoined { host: id(), incarnation: 2, facts: Box::new(facts) });
    services.seconds(30 * 4);
    let after = decision(&services);
    assert!(after.error.is_some() && after.shares[1].whole == whole, "{after:?}");
    assert!((services.limits["shop"] / before - 1.0).abs() < 0.1, "{:?} from {before}", services.limits);
}

/// What a disk is limited to while its capacity is a tenth of what it was, and after.
#[test]
fn a_capacity_that_was_wrong_for_a_while_leaves_what_there_was() {
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    configure(&mut services, &["h1=450"]);
    services.send(Input::ApplicationApplied(Box::new(with_disk("shop", 2.0, 400.0))));
    services.seconds(30 * 4 + 5);
    let before = services.disks["shop"];
    assert!(before > 50.0, "{before}");
    services.silent = true;
    configure(&mut services, &["h1=45"]);
    services.seconds(30 * 2);
    assert!(services.disks["shop"] < 45.1, "{:?}", services.disks);
    configure(&mut services, &["h1=450"]);
    services.seconds(30 * 2);
    assert!((services.disks["shop"] / before - 1.0).abs() < 1e-6, "{:?} from {before}", services.disks);
}

/// Two that may have 50 MB/s each are cut where the disk gives 60, and not where nobody says what it gives.
#[test]
fn a_disk_is_divided_where_its_capacity_is_known() {
    for (disks, floor, most) in [(&["h1=60"][..], 2.0, 60.0), (&["h1=60"], 40.0, 80.0), (&[], 2.0, 100.0)] {
        let mut services = Services::new(&[("a", 900.0), ("b", 900.0)], 200.0);
        configure(&mut services, disks);
        for service in ["a", "b"] {
            services.send(Input::ApplicationApplied(Box::new(with_disk(service, floor, 50.0))));
        }
        services.seconds(32);
        let all: f64 = services.disks.values().sum();
        assert!((all - most).abs() < 1.0, "{all} MB/s of {disks:?}");
        assert!(services.disks.values().all(|limit| *limit > floor - 1e-6), "floors hold: {:?}", services.disks);
    }
    // A floor above the capacity: the operator's word counts.
    let mut services = Services::new(&[("shop", 100.0)], 400.0);
    configure(&mut services, &["h1=30"]);
    services.send(Input::ApplicationApplied(Box::new(with_disk("shop", 40.0, 50.0))));
    services.seconds(65);
    assert!((services.disks["shop"] - 40.0).abs() < 1e-6, "{:?}", services.disks);
}

#[test]
fn capacities_that_are_none_are_refused() {
    for wrong in ["h1", "h1=", "=4", "h1=0", "h1=-1", "h1=NaN", "h1=1e9"] {
        assert!(DiskCapacities::from_entries(&[wrong.to_owned()]).is_err(), "{wrong}");
    }
    assert!(DiskCapacities::from_entries(&["h1=1".to_owned(), "h1=2".to_owned()]).is_err());
}

/// The state of an older release, which stored parts only: those of a disk were of the largest ceiling on the host.
fn older(controller: &Controller, disk_was_of: f64) -> Controller {
    let mut state = serde_json::to_value(controller).unwrap();
    let managed = &mut state["applications"]["managed"]["shop"];
    for share in managed["shares"].as_array_mut().unwrap() {
        share.as_object_mut().unwrap().remove("whole").unwrap();
    }
    let scale = |part: &mut Value| *part = json!(part.as_f64().unwrap() * 50.0 / disk_was_of);
    ["requested", "granted"].iter().for_each(|key| scale(&mut managed["shares"][1][*key]));
    let balance = &mut managed["control"]["Balance"];
    scale(&mut balance["averages"][1]);
    balance["model"]["samples"].as_array_mut().unwrap().iter_mut().for_each(|sample| scale(&mut sample["shares"][1]));
    for own in balance["model"]["conditions"].as_object_mut().unwrap().values_mut() {
        // The gains follow one past value.
        let gain = &mut own["values"][2];
        *gain = json!(gain.as_f64().unwrap() * disk_was_of / 50.0);
    }
    serde_json::from_value(state).unwrap()
}

#[test]
fn an_upgrade_changes_no_limit() {
    let course = |is_older: bool| {
        let mut services = shop(&[]);
        services.send(Input::ApplicationApplied(Box::new(with_disk("big", 2.0, 500.0))));
        services.seconds(30 * 2);
        let before = held(&services);
        if is_older {
            services.bench.controller = older(&services.bench.controller, 500.0);
        }
        let facts = services.bench.controller.hosts()[0].facts.clone();
        services.send(Input::Resumed);
        services.send(Input::HostJoined { host: id(), incarnation: 1, facts: Box::new(facts) });
        services.seconds(10);
        let after = held(&services);
        assert!((after.0 - before.0).abs() < 1e-6 && (after.1 - before.1).abs() < 1e-6, "{before:?} to {after:?}");
        services.seconds(30 * 3);
        held(&services)
    };
    let (older, newer) = (course(true), course(false));
    assert!((older.0 - newer.0).abs() < 1e-6 && (older.1 - newer.1).abs() < 1e-6, "{older:?}, {newer:?}");
    assert!(newer.1 < 49.0, "{newer:?}");
}
