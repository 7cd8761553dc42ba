//! The private authority of a site. In: its key, and requests for certificates. Out: signed certificates.
//! `gleaner pki`, the private pair of `gleaner run --private` and `gleaner demo`, and the aggregator's enrolment call
//! it; agents make requests with it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use super::certificate::{AGGREGATOR_NAME, Validity, check_agent_certificate};
use super::error::TlsError;
use super::files::{IdentityFiles, Issued, read, write_file};
use super::identity::Identity;
use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;

/// Lifetime of an authority: ten years.
pub const AUTHORITY_LIFETIME: Duration = Duration::from_secs(3_652 * 86_400);

/// Lifetime of agents' and aggregators' certificates, unless configured otherwise: 90 days.
pub const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(90 * 86_400);

/// Longest request for a certificate, in bytes. Those that agents make have a few hundred.
pub const MAX_REQUEST: usize = 4_096;

/// A key made here, and the request for its certificate. The key leaves only to a file.
pub struct CertificateRequest {
    key: Zeroizing<String>,
    /// The request, in DER.
    pub der: Vec<u8>,
}

impl fmt::Debug for CertificateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateRequest").finish_non_exhaustive()
    }
}

impl CertificateRequest {
    /// A new key and its request.
    ///
    /// # Errors
    /// [`TlsError::Issue`].
    pub fn new(host: &HostId) -> Result<Self, TlsError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(host.as_str());
        let der = params.serialize_request(&key)?.der().to_vec();
        Ok(Self { key: Zeroizing::new(key.serialize_pem()), der })
    }

    /// The key with the certificate that came for it.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] unless it is a certificate of this authority for this host and this key.
    pub fn complete(self, authority: &[Vec<u8>], certificate: String, host: &HostId) -> Result<Issued, TlsError> {
        let wrong = |what: String| TlsError::Certificate(what);
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|e| wrong(e.to_string()))?;
        check_agent_certificate(authority, &der, host)?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|e| wrong(e.to_string()))?;
        if !Identity::new(Vec::new(), vec![der], key)?.fits() {
            return Err(wrong("it is for another key".to_owned()));
        }
        Ok(Issued { certificate, key: self.key })
    }
}

