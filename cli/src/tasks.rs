//! Task lists. In: a file with one shell command per line. Out: the commands, for a submission. Called by `gleaner run`
//! and `gleaner job submit`.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};

/// Largest list read.
const MAX_BYTES: u64 = 60 << 20;

/// Reads a list from a file, or from standard input for `-`.
pub(crate) fn read(file: &Path) -> anyhow::Result<Vec<String>> {
    let (name, bytes) = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::stdin().take(MAX_BYTES + 1).read_to_end(&mut bytes).context("failed to read standard input")?;
        ("standard input".to_owned(), bytes)
    } else {
        let name = file.display().to_string();
        let open = std::fs::File::open(file).with_context(|| format!("failed to open the task list {name}"))?;
        let mut bytes = Vec::new();
        open.take(MAX_BYTES + 1).read_to_end(&mut bytes).with_context(|| format!("failed to read {name}"))?;
        (name, bytes)
    };
    if bytes.len() as u64 > MAX_BYTES {
        bail!("{name} is over {MAX_BYTES} bytes; split it into several jobs");
    }
    parse(&name, &bytes)
}

/// The tasks of a list. Every bad line is named.
fn parse(name: &str, bytes: &[u8]) -> anyhow::Result<Vec<String>> {
    let (mut tasks, mut problems) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
        match std::str::from_utf8(line) {
            Err(_) => problems.push(format!("{name}:{number}: is not UTF-8")),
            Ok(text) if text.contains('\0') => problems.push(format!("{name}:{number}: holds a NUL byte")),
            Ok(text) => {
                let text = text.trim();
                if !text.is_empty() && !text.starts_with('#') {
                    tasks.push(text.to_owned());
                }
            }
        }
    }
    if !problems.is_empty() {
        problems.truncate(20);
        bail!("{}", problems.join("\n"));
    }
    if tasks.is_empty() {
        bail!("{name} holds no task; write one shell command per line");
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_and_comments_are_skipped() {
        assert_eq!(parse("t", b"# a list\n\n echo a \r\necho b #c\n").unwrap(), ["echo a", "echo b #c"]);
    }

    #[test]
    fn bad_lines_are_all_named() {
        let said = parse("t", b"ok\n\xff\nx\0y\n").unwrap_err().to_string();
        assert_eq!(said, "t:2: is not UTF-8\nt:3: holds a NUL byte");
        assert!(parse("t", b"#\n").unwrap_err().to_string().contains("holds no task"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            _ = parse("t", &bytes);
        }
    }
}
