// SPDX-License-Identifier: Apache-2.0
//! Segments and ICMP errors for sockets of this host: ours under foreign addresses, and others.

use std::net::{SocketAddr, TcpListener, TcpStream};

use posthaste_lab::network::Family;
use posthaste_relay::flow::Flow;
use posthaste_relay::intercept::{EventKind, HalfOpen, Intercept};

use crate::host::Verdict::{Passed, Redirected, Swallowed};
use crate::host::{Host, SOCKET_MARK, client, connecting, flow, half_open, on_host, server};
use crate::segment::{ACK, ICMP, ICMPV6, RST, SYN, Segment, ethernet, icmp_error, ip};

fn answer(family: Family, flags: u8) -> Vec<u8> {
    Segment::new(server(family), client(family), flags)
        .sequence(500)
        .frame()
}

/// The client's SYN has come, and the worker has sent its own.
fn begin(host: &mut Host<'_>, family: Family) -> ((Flow, HalfOpen), socket2::Socket) {
    host.receive(&Segment::syn(client(family), server(family)).frame());
    let half_open = half_open(&host.event());
    (
        half_open,
        connecting(client(family), server(family), SOCKET_MARK),
    )
}

#[test]
fn syn_ack_held_at_worker() {
    on_host(|host| {
        for family in Family::ALL {
            let (half_open, _socket) = begin(host, family);
            for _ in 0..2 {
                assert_eq!(host.receive(&answer(family, SYN | ACK)), Swallowed);
                let event = host.event();
                assert_eq!(event.kind, EventKind::SynAck);
                assert_eq!(
                    event.flow,
                    flow(client(family), server(family)),
                    "as its client sees it"
                );
                assert_eq!(
                    (event.half_open.isn, event.frame.as_bytes()),
                    (500, &*answer(family, SYN | ACK))
                );
            }
            host.worker_maps
                .release_half_open(&half_open.0, half_open.1);
            assert_eq!(host.receive(&answer(family, SYN | ACK)), Redirected);
            assert!(host.events().is_empty());
        }
    });
}

#[test]
fn unstarted_flows_for_successor() {
    on_host(|host| {
        host.redirect.set_followed(true).unwrap();
        for family in Family::ALL {
            let (half_open, _socket) = begin(host, family);
            assert_eq!(host.receive(&answer(family, SYN | ACK)), Swallowed);
            assert_eq!(host.event().kind, EventKind::SynAck);
            host.worker_maps
                .release_half_open(&half_open.0, half_open.1);
            // The successor may have a half-open entry for it.
            assert_eq!(host.receive(&answer(family, SYN | ACK)), Passed);
        }
        host.redirect.set_followed(false).unwrap();
        let (half_open, _socket) = begin(host, Family::V4);
        host.worker_maps
            .release_half_open(&half_open.0, half_open.1);
        assert_eq!(host.receive(&answer(Family::V4, SYN | ACK)), Redirected);
    });
}

#[test]
fn syn_ack_held_any_state() {
    on_host(|host| {
        let (half_open, _socket) = begin(host, Family::V4);
        host.worker_maps.admit(&half_open.0, half_open.1).unwrap();
        assert_eq!(host.receive(&answer(Family::V4, SYN | ACK)), Swallowed);
        host.worker_maps.pass(&half_open.0, half_open.1).unwrap();
        assert_eq!(host.receive(&answer(Family::V4, SYN | ACK)), Swallowed);
        assert_eq!(host.events().len(), 2);
    });
}

#[test]
fn reserved_tuple_holds_answer() {
    on_host(|host| {
        for family in Family::ALL {
            let other = SocketAddr::new(client(family).ip(), 50_000);
            let flow = flow(other, server(family));
            let half_open = host.worker_maps.reserve_half_open(&flow).unwrap();
            let _socket = connecting(other, server(family), SOCKET_MARK);
            let answer = Segment::new(server(family), other, SYN | ACK).frame();
            assert_eq!(host.receive(&answer), Swallowed);
            assert_eq!(host.event().flow, flow);
            host.worker_maps.release_half_open(&flow, half_open);
            assert_eq!(host.receive(&answer), Redirected);
        }
    });
}

#[test]
fn refusals_are_not_held() {
    on_host(|host| {
        for family in Family::ALL {
            let (_half_open, _socket) = begin(host, family);
            assert_eq!(host.receive(&answer(family, RST | ACK)), Redirected);
            assert_eq!(host.receive(&answer(family, ACK)), Redirected);
            assert!(host.events().is_empty());
        }
    });
}

#[test]
fn unexpected_answer_passes() {
    on_host(|host| {
        for family in Family::ALL {
            for flags in [SYN | ACK, ACK, RST | ACK] {
                assert_eq!(
                    host.receive(&answer(family, flags)),
                    Passed,
                    "{family} {flags:#x}"
                );
            }
        }
    });
}

/// A half-open entry alone is not enough: the flow may have been passed on, and the answer is the client's.
#[test]
fn forwarded_flows_answer_passes() {
    on_host(|host| {
        host.receive(&Segment::syn(client(Family::V4), server(Family::V4)).frame());
        let half_open = half_open(&host.event());
        host.worker_maps.pass(&half_open.0, half_open.1).unwrap();
        assert_eq!(host.receive(&answer(Family::V4, SYN | ACK)), Passed);
        assert!(host.events().is_empty());
    });
}

