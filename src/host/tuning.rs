// SPDX-License-Identifier: Apache-2.0
//! Kernel settings that improve a node.
//!
//! They affect every program in the network namespace, so a node changes none: `doctor` lists them,
//! `setup --tune` changes them and stores the former values, `teardown` restores those. `persist`
//! makes changes survive a reboot.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use posthaste_daemon::file;
use posthaste_relay::sys::netns_cookie;
use serde::{Deserialize, Serialize};

use super::Report;
use super::path_manager::PathLimit;
use posthaste_config::Config;

mod persist;
mod setting;

pub(crate) use setting::{PATH_LIMITS, Setting};

/// Directory of the former values. Separate from the node's files: a service manager removes those
/// when the node ends.
const DIRECTORY: &str = "/run/posthaste-tuned";
/// The initial receive window of a connection, in bytes.
const RECEIVE_WINDOW_BYTES: u64 = 1 << 20;
/// Further paths of a connection of Multipath TCP.
const PATHS: u32 = 4;
/// `net.ipv4.tcp_fastopen`: listeners accept data in a SYN.
const FAST_OPEN_LISTENERS: u64 = 2;

/// A recommended setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recommendation {
    /// Its subject, in a word or two.
    pub(crate) topic: &'static str,
    pub(crate) setting: Setting<'static>,
    /// The problem with the present value.
    pub(crate) lacking: &'static str,
    /// The text when nothing is to do.
    pub(crate) fine: &'static str,
    /// Whether kernels that do not have it need nothing.
    pub(crate) is_recent: bool,
    /// The better value for the present one; `None` if that is good enough.
    pub(crate) better: fn(&str) -> Option<String>,
}

const SLOW_START: Recommendation = Recommendation {
    topic: "slow start",
    setting: Setting::Sysctl("net/ipv4/tcp_slow_start_after_idle"),
    lacking: "warm hops that wait lose their congestion window",
    fine: "warm hops that wait keep their congestion window",
    is_recent: false,
    better: |now| (now != "0").then(|| "0".into()),
};

const RECEIVE_WINDOW: Recommendation = Recommendation {
    topic: "receive window",
    setting: Setting::Sysctl("net/ipv4/tcp_rmem"),
    lacking: "connections to listeners and hops begin with a receive window of less than 1 MiB",
    fine: "connections to listeners and hops begin with a receive window of 1 MiB or more",
    is_recent: false,
    better: |now| {
        let numbers = now.split_whitespace().map(str::parse::<u64>);
        let numbers: Vec<u64> = numbers.collect::<Result<_, _>>().ok()?;
        // The minimum, the initial size and the maximum (tcp(7)).
        let [least, first, most] = numbers.try_into().ok()?;
        let wanted = RECEIVE_WINDOW_BYTES;
        // The maximum must not be below the initial size.
        (first < wanted).then(|| format!("{least} {wanted} {}", most.max(wanted)))
    },
};

const FAST_OPEN: Recommendation = Recommendation {
    topic: "fast open",
    setting: Setting::Sysctl("net/ipv4/tcp_fastopen"),
    lacking: "explicit listeners take no data in a SYN: clients wait a round trip more",
    fine: "explicit listeners take data in a SYN",
    is_recent: false,
    better: |now| {
        let bits: u64 = now.parse().ok()?;
        // The other bits are for other uses, and stay.
        (bits & FAST_OPEN_LISTENERS == 0).then(|| (bits | FAST_OPEN_LISTENERS).to_string())
    },
};

/// An upstream connection cannot discover the path MTU where ICMP errors are filtered. Its client
/// may know it, but the two connections have separate segment sizes.
const MTU_PROBING: Recommendation = Recommendation {
    topic: "path MTU",
    setting: Setting::Sysctl("net/ipv4/tcp_mtu_probing"),
    lacking: "relays hang on paths with a small MTU where ICMP errors are filtered (RFC 4821)",
    fine: "relays find out the MTU of paths where ICMP errors are filtered",
    is_recent: false,
    // 1 probes only where large segments are lost; 2 would begin every connection with small ones.
    better: |now| (now == "0").then(|| "1".into()),
};

