// SPDX-License-Identifier: Apache-2.0
//! A configuration as meant, back in the shape of its file: every key with its value, in the order of
//! the documents. Reading the result gives the same configuration.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use posthaste_relay::policy::Prefix;
use serde::{Serialize, Serializer};
use toml::Value;

use super::value::show_duration;

mod chains;
mod node;

pub(super) use node::config;

/// What a file has: a value, a list, or a section with its keys.
#[derive(Debug)]
pub(super) enum Shown {
    Value(Value),
    List(Vec<Self>),
    Section(Vec<Key>),
}

/// A key; one that the file does not have shows nothing.
pub(super) type Key = (&'static str, Option<Shown>);

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => value.serialize(to),
            Self::List(items) => to.collect_seq(items),
            Self::Section(keys) => {
                let keys = keys.iter();
                to.collect_map(keys.filter_map(|(name, shown)| Some((name, shown.as_ref()?))))
            }
        }
    }
}

impl Shown {
    /// The file as JSON.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// A section.
pub(super) fn section(keys: impl IntoIterator<Item = Key>) -> Option<Shown> {
    Some(Shown::Section(keys.into_iter().collect()))
}

/// The sections of one name; the file has none where there is none.
pub(super) fn sections(all: impl Iterator<Item = Option<Shown>>) -> Option<Shown> {
    let all: Vec<Shown> = all.flatten().collect();
    (!all.is_empty()).then_some(Shown::List(all))
}

/// How a file has what a value means.
pub(super) trait Show {
    fn show(&self) -> Option<Shown>;
}

/// Shows the values of some types as others.
macro_rules! shown_as {
    ($($type:ty: |$value:ident| $shown:expr;)*) => {
        $(impl Show for $type {
            fn show(&self) -> Option<Shown> {
                let $value = self;
                Some(Shown::Value($shown.into()))
            }
        })*
    };
}

shown_as! {
    bool: |value| *value;
    u8: |value| i64::from(*value);
    u16: |value| i64::from(*value);
    u32: |value| *value;
    u64: |value| i64::try_from(*value).unwrap_or(i64::MAX);
    usize: |value| i64::try_from(*value).unwrap_or(i64::MAX);
    &str: |value| *value;
    String: |value| value.as_str();
    Duration: |value| show_duration(*value);
    SocketAddr: |value| value.to_string();
    IpAddr: |value| value.to_string();
    Prefix: |value| value.to_string();
    PathBuf: |value| value.display().to_string();
    RangeInclusive<u16>: |value| ports(value);
}

impl<T: Show> Show for Option<T> {
    fn show(&self) -> Option<Shown> {
        self.as_ref().and_then(T::show)
    }
}

impl<T: Show> Show for [T] {
    fn show(&self) -> Option<Shown> {
        Some(Shown::List(self.iter().filter_map(T::show).collect()))
    }
}

/// A range of ports in the form of the configuration.
pub fn ports(range: &RangeInclusive<u16>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{}-{}", range.start(), range.end())
    }
}