/// The private authority that signs a site's certificates.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// A new authority.
    ///
    /// # Errors
    /// [`TlsError::Issue`].
    pub fn create() -> Result<Self, TlsError> {
        let key = KeyPair::generate()?;
        let mut params = authority_params();
        set_validity(&mut params, Validity::starting(wall_now(), AUTHORITY_LIFETIME))?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// The authority that [`Authority::write`] left in a folder.
    ///
    /// # Errors
    /// [`TlsError`] when a file is missing, malformed, or a key that others can read.
    pub fn load(folder: &Path) -> Result<Self, TlsError> {
        Self::load_files(&folder.join("ca.crt"), &folder.join("ca.key"))
    }

    /// The authority of these files.
    ///
    /// # Errors
    /// [`TlsError`] when a file is missing, malformed, a key that others can read, or not the certificate's key.
    pub fn load_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        // Checks both files as any identity is checked.
        let files =
            IdentityFiles { ca: certificate.to_owned(), certificate: certificate.to_owned(), key: key.to_owned() };
        files.load()?;
        let pem = Zeroizing::new(String::from_utf8_lossy(&Zeroizing::new(read(key)?)).into_owned());
        let key = KeyPair::from_pem(&pem)?;
        // The issuer's name is always the same and its key identifier follows from the key, so the
        // certificate need not be parsed to sign with it.
        let certificate = String::from_utf8_lossy(&read(certificate)?).into_owned();
        Ok(Self { issuer: Issuer::new(authority_params(), key), certificate })
    }

    /// Writes `ca.crt` and `ca.key` (mode 0600) into a folder.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub fn write(&self, folder: &Path) -> Result<(PathBuf, PathBuf), TlsError> {
        let (certificate, key) = (folder.join("ca.crt"), folder.join("ca.key"));
        write_file(&key, &Zeroizing::new(self.issuer.key().serialize_pem()), 0o600)?;
        write_file(&certificate, &self.certificate, 0o644)?;
        Ok((certificate, key))
    }

    /// A certificate for the agent of a host, for [`CERTIFICATE_LIFETIME`].
    ///
    /// # Errors
    /// [`TlsError::Reserved`] for the aggregator's name, [`TlsError::Issue`].
    pub fn issue_agent(&self, host: &HostId) -> Result<Issued, TlsError> {
        self.issue_agent_for(host, Validity::starting(wall_now(), CERTIFICATE_LIFETIME))
    }

    /// The same, with its validity.
    ///
    /// # Errors
    /// As [`Authority::issue_agent`].
    pub fn issue_agent_for(&self, host: &HostId, validity: Validity) -> Result<Issued, TlsError> {
        check_name(host)?;
        self.issue(host.as_str(), ExtendedKeyUsagePurpose::ClientAuth, validity)
    }

    /// A certificate for the aggregator, for [`CERTIFICATE_LIFETIME`].
    ///
    /// # Errors
    /// [`TlsError::Issue`].
    pub fn issue_aggregator(&self) -> Result<Issued, TlsError> {
        self.issue_aggregator_for(Validity::starting(wall_now(), CERTIFICATE_LIFETIME))
    }

    /// The same, with its validity.
    ///
    /// # Errors
    /// [`TlsError::Issue`].
    pub fn issue_aggregator_for(&self, validity: Validity) -> Result<Issued, TlsError> {
        self.issue(AGGREGATOR_NAME, ExtendedKeyUsagePurpose::ServerAuth, validity)
    }

    /// The certificate, in PEM, that a host's agent asks for. Of the request only the key is used; the name is `host`
    /// whatever it says.
    ///
    /// # Errors
    /// [`TlsError::Request`] when the request is not one that agents make, [`TlsError::Reserved`],
    /// [`TlsError::Issue`].
    pub fn sign_agent(&self, host: &HostId, request: &[u8], validity: Validity) -> Result<String, TlsError> {
        check_name(host)?;
        if request.len() > MAX_REQUEST {
            return Err(TlsError::Request(format!("it has {} bytes; at most {MAX_REQUEST} are taken", request.len())));
        }
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))
            .map_err(|error| TlsError::Request(error.to_string()))?;
        if PublicKeyData::algorithm(&request.public_key) != &PKCS_ECDSA_P256_SHA256 {
            return Err(TlsError::Request("its key is not one of ECDSA over P-256".to_owned()));
        }
        let params = agent_or_aggregator(host.as_str(), ExtendedKeyUsagePurpose::ClientAuth, validity)?;
        Ok(params.signed_by(&request.public_key, &self.issuer)?.pem())
    }

    fn issue(&self, name: &str, purpose: ExtendedKeyUsagePurpose, validity: Validity) -> Result<Issued, TlsError> {
        let key = KeyPair::generate()?;
        let certificate = agent_or_aggregator(name, purpose, validity)?.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: Zeroizing::new(key.serialize_pem()) })
    }
}

fn check_name(host: &HostId) -> Result<(), TlsError> {
    if host.as_str() == AGGREGATOR_NAME { Err(TlsError::Reserved(host.clone())) } else { Ok(()) }
}

fn agent_or_aggregator(
    name: &str,
    purpose: ExtendedKeyUsagePurpose,
    validity: Validity,
) -> Result<CertificateParams, TlsError> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = common_name(name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, validity)?;
    Ok(params)
}

/// The wall clock's time, in which a certificate's dates are read everywhere.
fn wall_now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(0).after(since)
}

