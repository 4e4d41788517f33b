// SPDX-License-Identifier: Apache-2.0
//! A host that forwards, with the programs loaded, and a way to run them on a frame.
//!
//! ```text
//! client 10.0.0.2 --- in0 (10.0.0.1)  host  (10.0.1.1) out0 --- router 10.0.1.2 --- 10.9.0.0/16
//! fd00::2         --- (fd00::1)             (fd00:0:0:1::1)     fd00:0:0:1::2       fd00:9::/32
//! ```
//!
//! Only the host exists: nobody is at the other ends of its cables.

use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;

use posthaste_bpf::{Device, LinkLayer, Maps, Redirect, Settings, WorkerMaps};
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;
use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::flow::Flow;
use posthaste_relay::intercept::{Closed, Event, HalfOpen, Intercept};
use posthaste_relay::policy::{
    Action, Bypass, DataPath, Match, Multipath, Rule, SideOptions, SourceAddress, Timeouts,
};
use posthaste_relay::sys::{SocketSettings, transparent_listener};
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) const REDIRECT_MARK: u32 = 0x1000_0000;
pub(crate) const SOCKET_MARK: u32 = 0x2000_0000;

const TC_ACT_UNSPEC: i32 = -1;
const TC_ACT_SHOT: i32 = 2;
/// Words of `struct __sk_buff` up to `cb`: more than the kernel lets one set, less than it has.
const CONTEXT_WORDS: usize = 17;
const CONTEXT_MARK: usize = 2;
const CONTEXT_IFINDEX: usize = 10;

/// What the program did with a packet that came without a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: it goes the way it would without the program.
    Passed,
    /// It goes to this host, whatever its address.
    Redirected,
    /// It goes nowhere.
    Swallowed,
}
use Verdict::{Passed, Redirected, Swallowed};

pub(crate) struct Host<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) redirect: Redirect,
    /// That of worker 0.
    pub(crate) worker_maps: WorkerMaps,
    /// Where clients are.
    pub(crate) ifindex: u32,
    /// Where servers are.
    pub(crate) out: u32,
    listeners: Vec<Socket>,
}

/// One worker and more half-open flows than a test makes.
pub(crate) const SETTINGS: Settings = Settings {
    workers: 1,
    redirect_mark: REDIRECT_MARK,
    socket_mark: SOCKET_MARK,
    // Filled in by `load`.
    netns: 0,
    least_port: 0,
    half_open: 4096,
    half_open_reserve: 16,
    profiles_max: 64,
    packet_flows: 1024,
    windows: false,
    successions: 0,
};

