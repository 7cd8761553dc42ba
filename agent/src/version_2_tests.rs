//! Runs the tests of this crate again on a booted host whose cgroups are of version 2, with a kernel and a disk of its
//! own.

use gleaner_test_support::lab;

/// Restoring of traffic limits in both directions. Few other kernels have policing, by which what a guest sends is held.
const LINKS: &str = "a_ceiling_on_a_link_is_put_back_in_both_directions";

#[test]
fn every_test_holds_on_a_version_2_host() {
    if !gleaner_test_support::beds::wanted("every_test_holds_on_a_version_2_host") {
        return;
    }
    if lab::inside() {
        return;
    }
    let Some(images) = lab::images("every_test_holds_on_a_version_2_host") else { return };
    // Without symbols it is a quarter the size, which the host's memory has to hold.
    let tests = lab::cache("agent-tests");
    let strip =
        std::process::Command::new("strip").arg("-o").arg(&tests).arg(std::env::current_exe().unwrap()).status();
    assert!(strip.unwrap().success());
    let output = lab::on_host(&images, &["-T", "300"], "kvm/agent-tests.sh", &[&tests]);
    let said = String::from_utf8_lossy(&output.stdout);
    let quoted = || lab::quoted(&output);
    assert!(output.status.success(), "{}\n{}", output.status, quoted());
    assert!(said.contains("act::tests::levers::memory_is_taken_in_steps_without_a_kill ... ok"), "{}", quoted());
    // It ran, as a whole: elsewhere it may be skipped.
    let skipped = format!("{}{LINKS}", gleaner_test_support::skip::MARK);
    let tried = said.contains(LINKS) && !said.contains(&skipped);
    assert!(tried, "restoring what guests send was not tried:\n{}", quoted());
    // Told once more, past the harness; on that host only what is of version 1 or of hardware may be skipped.
    for line in said.lines() {
        if let Some((_, skip)) = line.split_once(gleaner_test_support::skip::MARK) {
            gleaner_test_support::skipped!("on the version 2 host: {skip}");
        }
    }
    println!("on the version 2 host: {}", said.lines().last().unwrap_or_default());
}
