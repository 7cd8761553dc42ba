//! A volunteer that is a real guest, and floods: its ceiling is at its tap. Takes a kernel with policing, which the hosts of the
//! lab have.

use gleaner_test_support::lab;

use super::*;
use crate::act::{VolunteerChoice, restore_state_dir};
use crate::hierarchies::Hierarchies;

/// What a guest's guest can fill, emulated twice.
const SLOW_MBIT: f64 = 2.0;
/// Frames a second, of 1,042 bytes: more than the link takes. Each is answered, so as many come back.
const FRAMES: &str = "500";
/// Whom the guest sends to, by the script that makes it, and its own address.
const SENDS_TO: &str = "169.254.255.253";
const SENDS_FROM: &str = "169.254.1.1";

/// A guest behind a tap of its own, whose packets this host forwards over the bed's link.
struct Guest {
    folder: tempfile::TempDir,
    name: String,
    tap: String,
    qemu: Running,
}

impl Guest {
    fn start(images: &Path, bed: &Bed) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let id = std::process::id();
        let (name, tap, group) = (format!("gleaner-guest-{id}"), format!("glt{id}"), format!("gleaner-lab-{id}/guest"));
        let (peers, host) = (&bed.name, &bed.host);
        let gateway = format!("{}1", bed.peer.strip_suffix('2').unwrap());
        for command in [
            format!("ip tuntap add {tap} mode tap"),
            format!("ip link set {tap} address 02:00:00:00:00:fd up"),
            "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0"
                .to_owned(),
            format!("ip route add {SENDS_FROM}/32 dev {tap}"),
            format!("ip route add {SENDS_TO}/32 via {} dev {host}", bed.peer),
            format!("ip -n {peers} link set lo up"),
            format!("ip -n {peers} addr add {SENDS_TO}/32 dev lo"),
            format!("ip -n {peers} route add {SENDS_FROM}/32 via {gateway}"),
        ] {
            run(&command).unwrap();
        }
        let script = std::env::var_os("GLEANER_LAB_IMAGES")
            .map_or_else(|| lab::script("kvm/guest.sh"), |inside| Path::new(&inside).join("guest.sh"));
        let mut command = Command::new(script);
        command.arg(images).arg(folder.path()).arg(&name);
        // On one CPU: a guest that an emulated CPU's virtualisation runs hangs now and then when it is moved.
        command.args(["-t", &tap, "-S", FRAMES, "-m", "96", "-u", "0", "-g", &group]);
        let accel = if lab::inside() && Path::new("/dev/kvm").exists() { "kvm" } else { "tcg" };
        command.args(["-a", accel]).stdin(Stdio::null()).stdout(Stdio::null());
        Self { folder, name, tap, qemu: Running(command.spawn().unwrap()) }
    }

    fn console(&self, file: &str) -> String {
        let text = std::fs::read(self.folder.path().join(&self.name).join(file)).unwrap_or_default();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The queues on its tap, as the kernel tells another program.
    fn queues(&self) -> String {
        let tc = |arguments: &[&str]| {
            let output = Command::new("tc").args(arguments).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let tap = self.tap.as_str();
        tc(&["-s", "qdisc", "show", "dev", tap]) + &tc(&["-s", "filter", "show", "dev", tap, "ingress"])
    }

    /// Packets that policing dropped since the filter was last written.
    fn is_policed(&self) -> bool {
        let queues = self.queues();
        let dropped =
            queues.split("dropped ").skip(1).filter_map(|rest| rest.split([',', ')']).next()?.parse::<u64>().ok());
        queues.contains("police") && dropped.sum::<u64>() > 0
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        _ = self.qemu.0.kill();
        _ = self.qemu.0.wait();
        _ = run(&format!("ip link del {}", self.tap));
        let group = format!("gleaner-lab-{}", std::process::id());
        let script =
            format!("find /sys/fs/cgroup -depth -type d -path '*/{group}*' -exec rmdir {{}} + 2>/dev/null; true");
        _ = Command::new("sh").args(["-c", &script]).status();
    }
}

fn settings(state: &Path, guest: &str, links: LinkChoice) -> ActSettings {
    ActSettings {
        acting: true,
        volunteer: VolunteerChoice::Guest,
        volunteer_name: guest.to_owned(),
        links,
        ..ActSettings::observing(state.to_owned())
    }
}

/// Not a test of its own: an agent's acting part, which runs its volunteer until it is killed.
#[test]
fn an_agent_of_a_guest() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let [state, guest, link]: [&str; 3] = role.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let links = LinkChoice { names: vec![link.to_owned()], capacity: Some(of_mbit(SLOW_MBIT)) };
    let hierarchies = Hierarchies::of_this_machine();
    let mut actor = Actor::open(settings(Path::new(state), guest, links), &hierarchies).unwrap().0;
    println!("weaknesses: {:?}", actor.levers().weaknesses);
    let command = gleaner_types::command::Command {
        target: Target::Volunteer,
        version: Version { epoch: 1, number: 1 },
        lease_ms: 600_000,
        desired: Desired::Run { cap: Quota::Unlimited },
    };
    println!("acting: {:?}", actor.apply(&command, Timestamp(1_000_000)).outcome);
    for second in 1.. {
        for event in actor.tick(Timestamp(1_000_000 + second)) {
            println!("event: {event:?}");
        }
        println!("status: {:?}", actor.network_status());
        thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_flooding_guest_is_held_at_its_tap() {
    const TEST: &str = "a_flooding_guest_is_held_at_its_tap";
    if !gleaner_test_support::beds::wanted(TEST) {
        return;
    }
    if !gleaner_test_support::guest::has_qemu() {
        gleaner_test_support::skipped!("{TEST}: qemu-system-x86_64 is not installed");
        return;
    }
    if let Err(error) = netlink::probe(Direction::Transmit) {
        gleaner_test_support::skipped!("{TEST}: this kernel has no policing: {error}");
        return;
    }
    let Some(images) = lab::images(TEST) else { return };
    let Some(bed) = Bed::open(TEST, SLOW_MBIT) else { return };
    let second = Duration::from_secs(1);
    let alone = bed.echo(2 * second);
    let guest = Guest::start(&images, &bed);
    eventually("the guest is up", || guest.console("console").contains("LAB-READY"));
    eventually("the flood", || bed.rate() > 1.2 * SLOW_MBIT);
    let beside = bed.echo(3 * second);
    let found = guest.queues();

    let state = tempfile::tempdir().unwrap();
    let role = format!("{} {} {}", state.path().display(), guest.name, bed.host);
    let mut agent = program("guests::an_agent_of_a_guest", &role, &[]).spawn().unwrap();
    let said = BufReader::new(agent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let reader = thread::spawn(move || said.inspect(|line| println!("the agent: {line}")).collect::<Vec<_>>());
    let agent = Running(agent);
    // What was queued is gone, and the echo is seen.
    eventually("a ceiling that bites", || {
        bed.echo(second);
        guest.is_policed()
    });
    let held = bed.echo(5 * second);
    // The echo is over, and still nearly all there is.
    let crossing = bed.rate();
    eventually("use of a link that nobody else uses", || bed.rate() > 0.5 * SLOW_MBIT);
    bed.echo(2 * second);
    let again = bed.echo(3 * second);
    let queues = guest.queues();
    assert!(queues.contains("qdisc tbf 676c:") && queues.contains("police"), "both directions: {queues}");

    // What `kill -9` leaves is put back by whoever comes next.
    drop(agent);
    let said = reader.join().unwrap();
    assert!(said.iter().any(|line| line.contains("acting: Applied")), "{said:?}");
    assert!(!said.iter().any(|line| line.contains("weaknesses") && line.contains("network")), "{said:?}");
    assert!(guest.queues().contains("police"), "the queues outlive the agent");
    let report = restore_state_dir(state.path()).unwrap();
    assert!(report.failed.is_empty() && report.foreign.is_empty(), "{report:?}");
    let names =
        |queues: &str| queues.lines().filter(|line| !line.starts_with(' ')).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(names(&guest.queues()), names(&found));
    eventually("the flood without a ceiling", || bed.rate() > 1.2 * SLOW_MBIT);
    eprintln!(
        "median echo alone {alone:?}, beside the guest's flood {beside:?}, held {held:?} ({crossing:.1} of {SLOW_MBIT} Mbit/s \
         each way crossed, just after), and again {again:?} after the link was idle"
    );
    assert!(3 * held < beside && 3 * again < beside, "{held:?} and {again:?} of {beside:?}");
}

#[test]
fn a_flooding_guest_is_held_in_a_booted_host() {
    const TEST: &str = "a_flooding_guest_is_held_in_a_booted_host";
    if !gleaner_test_support::beds::wanted(TEST) || lab::inside() {
        return;
    }
    let Some(images) = lab::images(TEST) else { return };
    let _alone = lab::alone();
    let tests = lab::stripped("agent-tests-of-guests", &std::env::current_exe().unwrap());
    let output = lab::on_host(&images, &["-q", "-m", "768", "-T", "240"], "kvm/guest-volunteer.sh", &[&tests]);
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("median echo alone"), "it was skipped");
}
