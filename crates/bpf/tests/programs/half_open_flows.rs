// SPDX-License-Identifier: Apache-2.0
//! Half-open entries: what a flow's first SYN leaves behind, what its repetitions meet, and the bounds.

use std::net::SocketAddr;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use posthaste_bpf::{PLACEMENT_SLOTS, Settings};
use posthaste_lab::network::Family;
use posthaste_relay::intercept::{EventKind, HalfOpen, Intercept};
use posthaste_relay::policy::Action;

use crate::host::Verdict::{Passed, Redirected, Swallowed};
use crate::host::{
    EARLY, Host, LATE, NoHost, SETTINGS, STRICT, client, client_at, flow, half_open, listen,
    on_host, on_host_with, rule, server,
};
use crate::segment::Segment;

/// Room for two half-open flows, and for one more from where clients are known.
const TIGHT: Settings = Settings {
    half_open: 2,
    half_open_reserve: 1,
    ..SETTINGS
};

fn syn(family: Family) -> Segment {
    Segment::syn(client(family), server(family)).sequence(100)
}

fn syn_from(client: SocketAddr) -> Vec<u8> {
    let family = if client.is_ipv4() {
        Family::V4
    } else {
        Family::V6
    };
    Segment::syn(client, server(family)).frame()
}

fn strict(host: &mut Host<'_>) {
    host.obey(&[rule(Action::Relay, STRICT)]);
}

/// Lets as many flows in as there is room for anybody.
fn fill(host: &mut Host<'_>, family: Family) {
    for port in [1, 2] {
        host.receive(&syn_from(client_at(family, port)));
    }
    assert_eq!((host.events().len(), host.half_open_flows()), (2, (2, 0)));
}

#[test]
fn repeated_syn_reported_once() {
    on_host(|host| {
        for family in Family::ALL {
            host.receive(&syn(family).frame());
            host.event();
            for _ in 0..3 {
                assert_eq!(host.receive(&syn(family).frame()), Redirected);
            }
            assert!(host.events().is_empty());
        }
        assert_eq!(host.half_open_flows(), (2, 0));
    });
}

#[test]
fn held_syn_stays_held() {
    on_host(|host| {
        strict(host);
        for family in Family::ALL {
            host.receive(&syn(family).frame());
            let half_open = half_open(&host.event());
            assert_eq!(host.receive(&syn(family).frame()), Swallowed);
            host.worker_maps.admit(&half_open.0, half_open.1).unwrap();
            assert_eq!(host.receive(&syn(family).frame()), Redirected);
            assert_eq!(host.receive(&syn(family).frame()), Redirected);
            assert!(host.events().is_empty());
        }
        assert_eq!(host.half_open_flows(), (2, 0), "they stay");
    });
}

#[test]
fn forwarded_syn_repeats() {
    on_host(|host| {
        strict(host);
        host.receive(&syn(Family::V4).frame());
        let half_open = half_open(&host.event());
        host.worker_maps.pass(&half_open.0, half_open.1).unwrap();
        assert_eq!(host.receive(&syn(Family::V4).frame()), Passed);
        assert_eq!(host.receive(&syn(Family::V4).frame()), Passed);
        host.worker_maps
            .release_half_open(&half_open.0, half_open.1);
        assert_eq!(
            host.receive(&syn(Family::V4).frame()),
            Swallowed,
            "from the beginning"
        );
    });
}

#[test]
fn released_entry_removed() {
    on_host(|host| {
        host.receive(&syn(Family::V6).frame());
        let half_open = half_open(&host.event());
        host.worker_maps
            .release_half_open(&half_open.0, half_open.1);
        assert_eq!(host.half_open_flows(), (0, 0));
        host.worker_maps
            .release_half_open(&half_open.0, half_open.1);
        assert_eq!(host.receive(&syn(Family::V6).frame()), Redirected);
        assert_eq!(host.events().len(), 1, "a flow begins");
    });
}

#[test]
fn new_attempt_replaces_entry() {
    on_host(|host| {
        for family in Family::ALL {
            host.receive(&syn(family).frame());
            host.event();
            assert_eq!(host.receive(&syn(family).sequence(200).frame()), Redirected);
            assert_eq!(host.event().half_open.isn, 200);
            assert_eq!(host.receive(&syn(family).sequence(200).frame()), Redirected);
            assert!(host.events().is_empty());
        }
        assert_eq!(host.half_open_flows(), (2, 0));
    });
}

