// SPDX-License-Identifier: Apache-2.0
//! Packets of odd shapes: what the program cannot read for certain it leaves alone.

use std::net::{IpAddr, SocketAddr};

use posthaste_lab::network::Family;

use crate::host::Verdict::{Passed, Redirected};
use crate::host::{Host, client, flow, on_host, server};
use crate::segment::{Segment, TCP, UDP, ethernet, ethernet_of, finish_ipv4, ip};

fn syn(family: Family) -> Segment {
    Segment::syn(client(family), server(family))
}

#[track_caller]
fn assert_passed(host: &mut Host<'_>, packet: &[u8], what: &str) {
    assert_eq!(host.receive(&ethernet(packet)), Passed, "{what}");
    assert!(host.events().is_empty(), "{what}");
}

// promise: T15
#[test]
fn fragments_pass() {
    on_host(|host| {
        for (field, what) in [(0x2000, "first"), (0x2001, "middle"), (0x00b9, "last")] {
            let mut packet = syn(Family::V4).packet();
            packet[6..8].copy_from_slice(&u16::to_be_bytes(field));
            finish_ipv4(&mut packet);
            assert_passed(host, &packet, what);
        }
        let mut whole = syn(Family::V4).packet();
        whole[6] = 0x40;
        finish_ipv4(&mut whole);
        assert_eq!(
            host.receive(&ethernet(&whole)),
            Redirected,
            "do not fragment"
        );
    });
}

#[test]
fn ipv4_options_are_skipped() {
    on_host(|host| {
        for words in 6..=15 {
            let mut packet = syn(Family::V4).packet();
            let options = vec![1; 4 * (words - 5)];
            packet.splice(20..20, options);
            packet[0] = 0x40 | u8::try_from(words).unwrap();
            let total = u16::try_from(packet.len()).unwrap();
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            finish_ipv4(&mut packet);
            assert_eq!(
                host.receive(&ethernet(&packet)),
                Redirected,
                "{words} words"
            );
            // The later ones repeat the first.
            for event in host.events() {
                assert_eq!(event.flow, flow(client(Family::V4), server(Family::V4)));
            }
        }
        assert_eq!(host.half_open_flows(), (1, 0));
    });
}

// promise: T15
#[test]
fn ipv6_extension_headers_pass() {
    on_host(|host| {
        let segment = syn(Family::V6);
        let tcp = segment.packet()[40..].to_vec();
        for (kind, what) in [
            (0, "hop by hop"),
            (43, "routing"),
            (44, "fragment"),
            (60, "options"),
        ] {
            let payload = [&[TCP, 0, 1, 4, 0, 0, 0, 0], tcp.as_slice()].concat();
            let packet = ip(segment.from.ip(), segment.to.ip(), kind, &payload);
            assert_passed(host, &packet, what);
        }
    });
}

// promise: T15
#[test]
fn truncated_headers_pass() {
    on_host(|host| {
        for family in Family::ALL {
            let frame = syn(family).frame();
            let tcp = frame.len() - 24;
            // Nothing shorter than an IP header can be tried by hand.
            for length in tcp..frame.len() {
                assert_eq!(host.receive(&frame[..length]), Passed, "{family} {length}");
            }
            assert!(host.events().is_empty());
            let mut bare = syn(family);
            bare.options.clear();
            let bare = bare.frame();
            assert_eq!(host.receive(&bare), Redirected, "{family} without options");
            assert_eq!(host.event().frame.as_bytes(), bare);
        }
    });
}

#[test]
fn long_frame_truncated() {
    on_host(|host| {
        let mut frame = syn(Family::V4).frame();
        frame.resize(1000, 0x55);
        assert_eq!(host.receive(&frame), Redirected);
        assert_eq!(host.event().frame.as_bytes(), &frame[..128]);
    });
}

#[test]
fn other_protocols_pass() {
    on_host(|host| {
        for family in Family::ALL {
            let (from, to) = (client(family).ip(), server(family).ip());
            let echo = if family == Family::V4 {
                (1, 8)
            } else {
                (58, 128)
            };
            let tcp = &syn(family).packet()[if family == Family::V4 { 20 } else { 40 }..];
            assert_passed(host, &ip(from, to, UDP, tcp), "UDP");
            assert_passed(host, &ip(from, to, 132, tcp), "SCTP");
            assert_passed(
                host,
                &ip(from, to, echo.0, &[echo.1, 0, 0, 0, 0, 0, 0, 0]),
                "echo",
            );
        }
        assert_eq!(host.receive(&ethernet_of(0x0806, &[0; 46])), Passed, "ARP");
        let tagged = [&[0, 5, 8, 0], syn(Family::V4).packet().as_slice()].concat();
        assert_eq!(
            host.receive(&ethernet_of(0x8100, &tagged)),
            Passed,
            "tagged"
        );
        assert!(host.events().is_empty());
    });
}

/// The maps hold IPv4 addresses in this form, and a worker would take the flow for an IPv4 one: to
/// the loopback address of this host, for example.
// promise: T15
#[test]
fn mapped_ipv4_in_ipv6_passes() {
    on_host(|host| {
        host.namespace
            .ip("route add default via fd00:0:0:1::2")
            .unwrap();
        let mapped = |ip: &str| SocketAddr::new(IpAddr::V6(ip.parse().unwrap()), 80);
        let real = (client(Family::V6), server(Family::V6));
        for (from, to) in [
            (real.0, mapped("::ffff:10.9.0.1")),
            (real.0, mapped("::ffff:127.0.0.1")),
            (mapped("::ffff:10.0.0.2"), real.1),
            (mapped("::ffff:10.0.0.2"), mapped("::ffff:10.9.0.1")),
        ] {
            assert_passed(
                host,
                &Segment::syn(from, to).packet(),
                &format!("{from} {to}"),
            );
        }
        let elsewhere = mapped("::10.9.0.1");
        assert_eq!(
            host.receive(&Segment::syn(real.0, elsewhere).frame()),
            Redirected
        );
    });
}
