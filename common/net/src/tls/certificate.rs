//! What a certificate says. In: a certificate in DER. Out: the time in which it is valid, and whether it is the one of
//! a host's agent. Identities, the authority, [`crate::transport`] and the daemons call it.

use std::time::Duration;

use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_parser::prelude::{FromDer, X509Certificate};

use gleaner_types::id::HostId;
use gleaner_types::time::Timestamp;

use super::error::TlsError;

/// The name in the aggregator's certificate, whatever machine it runs on. No host may have it.
pub const AGGREGATOR_NAME: &str = "aggregator.gleaner.internal";

/// The time in which a certificate is valid, to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// Not before this.
    pub from: Timestamp,
    /// Not after this.
    pub until: Timestamp,
}

impl Validity {
    /// Clocks that differ by up to this do not matter: certificates are valid from this long before they are made.
    const BACKDATED: Duration = Duration::from_secs(300);

    /// For a certificate made now. Those valid for less than 50 minutes are dated back by a tenth of that.
    #[must_use]
    pub fn starting(now: Timestamp, lifetime: Duration) -> Self {
        let back = u64::try_from(Self::BACKDATED.min(lifetime / 10).as_millis()).unwrap_or(0);
        Self { from: Timestamp(now.0.saturating_sub(back)), until: now.after(lifetime) }
    }

    /// When it should be renewed: when a third of it is left.
    #[must_use]
    pub fn renewal(self) -> Timestamp {
        Timestamp(self.until.0.saturating_sub(self.until.0.saturating_sub(self.from.0) / 3))
    }

    /// The validity of a certificate.
    ///
    /// # Errors
    /// [`TlsError::Certificate`] if it cannot be parsed.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|error| TlsError::Certificate(error.to_string()))?;
        let at = |time: x509_parser::time::ASN1Time| {
            Timestamp(u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1_000))
        };
        Ok(Self { from: at(parsed.validity().not_before), until: at(parsed.validity().not_after) })
    }
}

/// Checks that a certificate is of this authority and for this host's agent. The aggregator checks by its own clock
/// whether it is valid now.
///
/// # Errors
/// [`TlsError::Certificate`] says what is wrong.
pub fn check_agent_certificate(authority: &[Vec<u8>], certificate: &[u8], host: &HostId) -> Result<(), TlsError> {
    let wrong = |error: webpki::Error| TlsError::Certificate(error.to_string());
    let authority: Vec<CertificateDer<'_>> = authority.iter().map(|one| CertificateDer::from(one.as_slice())).collect();
    let anchors: Result<Vec<_>, _> = authority.iter().map(anchor_from_trusted_cert).collect();
    let certificate = CertificateDer::from(certificate);
    let time = UnixTime::since_unix_epoch(Duration::from_millis(Validity::of(&certificate)?.from.0));
    let end_entity = EndEntityCert::try_from(&certificate).map_err(wrong)?;
    end_entity
        .verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &anchors.map_err(wrong)?,
            &[],
            time,
            KeyUsage::client_auth(),
            None,
            None,
        )
        .map_err(wrong)?;
    let names: Vec<&str> = end_entity.valid_dns_names().collect();
    if names == [host.as_str()] {
        return Ok(());
    }
    Err(TlsError::Certificate(format!("it names {names:?} instead of {host}")))
}
