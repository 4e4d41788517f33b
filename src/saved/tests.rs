// SPDX-License-Identifier: Apache-2.0
//! Connections whose times follow from their round trips, with and without a node.

use posthaste_relay::control::RelayId;
use posthaste_relay::flow::Flow;
use posthaste_relay::outcome::Outcome;
use posthaste_relay::rng::Rng;

use super::*;

const MS: i64 = 1_000;
const SEGMENT: u32 = 1_448;

/// An early flow over a node without overhead: the client sends its request at once, the server
/// answers at once and closes when it has sent everything.
fn early(client_ms: i64, server_ms: i64, bytes_down: u64) -> Seen {
    let (client, server) = (client_ms * MS, server_ms * MS);
    let request = client.max(server);
    let first_byte = request + server;
    let rounds = i64::from(Model::default().rounds(bytes_down, 10)) - 1;
    let last_down = first_byte + rounds * client.max(server);
    let trip = |least| RoundTrip { least, most: least };
    Seen {
        from_accept: false,
        client: trip(client),
        server: trip(server),
        handshake: server,
        request: Some(request),
        prompt: true,
        first_byte,
        last_down: Some(last_down),
        last_up: Some(request),
        confirmed: Some(last_down + client),
        bytes_down,
        bytes_up: 300,
        segment_bytes: SEGMENT,
        sent_twice: false,
    }
}

fn saved_ms(seen: &Seen) -> (i64, i64) {
    let saved = seen.saved();
    (saved.first_byte_us / MS, saved.end_us / MS)
}

#[test]
fn early_saves_shorter_side() {
    assert_eq!(saved_ms(&early(40, 60, 1_000)), (40, 40));
    assert_eq!(saved_ms(&early(60, 40, 1_000)), (40, 40));
    assert_eq!(saved_ms(&early(0, 60, 1_000)), (0, 0));
}

#[test]
fn slow_start_saves_each_round() {
    // Three rounds: 10, 20 and 40 segments.
    let bytes = 70 * u64::from(SEGMENT);
    assert_eq!(saved_ms(&early(50, 50, bytes)), (50, 150));
    assert_eq!(saved_ms(&early(80, 20, bytes)), (20, 60));
    assert_eq!(saved_ms(&early(50, 50, bytes + 1)), (50, 200));
}

#[test]
fn larger_segments_make_fewer_rounds() {
    let bytes = 70 * u64::from(SEGMENT);
    let jumbo = Seen {
        segment_bytes: 9_000,
        ..early(50, 50, bytes)
    };
    assert_eq!(
        saved_ms(&jumbo),
        (50, 50),
        "two rounds are enough, of the three it took"
    );
}

#[test]
fn strict_and_late_slow_start() {
    let bytes = 70 * u64::from(SEGMENT);
    let early = early(50, 50, bytes);
    let shift = 50 * MS;
    let strict = Seen {
        request: early.request.map(|at| at + shift),
        first_byte: early.first_byte + shift,
        last_down: early.last_down.map(|at| at + shift),
        last_up: early.last_up.map(|at| at + shift),
        confirmed: early.confirmed.map(|at| at + shift),
        ..early
    };
    assert_eq!(saved_ms(&strict), (0, 100));
    // The same measured from the accept, which is a round trip of the client later.
    let late = Seen {
        from_accept: true,
        ..early
    };
    assert_eq!(saved_ms(&late), (0, 100));
}

// promise: W9
#[test]
fn waiting_counts_for_nothing() {
    let base = early(50, 50, 1_000);
    let idle = Seen {
        confirmed: base.confirmed.map(|at| at + 3_600_000 * MS),
        last_down: base.last_down.map(|at| at + 3_600_000 * MS),
        ..base
    };
    assert_eq!(saved_ms(&idle), (50, 0));
    // The client sends its request half a second after it was connected.
    let shift = 500 * MS;
    let hesitant = Seen {
        prompt: false,
        request: base.request.map(|at| at + shift),
        first_byte: base.first_byte + shift,
        last_down: base.last_down.map(|at| at + shift),
        last_up: base.last_up.map(|at| at + shift),
        confirmed: base.confirmed.map(|at| at + shift),
        ..base
    };
    assert_eq!(saved_ms(&hesitant), (0, 0));
}

#[test]
fn server_time_costs_nothing() {
    let base = early(50, 50, 1_000);
    let think = 700 * MS;
    let slow = Seen {
        first_byte: base.first_byte + think,
        last_down: base.last_down.map(|at| at + think),
        confirmed: base.confirmed.map(|at| at + think),
        ..base
    };
    assert_eq!(saved_ms(&slow), (50, 50));
}

#[test]
fn server_speaking_first() {
    let base = early(50, 50, 1_000);
    let quiet = Seen {
        request: None,
        bytes_up: 0,
        ..base
    };
    assert_eq!(saved_ms(&quiet), (50, 50));
    let answered_later = Seen {
        request: Some(base.first_byte + 400 * MS),
        prompt: false,
        ..base
    };
    assert_eq!(answered_later.saved().first_byte_us, 50 * MS);
}