const SUBFLOWS: Recommendation = Recommendation {
    topic: "path limits",
    setting: Setting::PathLimit(PathLimit::Subflows),
    lacking: "connections of Multipath TCP get few further paths",
    fine: "connections of Multipath TCP get enough further paths",
    is_recent: false,
    better: at_least_four,
};

const ANNOUNCED_ADDRESSES: Recommendation = Recommendation {
    topic: "path limits",
    setting: Setting::PathLimit(PathLimit::AnnouncedAddresses),
    lacking: "connections to servers use few of the addresses that these announce",
    fine: "connections to servers use the addresses that these announce",
    is_recent: false,
    better: at_least_four,
};

/// When the first handshake over an uplink fails with Multipath TCP and succeeds without, the kernel takes
/// that for a firewall, and for this many seconds every new connection of the host is TCP. The uplink may
/// have been silent.
const BLACKHOLE: Recommendation = Recommendation {
    topic: "path detection",
    setting: Setting::Sysctl("net/mptcp/blackhole_timeout"),
    lacking: "one silent uplink turns Multipath TCP off for all connections that this host opens, for an hour by default",
    fine: "a silent uplink does not turn Multipath TCP off",
    is_recent: true,
    better: |now| (now != "0").then(|| "0".into()),
};

/// More access links than hosts have, and half of what the kernel allows.
fn at_least_four(now: &str) -> Option<String> {
    let now: u32 = now.parse().ok()?;
    (now < PATHS).then(|| PATHS.to_string())
}

/// The recommendations for a node with this configuration. A controller may add peers later.
pub(crate) fn recommendations(config: &Config) -> Vec<Recommendation> {
    let peers = &config.policy.chains.peers;
    let follows = config.follow.is_some();
    let is_explicit = !config.explicit.is_empty();
    let listens = is_explicit || !config.fixed.is_empty();
    let accepts_paths =
        config.policy.converts_multipath() || !config.multipath_listeners.is_empty();
    let requests_paths = config.policy.requests_multipath();
    let keeps_hops = follows || peers.iter().any(|peer| peer.pool.max > 0);
    let conditions = [
        (SLOW_START, keeps_hops),
        (RECEIVE_WINDOW, listens || follows || !peers.is_empty()),
        // Fixed listeners take no data in a SYN: their clients do not use TCP Fast Open.
        (FAST_OPEN, is_explicit),
        (MTU_PROBING, config.transparent.enabled),
        (SUBFLOWS, accepts_paths || requests_paths),
        (ANNOUNCED_ADDRESSES, requests_paths),
        (BLACKHOLE, requests_paths),
    ];
    let wanted = conditions.into_iter().filter(|(_, wanted)| *wanted);
    wanted.map(|(recommendation, _)| recommendation).collect()
}

/// Whether `setup` changes the settings, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tuning {
    Off,
    /// Until the next reboot.
    UntilReboot,
    /// Also after a reboot.
    Persistent,
}

/// A setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Change {
    /// [`Setting::path`]
    path: String,
    former: String,
    applied: String,
}

/// Fails if the settings cannot be changed in this way here.
pub(super) fn require(tuning: Tuning) -> anyhow::Result<()> {
    match tuning {
        Tuning::Off | Tuning::UntilReboot => Ok(()),
        Tuning::Persistent => persist::require_namespace_of_boot(),
    }
}

/// Changes the recommended settings, and stores the former values.
pub(super) fn apply(config: &Config, tuning: Tuning, report: &mut Report) -> anyhow::Result<()> {
    if tuning == Tuning::Off {
        return Ok(());
    }
    let memory = Memory::of_namespace()?;
    let mut changes = memory.recall()?;
    for Recommendation {
        setting,
        better,
        is_recent,
        ..
    } in recommendations(config)
    {
        let now = match setting.read() {
            Ok(now) => now,
            // A kernel without Multipath TCP, which a node does without.
            Err(_) if is_recent => continue,
            Err(error) if !setting.is_sysctl() => {
                report.notes.push(format!("{error:#}"));
                continue;
            }
            Err(error) => return Err(error),
        };
        let Some(better) = better(&now) else {
            report.unchanged.push(format!("{setting} = {now}"));
            continue;
        };
        report
            .done
            .push(format!("{setting} = {better} (was {now})"));
        // The present value is the one to restore, even if it was changed since an earlier setup.
        let path = setting.path();
        changes.retain(|change| change.path != path);
        changes.push(Change {
            path,
            former: now,
            applied: better.clone(),
        });
        // Before the change: a crash in between must not lose the former value.
        memory.keep(&changes)?;
        setting.write(&better)?;
    }
    if tuning == Tuning::Persistent {
        persist::keep(&changes, report)?;
    }
    Ok(())
}

