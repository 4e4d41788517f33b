// SPDX-License-Identifier: Apache-2.0
//! SYNs that announce a flow by an option: those that come in, and those that go out.

use std::net::SocketAddr;

use posthaste_bpf::Settings;
use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::process::wait_until;
use posthaste_relay::intercept::{EventKind, Intercept};
use posthaste_relay::sys::{SocketSettings, explicit_listener};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::host::Verdict::{Passed, Redirected};
use crate::host::{
    Host, NoHost, SETTINGS, SOCKET_MARK, client, client_at, flow, load, on_host, on_host_with,
    server,
};
use crate::segment::{ACK, SYN, Segment};
use crate::wire::SOON;

/// The address of this host's explicit listener.
const LISTENER: &str = "10.0.0.1:4480";
/// To 198.51.100.7:443, from 192.0.2.33:51234, and by chain 258.
const SYN_OPTION: [u8; 20] = [
    0xfd, 20, 0x50, 0x48, 198, 51, 100, 7, 1, 0xbb, 192, 0, 2, 33, 0xc8, 0x22, 0, 1, 2, 1,
];

fn requested() -> SocketAddr {
    LISTENER.parse().unwrap()
}

/// An explicit listener of ours.
fn listener(address: &str) -> Socket {
    let settings = SocketSettings {
        mark: SOCKET_MARK,
        backlog: 8,
    };
    explicit_listener(address.parse().unwrap(), settings).unwrap()
}

/// Has SYNs from the client of these tests announce flows.
fn list_client(host: &mut Host<'_>) {
    let peer = client(Family::V4).ip();
    host.redirect.set_syn_option_peers(&[peer]).unwrap();
}

/// A SYN of the client's with these options.
fn syn(to: SocketAddr, options: &[u8]) -> Segment {
    Segment {
        options: options.to_vec(),
        ..Segment::syn(client(to_family(to)), to)
    }
}

