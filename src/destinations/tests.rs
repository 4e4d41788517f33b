// SPDX-License-Identifier: Apache-2.0
//! Learning from relays, and its robustness against hostile traffic.

use super::*;

const LIFE: Duration = Duration::from_secs(900);

fn at(second: u64) -> Duration {
    Duration::from_secs(10_000 + second)
}

fn prefix(text: &str) -> Prefix {
    prefix_of(text.parse().unwrap())
}

fn sample(prefix: Prefix, client: u64) -> Sample {
    Sample {
        prefix,
        client,
        bytes: Some(400_000),
        handshake_us: Some(30_000),
    }
}

/// A destination by number.
fn nth(number: u32) -> Prefix {
    let [a, b, c, _] = (number << 8).to_be_bytes();
    prefix_of(Ipv4Addr::new(a | 0x40, b, c, 9).into())
}

#[test]
fn prefixes_of_internet_routes() {
    assert_eq!(prefix_word(&prefix("203.0.113.7")), "203.0.113.0/24");
    assert_eq!(prefix_word(&prefix("::ffff:203.0.113.7")), "203.0.113.0/24");
    assert_eq!(prefix_word(&prefix("2001:db8:1:2::3")), "2001:db8:1::/48");
    for text in ["203.0.113.7", "2001:db8:1:2::3"] {
        assert!(prefix(text).is_sound(), "{text}");
    }
}

#[test]
fn sizes_need_transfers() {
    let mut destinations = Destinations::new(1);
    let there = prefix("203.0.113.7");
    let mut learn = |count, bytes| {
        for _ in 0..count {
            let bytes = Some(bytes);
            destinations.on_sample(
                &Sample {
                    bytes,
                    ..sample(there, 1)
                },
                at(0),
            );
        }
        destinations.sizes(at(0))
    };
    assert_eq!(learn(7, 400_000), []);
    let first = learn(1, 400_000);
    assert!(
        matches!(first[..], [(known, 336_000..=476_000)] if known == there),
        "{first:?}"
    );
    // Another bucket, but within a factor of two.
    assert_eq!(learn(60, 550_000), first);
    let other = learn(128, 10_000);
    assert!(matches!(other[..], [(_, 8_000..=12_000)]), "{other:?}");
    let (_, transfers) = destinations.size(&there, at(0)).unwrap();
    assert!((64..=128).contains(&transfers), "{transfers}");
    assert_eq!(destinations.sizes(at(40 * 3600)), []);
    assert_eq!(destinations.size(&there, at(40 * 3600)), None);
}

// promise: E5
#[test]
fn round_trips_reported_on_change() {
    let mut destinations = Destinations::new(1);
    let there = prefix("2001:db8::1");
    let mut shake = |count: u32, us, second| {
        for _ in 0..count {
            let handshake_us = Some(us);
            destinations.on_sample(
                &Sample {
                    handshake_us,
                    ..sample(there, 1)
                },
                at(second),
            );
        }
        let news = destinations.news(LIFE, at(second));
        news.iter()
            .map(|reported| (reported.rtt_us, reported.handshakes))
            .collect::<Vec<_>>()
    };
    assert_eq!(shake(2, 50_000, 0), []);
    assert_eq!(shake(1, 60_000, 0), [(50_000, 3)]);
    assert_eq!(shake(1, 45_000, 1), []);
    assert_eq!(shake(1, 44_999, 2), [(44_999, 5)]);
    assert_eq!(shake(1, 44_999, 290), []);
    let again = shake(1, 44_999, 302);
    assert!(matches!(again[..], [(44_999, _)]), "{again:?}");
    assert_eq!(destinations.round_trip(&there, at(302)), Some(44_999));
    destinations.forget_reported();
    assert_eq!(destinations.round_trip(&there, at(302)), None);
    assert_eq!(destinations.news(LIFE, at(302)).len(), 1);
    assert_eq!(destinations.round_trip(&there, at(2000)), None);
    assert_eq!(destinations.news(LIFE, at(2000)), []);
}

// promise: E3
#[test]
fn busy_client_evicts_none() {
    let mut destinations = Destinations::new(7);
    // Destinations in regular use by some clients.
    let used: Vec<Prefix> = (0..500).map(nth).collect();
    for round in 0..10 {
        for (client, there) in (0..).zip(&used) {
            for neighbour in 0..3 {
                destinations.on_sample(&sample(*there, client * 3 + neighbour), at(round * 10));
            }
        }
    }
    // An hour of scanning by one client, and by a few more with it.
    for second in 0..3600_u64 {
        for flow in 0..50 {
            let there = nth(100_000 + u32::try_from(second * 50 + flow).unwrap());
            destinations.on_sample(&sample(there, (1 << 40) + flow % 4), at(100 + second));
        }
    }
    let counts = destinations.counts(at(3700));
    assert_eq!(counts.known, KNOWN_MAX, "the memory is bounded");
    assert!(counts.refused > 100_000, "{counts:?}");
    let left = used
        .iter()
        .filter(|there| destinations.places.contains_key(there));
    assert_eq!(left.count(), used.len());
    // Destinations that other clients begin to use are still added.
    let late = nth(90_000);
    for client in 0..20 {
        destinations.on_sample(&sample(late, 5000 + client), at(3800));
    }
    assert!(destinations.places.contains_key(&late));
    assert_eq!(destinations.places.len(), destinations.known.len());
}

// promise: E3
#[test]
fn bounds_and_places_hold() {
    let mut rng = Rng::new(11);
    let mut destinations = Destinations::new(3);
    for step in 0..60_000_u64 {
        let there = nth(u32::try_from(rng.below(9000)).unwrap());
        let sample = Sample {
            bytes: (rng.below(2) == 0).then(|| rng.next() >> rng.below(64)),
            handshake_us: (rng.below(2) == 0).then(|| u32::try_from(rng.next() >> 33).unwrap()),
            ..sample(there, rng.below(2000) as u64)
        };
        destinations.on_sample(&sample, at(step / 20));
    }
    let now = at(3000);
    assert_eq!(destinations.known.len(), KNOWN_MAX);
    for (place, known) in destinations.known.iter().enumerate() {
        assert_eq!(destinations.places.get(&known.prefix), Some(&place));
    }
    let news = destinations.news(LIFE, now);
    assert!(!news.is_empty() && news.len() <= PREFIXES_MAX);
    for reported in news {
        assert!(
            reported.rtt_us > 0 && reported.handshakes >= HANDSHAKES_MIN,
            "{reported:?}"
        );
    }
    let sizes = destinations.sizes(now);
    assert!(sizes.is_sorted() && sizes.iter().all(|(_, bytes)| *bytes < u32::MAX));
}
