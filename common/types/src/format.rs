//! Format numbers of stored data. In: the number found and the number known. Out: an error that names both. Called by
//! the readers of stored data in both daemons.

use std::fmt;
use std::ops::RangeInclusive;

/// A document is of a format that this program does not read. It was left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownFormat {
    /// What kind of document.
    pub document: &'static str,
    /// Its format.
    pub found: u64,
    /// Version of the software that wrote it, where known.
    pub software: Option<String>,
    /// Formats that this program reads.
    pub known: RangeInclusive<u64>,
}

impl UnknownFormat {
    /// Checks a document's format.
    ///
    /// # Errors
    /// [`UnknownFormat`] unless it is one of the known ones.
    pub fn unless_within(
        document: &'static str,
        known: RangeInclusive<u64>,
        found: u64,
        software: Option<&str>,
    ) -> Result<(), Self> {
        match known.contains(&found) {
            true => Ok(()),
            false => Err(Self { document, found, software: software.map(str::to_owned), known }),
        }
    }

    /// A newer program wrote it.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        self.found > *self.known.end()
    }
}

impl std::error::Error for UnknownFormat {}

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { document, found, software, known } = self;
        write!(f, "the {document} has format {found}")?;
        if let Some(software) = software {
            write!(f, ", written by version {software}")?;
        }
        let (oldest, newest) = (known.start(), known.end());
        write!(f, "; this program, version {}, reads ", env!("CARGO_PKG_VERSION"))?;
        match oldest == newest {
            true => write!(f, "format {newest} only")?,
            false => write!(f, "formats {oldest} to {newest}")?,
        }
        f.write_str(" and has left it as it is")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_was_found_and_what_is_read() {
        assert_eq!(UnknownFormat::unless_within("ledger", 2..=3, 2, None), Ok(()));
        let newer = UnknownFormat::unless_within("ledger", 2..=3, 4, Some("9.9")).unwrap_err();
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(
            newer.to_string(),
            format!(
                "the ledger has format 4, written by version 9.9; this program, version {version}, reads formats 2 to 3 \
                 and has left it as it is"
            )
        );
        let older = UnknownFormat::unless_within("ledger", 2..=2, 1, None).unwrap_err();
        assert!(newer.is_newer() && !older.is_newer());
        assert!(older.to_string().contains("has format 1; ") && older.to_string().contains("reads format 2 only"));
    }
}
