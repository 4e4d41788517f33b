// SPDX-License-Identifier: Apache-2.0
//! What finished relays show of the destinations that they went to: how large transfers from there
//! are, and how long the handshakes with servers took. Pure: told of relays and of the time.
//!
//! Destinations are kept by prefix, as many as [`KNOWN_MAX`]. Who is used the most stays: a new one
//! takes the place of another only if more flows of more clients went there of late. One client can
//! neither fill the memory nor push out what others use.

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

/// Destinations that are known at once: a controller takes no more from a node.
pub(crate) const KNOWN_MAX: usize = PREFIXES_MAX;
/// Of so many, the one that is used the least gives way.
const VICTIMS: usize = 8;
/// Bits of a destination's prefix: what is routed by itself in the Internet is no smaller.
const BITS_V4: u8 = 96 + 24;
const BITS_V6: u8 = 48;

/// The prefix that an address is learned of with.
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

/// A prefix as people write it.
pub(crate) fn prefix_word(prefix: &Prefix) -> String {
    let address = Ipv6Addr::from(prefix.address);
    let v4: Option<Ipv4Addr> = address.to_ipv4_mapped().filter(|_| prefix.bits >= 96);
    match v4 {
        Some(v4) => format!("{v4}/{}", prefix.bits - 96),
        None => format!("{address}/{}", prefix.bits),
    }
}

/// All destinations that are known.
#[derive(Debug)]
pub(crate) struct Destinations {
    known: Vec<Known>,
    /// Where in `known` a prefix is.
    places: HashMap<Prefix, usize>,
    admission_filter: AdmissionFilter,
    rng: Rng,
    /// Relays to destinations for which there was no room.
    refused: u64,
}

/// What is known of one.
#[derive(Debug)]
struct Known {
    prefix: Prefix,
    sizes: Sizes,
    /// The size that flows go by, in bytes.
    applied: Option<u32>,
    handshakes: Handshakes,
    /// The round trip that the controller was told, in microseconds, and when.
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

/// How many destinations there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Of which something is known.
    pub(crate) known: usize,
    /// Of which the size of transfers is.
    pub(crate) sized: usize,
    /// Whose round trip counts.
    pub(crate) measured: usize,
    /// Relays to destinations for which there was no room.
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

    /// What the controller is to be told: round trips that are news, or that it will have forgotten
    /// soon if they are not told again; it believes them for `life`.
    pub(crate) fn news(&mut self, life: Duration, now: Duration) -> Vec<Destination> {
        let news = self.known.iter_mut().filter_map(|known| {
            let (rtt_us, handshakes) = known.handshakes.known(now)?;
            let is_news = handshakes >= HANDSHAKES_MIN
                && known.reported.is_none_or(|(reported_us, at)| {
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

    /// The controller may know nothing any more.
    pub(crate) fn forget_reported(&mut self) {
        for known in &mut self.known {
            known.reported = None;
        }
    }

    /// The round trip to a destination by this node's own handshakes, in microseconds, as the
    /// controller was told it.
    pub(crate) fn round_trip(&self, prefix: &Prefix, now: Duration) -> Option<u32> {
        let known = self.known.get(*self.places.get(prefix)?)?;
        let (reported_us, _) = known.reported?;
        known.handshakes.known(now).map(|_| reported_us)
    }

    /// The sizes that flows are to go by, in bytes. What moves by less than the double stays as it was.
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
        sizes.sort_unstable();
        sizes
    }

    /// The size that flows to a destination go by, in bytes, and on how many transfers of late that
    /// rests.
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

    /// Where a destination is kept, from now on if it was not. Nothing when others are used more.
    fn place(&mut self, prefix: &Prefix) -> Option<usize> {
        if let Some(place) = self.places.get(prefix) {
            return Some(*place);
        }
        let uses = self.admission_filter.uses(prefix);
        if uses == 0 {
            return None;
        }
        if self.known.len() < KNOWN_MAX {
            self.places.insert(*prefix, self.known.len());
            self.known.push(Known::new(*prefix));
            return Some(self.known.len() - 1);
        }
        let some = (0..VICTIMS).map(|_| self.rng.below(self.known.len()));
        let victim =
            some.min_by_key(|place| self.admission_filter.uses(&self.known[*place].prefix))?;
        if self.admission_filter.uses(&self.known[victim].prefix) >= uses {
            return None;
        }
        self.places.remove(&self.known[victim].prefix);
        self.places.insert(*prefix, victim);
        self.known[victim] = Known::new(*prefix);
        Some(victim)
    }
}

/// By more than a tenth, and more than a millisecond: what is less is noise.
fn differs(rtt_us: u32, from_us: u32) -> bool {
    rtt_us.abs_diff(from_us) > (from_us / 10).max(1000)
}

#[cfg(test)]
mod tests;