/// Runs a test on a host of its own that relays everything in early mode.
pub(crate) fn on_host(test: impl FnOnce(&mut Host<'_>) + Send) {
    on_host_with(SETTINGS, test);
}

/// The same before the deferred programs are loaded.
pub(crate) fn on_starting_host(test: impl FnOnce(&mut Host<'_>) + Send) {
    let namespace = forwarding_namespace();
    namespace.run_in(|| test(&mut Host::starting(&namespace, SETTINGS)));
}

pub(crate) fn on_host_with(settings: Settings, test: impl FnOnce(&mut Host<'_>) + Send) {
    let namespace = forwarding_namespace();
    namespace.run_in(|| test(&mut Host::new(&namespace, settings)));
}

fn forwarding_namespace() -> Namespace {
    let namespace = Namespace::new().expect("root can make namespaces");
    namespace.sysctl("net.ipv4.ip_forward", "1").unwrap();
    namespace
        .sysctl("net.ipv6.conf.all.forwarding", "1")
        .unwrap();
    let lines = "link add in0 type veth peer name in1
        link add out0 type veth peer name out1
        link set in0 address 02:00:00:00:00:01
        link set in0 up
        link set in1 up
        link set out0 up
        link set out1 up
        address add 10.0.0.1/24 dev in0
        address add fd00::1/64 dev in0 nodad
        address add 10.0.1.1/24 dev out0
        address add fd00:0:0:1::1/64 dev out0 nodad
        neighbour add 10.0.1.2 lladdr 02:00:00:00:00:01 dev out0
        neighbour add fd00:0:0:1::2 lladdr 02:00:00:00:00:01 dev out0
        route add 10.9.0.0/16 via 10.0.1.2
        route add fd00:9::/32 via fd00:0:0:1::2";
    let lines: Vec<String> = lines.lines().map(|line| line.trim().to_owned()).collect();
    namespace.ip_batch(&lines).unwrap();
    namespace
}

impl<'a> Host<'a> {
    pub(crate) fn new(namespace: &'a Namespace, settings: Settings) -> Self {
        let mut host = Self::starting(namespace, settings);
        host.redirect.settle().unwrap();
        host
    }

    fn starting(namespace: &'a Namespace, settings: Settings) -> Self {
        let mut redirect = load(settings);
        let [ifindex, out] = ["in0", "out0"].map(|name| interface(namespace, name));
        redirect
            .attach(ifindex, device(LinkLayer::Ethernet))
            .unwrap();
        redirect.attach(out, device(LinkLayer::Ethernet)).unwrap();
        let worker_maps = redirect
            .worker_maps(0)
            .unwrap()
            .open(vec![], Box::new(NoHost))
            .unwrap();
        let listeners = listen(&worker_maps);
        let mut host = Self {
            namespace,
            redirect,
            worker_maps,
            ifindex,
            out,
            listeners,
        };
        host.obey(&[rule(Action::Relay, EARLY)]);
        host
    }

    /// Puts rules in force and returns their generation.
    pub(crate) fn obey(&mut self, rules: &[Rule]) -> u8 {
        let generation = self.redirect.set_rules(rules, true, false).unwrap();
        if let Some(error) = self.redirect.packet_path_error() {
            panic!("{error:?}");
        }
        generation
    }

    /// Runs the program on a frame as if it had come in from the clients.
    pub(crate) fn receive(&self, frame: &[u8]) -> Verdict {
        match self.receive_marked(frame, self.ifindex, 0) {
            (TC_ACT_UNSPEC, 0) => Passed,
            (TC_ACT_UNSPEC, REDIRECT_MARK) => Redirected,
            (TC_ACT_SHOT, _) => Swallowed,
            other => panic!("(verdict, mark) is {other:?}"),
        }
    }

    /// The same with an interface and a mark of one's choice; returns what the program returned
    /// and the mark it left.
    pub(crate) fn receive_marked(&self, frame: &[u8], ifindex: u32, mark: u32) -> (i32, u32) {
        let mut context = [0_u32; CONTEXT_WORDS];
        context[CONTEXT_MARK] = mark;
        context[CONTEXT_IFINDEX] = ifindex;
        let run = self.redirect.run(frame, &context);
        let (verdict, after) = run.expect("the kernel takes the frame");
        let verdict = verdict.cast_signed();
        let mark = after[4 * CONTEXT_MARK..][..4].try_into().unwrap();
        (verdict, u32::from_ne_bytes(mark))
    }

    /// The events since the last time.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.worker_maps.next_event()).collect()
    }

    /// The one event there is.
    pub(crate) fn event(&mut self) -> Event {
        let [event] = <[Event; 1]>::try_from(self.events()).expect("one event");
        event
    }

    /// How often the program counted something.
    pub(crate) fn stat(&self, name: &str) -> u64 {
        let stats = self.redirect.stats();
        let found = stats.iter().find(|(stat, ..)| *stat == name);
        found.expect("the program counts it").2
    }

    /// How many flows have a half-open entry, in the budget for everybody and in the reserve.
    pub(crate) fn half_open_flows(&self) -> (usize, usize) {
        self.redirect.half_open_flows().unwrap()
    }

    /// Ends the listeners, as if the worker had died.
    pub(crate) fn end_listeners(&mut self) {
        self.listeners.drain(..).for_each(end);
    }
}

/// Ends a socket that listens or connects. Closing it would not suffice: a program that another test has
/// just started holds a copy for a moment.
pub(crate) fn end(socket: Socket) {
    let ended = socket.shutdown(Shutdown::Both);
    ended.expect("such a socket can be shut down");
}

/// Loads the programs for the network namespace of this thread.
pub(crate) fn load(settings: Settings) -> Redirect {
    let netns = posthaste_relay::sys::netns_cookie().unwrap();
    let settings = Settings { netns, ..settings };
    let maps = Maps::new(settings).expect("root can make maps");
    Redirect::load(Arc::new(maps)).expect("root can load programs")
}

pub(crate) fn interface(namespace: &Namespace, name: &str) -> u32 {
    let shown = namespace
        .ip_output(&format!("-o link show {name}"))
        .unwrap();
    let (number, _) = shown.split_once(':').expect("the number comes first");
    number.parse().unwrap()
}

/// Listeners of both families, given to the programs.
pub(crate) fn listen(worker_maps: &WorkerMaps) -> Vec<Socket> {
    use std::os::fd::AsFd;
    let settings = SocketSettings {
        mark: SOCKET_MARK,
        backlog: 128,
    };
    let make = |ipv6| {
        let listener = transparent_listener(ipv6, settings).unwrap();
        worker_maps
            .set_listener(ipv6, Some(listener.as_fd()))
            .unwrap();
        listener
    };
    vec![make(false), make(true)]
}

/// An interface without a reverse path filter.
pub(crate) fn device(layer: LinkLayer) -> Device {
    Device {
        layer,
        strict_source: false,
        tracked: false,
        paced: false,
    }
}

pub(crate) const EARLY: AcceptMode = AcceptMode::EARLY;
pub(crate) const STRICT: AcceptMode = AcceptMode::STRICT;
pub(crate) const LATE: AcceptMode = AcceptMode::LATE;

/// A rule for every flow.
pub(crate) fn rule(action: Action, accept: AcceptMode) -> Rule {
    Rule {
        name: String::new(),
        matches: Match::default(),
        action,
        accept,
        observe: false,
        source_address: SourceAddress::Client,
        proxy_protocol: false,
        downstream: SideOptions::default(),
        upstream: SideOptions::default(),
        timeouts: Timeouts::default(),
        data_path: DataPath::Socket,
        bypass: Bypass::Off,
        multipath: Multipath::Off,
        upstream_multipath: false,
        transfer_bytes: None,
    }
}

/// A host that tracks no connections and keeps no sockets.
pub(crate) struct NoHost;

impl posthaste_bpf::Host for NoHost {
    fn path_addresses(&mut self) -> Option<Vec<IpAddr>> {
        Some(Vec::new())
    }

    fn tracks_connections(&mut self, _now: bool) -> bool {
        false
    }

    fn tracks(&mut self, _client: SocketAddr, _server: SocketAddr) -> bool {
        false
    }

    fn tracks_answers(&mut self, _client: SocketAddr, _server: SocketAddr) -> bool {
        false
    }

    fn untrack(&mut self, _client: SocketAddr, _server: SocketAddr) {}

    fn destroy(&mut self, _closed: &[Closed]) {}

    fn end_time_wait(&mut self, _local: SocketAddr, _remote: SocketAddr) -> bool {
        false
    }

    fn report_block(&mut self) {}
}

/// A client beyond `in0`.
pub(crate) fn client(family: Family) -> SocketAddr {
    client_at(family, 40_000)
}

pub(crate) fn client_at(family: Family, port: u16) -> SocketAddr {
    let ip = if family == Family::V4 {
        "10.0.0.2"
    } else {
        "fd00::2"
    };
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A server beyond the router.
pub(crate) fn server(family: Family) -> SocketAddr {
    let server = if family == Family::V4 {
        "10.9.0.1:80"
    } else {
        "[fd00:9::1]:80"
    };
    server.parse().unwrap()
}

pub(crate) fn flow(client: SocketAddr, server: SocketAddr) -> Flow {
    Flow::new(client, server)
}

pub(crate) fn half_open(event: &Event) -> (Flow, HalfOpen) {
    (event.flow, event.half_open)
}

/// A socket that has sent a SYN under a foreign address, as a worker's do, or without the mark of
/// ours.
pub(crate) fn connecting(from: SocketAddr, to: SocketAddr, mark: u32) -> Socket {
    let socket = Socket::new(Domain::for_address(from), Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.set_mark(mark).unwrap();
    if from.is_ipv4() {
        socket.set_ip_transparent_v4(true).unwrap();
    } else {
        socket.set_freebind_v6(true).unwrap();
    }
    socket.bind(&from.into()).unwrap();
    // In progress: nobody answers.
    socket.connect(&to.into()).unwrap_err();
    socket
}
