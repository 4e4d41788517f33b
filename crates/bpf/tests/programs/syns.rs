// SPDX-License-Identifier: Apache-2.0
//! What becomes of a SYN: by its rule, and by what this host would do with it.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use posthaste_bpf::{LinkLayer, Settings};
use posthaste_lab::network::Family;
use posthaste_relay::intercept::{EventKind, Intercept};
use posthaste_relay::policy::{Action, Rule};

use crate::host::Verdict::{Passed, Redirected, Swallowed};
use crate::host::{
    EARLY, Host, LATE, REDIRECT_MARK, SETTINGS, STRICT, client, device, flow, on_host,
    on_host_with, rule, server,
};
use crate::segment::{ACK, FIN, RST, SYN, Segment};

const HOUR: Duration = Duration::from_secs(3600);

fn syn(family: Family) -> Vec<u8> {
    Segment::syn(client(family), server(family)).frame()
}

/// Both families' SYNs pass and no worker gets an event.
#[track_caller]
fn assert_passed(host: &mut Host<'_>) {
    for family in Family::ALL {
        assert_eq!(host.receive(&syn(family)), Passed, "{family}");
    }
    assert!(host.events().is_empty());
    assert_eq!(host.half_open_flows(), (0, 0));
}

#[test]
fn early_redirects_and_reports() {
    on_host(|host| {
        let generation = host.obey(&[rule(Action::Relay, EARLY), rule(Action::Forward, EARLY)]);
        for family in Family::ALL {
            let frame = Segment::syn(client(family), server(family))
                .sequence(7)
                .frame();
            assert_eq!(host.receive(&frame), Redirected);
            let event = host.event();
            assert_eq!(event.kind, EventKind::Syn { held: false });
            assert_eq!(event.flow, flow(client(family), server(family)));
            assert_eq!(
                (event.half_open.isn, event.rule, event.half_open.kept),
                (7, 0, false)
            );
            assert_eq!(
                (event.generation, event.frame.ifindex),
                (generation, host.ifindex)
            );
            assert_eq!(event.frame.as_bytes(), frame);
        }
        assert_eq!(host.half_open_flows(), (2, 0));
        assert_eq!(host.stat("syns_redirected"), 2);
    });
}

#[test]
fn strict_reports_only() {
    on_host(|host| {
        host.obey(&[rule(Action::Relay, STRICT)]);
        for family in Family::ALL {
            assert_eq!(host.receive(&syn(family)), Swallowed);
            assert_eq!(host.event().kind, EventKind::Syn { held: true });
        }
        assert_eq!(host.half_open_flows(), (2, 0));
        assert_eq!(host.stat("syns_redirected"), 0);
    });
}

#[test]
fn late_redirects_only() {
    on_host(|host| {
        host.obey(&[rule(Action::Relay, LATE)]);
        for family in Family::ALL {
            assert_eq!(host.receive(&syn(family)), Redirected);
        }
        assert!(host.events().is_empty());
        assert_eq!(host.half_open_flows(), (0, 0));
    });
}

#[test]
fn forward_leaves_it_alone() {
    on_host(|host| {
        host.obey(&[rule(Action::Forward, EARLY)]);
        assert_passed(host);
    });
}

#[test]
fn reject_has_the_worker_answer() {
    on_host(|host| {
        host.obey(&[rule(Action::Reject, STRICT)]);
        for family in Family::ALL {
            assert_eq!(host.receive(&syn(family)), Swallowed);
            let event = host.event();
            assert_eq!(event.kind, EventKind::Reject);
            assert_eq!(event.frame.as_bytes(), syn(family));
        }
        assert_eq!(host.half_open_flows(), (0, 0));
    });
}

#[test]
fn without_a_rule_it_passes() {
    on_host(|host| {
        host.obey(&[]);
        assert_passed(host);
        let mut other_port = rule(Action::Relay, EARLY);
        other_port.matches.ports = vec![81..=81];
        host.obey(&[other_port]);
        assert_passed(host);
    });
}

#[test]
fn rules_replaced_repeatedly() {
    on_host(|host| {
        // More often than an event's generation can count.
        for round in 0..300 {
            let accept = [EARLY, LATE][round % 2];
            host.obey(&[rule(Action::Relay, accept)]);
        }
        assert_eq!(host.receive(&syn(Family::V4)), Redirected);
        assert!(host.events().is_empty(), "late is in force");
        let generation = host.obey(&[rule(Action::Relay, EARLY)]);
        assert_eq!(host.receive(&syn(Family::V4)), Redirected);
        assert_eq!(host.event().generation, generation);
    });
}