fn set_validity(params: &mut CertificateParams, validity: Validity) -> Result<(), TlsError> {
    let moment = |at: Timestamp| {
        let seconds = i64::try_from(at.0 / 1_000).unwrap_or(i64::MAX);
        OffsetDateTime::from_unix_timestamp(seconds)
            .map_err(|_| TlsError::Certificate(format!("{} ms is no time it could hold", at.0)))
    };
    (params.not_before, params.not_after) = (moment(validity.from)?, moment(validity.until)?);
    Ok(())
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("Gleaner authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces() -> (Authority, Vec<Vec<u8>>, HostId) {
        let authority = Authority::create().unwrap();
        let der = CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap().to_vec();
        (authority, vec![der], HostId::new("h1").unwrap())
    }

    fn now() -> Validity {
        Validity::starting(wall_now(), CERTIFICATE_LIFETIME)
    }

    #[test]
    fn certificates_hold_for_a_real_time() {
        let (authority, ca, host) = pieces();
        let issued = authority.issue_agent(&host).unwrap();
        let der = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
        let validity = Validity::of(&der).unwrap();
        let now = wall_now();
        assert!(validity.from < now && now.since(validity.from) < Duration::from_secs(400));
        let left = validity.until.since(now);
        assert!(left > Duration::from_secs(89 * 86_400) && left <= CERTIFICATE_LIFETIME, "{left:?}");
        let own = Validity::of(&CertificateDer::from(ca[0].as_slice())).unwrap();
        assert!(own.until.since(now) > Duration::from_secs(3_650 * 86_400));
    }

    #[test]
    fn a_signed_request_has_the_invited_name_and_the_right_key() {
        let (authority, ca, host) = pieces();
        // The request calls itself something else.
        let request = CertificateRequest::new(&HostId::new("somebody-else").unwrap()).unwrap();
        let certificate = authority.sign_agent(&host, &request.der, now()).unwrap();
        let issued = request.complete(&ca, certificate.clone(), &host).unwrap();
        let folder = tempfile::tempdir().unwrap();
        issued.write(folder.path(), "agent").unwrap();

        let other = CertificateRequest::new(&host).unwrap();
        let error = other.complete(&ca, certificate.clone(), &host).unwrap_err().to_string();
        assert!(error.contains("another key"), "{error}");
        let request = CertificateRequest::new(&host).unwrap();
        let certificate = authority.sign_agent(&host, &request.der, now()).unwrap();
        let (_, theirs, _) = pieces();
        assert!(request.complete(&theirs, certificate, &host).is_err(), "of another authority");
    }

    #[test]
    fn requests_that_are_not_what_agents_make_are_refused() {
        let (authority, _, host) = pieces();
        let good = CertificateRequest::new(&host).unwrap().der;
        let mut forged = good.clone();
        *forged.last_mut().unwrap() ^= 1;
        let mut trailing = good.clone();
        trailing.truncate(good.len() / 2);
        for bad in [&b""[..], b"nonsense", &forged, &trailing, &vec![0x30; MAX_REQUEST + 1]] {
            assert!(matches!(authority.sign_agent(&host, bad, now()), Err(TlsError::Request(_))), "{bad:?}");
        }
        let reserved = HostId::new(AGGREGATOR_NAME).unwrap();
        assert!(matches!(authority.sign_agent(&reserved, &good, now()), Err(TlsError::Reserved(_))));
    }

    #[test]
    fn nothing_debugs_a_key() {
        let (authority, _, host) = pieces();
        let issued = authority.issue_agent(&host).unwrap();
        let request = CertificateRequest::new(&host).unwrap();
        let secrets = [issued.key.lines().nth(1).unwrap().to_owned(), request.key.lines().nth(1).unwrap().to_owned()];
        let shown = format!("{issued:?} {request:?} {authority:?}");
        assert!(secrets.iter().all(|secret| !shown.contains(secret)), "{shown}");
    }

    proptest::proptest! {
        #[test]
        fn no_request_makes_it_panic(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300), at in 0usize..300, flip in 1u8..) {
            let (authority, _, host) = pieces();
            _ = authority.sign_agent(&host, &bytes, now());
            let mut request = CertificateRequest::new(&host).unwrap().der;
            if let Some(byte) = request.get_mut(at) {
                *byte ^= flip;
            }
            _ = authority.sign_agent(&host, &request, now());
        }
    }
}
