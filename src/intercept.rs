// SPDX-License-Identifier: Apache-2.0
//! Connects the redirect programs to the workers: the only module that depends on both.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use posthaste_bpf as bpf;
use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::chain::Encapsulation;
use posthaste_relay::flow::Flow;
use posthaste_relay::frame::Frame;
use posthaste_relay::intercept::{
    Closed, Direction, Event, EventKind, HalfOpen, Intercept, Observed, Path, PathSettings, Source,
};
use posthaste_relay::policy::{Action, Policy, Prefix, Rule};
use posthaste_relay::sys;

use crate::host::{Conntrack, Destroyer};
use crate::journal::Log;
use posthaste_config::Config;

/// How long a client's handshake may take: a round trip of its hop, and the retransmission of a
/// lost segment.
const LAG: Duration = Duration::from_secs(1);

/// If a relay got no answer and a forwarded flow gets one within this time, the relay was at fault,
/// not the server.
const RECORD_NO_ANSWER: Duration = Duration::from_secs(60);

/// How long nothing is relayed after this host blocked relays, if its rules do not change.
const BLOCK: Duration = Duration::from_secs(600);
/// The log message for that.
const BLOCKED: &str = "this host drops packets of relays: connections are forwarded unrelayed for \
    ten minutes, or until its firewall changes; posthaste doctor says more";

/// A worker's [`Intercept`] over its share of the redirect programs.
pub(crate) struct WorkerIntercept {
    maps: bpf::WorkerMaps,
    /// The worker's listeners, with whether each is for IPv6.
    listeners: Vec<(bool, OwnedFd)>,
    destroyer: Destroyer,
    conntrack: Conntrack,
    log: Log,
}

impl WorkerIntercept {
    /// Opens it in the worker's thread. `listeners` are its own duplicates.
    pub(crate) fn open(
        maps: bpf::WorkerHandle,
        listeners: Vec<(bool, OwnedFd)>,
        log: Log,
    ) -> io::Result<Self> {
        let maps = maps.open().map_err(io::Error::other)?;
        Ok(Self {
            maps,
            listeners,
            destroyer: Destroyer::open(),
            conntrack: Conntrack::default(),
            log,
        })
    }
}

impl Intercept for WorkerIntercept {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.maps.event_fd()
    }

    fn next_event(&mut self) -> Option<Event> {
        let event = self.maps.next_event()?;
        let kind = match event.kind {
            bpf::EventKind::Syn { held } => EventKind::Syn { held },
            bpf::EventKind::SynAck => EventKind::SynAck,
            bpf::EventKind::Reject => EventKind::Reject,
            bpf::EventKind::SynOption => EventKind::SynOption,
            bpf::EventKind::Unauthorized => EventKind::Unauthorized,
        };
        Some(Event {
            kind,
            flow: flow(&event.flow),
            frame: Frame::captured(event.ifindex, event.l2_bytes, &event.frame),
            half_open: HalfOpen {
                isn: event.isn,
                kept: event.kept,
            },
            rule: event.rule.into(),
            generation: event.generation,
            trial: event.trial,
            path: event.path.map(path),
        })
    }

    fn set_accepting(&mut self, listening: bool) -> io::Result<()> {
        use std::os::fd::AsFd;
        // A listener stays in the map for flows that have begun; closing it removes it.
        for (ipv6, listener) in self.listeners.iter().filter(|_| listening) {
            self.maps
                .set_listener(*ipv6, Some(listener.as_fd()))
                .map_err(io::Error::other)?;
        }
        self.maps.set_draining(!listening).map_err(io::Error::other)
    }

    fn original(&mut self, _client: SocketAddr) -> Option<SocketAddr> {
        // The listeners are transparent: an accepted socket's local address is the destination.
        None
    }

    fn lag(&self) -> Duration {
        LAG
    }

    fn release_half_open(&mut self, flow: &Flow, half_open: HalfOpen) {
        self.maps.release_half_open(&key(flow, half_open));
    }

    fn release_if_unchanged(&mut self, flow: &Flow, half_open: HalfOpen) {
        self.maps.release_if_unchanged(&key(flow, half_open));
    }

    fn reserve_half_open(&mut self, flow: &Flow) -> io::Result<HalfOpen> {
        let made = self
            .maps
            .reserve_half_open(flow_key(flow))
            .map_err(io::Error::other)?;
        Ok(HalfOpen {
            isn: made.isn,
            kept: made.kept,
        })
    }

    fn admit(&mut self, flow: &Flow, half_open: HalfOpen) -> io::Result<()> {
        self.maps
            .admit(&key(flow, half_open))
            .map_err(io::Error::other)
    }

    fn pass(&mut self, flow: &Flow, half_open: HalfOpen) -> io::Result<()> {
        self.maps
            .pass(&key(flow, half_open))
            .map_err(io::Error::other)
    }

    fn inject(&mut self, frame: &Frame, direction: Direction) -> io::Result<()> {
        let direction = match direction {
            Direction::In => bpf::Direction::In,
            Direction::Out => bpf::Direction::Out,
        };
        let sent = self.maps.inject(frame.ifindex, direction, frame.as_bytes());
        sent.map_err(io::Error::other)
    }

    fn syn_option(&mut self, socket: BorrowedFd<'_>, option: &[u8]) -> io::Result<()> {
        self.maps
            .syn_option(socket, option)
            .map_err(io::Error::other)
    }

    fn validate_prefix(&mut self, flow: &Flow) {
        self.maps.validate_prefix(flow.addresses().0);
    }

    fn observed(&mut self, flow: &Flow) -> Option<Observed> {
        let profile = self.maps.profile(&flow_key(flow))?;
        Some(Observed {
            server_rtt: profile.server_rtt,
            answered: profile.trust == bpf::Trust::Validated,
            bypassed: profile.trust == bpf::Trust::Bypassed,
            path: profile.path.map(path),
        })
    }

    fn source(&mut self, flow: &Flow, now: bool) -> Source {
        if !self.conntrack.is_active(now) {
            return Source::Client;
        }
        match self.maps.profile(&flow_key(flow)) {
            Some(profile) if profile.translated.source => Source::Translated(profile.source()),
            _ => Source::ClientAddress,
        }
    }

    fn record_no_answer(&mut self, flow: &Flow) {
        self.maps
            .record_no_answer(&flow_key(flow), sys::monotonic() + RECORD_NO_ANSWER);
    }

    fn block(&mut self) {
        self.maps.block(sys::monotonic() + BLOCK);
        self.log.warn(BLOCKED, &[]);
    }

    fn record_failure(&mut self, flow: &Flow, period: Duration) {
        self.maps
            .record_failure(&flow_key(flow), sys::monotonic() + period);
    }

    fn set_initial_cwnd(&mut self, peer: IpAddr, start: Option<PathSettings>) {
        self.maps
            .set_peer_settings(octets(peer), start.map(peer_settings));
    }

    fn clear_failure(&mut self, flow: &Flow) {
        self.maps.clear_failure(&flow_key(flow));
    }

    fn forget(&mut self, closed: &[Closed]) {
        self.destroyer.destroy(closed);
    }
}