#[test]
fn rule_change_keeps_flows() {
    on_host(|host| {
        host.receive(&syn(Family::V4).frame());
        host.event();
        strict(host);
        assert_eq!(host.receive(&syn(Family::V4).frame()), Redirected);
        assert!(host.events().is_empty());
    });
}

#[test]
fn early_over_budget_is_late() {
    on_host_with(TIGHT, |host| {
        fill(host, Family::V4);
        for family in Family::ALL {
            assert_eq!(host.receive(&syn(family).frame()), Redirected);
        }
        assert!(host.events().is_empty());
        assert_eq!(
            (host.half_open_flows(), host.stat("half_open_full")),
            ((2, 0), 2)
        );
    });
}

#[test]
fn strict_over_budget_forwarded() {
    on_host_with(TIGHT, |host| {
        strict(host);
        fill(host, Family::V6);
        for family in Family::ALL {
            assert_eq!(host.receive(&syn(family).frame()), Passed);
        }
        assert!(host.events().is_empty());
    });
}

#[test]
fn full_budget_keeps_flows() {
    on_host_with(TIGHT, |host| {
        fill(host, Family::V4);
        let own = syn_from(client_at(Family::V4, 1));
        assert_eq!(host.receive(&own), Redirected);
        assert!(host.events().is_empty(), "a repetition");
        let anew = Segment::syn(client_at(Family::V4, 1), server(Family::V4)).sequence(9);
        assert_eq!(host.receive(&anew.frame()), Redirected);
        assert_eq!(host.event().half_open.isn, 9, "in the place of the former");
        assert_eq!(
            (host.half_open_flows(), host.stat("half_open_full")),
            ((2, 0), 0)
        );
    });
}

#[test]
fn reserve_for_validated_clients() {
    let cases = [
        ("10.0.0.77:1", "10.0.0.2:40000", true),
        ("10.0.0.77:1", "10.0.1.2:40000", false),
        ("10.0.0.77:1", "[fd00::2]:40000", false),
        ("[fd00::77]:1", "[fd00::2]:40000", true),
        ("[fd00::77]:1", "[fd00:0:0:1::2]:40000", false),
        ("[fd00::77]:1", "10.0.0.2:40000", false),
    ];
    for (known, client, served) in cases {
        let case = format!("{known} {client}");
        on_host_with(TIGHT, |host| {
            fill(host, Family::V4);
            let known = flow(known.parse().unwrap(), server(Family::V4));
            host.worker_maps.validate_prefix(&known, false);
            assert_eq!(host.receive(&syn_from(client.parse().unwrap())), Redirected);
            let events = host.events();
            assert_eq!(events.len(), usize::from(served), "{case}");
            assert_eq!(host.half_open_flows(), (2, usize::from(served)), "{case}");
            assert_eq!(host.stat("half_open_full"), u64::from(!served), "{case}");
            assert!(events.iter().all(|event| event.half_open.kept));
        });
    }
}

#[test]
fn the_reserve_ends_too() {
    on_host_with(TIGHT, |host| {
        fill(host, Family::V4);
        host.worker_maps
            .validate_prefix(&flow(client(Family::V4), server(Family::V4)), false);
        host.receive(&syn_from(client_at(Family::V4, 3)));
        let kept = host.event();
        assert_eq!(
            host.receive(&syn_from(client_at(Family::V4, 4))),
            Redirected
        );
        assert_eq!(
            (host.events().len(), host.half_open_flows()),
            (0, (2, 1)),
            "late"
        );
        host.worker_maps
            .release_half_open(&kept.flow, kept.half_open);
        assert_eq!(host.half_open_flows(), (2, 0));
        host.receive(&syn_from(client_at(Family::V4, 4)));
        assert!(host.event().half_open.kept, "the place is free again");
    });
}

