//! The config file of a Xen domain (xl.cfg(5)), as far as Gleaner has to know it. In: its path. Out: the domain's name, and what
//! the file says of its weight. Called by the agent's config. `xl` is told the name as well, so that the two never differ.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::act::trust;

/// Bytes of the longest file that is read.
const LONGEST: u64 = 1 << 16;
/// Bytes of the longest name.
const LONGEST_NAME: usize = 64;

/// A domain that Gleaner makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainConfig {
    /// Its config file.
    pub file: PathBuf,
    /// Where that is, without symbolic links: what `xl` reads.
    pub real: PathBuf,
    /// Its name.
    pub name: String,
    /// The file says a weight; without one it would be made with that of its neighbours.
    pub has_weight: bool,
}

/// A file of which no domain can be made now. That is no mistake of the config: whoever mends the file need not touch it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableFile {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it, in a sentence.
    pub why: String,
}

impl std::fmt::Display for UnusableFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`volunteer.domain_configs` has {:?}: {}", self.file.display().to_string(), self.why)
    }
}

/// No domain can be made from such a file. The texts follow its path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DomainConfigError {
    #[error("it must be an absolute path")]
    Relative,
    #[error("it cannot be used")]
    Io(#[from] io::Error),
    #[error("it is longer than {LONGEST} bytes")]
    TooLong,
    #[error("others than root can replace it: the folder {0} is theirs to write")]
    Replaceable(PathBuf),
    #[error("it has no line such as name = \"batch-1\"")]
    NoName,
    #[error(
        "its name is {0:?}; it must have at most {LONGEST_NAME} letters, digits and any of `.-_+:@`, not all of them digits"
    )]
    BadName(String),
}

impl DomainConfig {
    /// Reads what there is to know of a file, which only root may write: what is in it runs as root.
    ///
    /// # Errors
    /// [`DomainConfigError`].
    pub(crate) fn read(file: &Path) -> Result<Self, DomainConfigError> {
        if !file.is_absolute() {
            return Err(DomainConfigError::Relative);
        }
        // Folders above it may be symbolic links; then those above where they lead count too.
        let folder = file.parent().unwrap_or(file).canonicalize()?;
        let real = file.file_name().map_or_else(|| folder.clone(), |name| folder.join(name));
        let mut text = Vec::new();
        trust::open_file(&real)?.take(LONGEST + 1).read_to_end(&mut text)?;
        if text.len() as u64 > LONGEST {
            return Err(DomainConfigError::TooLong);
        }
        for folder in [file, &real].into_iter().flat_map(|file| file.ancestors().skip(1)) {
            if is_others(folder) {
                return Err(DomainConfigError::Replaceable(folder.to_owned()));
            }
        }
        let text = String::from_utf8_lossy(&text);
        let name = value(&text, "name").and_then(quoted).ok_or(DomainConfigError::NoName)?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_+:@".contains(&byte);
        let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
        if name.len() > LONGEST_NAME || is_number || !name.bytes().all(is_plain) {
            return Err(DomainConfigError::BadName(name.chars().take(LONGEST_NAME).collect()));
        }
        let has_weight = value(&text, "cpu_weight").is_some();
        Ok(Self { file: file.to_owned(), real, name: name.to_owned(), has_weight })
    }
}

/// Others can put another file in the place of one in it. In a sticky folder, such as /tmp, only its owner can.
fn is_others(folder: &Path) -> bool {
    const STICKY: u32 = 0o1000;
    let own = rustix::process::geteuid().as_raw();
    folder.metadata().map_or(true, |found| {
        let is_open = found.mode() & 0o022 != 0 && found.mode() & STICKY == 0;
        is_open || (found.uid() != 0 && found.uid() != own)
    })
}

/// What stands behind `key =` on the last line that begins so: as in xl, where the last one counts.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let of_line = |line: &'a str| line.trim_start().strip_prefix(key)?.trim_start().strip_prefix('=');
    text.lines().filter_map(of_line).next_back().map(str::trim)
}

/// A text in quotes.
fn quoted(value: &str) -> Option<&str> {
    let quote = value.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    value.get(1..)?.split_once(quote).map(|(text, _)| text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn read(text: &str) -> Result<DomainConfig, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("vol.cfg");
        fs::write(&file, text).unwrap();
        DomainConfig::read(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn the_name_and_the_weight_are_found() {
        let found =
            read("# name = \"no\"\n name=\"first\" # so\nnamed = 'x'\nname = 'batch-1'\ndisk = [ 'a,b' ]\n").unwrap();
        assert_eq!((found.name.as_str(), found.has_weight), ("batch-1", false));
        assert!(read("name = 'b'\ncpu_weight=7\n").unwrap().has_weight);
        for (text, why) in [
            ("", "it has no line such as name"),
            ("name = batch", "it has no line such as name"),
            ("name = \"\"", "it has no line such as name"),
            ("name = \"a", "it has no line such as name"),
            ("name = '7'", "its name is \"7\""),
            ("name = 'a b'", "its name is \"a b\""),
            ("name = 'a\\\"b'", "its name is"),
            (&format!("name = '{}'", "x".repeat(65)), "its name is \"xxx"),
            (&format!("name = 'a'{}", " ".repeat(1 << 16)), "it is longer than 65536 bytes"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.starts_with(why), "{text:.20}: {said}");
        }
    }

    #[test]
    fn a_file_that_others_could_write_or_replace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("vol.cfg"), folder.path().join("link.cfg"));
        fs::write(&file, "name = 'a'").unwrap();
        symlink(&file, &link).unwrap();
        let refused = |path: &Path| gleaner_types::error::chain(&DomainConfig::read(path).unwrap_err());
        assert!(refused(&link).contains("symbolic link"));
        assert_eq!(refused(Path::new("vol.cfg")), "it must be an absolute path");
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
        assert!(refused(&file).contains("its mode is 666"));
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        assert!(DomainConfig::read(&file).is_ok());
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&file).contains("others than root can replace it"));
        fs::set_permissions(folder.path(), Permissions::from_mode(0o1777)).unwrap();
        assert!(DomainConfig::read(&file).is_ok(), "as in /tmp");
        let (open, above) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let through = above.path().join("xen");
        symlink(open.path(), &through).unwrap();
        fs::write(open.path().join("vol.cfg"), "name = 'a'").unwrap();
        assert!(DomainConfig::read(&through.join("vol.cfg")).is_ok(), "a folder may be a link");
        fs::set_permissions(open.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&through.join("vol.cfg")).contains("others than root can replace it"));
        fs::set_permissions(open.path(), Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(above.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(refused(&through.join("vol.cfg")).contains("others than root can replace it"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(name|cpu_weight|=|\"|'| |\\n|é|#|a){0,30}") {
            _ = value(&text, "name").and_then(quoted);
        }
    }
}
