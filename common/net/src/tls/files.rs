//! Keys and certificates on disk. In: paths. Out: their contents, after a check of permissions and sizes; or a pair
//! replaced so that a valid pair is on disk at every moment. Called by both daemons and `gleaner pki`.

use std::fmt;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::error::TlsError;
use super::identity::Identity;

/// Largest file read. A certificate has a kilobyte.
const MAX_BYTES: u64 = 1 << 20;

/// A certificate and its key, both in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The private key; this copy of it is overwritten when it is dropped, others are not.
    pub key: Zeroizing<String>,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Issued {
    /// Writes `NAME.crt` and `NAME.key` (mode 0600) into a folder, replacing older ones.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub fn write(&self, folder: &Path, name: &str) -> Result<(PathBuf, PathBuf), TlsError> {
        let (certificate, key) = (folder.join(format!("{name}.crt")), folder.join(format!("{name}.key")));
        let files = IdentityFiles { ca: PathBuf::new(), certificate, key };
        files.replace(self)?;
        Ok((files.certificate, files.key))
    }
}

impl Identity {
    /// Reads an identity from PEM files. A pair that was being replaced when the machine stopped is put in order.
    ///
    /// # Errors
    /// [`TlsError`] when a file is missing, malformed, a key that others can read, or not the certificate's key.
    pub fn load(authority: &Path, certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let files =
            IdentityFiles { ca: authority.to_owned(), certificate: certificate.to_owned(), key: key.to_owned() };
        files.load()
    }
}

/// The paths of an identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityFiles {
    /// Certificates of the authority.
    pub ca: PathBuf,
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl IdentityFiles {
    /// Reads the identity. A pair that was being replaced when the machine stopped is put in order.
    ///
    /// # Errors
    /// [`TlsError`] when a file is missing, malformed, a key that others can read, or not the certificate's key.
    pub fn load(&self) -> Result<Identity, TlsError> {
        let identity = self.load_with(&self.certificate)?;
        if identity.fits() {
            return Ok(identity);
        }
        // The key is renamed before the certificate, so the new certificate may still wait.
        let waiting = beside(&self.certificate);
        match self.load_with(&waiting) {
            Ok(identity) if identity.fits() => {
                rename(&waiting, &self.certificate)?;
                Ok(identity)
            }
            _ => Err(TlsError::Mismatch { key: self.key.clone(), certificate: self.certificate.clone() }),
        }
    }

    fn load_with(&self, certificate: &Path) -> Result<Identity, TlsError> {
        let authority = certificates(&self.ca)?;
        let chain = certificates(certificate)?;
        let exposed = std::fs::metadata(&self.key).map_err(|source| TlsError::File {
            action: "read",
            file: self.key.clone(),
            source,
        })?;
        let mode = exposed.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TlsError::KeyExposed { file: self.key.clone(), mode });
        }
        let key = PrivateKeyDer::from_pem_slice(&Zeroizing::new(read(&self.key)?)).map_err(|e| TlsError::Pem {
            file: self.key.clone(),
            what: "private key",
            detail: e.to_string(),
        })?;
        Identity::new(authority, chain, key)
    }

    /// The authority's certificates.
    ///
    /// # Errors
    /// [`TlsError`] when the file is missing or malformed.
    pub fn authority(&self) -> Result<Vec<Vec<u8>>, TlsError> {
        Ok(certificates(&self.ca)?.iter().map(|certificate| certificate.to_vec()).collect())
    }

    /// Replaces certificate and key. Both are on disk before the first takes its name; if the machine stops between
    /// the two, [`IdentityFiles::load`] finishes it.
    ///
    /// # Errors
    /// [`TlsError::File`]; the old pair is in force then.
    pub fn replace(&self, issued: &Issued) -> Result<(), TlsError> {
        let (key, certificate) = (beside(&self.key), beside(&self.certificate));
        write_new(&key, &issued.key, 0o600)?;
        write_new(&certificate, &issued.certificate, 0o644)?;
        rename(&key, &self.key)?;
        match rename(&certificate, &self.certificate) {
            // A process that loads the pair in between has put it in order.
            Err(TlsError::File { source, .. }) if source.kind() == ErrorKind::NotFound && self.has(issued) => Ok(()),
            renamed => renamed,
        }
    }

    /// The certificate in force is this one.
    fn has(&self, issued: &Issued) -> bool {
        std::fs::read_to_string(&self.certificate).is_ok_and(|text| text == issued.certificate)
    }
}

