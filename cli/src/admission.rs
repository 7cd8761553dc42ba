//! Who may join and who may not: a row of `gleaner host invitations`. Data only.

use gleaner_api::{InvitationView, RevocationView};
use gleaner_types::id::HostId;

/// A row of `gleaner host invitations`.
#[derive(Debug, Clone)]
pub(crate) enum Admission {
    Invited(InvitationView),
    Revoked(RevocationView),
}

impl Admission {
    pub(crate) const fn host(&self) -> &HostId {
        match self {
            Self::Invited(one) => &one.host,
            Self::Revoked(one) => &one.host,
        }
    }
}