/// Restores what [`apply`] changed, except settings that were changed since.
pub(super) fn restore(report: &mut Report) -> anyhow::Result<()> {
    let memory = Memory::of_namespace()?;
    let changes = memory.recall()?;
    // After a reboot the record below /run is gone, and that of the file is left.
    let persisted = persist::recall_here()?.unwrap_or_default();
    for Change {
        path,
        former,
        applied,
    } in joined(persisted, &changes)
    {
        let setting = Setting::at(&path);
        if setting.read()? == applied {
            setting.write(&former)?;
            report
                .done
                .push(format!("{setting} = {former} (was {applied})"));
        } else {
            let what = format!("{setting} was changed by another program since setup: not touched");
            report.notes.push(what);
        }
    }
    persist::forget(report)?;
    memory.forget()
}

/// Merges both; `newer` wins for the same setting.
fn joined(mut older: Vec<Change>, newer: &[Change]) -> Vec<Change> {
    older.retain(|change| newer.iter().all(|other| other.path != change.path));
    older.extend_from_slice(newer);
    older
}

/// The file with the changes in this network namespace.
struct Memory(PathBuf);

impl Memory {
    fn of_namespace() -> anyhow::Result<Self> {
        // Unique until the next reboot, unlike inode numbers.
        let cookie = netns_cookie().context("read the cookie of the network namespace")?;
        Ok(Self(Path::new(DIRECTORY).join(format!("{cookie}.json"))))
    }

    fn recall(&self) -> anyhow::Result<Vec<Change>> {
        let text = match fs::read_to_string(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            text => text.with_context(|| format!("read {}", self.0.display()))?,
        };
        serde_json::from_str(&text).with_context(|| format!("understand {}", self.0.display()))
    }

    /// Writes it atomically: lost values could never be restored.
    fn keep(&self, changes: &[Change]) -> anyhow::Result<()> {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(DIRECTORY);
        made.with_context(|| format!("create {DIRECTORY}"))?;
        let text = serde_json::to_string(changes)?;
        file::replace(&self.0, 0o600, text.as_bytes())
            .with_context(|| format!("write {}", self.0.display()))
    }

    fn forget(&self) -> anyhow::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sufficient_values_unchanged() {
        let better = |recommendation: Recommendation, now: &str| (recommendation.better)(now);
        assert_eq!(better(SLOW_START, "0"), None);
        assert_eq!(better(SLOW_START, "1").as_deref(), Some("0"));
        assert_eq!(better(RECEIVE_WINDOW, "4096 1048576 6291456"), None);
        for (now, wanted) in [
            ("4096 131072 6291456", "4096 1048576 6291456"),
            ("4096\t87380\t500000", "4096 1048576 1048576"),
        ] {
            assert_eq!(better(RECEIVE_WINDOW, now).as_deref(), Some(wanted));
        }
        assert_eq!(better(RECEIVE_WINDOW, "nonsense"), None);
        assert_eq!(better(MTU_PROBING, "0").as_deref(), Some("1"));
        assert_eq!(["1", "2"].map(|now| better(MTU_PROBING, now)), [None, None]);
        for (now, wanted) in [
            ("0", Some("2")),
            ("1", Some("3")),
            ("1027", None),
            ("3", None),
        ] {
            assert_eq!(better(FAST_OPEN, now).as_deref(), wanted);
        }
    }

    #[test]
    fn few_paths_raised() {
        for recommendation in [SUBFLOWS, ANNOUNCED_ADDRESSES] {
            let better = ["0", "3", "4", "8"].map(recommendation.better);
            assert_eq!(better, [Some("4".into()), Some("4".into()), None, None]);
        }
    }

    #[test]
    fn namespace_has_a_number() {
        let here = netns_cookie().unwrap();
        assert_eq!(netns_cookie().unwrap(), here);
        let other = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this needs root");
            netns_cookie().unwrap()
        });
        assert_ne!(other.join().unwrap(), here);
    }
}