#[test]
fn upload_ends_at_server() {
    let bytes = 70 * u64::from(SEGMENT);
    let base = early(50, 50, 10);
    let upload = Seen {
        bytes_up: bytes,
        last_up: base.request.map(|at| at + 100 * MS),
        last_down: base.request.map(|at| at + 50 * MS),
        confirmed: None,
        ..base
    };
    assert_eq!(saved_ms(&upload), (50, 150));
}

#[test]
fn unconfirmed_saves_nothing() {
    let base = early(50, 50, 1_000);
    for seen in [
        Seen {
            last_down: None,
            ..base
        },
        Seen {
            last_up: None,
            ..base
        },
    ] {
        assert_eq!(saved_ms(&seen), (50, 0));
    }
}

#[test]
fn late_open_was_slower() {
    let base = early(50, 50, 1_000);
    let delayed = Seen {
        request: Some(400 * MS),
        first_byte: 450 * MS,
        ..base
    };
    assert_eq!(delayed.saved().first_byte_us, -300 * MS);
    assert_eq!(delayed.saved().end_us, 0);
    // Caused by the client, by the path, or below the detection limit.
    for other in [
        Seen {
            prompt: false,
            ..delayed
        },
        Seen {
            sent_twice: true,
            ..delayed
        },
        Seen {
            handshake: 350 * MS,
            ..delayed
        },
        Seen {
            request: Some(100 * MS + SLOWER_MIN_US - 1),
            ..delayed
        },
    ] {
        assert_eq!(other.saved().first_byte_us, 0, "{other:?}");
    }
}

/// Times of the connection without the node, by the published model: an upper bound of every
/// estimate, for all round trips, sizes, waits, jitter and rates.
// promise: W9
#[test]
fn estimates_never_exceed_savings() {
    let mut rng = Rng::new(5);
    let mut below = |most: usize| i64::try_from(rng.below(most)).unwrap();
    for _ in 0..20_000 {
        let (client, server) = (1 + below(200), 1 + below(200));
        let bytes = u64::try_from(1 + below(3_000_000)).unwrap();
        let (wait, think, rate) = (below(300) * MS, below(300) * MS, below(400) * MS);
        let base = early(client, server, bytes);
        let path = base.path();
        let opened = client.max(server) * MS;
        let request = opened.max(wait);
        let first_byte = request + server * MS + think;
        let rounds = base.rounds(bytes);
        let last_down = first_byte + (rounds * opened).max(rate);
        let seen = Seen {
            prompt: wait <= opened,
            request: Some(request),
            first_byte,
            last_down: Some(last_down),
            last_up: Some(request),
            confirmed: Some(last_down + client * MS),
            ..base
        };
        let saved = seen.saved();
        let direct_first = path.max(wait) + path + think;
        let direct_end = direct_first + (rounds * path).max(rate);
        let first = direct_first - (first_byte + client * MS);
        let end = direct_end - (last_down + client * MS);
        assert!(
            (0..=first).contains(&saved.first_byte_us),
            "{saved:?} {first} {seen:?}"
        );
        assert!(
            (0..=end).contains(&saved.end_us),
            "{saved:?} {end} {seen:?}"
        );
    }
}

fn leg(min_rtt_us: u32, acked_bytes: u64) -> Leg {
    Leg {
        min_rtt_us: Some(min_rtt_us),
        rtt_us: min_rtt_us,
        rttvar_us: 0,
        segment_bytes: SEGMENT,
        retransmitted_segments: 0,
        acked_bytes,
        last_sent_ms: 100,
    }
}

fn ended() -> Ended {
    Ended {
        id: RelayId(1),
        flow: Flow::new(
            "192.0.2.1:4000".parse().unwrap(),
            "203.0.113.9:443".parse().unwrap(),
        ),
        rule: "web".into(),
        accept: posthaste_relay::accept_mode::AcceptMode::EARLY,
        outcome: Outcome::Finished,
        bytes_up: 300,
        bytes_down: 1_000,
        accept_us: Some(50_000),
        connect_us: Some(50_000),
        first_byte_us: Some(100_000),
        by: None,
        via: None,
        handshake_us: Some(50_000),
        total: Duration::from_millis(150),
        course: Some(Course {
            request_us: Some(50_000),
            prompt: true,
            server_closed_first: true,
            downstream: leg(50_000, 1_000),
            upstream: leg(50_000, 301),
        }),
    }
}

#[test]
fn unknown_is_no_estimate() {
    let saved = of(&ended()).unwrap();
    assert_eq!((saved.first_byte_us, saved.end_us), (50_000, 50_000));
    let without_course = Ended {
        course: None,
        ..ended()
    };
    let without_handshake = Ended {
        handshake_us: None,
        ..ended()
    };
    let mut without_rtt = ended();
    if let Some(course) = &mut without_rtt.course {
        course.downstream.min_rtt_us = None;
    }
    for ended in [without_course, without_handshake, without_rtt] {
        assert_eq!(of(&ended), None, "{ended:?}");
    }
    let mut unacknowledged = ended();
    if let Some(course) = &mut unacknowledged.course {
        course.downstream.acked_bytes = 999;
    }
    let saved = of(&unacknowledged).unwrap();
    assert_eq!((saved.first_byte_us, saved.end_us), (50_000, 0));
}
