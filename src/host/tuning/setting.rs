// SPDX-License-Identifier: Apache-2.0
//! A setting of this network namespace: a sysctl, or a limit of the path manager of Multipath TCP.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::host::path_manager::PathLimit;

/// Before the names of limits in the record of changes. No sysctl has such a path.
const LIMITS: &str = "mptcp/limits/";

/// A setting, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting<'a> {
    /// By its path below `/proc/sys`.
    Sysctl(&'a str),
    /// One that only netlink reaches.
    PathLimit(PathLimit),
}

/// The limits.
pub(crate) const PATH_LIMITS: [Setting<'static>; 2] = [
    Setting::PathLimit(PathLimit::Subflows),
    Setting::PathLimit(PathLimit::AnnouncedAddresses),
];

impl<'a> Setting<'a> {
    /// The inverse of [`Self::path`].
    pub(super) fn at(path: &'a str) -> Self {
        let limit = PATH_LIMITS.into_iter().find(|limit| limit.path() == path);
        limit.unwrap_or(Self::Sysctl(path))
    }

    /// Its path in the record of changes.
    pub(crate) fn path(self) -> String {
        match self {
            Self::Sysctl(path) => path.to_owned(),
            Self::PathLimit(limit) => format!("{LIMITS}{}", limit.name()),
        }
    }

    /// Whether a file of sysctls can set it when the host starts.
    pub(super) fn is_sysctl(self) -> bool {
        matches!(self, Self::Sysctl(_))
    }

    /// The command that sets it.
    pub(crate) fn command(self, value: &str) -> String {
        match self {
            Self::Sysctl(_) => format!("sysctl -w {self}=\"{value}\""),
            Self::PathLimit(_) => format!("ip {self} {value}").replacen("limits", "limits set", 1),
        }
    }

    /// Its value, with single spaces between its numbers.
    pub(crate) fn read(self) -> anyhow::Result<String> {
        let value = match self {
            Self::Sysctl(path) => fs::read_to_string(file(path)),
            Self::PathLimit(limit) => limit.read().map(|value| value.to_string()),
        };
        let value = value.with_context(|| format!("read {self}"))?;
        Ok(value.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    pub(super) fn write(self, value: &str) -> anyhow::Result<()> {
        let what = || format!("set {self} to {value}");
        match self {
            Self::Sysctl(path) => fs::write(file(path), value).with_context(what),
            Self::PathLimit(limit) => {
                let number = value.parse().with_context(what)?;
                limit.write(number).with_context(what)
            }
        }
    }
}

impl fmt::Display for Setting<'_> {
    /// As `sysctl` or `ip` name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl(path) => f.write_str(&path.replace('/', ".")),
            Self::PathLimit(limit) => write!(f, "mptcp limits {}", limit.name()),
        }
    }
}

fn file(path: &str) -> PathBuf {
    Path::new("/proc/sys").join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_by_path() {
        for setting in [Setting::Sysctl("net/ipv4/tcp_rmem")]
            .into_iter()
            .chain(PATH_LIMITS)
        {
            assert_eq!(Setting::at(&setting.path()), setting);
        }
    }

    #[test]
    fn commands() {
        let limit = Setting::PathLimit(PathLimit::Subflows);
        assert_eq!(limit.command("4"), "ip mptcp limits set subflows 4");
        assert_eq!(
            Setting::Sysctl("net/ipv4/tcp_rmem").command("1 2 3"),
            "sysctl -w net.ipv4.tcp_rmem=\"1 2 3\""
        );
    }
}
