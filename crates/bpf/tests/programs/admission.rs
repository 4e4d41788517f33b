// SPDX-License-Identifier: Apache-2.0
//! SYNs that are none of the node's business although there is a rule for them: the host would
//! not forward them, or would not send to who claims to have sent them, or only the two ends can
//! do what they request.

use std::net::{IpAddr, SocketAddr};

use posthaste_bpf::{Device, LinkLayer};
use posthaste_lab::network::Family;
use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::intercept::{EventKind, Intercept};
use posthaste_relay::policy::Action;

use crate::host::Verdict::{Passed, Redirected, Swallowed};
use crate::host::{
    EARLY, Host, LATE, STRICT, client, device, on_host, on_starting_host, rule, server,
};
use crate::segment::{Segment, ethernet, finish_ipv4};

const MODES: [AcceptMode; 3] = [EARLY, STRICT, LATE];

fn syn(family: Family) -> Segment {
    Segment::syn(client(family), server(family))
}

/// In every mode, and where SYNs are rejected, the host forwards the packet and no worker gets an event.
#[track_caller]
fn assert_passed(host: &mut Host<'_>, packet: &[u8], what: &str) {
    let before = host.half_open_flows();
    let rules = MODES.map(|accept| rule(Action::Relay, accept));
    for rule in rules.into_iter().chain([rule(Action::Reject, EARLY)]) {
        host.obey(&[rule]);
        assert_eq!(host.receive(&ethernet(packet)), Passed, "{what}");
        assert!(host.events().is_empty(), "{what}");
    }
    assert_eq!(host.half_open_flows(), before, "{what}");
}

/// It is taken in late mode, and in strict mode. Leaves no half-open entry.
#[track_caller]
fn assert_taken(host: &mut Host<'_>, packet: &[u8], what: &str) {
    host.obey(&[rule(Action::Relay, LATE)]);
    assert_eq!(host.receive(&ethernet(packet)), Redirected, "{what}");
    host.obey(&[rule(Action::Relay, STRICT)]);
    assert_eq!(host.receive(&ethernet(packet)), Swallowed, "{what}");
    let event = host.event();
    host.worker_maps
        .release_if_unchanged(&event.flow, event.half_open);
}

fn set_hop_limit(packet: &mut [u8], hops: u8) {
    if packet[0] >> 4 == 6 {
        packet[7] = hops;
        return;
    }
    packet[8] = hops;
    finish_ipv4(packet);
}

#[test]
fn expired_ttl_passes() {
    on_host(|host| {
        for family in Family::ALL {
            let mut packet = syn(family).packet();
            for hops in [0, 1] {
                set_hop_limit(&mut packet, hops);
                assert_passed(host, &packet, &format!("{family} {hops}"));
            }
            set_hop_limit(&mut packet, 2);
            assert_taken(host, &packet, &format!("{family} 2"));
        }
    });
}

/// A traceroute's: that the destination answers has to be true.
// promise: T20
#[test]
fn low_ttl_is_strict() {
    on_host(|host| {
        for family in Family::ALL {
            for (hops, held) in [(31, true), (32, false)] {
                let mut packet = syn(family).sequence(hops.into()).packet();
                set_hop_limit(&mut packet, hops);
                host.receive(&ethernet(&packet));
                let kind = EventKind::Syn { held };
                assert_eq!(host.event().kind, kind, "{family} {hops}");
            }
        }
    });
}

// promise: T21
#[test]
fn own_addresses_pass() {
    on_host(|host| {
        let own = ["10.0.0.1", "10.0.1.1", "fd00::1", "fd00:0:0:1::1"];
        let broadcast = ["10.0.0.255", "10.0.1.255"];
        let link_local = ["fe80::1", "febf::1"];
        for from in own.into_iter().chain(broadcast).chain(link_local) {
            let from: IpAddr = from.parse().unwrap();
            let family = [Family::V6, Family::V4][usize::from(from.is_ipv4())];
            let segment = Segment::syn(SocketAddr::new(from, 40_000), server(family));
            assert_passed(host, &segment.packet(), &from.to_string());
        }
    });
}