#[test]
fn local_destinations_pass() {
    on_host(|host| {
        let own = [
            "10.0.0.1:80",
            "10.0.1.1:80",
            "10.0.0.255:80",
            "224.0.0.1:80",
            "127.0.0.1:80",
        ];
        for to in own.map(|to| to.parse::<SocketAddr>().unwrap()) {
            assert_eq!(
                host.receive(&Segment::syn(client(Family::V4), to).frame()),
                Passed,
                "{to}"
            );
        }
        let own = [
            "[fd00::1]:80",
            "[fd00:0:0:1::1]:80",
            "[ff02::1]:80",
            "[::1]:80",
        ];
        for to in own.map(|to| to.parse::<SocketAddr>().unwrap()) {
            assert_eq!(
                host.receive(&Segment::syn(client(Family::V6), to).frame()),
                Passed,
                "{to}"
            );
        }
        assert!(host.events().is_empty());
    });
}

#[test]
fn unroutable_destinations_pass() {
    on_host(|host| {
        host.namespace.ip("route del 10.9.0.0/16").unwrap();
        host.namespace.ip("route del fd00:9::/32").unwrap();
        assert_passed(host);
        for refusal in ["unreachable", "prohibit", "blackhole"] {
            for to in ["10.9.0.0/16", "fd00:9::/32"] {
                host.namespace
                    .ip(&format!("route replace {refusal} {to}"))
                    .unwrap();
            }
            assert_passed(host);
        }
    });
}

#[test]
fn unresolved_neighbour_is_routable() {
    on_host(|host| {
        host.namespace
            .ip("neighbour flush dev out0 nud permanent")
            .unwrap();
        for family in Family::ALL {
            assert_eq!(host.receive(&syn(family)), Redirected);
        }
    });
}

#[test]
fn forwarding_disabled_passes() {
    on_host(|host| {
        host.namespace.sysctl("net.ipv4.ip_forward", "0").unwrap();
        host.namespace
            .sysctl("net.ipv6.conf.all.forwarding", "0")
            .unwrap();
        assert_passed(host);
    });
}

#[test]
fn family_without_listener_passes() {
    on_host(|host| {
        host.worker_maps.set_listener(true, None).unwrap();
        assert_eq!(host.receive(&syn(Family::V6)), Passed);
        assert_eq!(host.receive(&syn(Family::V4)), Redirected);
        host.worker_maps
            .set_listener(true, None)
            .expect("twice is as good");
    });
}

#[test]
fn dead_listeners_pass() {
    for action in [Action::Relay, Action::Reject] {
        on_host(|host| {
            host.obey(&[rule(action, STRICT)]);
            host.end_listeners();
            assert_passed(host);
        });
    }
}

#[test]
fn foreign_ingress_untouched() {
    on_host(|host| {
        host.redirect.detach(host.ifindex);
        assert_passed(host);
    });
}

/// The answer would come back there, and meet our socket without the program's help.
#[test]
fn foreign_egress_passes() {
    on_host(|host| {
        host.redirect.detach(host.out);
        assert_passed(host);
        let ethernet = device(LinkLayer::Ethernet);
        host.redirect.attach(host.out, ethernet).unwrap();
        assert_eq!(host.receive(&syn(Family::V6)), Redirected);
    });
}

#[test]
fn what_is_only_overheard_passes() {
    on_host(|host| {
        for address in [[2, 0, 0, 0, 0, 9], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            for family in Family::ALL {
                let mut frame = syn(family);
                frame[..6].copy_from_slice(&address);
                assert_eq!(host.receive(&frame), Passed, "{address:x?}");
            }
        }
        assert!(host.events().is_empty());
    });
}

#[test]
fn unanswerable_clients_pass() {
    on_host(|host| {
        let absent_host = [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
        ];
        let nobody6 = ["::", "::1", "ff02::1"];
        for from in absent_host.into_iter().chain(nobody6) {
            let from = SocketAddr::new(from.parse().unwrap(), 1);
            let family = if from.is_ipv4() {
                Family::V4
            } else {
                Family::V6
            };
            let frame = Segment::syn(from, server(family)).frame();
            assert_eq!(host.receive(&frame), Passed, "{from}");
        }
        assert!(host.events().is_empty());
    });
}

