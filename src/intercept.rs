// SPDX-License-Identifier: Apache-2.0
//! Joins the redirect programs to the workers: the one place that knows both.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use posthaste_bpf as bpf;
use posthaste_relay::chain::Carrier;
use posthaste_relay::flow::Flow;
use posthaste_relay::frame::Frame;
use posthaste_relay::intercept::{
    Closed, Event, EventKind, Gate, Heading, Intercept, Observed, Path, Source, Start,
};
use posthaste_relay::policy::{AcceptMode, Action, Policy, Prefix, Rule};
use posthaste_relay::sys;

use crate::config::Config;
use crate::host::{Conntrack, Destroyer};
use crate::journal::Log;

/// How long a client's handshake may be under way: a round trip of its hop, and a
/// segment that was lost.
const LAG: Duration = Duration::from_secs(1);

/// How long after a relay got no answer one that a forwarded flow gets shows that the relay was
/// to blame, and not the server.
const DOUBT: Duration = Duration::from_secs(60);

/// How long nothing is relayed where this host stood in the way, and its rules did not change.
const BLOCK: Duration = Duration::from_secs(600);
/// What the log says of it.
const BLOCKED: &str = "this host drops packets of relays: connections are forwarded unrelayed for \
    ten minutes, or until its firewall changes; posthaste doctor says more";

/// A worker's [`Intercept`] over its share of the redirect programs.
pub(crate) struct Lane {
    lane: bpf::OpenLane,
    /// The worker's listeners, with whether each is for IPv6.
    listeners: Vec<(bool, OwnedFd)>,
    destroyer: Destroyer,
    conntrack: Conntrack,
    log: Log,
}

impl Lane {
    /// For the worker's thread. `listeners` are duplicates of its own.
    pub(crate) fn open(
        lane: bpf::Lane,
        listeners: Vec<(bool, OwnedFd)>,
        log: Log,
    ) -> io::Result<Self> {
        let lane = lane.open().map_err(io::Error::other)?;
        Ok(Self {
            lane,
            listeners,
            destroyer: Destroyer::open(),
            conntrack: Conntrack::default(),
            log,
        })
    }
}

