//! Carries out a plan. In: ordered steps. Out: levers written and read back, or, after a failure, all steps undone and
//! an error. It decides nothing. Called by the actor for every limit, and by restoring.

use super::plan::Step;
use crate::levers::LeverError;

/// A step failed; those before it were undone.
#[derive(Debug, thiserror::Error)]
#[error("{cause}{}", undo_text(.not_undone))]
pub struct ExecuteError {
    /// Why the step failed.
    #[source]
    pub cause: LeverError,
    /// Steps that could not be undone, and why.
    pub not_undone: Vec<(Step, LeverError)>,
}

impl ExecuteError {
    /// In one line, with what the kernel or hypervisor said.
    #[must_use]
    pub fn in_full(&self) -> String {
        format!("{}{}", gleaner_types::error::Chain(&self.cause), undo_text(&self.not_undone))
    }
}

fn undo_text(not_undone: &[(Step, LeverError)]) -> String {
    not_undone.iter().map(|(_, error)| format!("; going back failed too: {error}")).collect()
}

/// Does the steps in order and reads each back.
///
/// # Errors
/// [`ExecuteError`] when one fails. It and those before it are undone, the last first.
pub fn execute(steps: &[Step]) -> Result<(), ExecuteError> {
    for (done, step) in steps.iter().enumerate() {
        if let Err(cause) = step.lever.set(step.to.clone()) {
            // The failed one too: it may have been written and not kept.
            let undo = steps.iter().take(done + 1).rev();
            let not_undone =
                undo.filter_map(|step| step.lever.undo(&step.from).err().map(|error| (step.clone(), error))).collect();
            return Err(ExecuteError { cause, not_undone });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::hierarchies::CgroupVersion;
    use crate::levers::{AnyLever, CgroupFile, Fault, LeverValue};

    fn group(weight: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cpu.weight"), weight).unwrap();
        dir
    }

    fn weigh(dir: &Path, from: u64, to: u64) -> Step {
        let lever = AnyLever::new(dir, CgroupVersion::V2, CgroupFile::Weight);
        Step { lever, from: LeverValue::Weight(from), to: LeverValue::Weight(to) }
    }

    #[test]
    fn sets_all() {
        let (a, b) = (group("100\n"), group("100\n"));
        execute(&[weigh(a.path(), 100, 7), weigh(b.path(), 100, 8)]).unwrap();
        assert_eq!(fs::read_to_string(a.path().join("cpu.weight")).unwrap(), "7");
        assert_eq!(fs::read_to_string(b.path().join("cpu.weight")).unwrap(), "8");
    }

    #[test]
    fn goes_back_when_a_step_fails() {
        let a = group("100\n");
        let gone = a.path().join("gone");
        let error = execute(&[weigh(a.path(), 100, 7), weigh(&gone, 100, 8)]).unwrap_err();
        assert_eq!(error.cause.fault(), Fault::Absent);
        assert_eq!(fs::read_to_string(a.path().join("cpu.weight")).unwrap(), "100");
        assert_eq!(error.not_undone.len(), 1, "the vanished one has nothing to go back to, and that is said");
        assert!(error.to_string().contains("going back failed too"), "{error}");
    }

    #[test]
    fn a_value_the_kernel_does_not_keep_is_a_failure() {
        // A write to /dev/null is taken and kept nowhere; a link to it stands for a lever that lies.
        let a = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/null", a.path().join("cpu.weight")).unwrap();
        let error = execute(&[weigh(a.path(), 100, 7)]).unwrap_err();
        assert!(!error.not_undone.is_empty());
    }
}
