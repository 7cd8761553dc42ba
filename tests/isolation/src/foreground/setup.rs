//! The command line of a foreground's process. In: words, or a setup. Out: the other of the two. [`crate::cell`] makes
//! it, and the process reads it.

use std::path::PathBuf;

use crate::cells::{Foreground, Named, by_name};

/// The command line of a foreground's process.
#[derive(Debug, Clone, clap::Args)]
pub struct Setup {
    /// Which.
    #[arg(value_parser = by_name::<Foreground>)]
    pub foreground: Foreground,
    /// Seed of what it does at random.
    #[arg(long)]
    pub seed: u64,
    /// Rounds of work that take 5 ms here.
    #[arg(long)]
    pub rounds: u64,
    /// Memory that it keeps in use, in bytes.
    #[arg(long)]
    pub memory: u64,
    /// Folder for sockets and logs.
    #[arg(long)]
    pub folder: PathBuf,
    /// Folder for data, on the scratch file system.
    #[arg(long)]
    pub scratch: PathBuf,
    /// Network namespace of its users.
    #[arg(long)]
    pub users: Option<String>,
    /// Cgroups it enters.
    #[arg(long)]
    pub enter: Vec<PathBuf>,
}

impl Setup {
    /// The same as words of a command line.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut words = vec!["foreground".to_owned(), self.foreground.name().to_owned()];
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        option("--seed", self.seed.to_string());
        option("--rounds", self.rounds.to_string());
        option("--memory", self.memory.to_string());
        option("--folder", self.folder.display().to_string());
        option("--scratch", self.scratch.display().to_string());
        if let Some(users) = &self.users {
            option("--users", users.clone());
        }
        for folder in &self.enter {
            option("--enter", folder.display().to_string());
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        setup: Setup,
    }

    #[test]
    fn its_command_line_reads_back() {
        let setup = Setup {
            foreground: Foreground::Echo,
            seed: 1,
            rounds: 2,
            memory: 3,
            folder: "/f".into(),
            scratch: "/s".into(),
            users: Some("gi1u".into()),
            enter: vec!["/a".into()],
        };
        assert_eq!(Line::try_parse_from(setup.words()).unwrap().setup.words(), setup.words());
    }
}
