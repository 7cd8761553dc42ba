//! Device-mapper's ioctl interface (`linux/dm-ioctl.h`), as far as dm-ioband needs it. In: a device's name. Out: the
//! targets that exist, answers to messages, and the status of its table. Called by the ioband lever and by its table.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;

/// Interface version 4.0.0, which every kernel with device-mapper accepts.
const VERSION: [u32; 3] = [4, 0, 0];
const LIST_VERSIONS: u32 = 13;
const TABLE_STATUS: u32 = 12;
const TARGET_MESSAGE: u32 = 14;

const STATUS_TABLE_FLAG: u32 = 1 << 4;
const BUFFER_FULL_FLAG: u32 = 1 << 8;

/// `sizeof(struct dm_ioctl)` and where its fields are.
const HEADER: usize = 312;
const DATA_SIZE: usize = 12;
const DATA_START: usize = 16;
const TARGET_COUNT: usize = 20;
const FLAGS: usize = 28;
const NAME: usize = 48;
const NAME_LENGTH: usize = 128;
/// `sizeof(struct dm_target_spec)` without its parameters.
const TARGET: usize = 40;
const BUFFER: usize = 16 << 10;

/// The control device.
#[derive(Debug)]
pub(crate) struct DeviceMapper {
    control: File,
}

/// One line of a device's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableLine {
    /// Name of the target.
    pub(crate) target: String,
    /// Its parameters.
    pub(crate) parameters: String,
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "device-mapper's answer is cut off")
}

fn u32_at(bytes: &[u8], at: usize) -> io::Result<u32> {
    let slice = bytes.get(at..at + 4).and_then(|slice| slice.try_into().ok());
    slice.map(u32::from_ne_bytes).ok_or_else(cut)
}

fn usize_at(bytes: &[u8], at: usize) -> io::Result<usize> {
    usize::try_from(u32_at(bytes, at)?).map_err(|_| cut())
}

fn text_at(bytes: &[u8], at: usize, most: usize) -> io::Result<String> {
    let tail = bytes.get(at..).ok_or_else(cut)?;
    let length = tail.iter().take(most).position(|byte| *byte == 0).ok_or_else(cut)?;
    Ok(String::from_utf8_lossy(&tail[..length]).into_owned())
}

impl DeviceMapper {
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { control: OpenOptions::new().read(true).write(true).open("/dev/mapper/control")? })
    }

    /// Names of the targets this kernel has.
    pub(crate) fn targets(&self) -> io::Result<Vec<String>> {
        parse_versions(&self.call(LIST_VERSIONS, "", 0, &[])?)
    }

    /// Sends a message to the first target of a device.
    pub(crate) fn message(&self, device: &str, message: &str) -> io::Result<()> {
        // `struct dm_target_msg`: the sector, then the text.
        let mut data = vec![0; 8];
        data.extend(message.as_bytes());
        data.push(0);
        self.call(TARGET_MESSAGE, device, 0, &data).map(drop)
    }

    /// A device's table as it is now; of dm-ioband that holds every group with its share.
    pub(crate) fn table(&self, device: &str) -> io::Result<Vec<TableLine>> {
        parse_table(&self.call(TABLE_STATUS, device, STATUS_TABLE_FLAG, &[])?)
    }

    #[expect(unsafe_code, reason = "ioctl with a buffer has no safe wrapper")]
    fn call(&self, command: u32, device: &str, flags: u32, data: &[u8]) -> io::Result<Vec<u8>> {
        if device.len() >= NAME_LENGTH || device.contains('\0') || HEADER + data.len() > BUFFER {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a device's name or message is too long"));
        }
        let mut buffer = vec![0_u8; BUFFER];
        let mut put = |at: usize, bytes: &[u8]| buffer[at..at + bytes.len()].copy_from_slice(bytes);
        for (index, part) in VERSION.iter().enumerate() {
            put(index * 4, &part.to_ne_bytes());
        }
        put(DATA_SIZE, &u32::try_from(BUFFER).unwrap_or(u32::MAX).to_ne_bytes());
        put(DATA_START, &u32::try_from(HEADER).unwrap_or(u32::MAX).to_ne_bytes());
        put(FLAGS, &flags.to_ne_bytes());
        put(NAME, device.as_bytes());
        put(HEADER, data);
        // _IOWR(0xfd, command, struct dm_ioctl)
        let request = 3 << 30 | u64::try_from(HEADER).unwrap_or(0) << 16 | 0xfd << 8 | u64::from(command);
        // SAFETY: the kernel reads and writes at most the `data_size` bytes that the header names, which is the
        // buffer's length; the buffer lives through the call and nobody else has it.
        if unsafe { libc::ioctl(self.control.as_raw_fd(), request, buffer.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if u32_at(&buffer, FLAGS)? & BUFFER_FULL_FLAG != 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "device-mapper's answer is too long"));
        }
        Ok(buffer)
    }
}