// promise: T21
#[test]
fn unroutable_client_passes() {
    on_host(|host| {
        let nowhere = ["192.0.2.1", "2001:db8::1"];
        for (from, family) in nowhere.into_iter().zip(Family::ALL) {
            let from = SocketAddr::new(from.parse().unwrap(), 40_000);
            let packet = Segment::syn(from, server(family)).packet();
            assert_passed(host, &packet, "no route");
            let default = format!("route add default via {}", via(family));
            host.namespace.ip(&default).unwrap();
            assert_taken(host, &packet, "the default route");
        }
    });
}

fn via(family: Family) -> &'static str {
    if family == Family::V4 {
        "10.0.1.2"
    } else {
        "fd00:0:0:1::2"
    }
}

// promise: T21
#[test]
fn strict_reverse_path_filter() {
    on_host(|host| {
        let device = |strict_source| Device {
            layer: LinkLayer::Ethernet,
            strict_source,
            tracked: false,
            paced: false,
        };
        // It is reached by the other interface.
        let elsewhere = SocketAddr::new("10.9.9.9".parse().unwrap(), 40_000);
        let forged = Segment::syn(elsewhere, server(Family::V4)).packet();
        assert_taken(host, &forged, "without the filter");
        host.redirect.describe(host.ifindex, device(true)).unwrap();
        assert_passed(host, &forged, "with it");
        assert_taken(host, &syn(Family::V4).packet(), "reached by it");
        let elsewhere = SocketAddr::new("fd00:9::9".parse().unwrap(), 40_000);
        let packet = Segment::syn(elsewhere, server(Family::V6)).packet();
        assert_taken(host, &packet, "IPv6 has no filter");
        host.redirect.describe(host.ifindex, device(false)).unwrap();
        assert_taken(host, &forged, "no longer");
    });
}

// promise: T21
#[test]
fn bad_ipv4_headers_pass() {
    on_host(|host| {
        let good = syn(Family::V4).packet();
        let mut sum = good.clone();
        sum[10] ^= 1;
        assert_passed(host, &sum, "checksum");
        for (first, what) in [(0x44, "header length"), (0x55, "version")] {
            let mut packet = good.clone();
            packet[0] = first;
            assert_passed(host, &packet, what);
        }
        let whole = u16::try_from(good.len()).unwrap();
        for total in [0, 20, 39, whole - 1, whole + 1] {
            let mut packet = good.clone();
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            finish_ipv4(&mut packet);
            assert_passed(host, &packet, &format!("total length {total}"));
        }
        assert_taken(host, &good, "a good one");
    });
}

// promise: T21
#[test]
fn bad_ipv6_headers_pass() {
    on_host(|host| {
        let good = syn(Family::V6).packet();
        let whole = u16::try_from(good.len() - 40).unwrap();
        for length in [0, 19, whole - 1, whole + 1] {
            let mut packet = good.clone();
            packet[4..6].copy_from_slice(&length.to_be_bytes());
            assert_passed(host, &packet, &format!("payload length {length}"));
        }
        assert_taken(host, &good, "a good one");
    });
}

/// The host decides what to do with them: it may drop them, and a relayed connection
/// would be without.
// promise: T16
#[test]
fn ipv4_options_pass() {
    on_host(|host| {
        for kind in [7, 68, 130, 131, 134, 137, 148, 30] {
            let mut packet = syn(Family::V4).packet();
            packet.splice(20..20, [1, kind, 3, 4]);
            packet[0] = 0x46;
            let total = u16::try_from(packet.len()).unwrap();
            packet[2..4].copy_from_slice(&total.to_be_bytes());
            finish_ipv4(&mut packet);
            assert_passed(host, &packet, &format!("option {kind}"));
        }
    });
}

fn with_data(family: Family, bytes: usize) -> Vec<u8> {
    let mut segment = syn(family);
    segment.data = (0..=u8::MAX).cycle().take(bytes).collect();
    segment.packet()
}

