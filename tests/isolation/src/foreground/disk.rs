//! Records of 8 KiB, each written and synced: what a database's log does. In: the setup. Out: seats for
//! [`super::load`]. Called by [`super`].

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::Context;

use super::load::{Schedule, Seat};
use super::setup::Setup;

/// Size of a record.
const RECORD: usize = 8 << 10;
/// Records in the file before it is written again from its start.
const RECORDS: u64 = 1_024;
/// Time between the end of one and the start of the next.
const THINK: Duration = Duration::from_millis(5);

pub(super) fn seats(setup: &Setup) -> anyhow::Result<Vec<Seat>> {
    std::fs::create_dir_all(&setup.scratch)?;
    // A new file each time: what a full file system refuses is a failure of this foreground.
    let path = setup.scratch.join("records");
    let file = File::create(&path).with_context(|| format!("failed to make {}", path.display()))?;
    let (record, mut number) = (vec![0x42; RECORD], 0_u64);
    let request = move || {
        let at = (number % RECORDS) * RECORD as u64;
        number += 1;
        file.write_all_at(&record, at).and_then(|()| file.sync_data()).is_ok()
    };
    Ok(vec![Seat { schedule: Schedule::Think(THINK), request: Box::new(request) }])
}
