//! How version 2 sends variants: a number, and for those with data their content behind its length. In: the domain's
//! enumerations. Out: their schemas. The schemas of messages here call it.

use serde::{Deserialize, Serialize};

use crate::codec::prefix;
use crate::scalar::{Input, Scalar};
use crate::schema::{Raw, Rejected};
use crate::unknown::Unknowns;

/// The number of a variant of a plain enumeration.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Code(pub(super) u16);

/// Which number stands for which variant.
macro_rules! codes {
    ($($domain:ident, $what:literal { $($code:literal = $variant:ident),+ $(,)? })+) => {$(
        impl<'a> $crate::schema::Travels<'a, $domain> for $crate::v2::variant::Code {
            fn of(domain: &'a $domain) -> Result<Self, $crate::schema::NotInVersion> {
                Ok(Self(match domain {
                    $($domain::$variant => $code,)+
                    $domain::Unknown(code) => *code,
                }))
            }
            fn into_domain(
                self,
                unknown: &mut $crate::unknown::Unknowns,
            ) -> Result<$domain, $crate::schema::Rejected> {
                Ok(match self.0 {
                    $($code => $domain::$variant,)+
                    code => {
                        unknown.code($what, code);
                        $domain::Unknown(code)
                    }
                })
            }
            fn write(domain: &'a $domain, into: &mut Vec<u8>) -> Result<(), $crate::schema::NotInVersion> {
                let code: Self = $crate::schema::Travels::of(domain)?;
                $crate::scalar::Scalar::append(code.0, into);
                Ok(())
            }
            fn read(
                input: &mut $crate::scalar::Input<'a>,
                unknown: &mut $crate::unknown::Unknowns,
            ) -> Result<$domain, $crate::schema::Rejected> {
                let code = Self(<u16 as $crate::scalar::Scalar>::read(input)?);
                $crate::schema::Travels::<$domain>::into_domain(code, unknown)
            }
        }
    )+};
}
pub(super) use codes;

/// A variant with data: its number, and its content behind its length.
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
pub(super) struct Variant<'a> {
    pub(super) code: u16,
    pub(super) content: Raw<'a>,
}

impl<'a> Scalar<'a> for Variant<'a> {
    fn append(self, into: &mut Vec<u8>) {
        self.code.append(into);
        self.content.append(into);
    }
    fn read(input: &mut Input<'a>) -> Result<Self, Rejected> {
        Ok(Self { code: u16::read(input)?, content: Raw::read(input)? })
    }
}

impl Variant<'_> {
    pub(super) fn new<T: Serialize>(code: u16, content: &T) -> Self {
        Self { code, content: Raw::of_value(content) }
    }

    /// The content of a variant that is known; what a newer release appended is counted.
    pub(super) fn content<'b, T: Deserialize<'b>>(&'b self, unknown: &mut Unknowns) -> Result<T, Rejected> {
        let (content, used) = prefix(&self.content.0).map_err(Rejected::invalid)?;
        if used < self.content.0.len() {
            unknown.fields(self.content.0.len() - used);
        }
        Ok(content)
    }
}