// promise: T21
#[test]
fn tcp_checksum_checked() {
    on_host(|host| {
        for family in Family::ALL {
            let header = if family == Family::V4 { 20 } else { 40 };
            for bytes in [0, 1, 2, 3, 4, 15, 16, 17, 1001, 1400] {
                let what = format!("{family} with {bytes} bytes");
                let good = with_data(family, bytes);
                assert_taken(host, &good, &what);
                let mut host_is_new = good.clone();
                let pseudo = Segment::pseudo_sum(&good, header);
                host_is_new[header + 16..header + 18].copy_from_slice(&pseudo.to_be_bytes());
                assert_taken(host, &host_is_new, &what);
            }
            for bytes in [0, 1, 1001, 1400] {
                let good = with_data(family, bytes);
                let last = good.len() - 1;
                for at in [last, good.len() - bytes - 5] {
                    let mut bad = good.clone();
                    bad[at] ^= 0x40;
                    assert_passed(host, &bad, &format!("{family} {bytes} bytes, {at}"));
                }
            }
        }
    });
}

// promise: T22
#[test]
fn end_to_end_options_pass() {
    let foreign: [(&[u8], &str); 9] = [
        (&[19, 18], "TCP-MD5"),
        (&[29, 16], "TCP-AO"),
        (&[30, 12, 0x10], "MP_JOIN"),
        (
            &[1, 1, 2, 4, 5, 0xb4, 30, 12, 0x11],
            "MP_JOIN behind others",
        ),
        (&[30, 4, 0x01, 0, 30, 12, 0x10], "MP_CAPABLE and MP_JOIN"),
        (
            &[30, 12, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30, 4, 0x01],
            "MP_JOIN and MP_CAPABLE",
        ),
        (&[30, 24, 0x10], "the MP_JOIN of an ACK"),
        (&[2, 4, 5, 0xb4, 8, 1], "an option too short"),
        (&[2, 4, 5, 0xb4, 8, 40], "an option too long"),
    ];
    on_host(|host| {
        for family in Family::ALL {
            for (options, what) in foreign {
                let mut segment = syn(family);
                segment.options = options.to_vec();
                segment.options.resize(24, 1);
                assert_passed(host, &segment.packet(), &format!("{family} {what}"));
            }
            let mut cut = syn(family);
            cut.options = vec![1, 1, 1, 19];
            assert_passed(host, &cut.packet(), "an option without a length");
        }
    });
}

/// Later programs decide about these; TCP opens late.
// promise: MP3
#[test]
fn starting_node_leaves_options_to_the_server() {
    on_starting_host(|host| {
        host.obey(&[rule(Action::Relay, EARLY)]);
        for family in Family::ALL {
            let mut segment = syn(family);
            for options in [&[30, 4, 0x01, 0][..], &[30, 12, 0x10, 0], &[19, 18, 0, 0]] {
                segment.options = options.to_vec();
                segment.options.resize(24, 1);
                let verdict = host.receive(&ethernet(&segment.packet()));
                assert_eq!(verdict, Passed, "{family} {options:?}");
            }
            segment.options.clear();
            assert_eq!(host.receive(&ethernet(&segment.packet())), Redirected);
        }
    });
}

#[test]
fn other_options_accepted() {
    let others: [&[u8]; 5] = [
        &[30, 12, 0x01, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[0, 19, 18, 0],
        &[34, 2, 1, 1],
        &[253, 8, 19, 18, 30, 12, 0x10, 0],
        &[1, 1, 1, 1],
    ];
    on_host(|host| {
        for family in Family::ALL {
            for options in others {
                let mut segment = syn(family);
                segment.options = options.to_vec();
                assert_taken(host, &segment.packet(), &format!("{family} {options:?}"));
            }
        }
    });
}

#[test]
fn too_many_interfaces_are_reported() {
    on_host(|host| {
        let ethernet = device(LinkLayer::Ethernet);
        let described = (1_000..).map(|index| host.redirect.describe(index, ethernet));
        let described: Vec<_> = described.take(20_000).collect();
        let count = described
            .iter()
            .take_while(|described| described.is_ok())
            .count();
        assert!(count > 16_000, "{count}");
        let error = described[count].as_ref().unwrap_err().to_string();
        let words = "more than the 16384 interfaces that a node intercepts on";
        assert!(error.contains(words), "{error}");
    });
}
