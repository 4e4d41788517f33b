// SPDX-License-Identifier: Apache-2.0
//! A value for each of many prefixes, of which the longest counts.
//!
//! Prefixes are cut into ranges of addresses that do not overlap, so that a look-up is one binary
//! search however long and however nested they are: n prefixes make at most 2n + 1 ranges. Those of
//! IPv4 are searched by themselves, in a quarter of the memory.

use crate::policy::Prefix;

/// What stands for no value.
const NONE: u32 = u32::MAX;
/// Where IPv4 addresses begin among those of IPv6 (RFC 4291 §2.5.5.2), and their bits. No prefix of
/// IPv6 reaches into them.
const MAPPED: (u128, u8) = (0xffff << 32, 96);

/// Values by prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefixes {
    ipv4: Ranges<u32>,
    ipv6: Ranges<u128>,
}

/// Ranges of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranges<A> {
    /// The first address of each, in order; the first is 0.
    starts: Box<[A]>,
    /// Of each range.
    values: Box<[u32]>,
}

impl<A: Ord> Ranges<A> {
    fn get(&self, address: A) -> Option<u32> {
        let behind = self.starts.partition_point(|start| *start <= address);
        let value = *self.values.get(behind.checked_sub(1)?)?;
        (value != NONE).then_some(value)
    }
}

impl<A> FromIterator<(A, u32)> for Ranges<A> {
    fn from_iter<I: IntoIterator<Item = (A, u32)>>(ranges: I) -> Self {
        let (starts, values): (Vec<A>, Vec<u32>) = ranges.into_iter().unzip();
        Self {
            starts: starts.into(),
            values: values.into(),
        }
    }
}

impl Prefixes {
    /// Of prefixes with the same addresses the last counts. `u32::MAX` is no value.
    pub fn new(prefixes: impl IntoIterator<Item = (Prefix, u32)>) -> Self {
        let (mapped, bits) = MAPPED;
        let mut all = vec![(mapped, bits, NONE)];
        let prefixes = prefixes.into_iter();
        all.extend(prefixes.map(|(prefix, value)| {
            let first = u128::from_be_bytes(prefix.octets());
            (first, prefix.mapped_bits(), value)
        }));
        // Outer ones first; the sort keeps the order of equal ones.
        all.sort_by_key(|(first, bits, _)| (*first, *bits));
        let mut ranges = vec![(0, NONE)];
        let mut open: Vec<(u128, u32)> = Vec::new();
        for (first, bits, value) in all {
            close(&mut open, &mut ranges, Some(first));
            begin(&mut ranges, first, value);
            let behind = u128::MAX.checked_shr(bits.into()).unwrap_or(0);
            open.push((first | behind, value));
        }
        close(&mut open, &mut ranges, None);
        // A range begins where IPv4 does, and one where it ends.
        let (ipv4, ipv6): (Vec<_>, Vec<_>) = ranges
            .into_iter()
            .partition(|(start, _)| start >> 32 == mapped >> 32);
        let low = |(start, value): (u128, u32)| Some((u32::try_from(start - mapped).ok()?, value));
        Self {
            ipv4: ipv4.into_iter().filter_map(low).collect(),
            ipv6: ipv6.into_iter().collect(),
        }
    }

    /// The value for an address of 16 bytes, in network order, v4-mapped for IPv4.
    pub fn get(&self, address: [u8; 16]) -> Option<u32> {
        let address = u128::from_be_bytes(address);
        match address.checked_sub(MAPPED.0).map(u32::try_from) {
            Some(Ok(ipv4)) => self.ipv4.get(ipv4),
            _ => self.ipv6.get(address),
        }
    }
}

impl Default for Prefixes {
    fn default() -> Self {
        Self::new([])
    }
}

