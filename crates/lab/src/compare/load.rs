// SPDX-License-Identifier: Apache-2.0
//! The loads that every subject carries, and the figures of each.

use std::time::Duration;

use super::sizes;
use crate::link::Link;
use crate::load::Work;
use crate::names::named;

/// Where the processes of a load run, and how far from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Placement {
    /// Client, relay and server on one CPU; the relay has one thread.
    One,
    /// As `One`, but the client is [`FAR`] away from the relay.
    Far,
    /// The relay's one thread on one CPU, client and server on another.
    Split,
    /// Everything on two CPUs: two clients, two servers, a relay of two threads.
    Two,
}

impl Placement {
    pub(super) const ALL: [Self; 4] = [Self::One, Self::Far, Self::Split, Self::Two];

    /// How many CPUs it needs.
    pub(super) fn cpus(self) -> usize {
        match self {
            Self::One | Self::Far => 1,
            // With one CPU these are left out, and the record remarks that.
            Self::Split | Self::Two => 2,
        }
    }

    /// The link to the client.
    pub(super) fn access_link(self) -> Link {
        match self {
            Self::Far => Link::delay(FAR),
            _ => Link::Veth,
        }
    }
}

named! {
    /// The figures computed from a load.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Yield {
        /// CPU time per transaction.
        Transactions = "connections",
        /// CPU time per gigabyte.
        Bytes = "bulk",
        /// Time added to a message, one way, and CPU time per message there and back.
        Messages = "messages",
        /// Time from a client's SYN at the relay to the relay's SYN to the server.
        SynDelay = "syns",
        /// Transactions per second only: the CPU times of two CPUs cannot be added.
        Rate = "rate",
    }
}

/// One load.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// In tables and charts.
    pub(super) title: &'static str,
    pub(super) placement: Placement,
    pub(super) yields: Yield,
    pub(super) work: Work,
}

/// Measurements without a load: name and title.
pub(super) const MEMORY: (&str, &str) = ("memory", "memory, idle and with many idle relays");
pub(super) const BOOT: (&str, &str) = ("boot", "time from exec to the first relayed byte");

/// Connections of the loads whose figures are compared with published ones.
const FEW: usize = 64;
const MANY: usize = 256;

/// What a lightly loaded relay gets, in connections per second.
const LOW_RATE: u32 = 2500;

/// Connections per second when SYNs are timed: each finds the machine idle and the caches cold, as
/// on a real path.
const SYN_RATE: u32 = 500;

/// One-way delay to a client that is far: light in 1000 km of fibre.
const FAR: Duration = Duration::from_millis(5);

/// The load of connections of 8 KB that is compared between one CPU and two.
pub(super) const ON_ONE: &str = "8k-64";
pub(super) const ON_TWO: &str = "two-cores";

/// All loads, in the order of tables.
pub(super) fn all() -> Vec<Load> {
    let small = [1, 8].into_iter().flat_map(small);
    small
        .chain([low_rate(), mixed(), large()])
        .chain([1, 16].map(bulk))
        .chain([ping_pong(), syns(), far_syns(), split(), two_cores()])
        .collect()
}

/// Objects of so many KB, few and many at once.
fn small(kilobytes: u64) -> [Load; 2] {
    let name = |at_once| match (kilobytes, at_once) {
        (1, FEW) => ("1k-64", "1 KB objects, 64 at once"),
        (1, _) => ("1k-256", "1 KB objects, 256 at once"),
        (_, FEW) => (ON_ONE, "8 KB objects, 64 at once"),
        (_, _) => ("8k-256", "8 KB objects, 256 at once"),
    };
    [FEW, MANY].map(|at_once| {
        let work = closed(at_once, vec![kilobytes << 10]);
        on_one(name(at_once), Yield::Transactions, work)
    })
}

fn low_rate() -> Load {
    // Open, as a closed loop would always load the CPU fully.
    let work = Work::Open {
        rate: LOW_RATE,
        size: 8 << 10,
    };
    on_one(
        ("8k-low", "8 KB objects, 2500 a second"),
        Yield::Transactions,
        work,
    )
}

fn mixed() -> Load {
    let name = ("mixed", "objects of web-like sizes, 64 at once");
    on_one(name, Yield::Transactions, closed(FEW, sizes::web_like()))
}

fn large() -> Load {
    let name = ("1m", "1 MB objects, 16 at once");
    on_one(name, Yield::Transactions, closed(16, vec![1 << 20]))
}

fn bulk(flows: usize) -> Load {
    let name = match flows {
        1 => ("bulk-1", "bulk, one flow"),
        _ => ("bulk-16", "bulk, sixteen flows"),
    };
    on_one(name, Yield::Bytes, Work::Stream { flows })
}

fn ping_pong() -> Load {
    let name = ("ping-pong", "1300 bytes there and back");
    on_one(name, Yield::Messages, Work::PingPong { bytes: 1300 })
}

fn syns() -> Load {
    let name = ("syn", "SYNs, one connection at a time, 500 a second");
    let work = Work::Open {
        rate: SYN_RATE,
        size: 1 << 10,
    };
    on_one(name, Yield::SynDelay, work)
}

/// One connection at a time, as above: with two that overlap, SYNs could not be matched.
fn far_syns() -> Load {
    let name = (
        "syn-far",
        "SYNs of a client 5 ms away, one connection at a time",
    );
    Load {
        placement: Placement::Far,
        // Closed: each begins when the one before has ended.
        ..on_one(name, Yield::SynDelay, closed(1, vec![1 << 10]))
    }
}

fn split() -> Load {
    Load {
        placement: Placement::Split,
        ..rate(("split", "8 KB objects, the relay on a CPU of its own"))
    }
}

fn two_cores() -> Load {
    Load {
        placement: Placement::Two,
        ..rate((ON_TWO, "8 KB objects, everything on two CPUs"))
    }
}

fn rate(name: (&'static str, &'static str)) -> Load {
    on_one(name, Yield::Rate, closed(FEW, vec![8 << 10]))
}

fn closed(at_once: usize, sizes: Vec<u64>) -> Work {
    Work::Closed { at_once, sizes }
}

fn on_one((name, title): (&'static str, &'static str), yields: Yield, work: Work) -> Load {
    Load {
        name,
        title,
        placement: Placement::One,
        yields,
        work,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = all().iter().map(|load| load.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