#[test]
fn reserved_flow_repeats() {
    on_host_with(TIGHT, |host| {
        strict(host);
        fill(host, Family::V6);
        host.worker_maps
            .validate_prefix(&flow(client(Family::V6), server(Family::V6)), false);
        assert_eq!(host.receive(&syn(Family::V6).frame()), Swallowed);
        let half_open = half_open(&host.event());
        assert_eq!(host.receive(&syn(Family::V6).frame()), Swallowed);
        host.worker_maps.admit(&half_open.0, half_open.1).unwrap();
        assert_eq!(host.receive(&syn(Family::V6).frame()), Redirected);
        assert_eq!(host.half_open_flows(), (2, 1));
    });
}

/// Sends SYNs of one client from 200 ports, and returns how many of the flows open early.
fn open_early(host: &mut Host<'_>, family: Family) -> usize {
    let opened = (1..=200).map(|port| {
        assert_eq!(host.receive(&syn_from(client_at(family, port))), Redirected);
        let events = host.events();
        for event in &events {
            let flow = event.flow;
            host.worker_maps.release_half_open(&flow, event.half_open);
        }
        events.len()
    });
    opened.sum()
}

// promise: A1
#[test]
fn near_clients_open_late() {
    for family in Family::ALL {
        on_host(|host| {
            let known = flow(client(family), server(family));
            assert_eq!(open_early(host, family), 200);
            host.worker_maps.validate_prefix(&known, true);
            // One in 64 by chance.
            let sample = open_early(host, family);
            assert!(sample < 50, "{sample}");
            host.worker_maps.validate_prefix(&known, false);
            assert_eq!(open_early(host, family), 200);
            host.worker_maps.validate_prefix(&known, true);
            strict(host);
            assert_eq!(host.receive(&syn(family).frame()), Swallowed);
            assert_eq!(host.events().len(), 1, "strict mode waits for the server");
        });
    }
}

/// Else the half-open entry in the reserve would hold the server's SYN-ACK endlessly: the worker has
/// only the new one.
#[test]
fn new_attempt_leaves_reserve() {
    on_host_with(TIGHT, |host| {
        fill(host, Family::V4);
        host.worker_maps
            .validate_prefix(&flow(client(Family::V4), server(Family::V4)), false);
        host.receive(&syn(Family::V4).frame());
        assert!(host.event().half_open.kept);
        let first = flow(client_at(Family::V4, 1), server(Family::V4));
        host.worker_maps
            .release_half_open(&first, HalfOpen::default());

        host.receive(&syn(Family::V4).sequence(200).frame());
        let event = host.event();
        assert!(!event.half_open.kept);
        assert_eq!(host.half_open_flows(), (2, 0));
        host.worker_maps
            .release_half_open(&event.flow, event.half_open);
        assert_eq!(
            host.half_open_flows(),
            (1, 0),
            "no half-open entry of the flow stands"
        );
    });
}

#[test]
fn full_ring_early_is_late() {
    on_host(|host| {
        let lost = overflow(host, Redirected);
        assert_eq!(
            host.half_open_flows().0,
            host.events().len(),
            "no half-open entry without an event"
        );
        assert_eq!(host.receive(&syn(Family::V4).frame()), Redirected);
        assert_eq!(
            (host.events().len(), host.stat("events_lost")),
            (1, lost),
            "room again"
        );
    });
}

#[test]
fn full_ring_strict_forwarded() {
    on_host(|host| {
        strict(host);
        overflow(host, Passed);
        assert_eq!(host.half_open_flows().0, host.events().len());
        assert_eq!(
            host.receive(&syn(Family::V4).frame()),
            Swallowed,
            "room again"
        );
    });
}

/// Sends SYNs until some have had no room in the ring and met `fate`; returns how many.
fn overflow(host: &mut Host<'_>, fate: crate::host::Verdict) -> u64 {
    let mut ports = 1..;
    let mut send = |host: &mut Host<'_>| {
        let port = ports.next().expect("the ring is bounded");
        host.receive(&syn_from(client_at(Family::V4, port)))
    };
    // A counter takes longer to read than a SYN to send.
    while host.stat("events_lost") < 10 {
        for _ in 0..256 {
            send(host);
        }
    }
    for _ in 0..10 {
        assert_eq!(send(host), fate);
    }
    host.stat("events_lost")
}

