// SPDX-License-Identifier: Apache-2.0
//! Learns about destinations from finished relays: transfer sizes, and durations of handshakes with
//! servers. Pure: callers pass relays and the time.
//!
//! Destinations are stored by prefix, at most [`KNOWN_MAX`]. The most used stay: a new one replaces
//! another only if more recent flows of more clients went there. One client can neither fill the
//! memory nor displace what others use.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use posthaste_control::egresses::{HANDSHAKES_MIN, PREFIXES_MAX};
use posthaste_control::message::{Destination, Prefix};
use posthaste_relay::rng::Rng;

mod admission_filter;
mod handshakes;
mod sample;
mod sizes;

use admission_filter::AdmissionFilter;
use handshakes::Handshakes;
pub(crate) use sample::{Ends, Feed, Sample, Samples};
use sizes::Sizes;

/// Bound on stored destinations: a controller accepts no more from a node.
pub(crate) const KNOWN_MAX: usize = PREFIXES_MAX;
/// The least used one of this many candidates is replaced.
const VICTIMS: usize = 8;
/// Prefix length of destinations: the Internet routes no smaller prefixes.
const BITS_V4: u8 = 96 + 24;
const BITS_V6: u8 = 48;

/// The prefix under which an address is stored.
pub(crate) fn prefix_of(ip: IpAddr) -> Prefix {
    let (octets, bits) = match ip.to_canonical() {
        IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), BITS_V4),
        IpAddr::V6(v6) => (v6.octets(), BITS_V6),
    };
    let behind = u128::MAX >> bits;
    let address = u128::from_be_bytes(octets) & !behind;
    Prefix {
        address: address.to_be_bytes(),
        bits,
    }
}

/// A prefix in its text form.
pub(crate) fn prefix_word(prefix: &Prefix) -> String {
    let address = Ipv6Addr::from(prefix.address);
    let v4: Option<Ipv4Addr> = address.to_ipv4_mapped().filter(|_| prefix.bits >= 96);
    match v4 {
        Some(v4) => format!("{v4}/{}", prefix.bits - 96),
        None => format!("{address}/{}", prefix.bits),
    }
}

/// All stored destinations.
#[derive(Debug)]
pub(crate) struct Destinations {
    known: Vec<Known>,
    /// Index in `known` by prefix.
    places: HashMap<Prefix, usize>,
    admission_filter: AdmissionFilter,
    rng: Rng,
    /// Relays to destinations without room.
    refused: u64,
}

/// The record of a destination.
#[derive(Debug)]
struct Known {
    prefix: Prefix,
    sizes: Sizes,
    /// The size that is applied to flows, in bytes.
    applied: Option<u32>,
    handshakes: Handshakes,
    /// The round trip reported to the controller, in microseconds, and its time.
    reported: Option<(u32, Duration)>,
}

impl Known {
    fn new(prefix: Prefix) -> Self {
        Self {
            prefix,
            sizes: Sizes::default(),
            applied: None,
            handshakes: Handshakes::default(),
            reported: None,
        }
    }
}

/// Numbers of destinations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Stored destinations.
    pub(crate) known: usize,
    /// Those with a transfer size.
    pub(crate) sized: usize,
    /// Those with a valid round trip.
    pub(crate) measured: usize,
    /// Relays to destinations without room.
    pub(crate) refused: u64,
}