/// `struct dm_target_versions`, linked by offsets: next (u32), version (3 × u32), name.
pub(crate) fn parse_versions(answer: &[u8]) -> io::Result<Vec<String>> {
    let mut at = usize_at(answer, DATA_START)?;
    let mut names = Vec::new();
    loop {
        names.push(text_at(answer, at + 16, NAME_LENGTH)?);
        match usize_at(answer, at)? {
            0 => return Ok(names),
            // Offsets are from here on, so they only go forwards.
            next => at = at.checked_add(next).filter(|at| *at < answer.len()).ok_or_else(cut)?,
        }
    }
}

/// `struct dm_target_spec`, each followed by its parameters; `next` counts from the start of the data.
pub(crate) fn parse_table(answer: &[u8]) -> io::Result<Vec<TableLine>> {
    let start = usize_at(answer, DATA_START)?;
    let mut at = start;
    let mut lines = Vec::new();
    let count = usize_at(answer, TARGET_COUNT)?;
    while lines.len() < count {
        let line = TableLine {
            target: text_at(answer, at.checked_add(24).ok_or_else(cut)?, 16)?,
            parameters: text_at(answer, at.checked_add(TARGET).ok_or_else(cut)?, answer.len())?,
        };
        lines.push(line);
        let next = start.checked_add(usize_at(answer, at + 20)?).ok_or_else(cut)?;
        match lines.len() == count {
            true => break,
            // Only forwards: a line that points back would be read for ever.
            false if next > at && next < answer.len() => at = next,
            false => return Err(cut()),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_device_mapper_answers_and_refuses() {
        let mapper = match DeviceMapper::open() {
            Ok(mapper) => mapper,
            Err(error) => {
                gleaner_test_support::skipped!(
                    "a_real_device_mapper_answers_and_refuses: /dev/mapper/control: {error}"
                );
                return;
            }
        };
        let targets = mapper.targets().unwrap();
        assert!(targets.iter().any(|target| target == "linear"), "{targets:?}");
        let missing = mapper.message("no-such-device", "weight 1:40").unwrap_err();
        assert_eq!(missing.raw_os_error(), Some(libc::ENXIO), "{missing}");
        let made = std::process::Command::new("dmsetup").args(["create", "gl-test", "--table", "0 8 error"]).status();
        if !made.is_ok_and(|status| status.success()) {
            gleaner_test_support::skipped!(
                "a_real_device_mapper_answers_and_refuses: dmsetup cannot make a device here"
            );
            return;
        }
        let (table, refused) = (mapper.table("gl-test"), mapper.message("gl-test", "weight 1:40"));
        _ = std::process::Command::new("dmsetup").args(["remove", "gl-test"]).status();
        assert_eq!(table.unwrap(), [TableLine { target: "error".into(), parameters: String::new() }]);
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL), "the target takes no messages");
    }

    #[test]
    fn cut_off_and_hostile_answers_are_errors() {
        let mut answer = vec![0_u8; 400];
        answer[DATA_START..DATA_START + 4].copy_from_slice(&312_u32.to_ne_bytes());
        answer[TARGET_COUNT..TARGET_COUNT + 4].copy_from_slice(&1_u32.to_ne_bytes());
        answer[312 + 24..312 + 28].copy_from_slice(b"zero");
        assert_eq!(parse_table(&answer).unwrap(), [TableLine { target: "zero".into(), parameters: String::new() }]);
        answer[TARGET_COUNT..TARGET_COUNT + 4].copy_from_slice(&9_u32.to_ne_bytes());
        answer[312 + 20..312 + 24].copy_from_slice(&4_000_u32.to_ne_bytes());
        assert!(parse_table(&answer).is_err());
        answer[TARGET_COUNT..TARGET_COUNT + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        answer[312 + 20..312 + 24].copy_from_slice(&0_u32.to_ne_bytes());
        assert!(parse_table(&answer).is_err(), "a line that points to itself ends");
        assert!(parse_table(&answer[..20]).is_err());
        assert!(parse_versions(&[0xff; 64]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..600), start in 0..600_u32) {
            let mut answer = bytes;
            if let Some(slot) = answer.get_mut(DATA_START..DATA_START + 4) {
                slot.copy_from_slice(&start.to_ne_bytes());
            }
            _ = parse_versions(&answer);
            _ = parse_table(&answer);
        }
    }
}