impl Intercept for Lane {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.lane.event_fd()
    }

    fn next_event(&mut self) -> Option<Event> {
        let event = self.lane.next_event()?;
        let kind = match event.kind {
            bpf::EventKind::Syn { held } => EventKind::Syn { held },
            bpf::EventKind::SynAck => EventKind::SynAck,
            bpf::EventKind::Reject => EventKind::Reject,
            bpf::EventKind::Herald => EventKind::Herald,
            bpf::EventKind::Stranger => EventKind::Stranger,
        };
        Some(Event {
            kind,
            flow: flow(&event.flow),
            frame: Frame::captured(event.ifindex, event.l2_bytes, &event.frame),
            gate: Gate {
                isn: event.isn,
                kept: event.kept,
            },
            rule: event.rule.into(),
            generation: event.generation,
            trial: event.trial,
            path: event.path.map(path),
        })
    }

    fn offer(&mut self, listening: bool) -> io::Result<()> {
        use std::os::fd::AsFd;
        // A listener stays for what has begun; it goes when it is closed.
        for (ipv6, listener) in self.listeners.iter().filter(|_| listening) {
            self.lane
                .set_listener(*ipv6, Some(listener.as_fd()))
                .map_err(io::Error::other)?;
        }
        self.lane
            .set_withdrawn(!listening)
            .map_err(io::Error::other)
    }

    fn original(&mut self, _client: SocketAddr) -> Option<SocketAddr> {
        // The listeners are transparent: an accepted socket has the destination.
        None
    }

    fn lag(&self) -> Duration {
        LAG
    }

    fn open_gate(&mut self, flow: &Flow, gate: Gate) {
        self.lane.open_gate(&key(flow, gate));
    }

    fn drop_gate(&mut self, flow: &Flow, gate: Gate) {
        self.lane.drop_gate(&key(flow, gate));
    }

    fn close_gate(&mut self, flow: &Flow) -> io::Result<Gate> {
        let made = self
            .lane
            .close_gate(flow_key(flow))
            .map_err(io::Error::other)?;
        Ok(Gate {
            isn: made.isn,
            kept: made.kept,
        })
    }

    fn admit(&mut self, flow: &Flow, gate: Gate) -> io::Result<()> {
        self.lane.admit(&key(flow, gate)).map_err(io::Error::other)
    }

    fn pass(&mut self, flow: &Flow, gate: Gate) -> io::Result<()> {
        self.lane.pass(&key(flow, gate)).map_err(io::Error::other)
    }

    fn inject(&mut self, frame: &Frame, heading: Heading) -> io::Result<()> {
        let heading = match heading {
            Heading::In => bpf::Heading::In,
            Heading::Out => bpf::Heading::Out,
        };
        let sent = self.lane.inject(frame.ifindex, heading, frame.as_bytes());
        sent.map_err(io::Error::other)
    }

    fn herald(&mut self, socket: BorrowedFd<'_>, option: &[u8]) -> io::Result<()> {
        self.lane.herald(socket, option).map_err(io::Error::other)
    }

    fn know(&mut self, flow: &Flow) {
        self.lane.know(flow.addresses().0);
    }

    fn observed(&mut self, flow: &Flow) -> Option<Observed> {
        let profile = self.lane.profile(&flow_key(flow))?;
        Some(Observed {
            server_rtt: profile.server_rtt,
            answered: profile.trust == bpf::Trust::Proved,
            bypassed: profile.trust == bpf::Trust::Bypassed,
            path: profile.path.map(path),
        })
    }

    fn source(&mut self, flow: &Flow, now: bool) -> Source {
        if !self.conntrack.is_active(now) {
            return Source::Client;
        }
        match self.lane.profile(&flow_key(flow)) {
            Some(profile) if profile.translated.source => Source::Translated(profile.source()),
            _ => Source::ClientAddress,
        }
    }

    fn doubt(&mut self, flow: &Flow) {
        self.lane.doubt(&flow_key(flow), sys::monotonic() + DOUBT);
    }

    fn block(&mut self) {
        self.lane.block(sys::monotonic() + BLOCK);
        self.log.warn(BLOCKED, &[]);
    }

    fn suspect(&mut self, flow: &Flow, period: Duration) {
        self.lane
            .suspect(&flow_key(flow), sys::monotonic() + period);
    }

    fn widen(&mut self, peer: IpAddr, start: Option<Start>) {
        self.lane
            .set_peer_start(octets(peer), start.map(peer_start));
    }

    fn acquit(&mut self, flow: &Flow) {
        self.lane.acquit(&flow_key(flow));
    }

    fn forget(&mut self, closed: &[Closed]) {
        self.destroyer.destroy(closed);
    }
}

/// What the programs are to observe of destinations.
pub(crate) fn observing(config: &Config) -> bpf::Observing {
    bpf::Observing {
        ttl: config.observe.ttl,
        bypass: config.observe.bypass_for,
        gain_min: config.observe.gain_min,
    }
}

/// How connections with each peer start, by its address.
pub(crate) fn peer_starts(policy: &Policy) -> Vec<([u8; 16], bpf::PeerStart)> {
    let peers = policy.chains.peers.iter();
    peers
        .map(|peer| (octets(peer.address.ip()), peer_start(peer.start())))
        .collect()
}

fn peer_start(start: Start) -> bpf::PeerStart {
    bpf::PeerStart {
        segments: start.segments,
        rate: start.rate,
        rtt_us: start.round.map_or(0, |round| {
            u32::try_from(round.as_micros()).unwrap_or(u32::MAX)
        }),
    }
}

