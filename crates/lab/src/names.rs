// SPDX-License-Identifier: Apache-2.0
//! Names of enumerations in tables, records and configurations.

/// Declares an enumeration with the name of each variant beside it. Gives it `ALL`, an array of
/// the variants in order, and `name()`.
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

        #[allow(dead_code, reason = "not all of them need both")]
        impl $enumeration {
            /// All variants, in order.
            $visibility const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name in tables, records and configurations.
            $visibility fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

pub(crate) use named;