/// The observation settings of the programs.
pub(crate) fn observing(config: &Config) -> bpf::Observing {
    bpf::Observing {
        ttl: config.observe.ttl,
        bypass: config.observe.bypass_for,
        gain_min: config.observe.gain_min,
    }
}

/// The initial windows of connections with each peer, by its address.
pub(crate) fn peer_starts(policy: &Policy) -> Vec<([u8; 16], bpf::PeerSettings)> {
    let peers = policy.chains.peers.iter();
    peers
        .map(|peer| (octets(peer.address.ip()), peer_settings(peer.start())))
        .collect()
}

fn peer_settings(start: PathSettings) -> bpf::PeerSettings {
    bpf::PeerSettings {
        segments: start.segments,
        rate: start.rate,
        rtt_us: start.round.map_or(0, |round| {
            u32::try_from(round.as_micros()).unwrap_or(u32::MAX)
        }),
    }
}

/// The addresses whose SYNs may announce flows.
pub(crate) fn syn_option_peers(policy: &Policy) -> Vec<[u8; 16]> {
    let peers = policy.chains.peers.iter();
    let peers = peers.filter(|peer| peer.encapsulation == Encapsulation::SynOption);
    peers
        .flat_map(|peer| &peer.source_addresses)
        .map(|ip| octets(*ip))
        .collect()
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The policy's rules in the form of the redirect programs.
pub(crate) fn rules(config: &Config) -> Vec<bpf::RuleSpec> {
    if !config.transparent.enabled {
        // No transit flow is taken; the programs still hold SYN-ACKs of requested flows until the
        // client's validation.
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
        accept: accept_bits(rule.accept),
        observe: rule.observe.then(|| rounds(rule, config)),
        windows: [&rule.downstream, &rule.upstream].map(|side| {
            let segments = side.initial_window.unwrap_or(0);
            u16::try_from(segments).unwrap_or(u16::MAX)
        }),
    });
    each.collect()
}

/// The round trips over the whole path that a relay shortens: in early mode the handshake, and
/// those in which the congestion window grows until a transfer fits (RFC 6928, RFC 5681). Chains
/// may shorten more, which plans consider.
fn rounds(rule: &Rule, config: &Config) -> u8 {
    /// Transfer size without configuration: a median web object with what precedes it.
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
    rounds + u8::from(rule.accept.overlaps_handshakes())
}

fn accept_bits(mode: AcceptMode) -> bpf::Accept {
    bpf::Accept {
        connects_at_syn: mode.connects_at_syn(),
        holds_syn: mode.holds_syn(),
        becomes_strict: mode.becomes_strict(),
    }
}

fn key(flow: &Flow, half_open: HalfOpen) -> bpf::HalfOpenKey {
    bpf::HalfOpenKey {
        flow: flow_key(flow),
        isn: half_open.isn,
        kept: half_open.kept,
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
