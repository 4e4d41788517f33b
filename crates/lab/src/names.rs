// SPDX-License-Identifier: Apache-2.0
//! Names of enumerations in tables, records and configurations, and of the parts of experiments.

use anyhow::{Context, Result};

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

/// Those of `all` with these names, in their order; all if there are no names. `what` they are is for
/// the error.
pub(crate) fn chosen<T: Copy>(
    all: &[T],
    name: fn(&T) -> &'static str,
    names: &[String],
    what: &str,
) -> Result<Vec<T>> {
    if names.is_empty() {
        return Ok(all.to_vec());
    }
    let find = |wanted: &String| {
        let found = all.iter().find(|one| name(one) == wanted).copied();
        let known: Vec<&str> = all.iter().map(name).collect();
        found.with_context(|| format!("no {what} {wanted:?}; there are {}", known.join("; ")))
    };
    names.iter().map(find).collect()
}
