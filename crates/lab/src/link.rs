// SPDX-License-Identifier: Apache-2.0
//! Links between namespaces: their properties, and the thread that carries their packets.
//!
//! Kernels without `sch_netem` cannot delay packets, so an emulated link is a pair of TUN
//! interfaces with a user-space ferry between them. One thread carries all links of a network. It
//! reads a packet at one end, gets the due time from the direction's [`Queue`], and writes it at
//! the other end then. One read is one packet of at most the MTU (no segmentation offload), so loss
//! and queue limits are per packet.
//!
//! The thread requests the real-time class and exact timers. Even so it wakes about 40 us late,
//! which is subtracted from every delay. Keep the total rate of a network below about 500 Mbit/s:
//! beyond that the thread uses up its real-time budget and the kernel stalls it for 50 ms.

mod ferry;
mod queue;
pub mod split;

use std::fs::File;
use std::io;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

pub use ferry::{Ferry, Stats, run_in_real_time};

use crate::netns::Namespace;
use crate::process::run;
use crate::sys;

/// The MTU of every link, in bytes.
pub const MTU: u16 = 1500;

/// The properties of a link between two neighbours. Both directions are alike.
#[derive(Clone, Debug)]
pub enum Link {
    /// A plain virtual cable: no delay, no limit, segmentation offload as on a real card.
    Veth,
    /// Two devices of the host that something outside connects, such as network cards.
    Devices([&'static str; 2]),
    /// A link with the properties of a wide-area one.
    Emulated(Emulation),
}

/// Returns the packets that a link carries in the place of one.
pub type Rewrite = fn(Vec<u8>) -> Vec<Vec<u8>>;

/// Packets that are late at random, as on bonded links.
#[derive(Clone, Copy, Debug)]
pub struct Late {
    /// Probability that a packet is, 0 to 1.
    pub share: f64,
    /// Each by any time up to this.
    pub at_most: Duration,
}

/// The properties of an emulated link, per direction.
#[derive(Clone, Debug)]
pub struct Emulation {
    /// One-way delay.
    pub delay: Duration,
    /// Rate in bits per second; `None` means unlimited.
    pub rate: Option<u64>,
    /// Queue of the rate limiter, in bytes; packets that do not fit are dropped.
    pub queue_bytes: u64,
    /// Probability that a packet is lost, 0 to 1.
    pub loss: f64,
    /// Packets that later ones overtake; `None` means that all arrive in order.
    pub late: Option<Late>,
    /// What arrives in the place of a packet; `None` means the packet as it is.
    pub rewrite: Option<Rewrite>,
}

impl Emulation {
    /// No delay, no limit.
    fn none() -> Self {
        Self {
            delay: Duration::ZERO,
            rate: None,
            queue_bytes: 1_000_000,
            loss: 0.0,
            late: None,
            rewrite: None,
        }
    }
}

impl Link {
    /// A link with the given one-way delay, without rate limit or loss.
    pub fn delay(delay: Duration) -> Self {
        Self::Veth.changed(|e| e.delay = delay)
    }

    /// The same link limited to `bits` per second.
    #[must_use]
    pub fn rate(self, bits: u64) -> Self {
        self.changed(|e| e.rate = Some(bits))
    }

    /// The same link with a queue of `bytes` before its rate limiter.
    #[must_use]
    pub fn queue(self, bytes: u64) -> Self {
        self.changed(|e| e.queue_bytes = bytes)
    }

    /// The same link losing packets with probability `loss`.
    #[must_use]
    pub fn loss(self, loss: f64) -> Self {
        self.changed(|e| e.loss = loss)
    }

    /// The same link on which some packets are late.
    #[must_use]
    pub fn late(self, late: Late) -> Self {
        self.changed(|e| e.late = Some(late))
    }

    /// The same link with other packets in the place of each, for example its fragments.
    #[must_use]
    pub fn rewrites(self, rewrite: Rewrite) -> Self {
        self.changed(|e| e.rewrite = Some(rewrite))
    }

    fn changed(self, change: impl FnOnce(&mut Emulation)) -> Self {
        let mut emulation = match self {
            Self::Emulated(emulation) => emulation,
            Self::Veth | Self::Devices(_) => Emulation::none(),
        };
        change(&mut emulation);
        Self::Emulated(emulation)
    }
}

/// One end of a link: a namespace and the name its interface gets there.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The namespace.
    pub namespace: &'a Namespace,
    /// The name of the interface.
    pub interface: &'a str,
}

/// Moves the host's devices to both ends.
pub(crate) fn move_devices(devices: [&str; 2], ends: [End<'_>; 2]) -> anyhow::Result<()> {
    for (device, end) in devices.into_iter().zip(ends) {
        let (netns, name) = (end.namespace.name(), end.interface);
        let words = ["link", "set", "dev", device, "netns", netns, "name", name];
        run(Command::new("ip").args(words)).with_context(|| format!("move {device}"))?;
    }
    Ok(())
}

/// Makes both interfaces of a veth link.
pub(crate) fn make_veth(left: End<'_>, right: End<'_>) -> anyhow::Result<()> {
    left.namespace.ip(&format!(
        "link add {} type veth peer name {} netns {}",
        left.interface,
        right.interface,
        right.namespace.name()
    ))
}

/// Makes both interfaces of an emulated link and returns their files.
pub(crate) fn make_tuns(left: End<'_>, right: End<'_>) -> io::Result<[File; 2]> {
    let open = |end: End<'_>| end.namespace.run_in(|| sys::open_tun(end.interface));
    Ok([open(left)?, open(right)?])
}
