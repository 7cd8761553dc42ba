//! The demo's job. In: a seed. Out: text, shell pipelines that count its words, and a check that they counted every
//! word. Called by the demo.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};

/// Files of text.
const PARTS: usize = 40;

/// Groups of first letters; each task counts the words of one group in one file.
const LETTERS: [&str; 6] = ["a-c", "d-g", "h-l", "m-p", "q-s", "t-z"];

/// Size of the part by which the machine's speed is measured.
const PROBE_BYTES: usize = 400_000;

/// Smallest and largest part.
const PART_BYTES: (usize, usize) = (50_000, 8_000_000);

/// The text.
#[derive(Debug)]
pub(super) struct Text {
    folder: PathBuf,
    words: u64,
    bytes: u64,
}

impl Text {
    /// Makes text whose counting takes about `budget_s` seconds of CPU on this machine.
    pub(super) fn generate(folder: &Path, seed: u64, budget_s: f64) -> anyhow::Result<Self> {
        let mut random = Random(seed);
        let probe = folder.join("part-00.txt");
        write_part(&probe, PROBE_BYTES, &mut random)?;
        let start = Instant::now();
        let status = Command::new("/bin/sh")
            .args(["-c", &task(0, LETTERS[0])])
            .current_dir(folder)
            .stdin(Stdio::null())
            .status()
            .context("failed to start /bin/sh")?;
        ensure!(status.success(), "counting words failed: {status}; the demo needs tr, grep, sort and uniq");
        // A pipeline keeps more than one CPU busy; on an idle machine its wall time understates its CPU time.
        let probe_s = start.elapsed().as_secs_f64() * 1.3;
        let task_s = budget_s / (PARTS * LETTERS.len()) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let size = (PROBE_BYTES as f64 * task_s / probe_s).clamp(PART_BYTES.0 as f64, PART_BYTES.1 as f64) as usize;
        let mut text = Self { folder: folder.to_owned(), words: 0, bytes: 0 };
        for part in 0..PARTS {
            let file = folder.join(format!("part-{part:02}.txt"));
            let (words, bytes) = write_part(&file, size, &mut random)?;
            text.words += words;
            text.bytes += bytes;
        }
        std::fs::create_dir_all(text.output())?;
        Ok(text)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn output(&self) -> PathBuf {
        self.folder.join("output")
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// One command per file and group of letters.
    pub(super) fn tasks(&self) -> Vec<String> {
        let of_part = |part: usize| LETTERS.iter().map(move |letters| task(part, letters));
        (0..PARTS).flat_map(of_part).collect()
    }

    /// Sums what the tasks counted: words there are, words counted.
    pub(super) fn verify(&self) -> anyhow::Result<(u64, u64)> {
        let mut counted = 0;
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "counts") {
                counted += sum(&std::fs::read_to_string(&path)?);
            }
        }
        Ok((self.words, counted))
    }
}

/// Sum of the counts in the output of `uniq -c`.
fn sum(counts: &str) -> u64 {
    counts.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

fn task(part: usize, letters: &str) -> String {
    format!(
        "tr -cs A-Za-z '\\n' <part-{part:02}.txt | tr A-Z a-z | grep '^[{letters}]' | LC_ALL=C sort | uniq -c \
         >part-{part:02}-{letters}.new && mv part-{part:02}-{letters}.new part-{part:02}-{letters}.counts"
    )
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough for text that nobody reads.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Writes about `size` bytes of words; returns words and bytes.
fn write_part(file: &Path, size: usize, random: &mut Random) -> anyhow::Result<(u64, u64)> {
    const SYLLABLES: [&str; 16] =
        ["ka", "lo", "mi", "tan", "re", "sol", "ber", "du", "gan", "hi", "jo", "pel", "qui", "va", "wen", "zor"];
    let (mut text, mut words) = (String::with_capacity(size + 64), 0);
    while text.len() < size {
        let draw = random.next();
        // Few syllables are common and long words rare, as in languages.
        for syllable in 0..1 + draw % 3 {
            let pick = (draw >> (8 + 8 * syllable)) & 0xff;
            let index = usize::try_from((pick * pick) >> 12).unwrap_or(0);
            text.push_str(SYLLABLES[index.min(SYLLABLES.len() - 1)]);
        }
        words += 1;
        text.push(if words % 12 == 0 { '\n' } else { ' ' });
    }
    let mut open = std::fs::File::create(file).with_context(|| format!("failed to write {}", file.display()))?;
    open.write_all(text.as_bytes()).with_context(|| format!("failed to write {}", file.display()))?;
    Ok((words, text.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tasks_count_every_word_once() {
        let folder = tempfile::tempdir().unwrap();
        let text = Text::generate(folder.path(), 7, 0.1).unwrap();
        let tasks = text.tasks();
        assert_eq!(tasks.len(), 240);
        for task in &tasks {
            let status = Command::new("/bin/sh").args(["-c", task]).current_dir(folder.path()).status().unwrap();
            assert!(status.success(), "{task}");
        }
        let (words, counted) = text.verify().unwrap();
        assert!(words > 1_000);
        assert_eq!(words, counted);
    }

    #[test]
    fn a_seed_gives_one_text() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str, seed| {
            write_part(&folder.path().join(name), 1_000, &mut Random(seed)).unwrap();
            std::fs::read(folder.path().join(name)).unwrap()
        };
        assert_eq!(make("a", 1), make("b", 1));
        assert_ne!(make("a", 1), make("c", 2));
    }
}
