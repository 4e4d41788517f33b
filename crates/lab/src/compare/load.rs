// SPDX-License-Identifier: Apache-2.0
//! The loads that every subject carries, and the figures of each.

use std::time::Duration;

use crate::link::Link;
use crate::load::Work;
use crate::names::named;
use crate::sizes;

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
    /// As `Two`, but all packets arrive at the relay's host on the first CPU, as from a network card
    /// with one queue.
    TwoOneReceives,
}

impl Placement {
    pub(super) const ALL: [Self; 5] = [
        Self::One,
        Self::Far,
        Self::Split,
        Self::Two,
        Self::TwoOneReceives,
    ];

    /// How many CPUs it needs.
    pub(super) fn cpus(self) -> usize {
        match self {
            Self::One | Self::Far => 1,
            // With one CPU these are left out, and the record remarks that.
            Self::Split | Self::Two | Self::TwoOneReceives => 2,
        }
    }

    /// Load before the measurement.
    pub(super) fn warm_up(self) -> Duration {
        match self {
            // A node looks once a second which CPUs are idle, and moves a part of the flows.
            Self::TwoOneReceives => Duration::from_secs(8),
            _ => Duration::from_millis(150),
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
    /// Whether clients offer Multipath TCP.
    pub(super) multipath: bool,
}

/// Measurements of our node without a load: name and title.
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

const KIB: u64 = 1 << 10;

/// The load of connections of 8 KB that is compared between one CPU and two.
pub(super) const ON_ONE: &str = "8k-64";
pub(super) const ON_TWO: &str = "two-cores";

/// All loads, in the order of tables.
pub(super) fn all() -> Vec<Load> {
    use Placement::{Far, Split, Two, TwoOneReceives};
    use Yield::{Bytes, Messages, Rate, SynDelay, Transactions};
    vec![
        load("1k-64", Transactions, closed(FEW, KIB)).titled("1 KB objects, 64 at once"),
        load("1k-256", Transactions, closed(MANY, KIB)).titled("1 KB objects, 256 at once"),
        load(ON_ONE, Transactions, closed(FEW, 8 * KIB)).titled("8 KB objects, 64 at once"),
        load("8k-multipath", Transactions, closed(FEW, 8 * KIB))
            .titled("8 KB objects, 64 at once, clients with Multipath TCP")
            .by_multipath(),
        load("8k-256", Transactions, closed(MANY, 8 * KIB)).titled("8 KB objects, 256 at once"),
        // Open, as a closed loop would always load the CPU fully.
        load("8k-low", Transactions, open(LOW_RATE, 8 * KIB)).titled("8 KB objects, 2500 a second"),
        load("mixed", Transactions, mixed()).titled("objects of web-like sizes, 64 at once"),
        load("1m", Transactions, closed(16, KIB * KIB)).titled("1 MB objects, 16 at once"),
        load("bulk-1", Bytes, Work::Stream { flows: 1 }).titled("bulk, one flow"),
        load("bulk-16", Bytes, Work::Stream { flows: 16 }).titled("bulk, sixteen flows"),
        load("ping-pong", Messages, Work::PingPong { bytes: 1300 })
            .titled("1300 bytes there and back"),
        load("syn", SynDelay, open(SYN_RATE, KIB))
            .titled("SYNs, one connection at a time, 500 a second"),
        // One at a time, as above: with two that overlap, SYNs could not be matched. Closed: each
        // begins when the one before has ended.
        load("syn-far", SynDelay, closed(1, KIB))
            .titled("SYNs of a client 5 ms away, one connection at a time")
            .on(Far),
        load("split", Rate, closed(FEW, 8 * KIB))
            .titled("8 KB objects, the relay on a CPU of its own")
            .on(Split),
        load(ON_TWO, Rate, closed(FEW, 8 * KIB))
            .titled("8 KB objects, everything on two CPUs")
            .on(Two),
        load("one-queue", Rate, closed(FEW, 8 * KIB))
            .titled("8 KB objects, two CPUs, one of which receives the relay's packets")
            .on(TwoOneReceives),
    ]
}

fn load(name: &'static str, yields: Yield, work: Work) -> Load {
    Load {
        name,
        title: name,
        placement: Placement::One,
        yields,
        work,
        multipath: false,
    }
}

impl Load {
    fn titled(self, title: &'static str) -> Self {
        Self { title, ..self }
    }

    fn by_multipath(self) -> Self {
        Self {
            multipath: true,
            ..self
        }
    }

    fn on(self, placement: Placement) -> Self {
        Self { placement, ..self }
    }
}

fn closed(at_once: usize, size: u64) -> Work {
    let sizes = vec![size];
    Work::Closed { at_once, sizes }
}

fn open(rate: u32, size: u64) -> Work {
    Work::Open { rate, size }
}

fn mixed() -> Work {
    let sizes = sizes::web_like();
    Work::Closed {
        at_once: FEW,
        sizes,
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