/// Writes a file under a temporary name first, so that no reader sees half of it.
///
/// # Errors
/// [`TlsError::File`].
pub fn write_file(file: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let temporary = beside(file);
    write_new(&temporary, text, mode)?;
    rename(&temporary, file)
}

/// The path of a file's successor until it is renamed.
fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    file.with_file_name(name)
}

fn write_new(file: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let error = |source| TlsError::File { action: "write", file: file.to_owned(), source };
    _ = std::fs::remove_file(file);
    let mut open = std::fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(file).map_err(error)?;
    // A narrow umask would keep what everybody may read from the daemons' users.
    open.set_permissions(std::fs::Permissions::from_mode(mode)).map_err(error)?;
    open.write_all(text.as_bytes()).and_then(|()| open.sync_all()).map_err(error)?;
    // Its name too: certificate and key may be in two folders, of which the other's rename syncs one.
    sync_folder(file).map_err(error)
}

fn rename(from: &Path, to: &Path) -> Result<(), TlsError> {
    let error = |source| TlsError::File { action: "write", file: to.to_owned(), source };
    std::fs::rename(from, to).map_err(error)?;
    sync_folder(to).map_err(error)
}

/// Makes the names in a file's folder last.
fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    // A name alone is in the working folder.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    std::fs::File::open(folder)?.sync_all()
}

pub(super) fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    use std::io::Read;
    let error = |source| TlsError::File { action: "read", file: file.to_owned(), source };
    let open = std::fs::File::open(file).map_err(error)?;
    let size = open.metadata().map_err(error)?.len().min(MAX_BYTES);
    // A buffer that grows leaves copies of a key behind. One byte more: the end is then met without growing.
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    open.take(MAX_BYTES).read_to_end(&mut bytes).map_err(error)?;
    Ok(bytes)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |detail: String| TlsError::Pem { file: file.to_owned(), what: "certificate", detail };
    let bytes = read(file)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let chain = chain.map_err(|e| bad(e.to_string()))?;
    if chain.is_empty() { Err(bad("the file has none".into())) } else { Ok(chain) }
}

#[cfg(test)]
mod tests {
    use super::super::Authority;
    use super::*;
    use gleaner_types::id::HostId;

    #[test]
    fn a_file_is_read_into_one_buffer() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        for length in [0, 1, 100, 5_000] {
            std::fs::write(&file, vec![b'k'; length]).unwrap();
            let bytes = read(&file).unwrap();
            assert_eq!((bytes.len(), bytes.capacity()), (length, length + 1), "a buffer that grew is larger");
        }
    }

    #[test]
    fn a_replacement_cut_off_at_any_step_leaves_a_pair_that_works() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create().unwrap();
        let host = HostId::new("h1").unwrap();
        let (ca, _) = authority.write(folder.path()).unwrap();
        let files =
            IdentityFiles { ca, certificate: folder.path().join("agent.crt"), key: folder.path().join("agent.key") };
        files.replace(&authority.issue_agent(&host).unwrap()).unwrap();
        files.load().unwrap();

        // Stopped before the first rename: the old pair.
        let next = authority.issue_agent(&host).unwrap();
        write_new(&beside(&files.key), &next.key, 0o600).unwrap();
        write_new(&beside(&files.certificate), &next.certificate, 0o644).unwrap();
        files.load().unwrap();
        // Stopped between the two: the new pair, put in order.
        rename(&beside(&files.key), &files.key).unwrap();
        files.load().unwrap();
        assert!(!beside(&files.certificate).exists());
        assert_eq!(std::fs::read_to_string(&files.certificate).unwrap(), next.certificate);

        // A process that loads pairs all the time finishes what another one begins.
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    _ = files.load();
                }
            });
            let issued: Vec<Issued> = (0..20).map(|_| authority.issue_agent(&host).unwrap()).collect();
            let replaced: Vec<_> = issued.iter().cycle().take(300).map(|issued| files.replace(issued)).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            replaced.into_iter().for_each(|replaced| replaced.unwrap());
        });

        // A key of another certificate is reported.
        let other = authority.issue_agent(&host).unwrap();
        write_file(&files.key, &other.key, 0o600).unwrap();
        let error = files.load().unwrap_err().to_string();
        assert!(error.contains("agent.key is not the key of the certificate in"), "{error}");
    }
}
