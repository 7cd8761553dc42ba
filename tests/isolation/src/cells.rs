//! The choices of the matrix: foregrounds, antagonists, rows, and cells of a foreground and an antagonist. In: names
//! from the command line. Out: typed choices. Used throughout this crate. Pure.

use serde::{Deserialize, Serialize};

/// A choice with a name on the command line.
pub trait Named: Copy + PartialEq + 'static {
    /// What it is, for messages.
    const KIND: &'static str;
    /// All of them.
    const ALL: &'static [Self];
    /// Its name.
    fn name(self) -> &'static str;
    /// What it does, in a few words.
    fn about(self) -> &'static str;
}

/// A name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is no {kind}; there are {}", known.join(", "))]
pub struct UnknownName {
    kind: &'static str,
    name: String,
    known: Vec<&'static str>,
}

/// A text that names no cells.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// A part without a colon.
    #[error("`{0}` is no cell; write foreground:antagonist, such as cyclic:cpu or every:memory")]
    NoCell(String),
    /// The name of no foreground or antagonist.
    #[error(transparent)]
    Name(#[from] UnknownName),
}

/// The one with this name.
///
/// # Errors
/// The names there are.
pub fn by_name<N: Named>(name: &str) -> Result<N, UnknownName> {
    let known = || N::ALL.iter().map(|one| one.name()).collect();
    let found = N::ALL.iter().copied().find(|one| one.name() == name);
    found.ok_or_else(|| UnknownName { kind: N::KIND, name: name.to_owned(), known: known() })
}