#[test]
fn foreign_sockets_untouched() {
    on_host(|host| {
        for family in Family::ALL {
            host.receive(&Segment::syn(client(family), server(family)).frame());
            host.event();
            let _foreign = connecting(client(family), server(family), 5);
            for flags in [SYN | ACK, RST | ACK, ACK] {
                assert_eq!(
                    host.receive(&answer(family, flags)),
                    Passed,
                    "{family} {flags:#x}"
                );
            }
            let about = Segment::syn(client(family), server(family)).packet();
            assert_eq!(host.receive(&error(family, &about)), Passed);
        }
        assert!(host.events().is_empty());
        assert_eq!(host.stat("icmp_errors"), 0);
    });
}

#[test]
fn own_established_redirected() {
    on_host(|host| {
        for (mark, verdict) in [(SOCKET_MARK, Redirected), (0, Passed)] {
            for own in ["10.0.0.1:0", "[fd00::1]:0"] {
                let listener = TcpListener::bind(own).unwrap();
                let socket = connected(listener.local_addr().unwrap(), mark);
                let _accepted = listener.accept().unwrap();
                let (from, to) = (socket.peer_addr().unwrap(), socket.local_addr().unwrap());
                for flags in [ACK, RST, SYN, SYN | ACK] {
                    let frame = Segment::new(from, to, flags).frame();
                    assert_eq!(host.receive(&frame), verdict, "{own} {mark:#x} {flags:#x}");
                }
            }
        }
        assert!(host.events().is_empty());
    });
}

fn connected(to: SocketAddr, mark: u32) -> TcpStream {
    let domain = socket2::Domain::for_address(to);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
    socket.set_mark(mark).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// An error from the router about one of the packets that went there.
fn error(family: Family, about: &[u8]) -> Vec<u8> {
    let (router, kind, code) = match family {
        Family::V4 => ("10.0.1.2", 3, 4),
        Family::V6 => ("fd00:0:0:1::2", 2, 0),
    };
    let to = client(family).ip();
    ethernet(&icmp_error(router.parse().unwrap(), to, kind, code, about))
}

#[test]
fn own_icmp_errors_redirected() {
    on_host(|host| {
        for family in Family::ALL {
            let _socket = connecting(client(family), server(family), SOCKET_MARK);
            let about = Segment::syn(client(family), server(family)).packet();
            assert_eq!(host.receive(&error(family, &about)), Redirected);
            // Routers may quote as little as eight bytes (RFC 792).
            let header = if family == Family::V4 { 20 } else { 40 };
            assert_eq!(
                host.receive(&error(family, &about[..header + 8])),
                Redirected
            );
            let counted = host.stat("icmp_errors");
            for length in 0..header + 4 {
                let short = error(family, &about[..length]);
                assert_eq!(host.receive(&short), Passed, "{family} quotes {length}");
            }
            assert_eq!(host.stat("icmp_errors"), counted);
        }
        assert_eq!(host.stat("icmp_errors"), 4);
    });
}

#[test]
fn icmp_error_kinds() {
    let kinds = [
        (Family::V4, vec![3, 11, 12]),
        (Family::V6, vec![1, 2, 3, 4]),
    ];
    on_host(|host| {
        for (family, errors) in kinds {
            let _socket = connecting(client(family), server(family), SOCKET_MARK);
            let about = Segment::syn(client(family), server(family)).packet();
            for kind in 0..=255 {
                let (from, to) = (server(family).ip(), client(family).ip());
                let frame = ethernet(&icmp_error(from, to, kind, 0, &about));
                let verdict = if errors.contains(&kind) {
                    Redirected
                } else {
                    Passed
                };
                assert_eq!(host.receive(&frame), verdict, "{family} {kind}");
            }
        }
    });
}

#[test]
fn errors_about_anything_else_pass() {
    on_host(|host| {
        let everywhere = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::STREAM, None);
        let everywhere = everywhere.unwrap();
        everywhere.set_mark(SOCKET_MARK).unwrap();
        everywhere
            .bind(&"[::]:40001".parse::<SocketAddr>().unwrap().into())
            .unwrap();
        everywhere.listen(1).unwrap();
        for family in Family::ALL {
            let about = Segment::syn(client(family), server(family)).packet();
            assert_eq!(host.receive(&error(family, &about)), Passed, "nobody's");
            let own = if family == Family::V4 {
                "10.0.0.1:40001"
            } else {
                "[fd00::1]:40001"
            };
            let about = Segment::syn(own.parse().unwrap(), server(family)).packet();
            assert_eq!(host.receive(&error(family, &about)), Passed, "a listener's");
            let _socket = connecting(client(family), server(family), SOCKET_MARK);
            let (from, to) = (client(family).ip(), server(family).ip());
            let ports = [0x9c, 0x40, 0, 80, 0, 8, 0, 0];
            assert_eq!(
                host.receive(&error(family, &ip(from, to, 17, &ports))),
                Passed,
                "UDP"
            );
            let backwards = Segment::syn(server(family), client(family)).packet();
            assert_eq!(
                host.receive(&error(family, &backwards)),
                Passed,
                "not sent by us"
            );
        }
        assert_eq!(host.stat("icmp_errors"), 0);
    });
}

#[test]
fn truncated_icmp_error_passes() {
    on_host(|host| {
        for (family, protocol) in [(Family::V4, ICMP), (Family::V6, ICMPV6)] {
            let (from, to) = (server(family).ip(), client(family).ip());
            for length in 0..8 {
                let frame = ethernet(&ip(from, to, protocol, &[3, 4, 0, 0, 0, 0, 0, 0][..length]));
                assert_eq!(host.receive(&frame), Passed, "{family} {length}");
            }
        }
    });
}
