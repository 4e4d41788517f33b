// SPDX-License-Identifier: Apache-2.0
//! Enums whose variants have names in logs and metrics: one table for the variants and the names.

/// Defines an enum with the names of each variant behind its `=`.
macro_rules! named {
    (
        $(#[$about:meta])*
        pub enum $name:ident: $names:ty {
            $($(#[$of_variant:meta])* $variant:ident = $value:expr,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$of_variant])* $variant,)*
        }

        impl $name {
            /// Every variant, in the order of its discriminant.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];

            fn names(self) -> $names {
                match self {
                    $(Self::$variant => $value,)*
                }
            }
        }
    };
}

pub(crate) use named;