/// Ends the prefixes, innermost first, whose last address is before `next`, or all.
fn close(open: &mut Vec<(u128, u32)>, ranges: &mut Vec<(u128, u32)>, next: Option<u128>) {
    while let Some((last, _)) = open.pop_if(|(last, _)| next.is_none_or(|next| *last < next)) {
        let outer = open.last().map_or(NONE, |(_, value)| *value);
        if let Some(after) = last.checked_add(1) {
            begin(ranges, after, outer);
        }
    }
}

/// Begins a range; what began at the same address has none.
fn begin(ranges: &mut Vec<(u128, u32)>, start: u128, value: u32) {
    match ranges.last_mut() {
        Some(last) if last.0 == start => last.1 = value,
        _ => ranges.push((start, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_testkit::Rng;

    fn prefix(text: &str) -> Prefix {
        let (ip, bits) = text.split_once('/').unwrap();
        Prefix::new(ip.parse().unwrap(), bits.parse().unwrap()).unwrap()
    }

    fn octets(text: &str) -> [u8; 16] {
        match text.parse().unwrap() {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(v6) => v6.octets(),
        }
    }

    #[test]
    fn the_longest_prefix_counts() {
        let prefixes = Prefixes::new([
            (prefix("10.1.0.0/16"), 2),
            (prefix("10.0.0.0/8"), 1),
            (prefix("10.1.2.0/24"), 3),
            (prefix("10.1.255.255/32"), 4),
            (prefix("2001:db8::/32"), 5),
        ]);
        let get = |text| prefixes.get(octets(text));
        assert_eq!(get("9.255.255.255"), None);
        assert_eq!(get("10.0.0.0"), Some(1));
        assert_eq!(get("10.1.1.255"), Some(2));
        assert_eq!(get("10.1.2.9"), Some(3));
        assert_eq!(get("10.1.3.0"), Some(2));
        assert_eq!(get("10.1.255.255"), Some(4));
        assert_eq!(get("10.2.0.0"), Some(1));
        assert_eq!(get("11.0.0.0"), None);
        assert_eq!(get("2001:db8::1"), Some(5));
        assert_eq!(get("2001:db9::1"), None);
    }

    #[test]
    fn families_and_catch_all() {
        let all = Prefixes::new([(prefix("::/0"), 6), (prefix("0.0.0.0/0"), 4)]);
        assert_eq!(all.get(octets("192.0.2.1")), Some(4));
        assert_eq!(all.get(octets("::")), Some(6));
        assert_eq!(all.get([0xff; 16]), Some(6));
        let six = Prefixes::new([(prefix("::/0"), 6)]);
        assert_eq!(six.get(octets("192.0.2.1")), None);
        assert_eq!(six.get(octets("::1:0:0:0")), Some(6));
        assert_eq!(Prefixes::default().get(octets("::1")), None);
    }

    #[test]
    fn agrees_with_full_search() {
        let mut rng = Rng::new(5);
        for _ in 0..200 {
            let mut all: Vec<(Prefix, u32)> = Vec::new();
            for value in 0..rng.below(40) {
                let bits = 64 + rng.below(65);
                // Close together, so that they nest.
                let address = rng.below(1_u128 << 12) << 52 | rng.below(16);
                let first = address
                    & !u128::MAX
                        .checked_shr(u32::try_from(bits).unwrap())
                        .unwrap_or(0);
                let ip = std::net::Ipv6Addr::from(first);
                let bits = u8::try_from(bits).unwrap();
                let Some(prefix) = Prefix::new(ip.into(), bits) else {
                    continue;
                };
                all.retain(|(known, _)| *known != prefix);
                all.push((prefix, u32::try_from(value).unwrap()));
            }
            let prefixes = Prefixes::new(all.iter().copied());
            for _ in 0..200 {
                let address = rng.below(1_u128 << 12) << 52 | rng.below(17);
                let octets = address.to_be_bytes();
                let holding = all.iter().filter(|(prefix, _)| prefix.contains(octets));
                let longest = holding.max_by_key(|(prefix, _)| prefix.mapped_bits());
                assert_eq!(prefixes.get(octets), longest.map(|(_, value)| *value));
            }
        }
    }
}