/// Those with these names, in this order, each once; `every` is all of them.
///
/// # Errors The first name that is not known.
pub fn by_names<N: Named>(names: &str) -> Result<Vec<N>, UnknownName> {
    let mut found: Vec<N> = Vec::new();
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let more = if name == "every" { N::ALL.to_vec() } else { vec![by_name(name)?] };
        for one in more {
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    Ok(found)
}

macro_rules! named {
    ($(#[$doc:meta])* $type:ident, $kind:literal: $($(#[$variant_doc:meta])* $variant:ident $name:literal $about:literal,)*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $type {
            $($(#[$variant_doc])* #[doc = $about] #[serde(rename = $name)] $variant,)*
        }
        impl Named for $type {
            const KIND: &'static str = $kind;
            const ALL: &'static [Self] = &[$(Self::$variant,)*];
            fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
            fn about(self) -> &'static str {
                match self { $(Self::$variant => $about,)* }
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

named! {
    /// Who must not notice.
    Foreground, "foreground":
    Cyclic "cyclic" "on every CPU 5 ms of work every 25 ms, with over half of the memory in use",
    Redis "redis" "redis-server, asked every 2 ms over a Unix socket",
    Postgres "postgres" "PostgreSQL with fsync; pgbench's own latencies",
    Echo "echo" "an echo server, asked every 5 ms by users in another network namespace",
    Interactive "interactive" "bursts and think times of four recorded kinds of desktop sessions, replayed five times as fast",
    Disk "disk" "records of 8 KiB, each written and synced, 5 ms apart",
    Guest "guest" "a QEMU guest that works and answers on its serial line every 50 ms",
}

named! {
    /// What runs in the volunteer.
    Antagonist, "antagonist":
    Cpu "cpu" "a loop on every CPU",
    Memory "memory" "takes memory up to four times what there is",
    Fork "fork" "a fork bomb, bounded at 256 living processes",
    WriteSeq "write-seq" "writes one block after the other",
    WriteSeqFsync "write-seq-fsync" "the same, each MiB synced",
    WriteRand "write-rand" "writes blocks at random places",
    WriteRandFsync "write-rand-fsync" "the same, each block synced",
    CacheStream "cache-stream" "reads a file larger than the page cache again and again",
    Net "net" "sends as fast as it can to the users' network",
    Fill "fill" "fills the scratch file system and keeps it full",
    Thrash "thrash" "uses bytes at random in 64 MiB on every CPU, twice the last-level cache of most machines",
    All "all" "all of them at once",
}

named! {
    /// How the foreground is protected.
    Row, "row":
    Alone "alone" "no antagonist",
    Unprotected "unprotected" "cgroups of the same weight",
    Nice "nice" "nice 19",
    Idle "idle" "SCHED_IDLE and nothing else",
    Threshold "threshold" "a quota that keeps the machine's total CPU use at 65 %, as Koordinator's suppression",
    Points "points" "SCHED_IDLE, and on each CPU a real-time thread that wakes every millisecond",
    Quota "quota" "SCHED_IDLE under a fixed quota of three quarters of the machine",
    Gleaner "gleaner" "a real agent and aggregator; the antagonist is a job's task",
    Ceiling "ceiling" "the same with act.volunteer_ceiling_percent at three quarters of the machine",
    Pointed "pointed" "the same as gleaner with guard.scheduling_points",
    Follow "follow" "the same as gleaner with guard.follow_harm, which needs a --settle of minutes to learn",
    Buffer "buffer" "the same as gleaner with guard.idle_buffer = \"follow\"",
}

named! {
    /// How much harm the product may do, and how much it should harvest.
    Goal, "goal":
    Stock "stock" "on a stock kernel: mean at most 1 %, p99 at most 5 % slower, at least 75 % harvested",
    Here "here" "on the development machine's kernel: mean at most 2 %, p95 at most 15 % slower",
}

impl Row {
    /// The product runs in it, configured one way or another.
    #[must_use]
    pub const fn has_agent(self) -> bool {
        matches!(self, Self::Gleaner | Self::Ceiling | Self::Pointed | Self::Follow | Self::Buffer)
    }
}

/// A foreground with an antagonist beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Who must not notice.
    pub foreground: Foreground,
    /// What runs beside it.
    pub antagonist: Antagonist,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("{}:{}", self.foreground, self.antagonist))
    }
}

/// Cells by their names, `foreground:antagonist` with commas in between; `every` on either side is every one.
///
/// # Errors
/// [`CellError`]: what is no cell.
pub fn cells(text: &str) -> Result<Vec<Cell>, CellError> {
    let mut found = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (foreground, antagonist) = part.split_once(':').ok_or_else(|| CellError::NoCell(part.to_owned()))?;
        let foregrounds = by_names(foreground)?;
        let antagonists: Vec<Antagonist> = by_names(antagonist)?;
        for foreground in foregrounds {
            for &antagonist in &antagonists {
                let cell = Cell { foreground, antagonist };
                if !found.contains(&cell) {
                    found.push(cell);
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_names_and_each_counts_once() {
        let two = cells("cyclic:cpu, disk:fill,cyclic:cpu").unwrap();
        assert_eq!(two.iter().map(Cell::to_string).collect::<Vec<_>>(), ["cyclic:cpu", "disk:fill"]);
        assert_eq!(cells("every:every").unwrap().len(), Foreground::ALL.len() * Antagonist::ALL.len());
        // `all` is an antagonist of its own.
        assert_eq!(cells("every:all").unwrap().len(), Foreground::ALL.len());
    }

    #[test]
    fn what_is_no_cell_is_named_with_what_there_is() {
        assert_eq!(cells("cyclic"), Err(CellError::NoCell("cyclic".to_owned())));
        let unknown = cells("cyclic:cpux").unwrap_err().to_string();
        assert!(unknown.contains("`cpux` is no antagonist; there are cpu, memory"), "{unknown}");
        assert!(by_names::<Row>("alone,best").unwrap_err().to_string().contains("`best` is no row"));
    }

    #[test]
    fn every_name_leads_back_to_its_choice() {
        fn check<N: Named + std::fmt::Debug>() {
            for &one in N::ALL {
                assert_eq!(by_name::<N>(one.name()).unwrap(), one);
                assert!(!one.about().is_empty());
            }
        }
        check::<Foreground>();
        check::<Antagonist>();
        check::<Row>();
        check::<Goal>();
    }
}
