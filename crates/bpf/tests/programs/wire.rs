// SPDX-License-Identifier: Apache-2.0
//! What a run by hand cannot show: packets on real devices, with and without a link layer, that
//! become connections of real sockets.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use posthaste_bpf::{LinkLayer, Redirect, Settings, WorkerMaps};
use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network, TO_CLIENT, TO_SERVER};
use posthaste_lab::process::wait_until;
use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::frame::Frame;
use posthaste_relay::intercept::{Direction, Event, EventKind, Intercept};
use posthaste_relay::policy::Action;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::host::{
    EARLY, LATE, NoHost, REDIRECT_MARK, SETTINGS, SOCKET_MARK, STRICT, connecting, device, end,
    half_open, interface, listen, load, rule,
};
use crate::segment::{Segment, ethernet, ethernet_of};

/// How long anything may take that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);
const PORT: u16 = 80;

/// Client, the host with the programs, server; on the host's thread.
struct Wire<'a> {
    network: &'a Network,
    family: Family,
    redirect: Redirect,
    worker_maps: WorkerMaps,
    listeners: Vec<Socket>,
}

/// Runs a test with devices that have a link layer and with such that have none, and in both
/// families.
fn on_wires(rule: (Action, AcceptMode), test: impl Fn(&mut Wire<'_>) + Sync) {
    for (link, layer) in [
        (Link::Veth, LinkLayer::Ethernet),
        (Link::delay(Duration::ZERO), LinkLayer::None),
    ] {
        let network = Network::line([link.clone(), link]).build().unwrap();
        route_marked(&network);
        for family in Family::ALL {
            network
                .node(0)
                .run_in(|| test(&mut Wire::new(&network, family, layer, rule)));
        }
    }
}

/// What brings marked packets to this host.
fn route_marked(network: &Network) {
    let mark = format!("{REDIRECT_MARK}/{REDIRECT_MARK}");
    for family in ["-4", "-6"] {
        for words in [
            format!("{family} rule add fwmark {mark} lookup 100"),
            format!("{family} route add local default dev lo table 100"),
        ] {
            network.node(0).ip_output(&words).unwrap();
        }
    }
}

impl<'a> Wire<'a> {
    fn new(
        network: &'a Network,
        family: Family,
        layer: LinkLayer,
        (action, accept): (Action, AcceptMode),
    ) -> Self {
        let mut redirect = load(SETTINGS);
        for name in [TO_CLIENT, TO_SERVER] {
            redirect
                .attach(interface(network.node(0), name), device(layer))
                .unwrap();
        }
        redirect.settle().unwrap();
        redirect
            .set_rules(&[rule(action, accept)], true, false)
            .unwrap();
        let worker_maps = redirect
            .worker_maps(0)
            .unwrap()
            .open(vec![], Box::new(NoHost))
            .unwrap();
        let listeners = listen(&worker_maps);
        Self {
            network,
            family,
            redirect,
            worker_maps,
            listeners,
        }
    }

    fn server(&self) -> SocketAddr {
        SocketAddr::new(self.network.server_address(self.family), PORT)
    }

    /// A port that the server listens on.
    fn serve(&self) -> TcpListener {
        let at = self.server();
        let bind = || TcpListener::bind(at);
        let listener = self.network.server().run_in(bind).unwrap();
        SockRef::from(&listener)
            .set_read_timeout(Some(SOON))
            .unwrap();
        listener
    }

    /// Begins to connect from a port of the client, or from any (0), to the server.
    fn dial(&self, port: u16) -> Socket {
        let from = SocketAddr::new(self.network.client_address(self.family), port);
        let to = self.server();
        let mut dialled = None;
        until("the port to be free", || {
            dialled = self.network.client().run_in(|| dial(from, to)).ok();
            dialled.is_some()
        });
        dialled.unwrap()
    }

    fn event(&mut self) -> Event {
        let mut found = None;
        until("an event", || {
            found = self.worker_maps.next_event();
            found.is_some()
        });
        found.unwrap()
    }

    /// The next connection at the listener of the family.
    fn accept(&self) -> TcpStream {
        let listener = &self.listeners[usize::from(self.family == Family::V6)];
        let mut found = None;
        until("a connection to accept", || {
            found = listener.accept().ok();
            found.is_some()
        });
        let (socket, _) = found.unwrap();
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket.into()
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = self.redirect.stats();
        stats
            .iter()
            .find(|(stat, ..)| *stat == name)
            .expect("it is counted")
            .2
    }
}

fn dial(from: SocketAddr, to: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(from);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&from.into())?;
    socket.set_nonblocking(true)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

fn until(what: &str, condition: impl FnMut() -> bool) {
    wait_until(what, SOON, condition).unwrap();
}

/// Waits until a connection is open, and has it block from then on.
fn connected(socket: Socket) -> TcpStream {
    until("the connection", || {
        assert!(socket.take_error().unwrap().is_none(), "refused");
        socket.peer_addr().is_ok()
    });
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.into()
}

fn assert_carries(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    let mut got = vec![0; bytes.len()];
    to.read_exact(&mut got).unwrap();
    assert_eq!(got, bytes);
}

#[test]
fn listener_under_server_address() {
    on_wires((Action::Relay, EARLY), |wire| {
        let client = connected(wire.dial(0));
        let accepted = wire.accept();
        assert_eq!(accepted.peer_addr().unwrap(), client.local_addr().unwrap());
        assert_eq!(accepted.local_addr().unwrap(), wire.server());
        assert_carries(&client, &accepted, b"there");
        assert_carries(&accepted, &client, b"and back");
        assert_eq!(wire.event().kind, EventKind::Syn { held: false });
    });
}

#[test]
fn injected_syn_reaches_listener() {
    on_wires((Action::Relay, STRICT), |wire| {
        let client = wire.dial(0);
        let event = wire.event();
        assert_eq!(event.kind, EventKind::Syn { held: true });
        assert!(client.peer_addr().is_err(), "the client waits");
        wire.worker_maps
            .admit(&event.flow, event.half_open)
            .unwrap();
        let syn = event.frame.completed().unwrap();
        wire.worker_maps.inject(&syn, Direction::In).unwrap();
        let (client, accepted) = (connected(client), wire.accept());
        assert_carries(&client, &accepted, b"through");
    });
}

#[test]
fn injected_syn_reaches_server() {
    on_wires((Action::Relay, STRICT), |wire| {
        let server = wire.serve();
        let client = wire.dial(0);
        let event = wire.event();
        wire.worker_maps.pass(&event.flow, event.half_open).unwrap();
        let syn = event.frame.completed().unwrap();
        wire.worker_maps.inject(&syn, Direction::In).unwrap();
        assert_carries(&connected(client), &server.accept().unwrap().0, b"straight");
    });
}

#[test]
fn injected_reset_refuses_client() {
    on_wires((Action::Reject, EARLY), |wire| {
        let client = wire.dial(0);
        let event = wire.event();
        assert_eq!(event.kind, EventKind::Reject);
        let reset = event.frame.reset().unwrap();
        wire.worker_maps.inject(&reset, Direction::Out).unwrap();
        let mut error = None;
        until("a refusal", || {
            error = client.take_error().unwrap();
            error.is_some()
        });
        assert_eq!(error.unwrap().kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn held_answer_released() {
    on_wires((Action::Relay, EARLY), |wire| {
        let server = wire.serve();
        let client = connected(wire.dial(0));
        let half_open = half_open(&wire.event());
        let own = client.local_addr().unwrap();
        let upstream = connecting(own, wire.server(), SOCKET_MARK);
        let answer = wire.event();
        assert_eq!((answer.kind, answer.flow), (EventKind::SynAck, half_open.0));
        assert!(upstream.peer_addr().is_err(), "it is not open");

        wire.worker_maps
            .release_half_open(&half_open.0, half_open.1);
        let frame = answer.frame.completed().unwrap();
        wire.worker_maps.inject(&frame, Direction::In).unwrap();
        let upstream = connected(upstream);
        let (accepted, seen) = server.accept().unwrap();
        assert_eq!(seen, own, "the server sees the client");
        assert_carries(&upstream, &accepted, b"request");
        assert_carries(&accepted, &upstream, b"response");
    });
}

#[test]
fn handshakes_by_cookie_are_completed() {
    on_wires((Action::Relay, LATE), |wire| {
        wire.network
            .node(0)
            .sysctl("net.ipv4.tcp_syncookies", "2")
            .unwrap();
        let client = connected(wire.dial(0));
        let accepted = wire.accept();
        assert_eq!(wire.stat("cookies"), 1);
        assert_carries(&client, &accepted, b"sweet");
        assert_carries(&accepted, &client, b"cookies");
    });
}

/// Opens a connection from a port and closes it, this host first: its TIME_WAIT socket stays here.
fn leave_time_wait(wire: &Wire<'_>, port: u16) {
    let client = connected(wire.dial(port));
    let accepted = wire.accept();
    SockRef::from(&accepted).set_linger(None).unwrap();
    drop(accepted);
    assert_eq!((&client).read(&mut [0]).unwrap(), 0);
    drop(client);
}

#[test]
fn syn_renews_time_wait() {
    on_wires((Action::Relay, LATE), |wire| {
        leave_time_wait(wire, 44_000);
        for round in 1..=3 {
            let client = connected(wire.dial(44_000));
            let accepted = wire.accept();
            assert_eq!(accepted.local_addr().unwrap(), wire.server());
            assert_carries(&client, &accepted, b"anew");
            assert!(wire.stat("time_wait_syns") >= round);
            SockRef::from(&accepted).set_linger(None).unwrap();
            drop(accepted);
            assert_eq!((&client).read(&mut [0]).unwrap(), 0);
        }
    });
}

#[test]
fn time_wait_yields_to_forwarding() {
    on_wires((Action::Relay, LATE), |wire| {
        leave_time_wait(wire, 44_000);
        wire.redirect
            .set_rules(&[rule(Action::Forward, LATE)], true, false)
            .unwrap();
        let server = wire.serve();
        let client = connected(wire.dial(44_000));
        assert_carries(&client, &server.accept().unwrap().0, b"straight");
    });
}

#[test]
fn no_listeners_forwards() {
    on_wires((Action::Relay, EARLY), |wire| {
        let server = wire.serve();
        wire.listeners.drain(..).for_each(end);
        assert_carries(
            &connected(wire.dial(0)),
            &server.accept().unwrap().0,
            b"straight",
        );
        assert!(wire.worker_maps.next_event().is_none());
    });
}

#[test]
fn draining_worker_forwards() {
    on_wires((Action::Relay, EARLY), |wire| {
        let server = wire.serve();
        let before = connected(wire.dial(0));
        let accepted = wire.accept();
        wire.worker_maps.set_draining(true).unwrap();
        assert_carries(
            &connected(wire.dial(0)),
            &server.accept().unwrap().0,
            b"straight",
        );
        assert_carries(&before, &accepted, b"what has begun goes on");
        wire.worker_maps.set_draining(false).unwrap();
        connected(wire.dial(0));
        wire.accept();
    });
}

#[test]
fn events_wait_for_settling() {
    let network = Network::line([Link::Veth, Link::Veth]).build().unwrap();
    network.node(0).run_in(|| {
        let mut redirect = load(Settings {
            workers: 2,
            ..SETTINGS
        });
        let mut worker_maps = redirect
            .worker_maps(1)
            .unwrap()
            .open(vec![], Box::new(NoHost))
            .unwrap();
        let at = interface(network.node(0), TO_CLIENT);
        redirect.set_rules(&[], true, false).unwrap();
        redirect.attach(at, device(LinkLayer::Ethernet)).unwrap();
        assert_eq!(redirect.attached().collect::<Vec<_>>(), [(at, false)]);
        worker_maps
            .inject(&Frame::captured(at, 14, &[0; 60]), Direction::Out)
            .expect_err("the program is not there yet");
        redirect.settle().unwrap();
        assert_eq!(redirect.attached().count(), 1);
        worker_maps.inject(&frame(at), Direction::Out).unwrap();
    });
}

#[test]
fn removed_devices_are_errors() {
    on_wires((Action::Relay, EARLY), |wire| {
        let frame = frame(9999);
        for direction in [Direction::In, Direction::Out] {
            let error = wire.worker_maps.inject(&frame, direction).unwrap_err();
            assert!(error.to_string().contains("interface 9999"), "{error}");
        }
    });
}

fn frame(ifindex: u32) -> Frame {
    let packet = syn("10.0.0.1", "10.0.0.2").packet();
    Frame::captured(ifindex, 14, &ethernet(&packet))
}

fn syn(from: &str, to: &str) -> Segment {
    let at = |ip: &str| SocketAddr::new(ip.parse::<IpAddr>().unwrap(), PORT);
    Segment::syn(at(from), at(to))
}

/// The kernel strips the tag before the program runs, and what is left looks like any other frame.
#[test]
fn tagged_and_torn_frames_pass() {
    let network = Network::line([Link::Veth, Link::Veth]).build().unwrap();
    let mac = mac(&network);
    network.node(0).run_in(|| {
        let rule = (Action::Relay, EARLY);
        let mut wire = Wire::new(&network, Family::V4, LinkLayer::Ethernet, rule);
        let packet = syn("10.0.0.1", "10.0.1.2").packet();
        let sentinel = syn("10.0.0.1", "10.0.1.2").sequence(77).packet();
        let tagged = [&[0, 5, 8, 0], packet.as_slice()].concat();
        let mut frames = vec![ethernet_of(0x8100, &tagged)];
        frames.extend((1..packet.len() - 4).map(|length| ethernet_of(0x0800, &packet[..length])));
        frames.push(ethernet(&sentinel));
        for mut frame in frames {
            frame[..6].copy_from_slice(&mac);
            send(&network, &frame);
        }
        let event = wire.event();
        assert_eq!(event.half_open.isn, 77, "the others have passed before");
    });
}

/// The link layer address of the host where the client's cable ends.
fn mac(network: &Network) -> [u8; 6] {
    let shown = network
        .node(0)
        .ip_output(&format!("-o link show {TO_CLIENT}"))
        .unwrap();
    let (_, rest) = shown.split_once("link/ether ").unwrap();
    let bytes = rest[..17]
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).unwrap());
    bytes.collect::<Vec<_>>().try_into().unwrap()
}

/// Sends a frame as it is from the client.
fn send(network: &Network, frame: &[u8]) {
    let ifindex = interface(network.client(), TO_SERVER);
    let send = || {
        let socket = Socket::new(Domain::PACKET, Type::RAW, None)?;
        socket.send_to(frame, &link_address(ifindex, 0))
    };
    assert_eq!(network.client().run_in(send).unwrap(), frame.len());
}

/// The address of an interface: to send to, or to receive all frames of a protocol.
pub(crate) fn link_address(ifindex: u32, protocol: u16) -> socket2::SockAddr {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET.cast_unsigned().try_into().unwrap(),
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex.cast_signed(),
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: [0; 8],
    };
    let fill = |storage: *mut socket2::SockAddrStorage, length: *mut libc::socklen_t| {
        // SAFETY: the storage is made to hold any socket address.
        unsafe {
            storage.cast::<libc::sockaddr_ll>().write(address);
            *length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>()).unwrap();
        }
        Ok(())
    };
    // SAFETY: `fill` writes a whole address and its length.
    let filled = unsafe { socket2::SockAddr::try_init(fill) };
    filled.unwrap().1
}