impl Destinations {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            known: Vec::new(),
            places: HashMap::new(),
            admission_filter: AdmissionFilter::default(),
            rng: Rng::new(seed),
            refused: 0,
        }
    }

    /// A relay has ended.
    pub(crate) fn on_sample(&mut self, sample: &Sample, now: Duration) {
        self.admission_filter
            .count(sample.client, &sample.prefix, now);
        let Some(place) = self.place(&sample.prefix) else {
            self.refused += 1;
            return;
        };
        let known = &mut self.known[place];
        if let Some(bytes) = sample.bytes {
            known.sizes.add(bytes, now);
        }
        if let Some(handshake_us) = sample.handshake_us {
            known.handshakes.add(handshake_us, now);
        }
    }

    /// Round trips to report to the controller: changed ones, and those that it will discard soon
    /// unless repeated; they expire there after `life`.
    pub(crate) fn news(&mut self, life: Duration, now: Duration) -> Vec<Destination> {
        let news = self.known.iter_mut().filter_map(|known| {
            let (rtt_us, handshakes) = known.handshakes.known(now)?;
            let is_news = handshakes >= HANDSHAKES_MIN
                && known.reported.is_none_or(|(reported_us, at)| {
                    // Two more attempts fit in before it expires there.
                    differs(rtt_us, reported_us) || now >= at + life / 3
                });
            is_news.then(|| {
                known.reported = Some((rtt_us, now));
                Destination {
                    prefix: known.prefix,
                    rtt_us,
                    handshakes,
                }
            })
        });
        news.collect()
    }

    /// The controller may have lost all reports.
    pub(crate) fn forget_reported(&mut self) {
        for known in &mut self.known {
            known.reported = None;
        }
    }

    /// The round trip to a destination by this node's own handshakes, in microseconds, as reported
    /// to the controller.
    pub(crate) fn round_trip(&self, prefix: &Prefix, now: Duration) -> Option<u32> {
        let known = self.known.get(*self.places.get(prefix)?)?;
        let (reported_us, _) = known.reported?;
        known.handshakes.known(now).map(|_| reported_us)
    }

    /// The sizes to apply to flows, in bytes. A size that changes by less than a factor of two is
    /// kept.
    pub(crate) fn sizes(&mut self, now: Duration) -> Vec<(Prefix, u32)> {
        let sizes = self.known.iter_mut().filter_map(|known| {
            let usual = known.sizes.usual(now).map(|(bytes, _)| bytes);
            let is_near = |bytes: u32, applied: u32| bytes / 2 < applied && applied / 2 < bytes;
            known.applied = match (usual, known.applied) {
                (Some(bytes), Some(applied)) if is_near(bytes, applied) => Some(applied),
                (usual, _) => usual,
            };
            Some((known.prefix, known.applied?))
        });
        let mut sizes: Vec<_> = sizes.collect();
        // The caller compares them with the former ones, and replacements change the order.
        sizes.sort_unstable();
        sizes
    }

    /// The size that is applied to flows to a destination, in bytes, and the number of recent
    /// transfers behind it.
    pub(crate) fn size(&self, prefix: &Prefix, now: Duration) -> Option<(u32, u32)> {
        let known = self.known.get(*self.places.get(prefix)?)?;
        let (_, samples) = known.sizes.usual(now)?;
        Some((known.applied?, samples))
    }

    pub(crate) fn counts(&self, now: Duration) -> Counts {
        let measured =
            |known: &&Known| known.reported.is_some() && known.handshakes.known(now).is_some();
        Counts {
            known: self.known.len(),
            sized: self
                .known
                .iter()
                .filter(|known| known.applied.is_some())
                .count(),
            measured: self.known.iter().filter(measured).count(),
            refused: self.refused,
        }
    }

    /// The index of a destination, which is added if needed. `None` when others are used more.
    fn place(&mut self, prefix: &Prefix) -> Option<usize> {
        if let Some(place) = self.places.get(prefix) {
            return Some(*place);
        }
        let uses = self.admission_filter.uses(prefix);
        // Its client has used up its share.
        if uses == 0 {
            return None;
        }
        if self.known.len() < KNOWN_MAX {
            self.places.insert(*prefix, self.known.len());
            self.known.push(Known::new(*prefix));
            return Some(self.known.len() - 1);
        }
        // Some at random: to keep all in the order of their use would cost time with every relay.
        let some = (0..VICTIMS).map(|_| self.rng.below(self.known.len()));
        let victim =
            some.min_by_key(|place| self.admission_filter.uses(&self.known[*place].prefix))?;
        // On a tie the known one stays: a scan of many addresses displaces nothing.
        if self.admission_filter.uses(&self.known[victim].prefix) >= uses {
            return None;
        }
        self.places.remove(&self.known[victim].prefix);
        self.places.insert(*prefix, victim);
        self.known[victim] = Known::new(*prefix);
        Some(victim)
    }
}

/// More than a tenth and more than a millisecond: less is noise.
fn differs(rtt_us: u32, from_us: u32) -> bool {
    rtt_us.abs_diff(from_us) > (from_us / 10).max(1000)
}

#[cfg(test)]
mod tests;
