//! Identities: certificates, and the TLS settings that both sides use. In: PEM files. Out: TLS configurations, which
//! [`crate::transport`] takes. Called by both daemons and `gleaner pki`.
//!
//! One private authority signs everything. An agent's certificate carries its host's name and may only act as
//! a client; the aggregator's carries [`AGGREGATOR_NAME`] and may only act as a server, so that no agent can
//! pose as the aggregator. A host that has no certificate yet may only speak the joining protocol.

mod authority;
mod certificate;
mod error;
mod files;
mod identity;

pub use authority::{AUTHORITY_LIFETIME, Authority, CERTIFICATE_LIFETIME, CertificateRequest, MAX_REQUEST};
pub use certificate::{AGGREGATOR_NAME, Validity, check_agent_certificate};
pub use error::TlsError;
pub use files::{IdentityFiles, Issued, write_file};
pub use identity::{Identity, joining_client};

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gleaner_types::id::HostId;

    use super::*;

    #[test]
    fn an_issued_identity_loads_and_an_exposed_key_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::create().unwrap();
        let (ca, _) = authority.write(folder.path()).unwrap();
        let host = HostId::new("h1").unwrap();
        let (certificate, key) =
            Authority::load(folder.path()).unwrap().issue_agent(&host).unwrap().write(folder.path(), "h1").unwrap();
        let identity = Identity::load(&ca, &certificate, &key).unwrap();
        identity.client().unwrap();

        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = Identity::load(&ca, &certificate, &key).unwrap_err().to_string();
        assert!(error.contains("h1.key can be read by others (mode 644)"), "{error}");
    }

    #[test]
    fn a_file_without_a_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, "nothing").unwrap();
        let error = Identity::load(&file, &file, &file).unwrap_err().to_string();
        assert!(error.contains("ca.crt holds no valid certificate in PEM"), "{error}");
    }

    #[test]
    fn the_aggregators_name_is_not_for_hosts() {
        let authority = Authority::create().unwrap();
        let name = HostId::new(AGGREGATOR_NAME).unwrap();
        assert!(matches!(authority.issue_agent(&name), Err(TlsError::Reserved(_))));
    }
}