/// Whose SYNs may herald flows, by address.
pub(crate) fn heralding(policy: &Policy) -> Vec<[u8; 16]> {
    let peers = policy.chains.peers.iter();
    let peers = peers.filter(|peer| peer.carrier == Carrier::Option);
    peers
        .flat_map(|peer| &peer.calls_from)
        .map(|ip| octets(*ip))
        .collect()
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The policy's rules as the redirect programs take them.
pub(crate) fn rules(config: &Config) -> Vec<bpf::RuleSpec> {
    if !config.transparent.enabled {
        // Nothing is taken that was not asked for; SYN-ACKs for what was still
        // wait for the client's proof.
        return Vec::new();
    }
    let policy = &config.policy;
    let prefix = |prefix: &Prefix| bpf::PrefixSpec {
        ip: prefix.octets(),
        bits: prefix.mapped_bits(),
    };
    let each = policy.rules.iter().map(|rule| bpf::RuleSpec {
        destinations: rule.matches.destinations.iter().map(prefix).collect(),
        sources: rule.matches.sources.iter().map(prefix).collect(),
        ports: rule
            .matches
            .ports
            .iter()
            .map(|range| (*range.start(), *range.end()))
            .collect(),
        action: match rule.action {
            Action::Relay => bpf::Action::Relay,
            Action::Forward => bpf::Action::Forward,
            Action::Reject => bpf::Action::Reject,
        },
        accept: match rule.accept {
            AcceptMode::Early => bpf::Accept::Early,
            AcceptMode::Strict => bpf::Accept::Strict,
            AcceptMode::Late => bpf::Accept::Late,
        },
        observe: rule.observe.then(|| rounds(rule, config)),
        windows: [&rule.downstream, &rule.upstream].map(|side| {
            let segments = side.initial_window.unwrap_or(0);
            u16::try_from(segments).unwrap_or(u16::MAX)
        }),
    });
    each.collect()
}

/// The round trips over the whole way that a relay shortens: in early mode the handshake, and
/// those in which the congestion window grows until a transfer fits (RFC 6928, RFC 5681). On
/// chains it may be more, which is planned elsewhere.
fn rounds(rule: &Rule, config: &Config) -> u8 {
    /// Of a transfer, where nothing is said: as much as an object of the web has at the median,
    /// with what comes before it.
    const TYPICAL: u32 = 64 << 10;
    const INITIAL_WINDOW: u32 = 10 * 1448;
    if !config.policy.chains.routes.is_empty() || config.follow.is_some() {
        return u8::MAX;
    }
    let bytes = rule.transfer_bytes.unwrap_or(TYPICAL);
    let (mut window, mut sent, mut rounds) = (INITIAL_WINDOW, INITIAL_WINDOW, 0);
    while sent < bytes {
        window = window.saturating_mul(2);
        sent = sent.saturating_add(window);
        rounds += 1;
    }
    rounds + u8::from(rule.accept == AcceptMode::Early)
}

fn key(flow: &Flow, gate: Gate) -> bpf::GateKey {
    bpf::GateKey {
        flow: flow_key(flow),
        isn: gate.isn,
        kept: gate.kept,
    }
}

fn path(path: bpf::Path) -> Path {
    Path {
        ifindex: path.ifindex,
        mss: path.mss,
    }
}

fn flow_key(flow: &Flow) -> bpf::FlowKey {
    let (client_ip, server_ip) = flow.addresses();
    bpf::FlowKey {
        client_ip,
        server_ip,
        client_port: flow.client().port(),
        server_port: flow.server().port(),
    }
}

fn flow(key: &bpf::FlowKey) -> Flow {
    let endpoint = |ip: [u8; 16], port| (std::net::Ipv6Addr::from(ip).to_canonical(), port).into();
    Flow::new(
        endpoint(key.client_ip, key.client_port),
        endpoint(key.server_ip, key.server_port),
    )
}
