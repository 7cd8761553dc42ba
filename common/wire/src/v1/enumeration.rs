//! How version 1 sends plain enumerations. In: the domain's enumerations. Out: their schemas. The schemas of messages
//! here call it.

/// The number of this version.
pub(super) const VERSION: u16 = 1;

/// A plain enumeration: its variants travel as their number in this order.
macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident = $domain:ident { $($variant:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
        pub(crate) enum $name { $($variant,)+ }

        impl<'a> $crate::schema::Travels<'a, $domain> for $name {
            fn of(domain: &'a $domain) -> Result<Self, $crate::schema::NotInVersion> {
                match domain {
                    $($domain::$variant => Ok(Self::$variant),)+
                    $domain::Unknown(_) => {
                        Err($crate::schema::NotInVersion::new($crate::v1::enumeration::VERSION, "what it does not know"))
                    }
                }
            }
            fn into_domain(
                self,
                _: &mut $crate::unknown::Unknowns,
            ) -> Result<$domain, $crate::schema::Rejected> {
                Ok(match self { $(Self::$variant => $domain::$variant,)+ })
            }
        }
    )+};
}
pub(super) use variants;