fn to_family(to: SocketAddr) -> Family {
    if to.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// The option without its segments.
fn short() -> Vec<u8> {
    let mut option = SYN_OPTION[..16].to_vec();
    option[1] = 16;
    option
}

#[test]
fn peers_option_reported() {
    on_host(|host| {
        let _listener = listener(LISTENER);
        list_client(host);
        let mut other_kind = SYN_OPTION;
        other_kind[0] = 254;
        let usual = [
            2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
        ];
        let behind = [&usual[..], &SYN_OPTION].concat();
        let options = [&SYN_OPTION[..], &short(), &other_kind, &behind];
        for (count, options) in (1..).zip(options) {
            let frame = syn(requested(), options).sequence(count).frame();
            assert_eq!(host.receive(&frame), Redirected);
            let event = host.event();
            assert_eq!(event.kind, EventKind::SynOption);
            assert_eq!(event.flow, flow(client(Family::V4), requested()));
            assert_eq!(
                (event.half_open.isn, event.frame.as_bytes()),
                (count, &*frame)
            );
        }
        assert_eq!(host.half_open_flows(), (1, 0));
    });
}

#[test]
fn repeated_option_reported_once() {
    on_host(|host| {
        let _listener = listener(LISTENER);
        list_client(host);
        for (sequence, reported) in [(7, 1), (7, 0), (8, 1), (8, 0)] {
            let frame = syn(requested(), &SYN_OPTION).sequence(sequence).frame();
            assert_eq!(host.receive(&frame), Redirected);
            assert_eq!(host.events().len(), reported, "{sequence}");
        }
        assert_eq!(host.half_open_flows(), (1, 0));
    });
}

#[test]
fn plain_listener_syns_pass() {
    on_host(|host| {
        let _listener = listener(LISTENER);
        list_client(host);
        let foreign = [
            253, 20, 0xf9, 0x89, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        ];
        let filled = [1; 40];
        let hidden = [&[0][..], &[1; 3], &SYN_OPTION].concat();
        let swallowed = [&[8, 24, 1, 1][..], &SYN_OPTION].concat();
        let endless = [&[8, 0, 1, 1][..], &SYN_OPTION].concat();
        let cut = [&[1; 36][..], &SYN_OPTION[..4]].concat();
        for options in [&foreign[..], &filled, &hidden, &swallowed, &endless, &[]] {
            let frame = syn(requested(), options).frame();
            assert_eq!(host.receive(&frame), Passed, "{options:?}");
        }
        for flags in [ACK, SYN | ACK] {
            let segment = Segment {
                flags,
                ..syn(requested(), &SYN_OPTION)
            };
            assert_eq!(host.receive(&segment.frame()), Passed, "{flags:#x}");
        }
        assert!(host.events().is_empty());
        // The beginning of one is for the worker to check.
        assert_eq!(host.receive(&syn(requested(), &cut).frame()), Redirected);
        assert_eq!(host.event().kind, EventKind::SynOption);
    });
}

// promise: Q14
#[test]
fn unauthorized_option_reported() {
    on_host(|host| {
        let _listener = listener(LISTENER);
        let frame = syn(requested(), &SYN_OPTION).frame();
        assert_eq!(host.receive(&frame), Passed);
        let event = host.event();
        assert_eq!(
            (event.kind, event.frame.as_bytes()),
            (EventKind::Unauthorized, &*frame)
        );
        assert_eq!(host.stat("syn_options_refused"), 1);
        assert_eq!(host.half_open_flows(), (0, 0));
        list_client(host);
        assert_eq!(host.receive(&frame), Redirected);
        host.redirect.set_syn_option_peers(&[]).unwrap();
        assert_eq!(
            host.receive(&syn(requested(), &SYN_OPTION).sequence(9).frame()),
            Passed
        );
    });
}

// promise: Q14
#[test]
fn unauthorized_events_displace_none() {
    on_host(|host| {
        let _listener = listener(LISTENER);
        list_client(host);
        for number in 0..1500_u16 {
            let unauthorized = Segment {
                options: SYN_OPTION.to_vec(),
                ..Segment::syn(
                    SocketAddr::new("10.0.0.3".parse().unwrap(), 1024 + number),
                    requested(),
                )
            };
            assert_eq!(host.receive(&unauthorized.frame()), Passed);
        }
        assert_eq!(
            host.receive(&syn(requested(), &SYN_OPTION).frame()),
            Redirected
        );
        let kinds: Vec<_> = host.events().iter().map(|event| event.kind).collect();
        assert_eq!(kinds.last(), Some(&EventKind::SynOption));
        assert!((100..500).contains(&kinds.len()), "{}", kinds.len());
        assert_eq!(host.stat("syn_options_refused"), 1500);
    });
}

#[test]
fn foreign_listener_traffic_passes() {
    on_host(|host| {
        list_client(host);
        let absent_host = syn(requested(), &SYN_OPTION).frame();
        assert_eq!(host.receive(&absent_host), Passed, "nobody listens");
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        other.bind(&requested().into()).unwrap();
        other.listen(1).unwrap();
        assert_eq!(host.receive(&absent_host), Passed, "another program's");
        drop(other);
        let v6 = "[fd00::1]:4480";
        let _listener = listener(v6);
        let frame = syn(v6.parse().unwrap(), &SYN_OPTION).frame();
        assert_eq!(host.receive(&frame), Passed, "IPv6");
        assert!(host.events().is_empty());
    });
}

#[test]
fn wildcard_listener_ignores_transit() {
    on_host(|host| {
        let _listener = listener("0.0.0.0:80");
        list_client(host);
        let frame = syn(server(Family::V4), &SYN_OPTION).frame();
        assert_eq!(host.receive(&frame), Redirected);
        assert_eq!(host.event().kind, EventKind::Syn { held: false });
        let own = SocketAddr::new(requested().ip(), 80);
        let frame = syn(own, &SYN_OPTION).frame();
        assert_eq!(host.receive(&frame), Redirected);
        assert_eq!(host.event().kind, EventKind::SynOption);
    });
}

// promise: Q15
#[test]
fn full_ring_reaches_explicit_listener() {
    let settings = Settings {
        half_open: 1,
        half_open_reserve: 1,
        ..SETTINGS
    };
    on_host_with(settings, |host| {
        let _listener = listener(LISTENER);
        list_client(host);
        assert_eq!(
            host.receive(&syn(requested(), &SYN_OPTION).frame()),
            Redirected
        );
        let second = Segment {
            from: client_at(Family::V4, 40_001),
            ..syn(requested(), &SYN_OPTION)
        };
        assert_eq!(host.receive(&second.frame()), Passed);
        assert_eq!(host.stat("half_open_full"), 1);
        host.worker_maps.set_draining(true).unwrap();
        let third = syn(requested(), &SYN_OPTION).sequence(3).frame();
        assert_eq!(host.receive(&third), Passed);
        assert_eq!(host.events().len(), 1);
    });
}

/// Has a socket of the client connect to the server, and returns the TCP headers of its SYNs, as
/// many as are expected.
fn syns(connect: impl Fn(&Socket, SockAddr) + Sync, count: usize) -> (Vec<Vec<u8>>, u64) {
    let network = Network::line([Link::Veth, Link::Veth]).build().unwrap();
    let to = SocketAddr::new(network.server_address(Family::V4), 80);
    let ear = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap();
    let ear = network.server().run_in(ear);
    ear.set_read_timeout(Some(SOON)).unwrap();
    if count > 1 {
        // The answer has no way, so the SYN is repeated.
        let client = network.client_address(Family::V4);
        let line = format!("route add blackhole {client}/32");
        network.server().ip(&line).unwrap();
    }
    network.client().run_in(|| {
        let settings = Settings {
            windows: true,
            successions: 0,
            ..SETTINGS
        };
        let mut redirect = load(settings);
        redirect.send_syn_options().unwrap();
        let mut worker_maps = redirect
            .worker_maps(0)
            .unwrap()
            .open(vec![], Box::new(NoHost))
            .unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        worker_maps
            .syn_option(std::os::fd::AsFd::as_fd(&socket), &SYN_OPTION)
            .unwrap();
        connect(&socket, to.into());
        let received = receive_all(&ear, count);
        let left_out = redirect
            .stats()
            .into_iter()
            .find(|stat| stat.0 == "syn_options_left_out");
        (received, left_out.unwrap().2)
    })
}

fn receive_all(ear: &Socket, count: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    wait_until("SYNs", SOON, || {
        let mut piece = [0; 128];
        let bytes = std::io::Read::read(&mut &*ear, &mut piece).unwrap();
        let tcp = &piece[20..bytes];
        if tcp[13] == SYN {
            received.push(tcp[..usize::from(tcp[12] >> 4) * 4].to_vec());
        }
        received.len() == count
    })
    .unwrap();
    received
}

// promise: K11
#[test]
fn option_in_first_syn_only() {
    let connect = |socket: &Socket, to: SockAddr| drop(socket.connect(&to));
    let (syns, left_out) = syns(connect, 2);
    let has_option = |syn: &[u8]| syn.windows(20).any(|window| window == SYN_OPTION);
    assert!(has_option(&syns[0]) && !has_option(&syns[1]), "{syns:?}");
    assert_eq!((syns[0].len(), syns[1].len()), (60, 40));
    assert_eq!(left_out, 0);
}

// promise: K11
#[test]
fn option_without_room_omitted() {
    let request_cookie = |socket: &Socket, to: SockAddr| {
        drop(socket.send_to_with_flags(b"data", &to, libc::MSG_FASTOPEN));
    };
    let (syns, left_out) = syns(request_cookie, 1);
    assert_eq!(syns[0].len(), 44, "the options with those of Fast Open");
    assert_eq!(left_out, 1);
}