/// They are read from the end of the ring and from its beginning.
#[test]
fn ring_wraps_around() {
    on_host(|host| {
        for first in (1..4000).step_by(600) {
            let frames: Vec<_> = (first..first + 600)
                .map(|port| syn_from(client_at(Family::V6, port)))
                .collect();
            for frame in &frames {
                assert_eq!(host.receive(frame), Redirected);
            }
            let events = host.events();
            assert_eq!(events.len(), frames.len());
            for ((event, frame), port) in events.iter().zip(&frames).zip(first..) {
                assert_eq!(
                    (event.frame.as_bytes(), event.flow.client().port()),
                    (&**frame, port)
                );
                host.worker_maps
                    .release_half_open(&event.flow, event.half_open);
            }
        }
        assert_eq!(host.stat("events_lost"), 0);
    });
}

/// The worker has no event of the second attempt, so the first one's half-open entry still has to hold the
/// server's SYN-ACK.
#[test]
fn lost_event_keeps_entry() {
    for (accept, fate) in [(EARLY, Redirected), (STRICT, Passed)] {
        on_host(|host| {
            host.obey(&[rule(Action::Relay, accept)]);
            let held = accept == STRICT;
            let former = host.receive(&syn(Family::V6).frame());
            overflow(host, fate);
            let half_open_flows = host.half_open_flows();
            assert_eq!(host.receive(&syn(Family::V6).sequence(200).frame()), fate);
            assert_eq!(host.half_open_flows(), half_open_flows);
            assert_eq!(host.receive(&syn(Family::V6).frame()), former);
            let first = host.events().swap_remove(0);
            assert_eq!(
                (first.half_open.isn, first.kind),
                (100, EventKind::Syn { held })
            );
        });
    }
}

#[test]
fn entry_belongs_to_worker() {
    on_host_with(
        Settings {
            workers: 2,
            ..SETTINGS
        },
        |host| {
            let mut other = host
                .redirect
                .worker_maps(1)
                .unwrap()
                .open(vec![], Box::new(NoHost))
                .unwrap();
            let _listeners = listen(&other);
            for family in Family::ALL {
                // Whichever CPU this runs on, the half-open entry names the worker.
                other
                    .reserve_half_open(&flow(client(family), server(family)))
                    .unwrap();
                let repeated = syn(family).sequence(0).frame();
                assert_eq!(host.receive(&repeated), Redirected);
                assert!(host.events().is_empty() && other.next_event().is_none());
                other.set_listener(family == Family::V6, None).unwrap();
                // With either worker's own listener gone a new flow may be left alone, but this one
                // is bound to worker 1.
                assert_eq!(host.receive(&repeated), Passed, "{family}");
            }
        },
    );
}

#[test]
fn new_attempt_keeps_worker() {
    let settings = Settings {
        workers: 2,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        let mut other = host
            .redirect
            .worker_maps(1)
            .unwrap()
            .open(vec![], Box::new(NoHost))
            .unwrap();
        let _listeners = listen(&other);
        for (family, worker_maps) in [(Family::V4, 0), (Family::V6, 1)] {
            let flow = flow(client(family), server(family));
            let maps = [&mut host.worker_maps, &mut other];
            maps[worker_maps].reserve_half_open(&flow).unwrap();
            assert_eq!(host.receive(&syn(family).frame()), Redirected);
            let reported = [host.worker_maps.next_event(), other.next_event()];
            assert_eq!(
                reported[worker_maps]
                    .as_ref()
                    .map(|event| event.half_open.isn),
                Some(100)
            );
            assert!(reported[1 - worker_maps].is_none());
        }
        assert_eq!(host.half_open_flows(), (2, 0));
    });
}

