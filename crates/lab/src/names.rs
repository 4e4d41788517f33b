// SPDX-License-Identifier: Apache-2.0
//! Names of enumerations in tables, records and configurations.

/// An enumeration whose variants have names.
pub(crate) trait Named: Copy + 'static {
    /// All variants, in order.
    const ALL: &'static [Self];

    /// The name in tables, records and configurations.
    fn name(self) -> &'static str;
}

/// Declares an enumeration with the name of each variant beside it, and makes it [`Named`].
macro_rules! named {
    (
        $(#[$meta:meta])*
        $visibility:vis enum $enumeration:ident {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$meta])*
        $visibility enum $enumeration {
            $($(#[$doc])* $variant,)+
        }

        impl $crate::names::Named for $enumeration {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

pub(crate) use named;