#[test]
fn marked_packets_pass() {
    on_host(|host| {
        let after = host.receive_marked(&syn(Family::V4), host.ifindex, REDIRECT_MARK);
        assert_eq!(after, (-1, REDIRECT_MARK));
        assert!(host.events().is_empty());
    });
}

#[test]
fn marks_of_others_stay() {
    on_host(|host| {
        let after = host.receive_marked(&syn(Family::V4), host.ifindex, 5);
        assert_eq!(after, (-1, 5 | REDIRECT_MARK));
    });
}

#[test]
fn only_syns_open_flows() {
    on_host(|host| {
        for family in Family::ALL {
            for flags in [
                0,
                ACK,
                FIN,
                RST,
                SYN | ACK,
                SYN | FIN,
                SYN | RST,
                RST | ACK,
                FIN | ACK,
            ] {
                let segment = Segment::new(client(family), server(family), flags);
                assert_eq!(
                    host.receive(&segment.frame()),
                    Passed,
                    "{family} {flags:#x}"
                );
            }
        }
        assert!(host.events().is_empty());
        // Congestion notification (RFC 3168) is requested in a SYN.
        let ecn = Segment::new(client(Family::V4), server(Family::V4), SYN | 0xc0);
        assert_eq!(host.receive(&ecn.frame()), Redirected);
    });
}

#[test]
fn transit_ignores_host_listeners() {
    on_host(|host| {
        let _everywhere = TcpListener::bind("[::]:80").unwrap();
        for family in Family::ALL {
            assert_eq!(host.receive(&syn(family)), Redirected);
        }
    });
}

#[test]
fn failed_destination_is_strict() {
    on_host(|host| {
        for family in Family::ALL {
            let flow = flow(client(family), server(family));
            host.worker_maps.record_failure(&flow, HOUR);
            assert_eq!(host.receive(&syn(family)), Swallowed);
            assert_eq!(host.event().kind, EventKind::Syn { held: true });

            host.worker_maps.record_failure(&flow, Duration::ZERO);
            let again = Segment::syn(client(family), server(family)).sequence(8);
            assert_eq!(host.receive(&again.frame()), Redirected, "it is over");
            host.worker_maps.record_failure(&flow, HOUR);
            host.worker_maps.clear_failure(&flow);
            let again = Segment::syn(client(family), server(family)).sequence(9);
            assert_eq!(host.receive(&again.frame()), Redirected, "taken back");
            host.events();
        }
        assert_eq!(host.stat("failed_destinations"), 2);
    });
}

#[test]
fn suspicion_is_of_one_port() {
    on_host(|host| {
        let mut other = server(Family::V4);
        other.set_port(81);
        host.worker_maps
            .record_failure(&flow(client(Family::V4), other), HOUR);
        assert_eq!(host.receive(&syn(Family::V4)), Redirected);
    });
}

// promise: T18
#[test]
fn privileged_ports_forwarded() {
    let settings = Settings {
        least_port: 1024,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        for family in Family::ALL {
            for (port, fate) in [(1, Passed), (1023, Passed), (1024, Redirected)] {
                let mut client = client(family);
                client.set_port(port);
                let syn = Segment::syn(client, server(family)).frame();
                assert_eq!(host.receive(&syn), fate, "{family} {port}");
            }
        }
        assert_eq!(host.stat("ports_forbidden"), 4);
    });
}

#[test]
fn zero_budget_is_late() {
    // The smallest a map can be is one.
    let settings = Settings {
        half_open: 0,
        half_open_reserve: 0,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        assert_eq!(host.receive(&syn(Family::V4)), Redirected);
        assert_eq!(host.receive(&syn(Family::V6)), Redirected);
        assert_eq!(host.events().len(), 1);
        assert_eq!(host.stat("half_open_full"), 1);
    });
}

#[test]
fn egress_watched_when_observing() {
    let observing = |action| Rule {
        observe: true,
        ..rule(action, EARLY)
    };
    on_host(|host| {
        assert_eq!(host.redirect.watched(), 0);
        host.obey(&[observing(Action::Forward)]);
        assert_eq!(host.redirect.watched(), 0, "nothing of it is relayed");
        host.obey(&[observing(Action::Relay)]);
        assert_eq!(host.redirect.watched(), 2);
        // What was tried under those rules goes on.
        host.obey(&[rule(Action::Relay, EARLY)]);
        assert_eq!(host.redirect.watched(), 2);
    });
}