#[test]
fn draining_worker_finishes() {
    for (accept, begun) in [(EARLY, Redirected), (STRICT, Swallowed)] {
        on_host(|host| {
            host.obey(&[rule(Action::Relay, accept)]);
            host.receive(&syn(Family::V4).frame());
            let half_open = half_open(&host.event());
            host.worker_maps.set_draining(true).unwrap();
            assert_eq!(host.receive(&syn(Family::V4).frame()), begun, "repeated");
            assert_eq!(host.receive(&syn(Family::V6).frame()), Passed, "new");
            let anew = syn(Family::V4).sequence(200).frame();
            assert_eq!(host.receive(&anew), Passed, "started over");
            host.worker_maps.admit(&half_open.0, half_open.1).unwrap();
            assert_eq!(
                host.receive(&syn(Family::V4).frame()),
                Redirected,
                "admitted"
            );
            assert!(host.events().is_empty());
            host.worker_maps.set_draining(false).unwrap();
            assert_eq!(host.receive(&syn(Family::V6).frame()), begun);
        });
    }
}

#[test]
fn draining_worker_still_rejects() {
    on_host(|host| {
        host.worker_maps.set_draining(true).unwrap();
        host.obey(&[rule(Action::Relay, LATE)]);
        assert_eq!(host.receive(&syn(Family::V4).frame()), Passed);
        host.obey(&[rule(Action::Reject, LATE)]);
        assert_eq!(host.receive(&syn(Family::V4).frame()), Swallowed);
        assert_eq!(host.event().kind, EventKind::Reject);
    });
}

#[test]
fn replaced_program_finishes() {
    on_host(|host| {
        host.receive(&syn(Family::V6).frame());
        host.event();
        host.redirect.set_followed(true).unwrap();
        host.worker_maps.set_draining(true).unwrap();
        assert_eq!(host.receive(&syn(Family::V6).frame()), Redirected);
        host.obey(&[rule(Action::Reject, EARLY)]);
        assert_eq!(host.receive(&syn(Family::V4).frame()), Passed);
        assert!(host.events().is_empty());
    });
}

#[test]
fn reserved_entries_count() {
    on_host_with(TIGHT, |host| {
        fill(host, Family::V4);
        let another = flow(client(Family::V4), server(Family::V4));
        host.worker_maps
            .reserve_half_open(&another)
            .expect_err("there is no room");
        assert_eq!(host.half_open_flows(), (2, 0));
    });
}

/// Keeps the thread on the last of its CPUs: that of the second worker, if it has two.
fn stay_on_last_cpu() -> usize {
    let thread = Pid::from_raw(0);
    let cpus = sched_getaffinity(thread).unwrap();
    let last = (0..CpuSet::count()).rfind(|cpu| cpus.is_set(*cpu).unwrap());
    let mut only = CpuSet::new();
    only.set(last.unwrap()).unwrap();
    sched_setaffinity(thread, &only).unwrap();
    last.unwrap()
}

/// Of two workers only the first listens.
#[test]
fn flows_go_to_placed_workers() {
    let settings = Settings {
        workers: 2,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        let cpu = stay_on_last_cpu();
        for (round, placed, expected) in [(0, 0, Redirected), (1, 1, Passed), (2, 0, Redirected)] {
            for cpu in [0, 1] {
                host.redirect
                    .place(cpu, &[placed; PLACEMENT_SLOTS])
                    .unwrap();
            }
            for (family, port) in Family::ALL.into_iter().zip(1..) {
                let client = client_at(family, 10 * round + port);
                assert_eq!(host.receive(&syn_from(client)), expected, "{placed}");
            }
        }
        let of_others = cpu % 2 == 1;
        let placed = host.stat("syns_redirected") * u64::from(of_others);
        assert_eq!(host.stat("flows_placed"), placed);
    });
}

/// A part of the flows moves, and each repeated SYN meets the worker of the first.
#[test]
fn part_of_the_flows_is_placed() {
    let settings = Settings {
        workers: 2,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        host.obey(&[rule(Action::Relay, LATE)]);
        let mut to = [0; PLACEMENT_SLOTS];
        to[..PLACEMENT_SLOTS / 4].fill(1);
        for cpu in [0, 1] {
            host.redirect.place(cpu, &to).unwrap();
        }
        let ports = 1024..1024 + 400;
        let mut redirected = 0;
        for port in ports {
            let frame = syn_from(client_at(Family::V4, port));
            let verdict = host.receive(&frame);
            assert_eq!(host.receive(&frame), verdict);
            redirected += u32::from(verdict == Redirected);
        }
        assert!((280..=320).contains(&redirected), "{redirected} of 400");
    });
}
