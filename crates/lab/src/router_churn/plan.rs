// SPDX-License-Identifier: Apache-2.0
//! The plan of each connection, and of the faults of the router. Pure: everything follows from the
//! seed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::Path;
use crate::names::named;
use crate::network::{Family, client_address};
use crate::rng::{Rng, scramble, shuffled};

/// Clients, each with an address of either family.
pub(super) const CLIENTS: u8 = 16;
/// Servers that clients may reach, and the next one, which the firewall forbids.
pub(super) const SERVERS: u8 = 8;
pub(super) const FORBIDDEN_SERVER: u8 = SERVERS + 1;
/// Ports that servers listen on.
pub(super) const PORTS: [u16; 3] = [80, 443, 8080];
/// Another one, for all long uploads: a node answers no clients of services that receive much.
pub(super) const UPLOAD_PORT: u16 = 873;
/// A port without a listener, and two that the router forbids: one silently, one by a reset.
/// Servers listen on these.
const REFUSED_PORT: u16 = 82;
pub(super) const DROPPED_PORT: u16 = 25;
pub(super) const REJECTED_PORT: u16 = 23;

/// Interval of faults, unless that leaves no time for one of each kind.
const SPACING: Duration = Duration::from_secs(4);
/// The same where links lose everything for up to two seconds: what is lost comes again within four more. A shorter
/// interval would meet the retransmissions of some connections again and again, and make them hang.
const OUTAGE_SPACING: Duration = Duration::from_secs(10);

named! {
    /// The kind of a connection.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub(super) enum Kind {
        /// The client closes when it has everything, then the server.
        ClientFirst = "client closes first",
        /// The server closes when it has sent everything, then the client.
        ServerFirst = "server closes first",
        /// The client sends its FIN before the server answers.
        HalfClose = "half-close",
        /// The client resets when it has everything.
        ClientReset = "client resets",
        /// The server resets when it has everything.
        ServerReset = "server resets",
        /// As the second, with up to 512 KiB down, and half of them also up.
        Large = "large",
        /// As the second, with pauses of seconds.
        Slow = "slow",
        /// To a port without a listener.
        Refused = "refused by the server",
        /// To a port that the router forbids silently.
        Dropped = "forbidden port, silent",
        /// To a port that the router forbids by a reset.
        Rejected = "forbidden port, reset",
        /// To a server that the router forbids silently.
        Forbidden = "forbidden server",
    }
}

impl Kind {
    /// The share of each kind, in percent.
    pub(super) const SHARES: [(Self, u64); 11] = [
        (Self::ClientFirst, 26),
        (Self::ServerFirst, 24),
        (Self::HalfClose, 14),
        (Self::ClientReset, 10),
        (Self::ServerReset, 10),
        (Self::Large, 4),
        (Self::Slow, 5),
        (Self::Refused, 2),
        (Self::Dropped, 2),
        (Self::Rejected, 2),
        (Self::Forbidden, 1),
    ];

    /// Whether the router must block all of them.
    pub(super) fn is_forbidden(self) -> bool {
        matches!(self, Self::Dropped | Self::Rejected | Self::Forbidden)
    }

    fn of(random: &mut Rng) -> Self {
        let mut rest = random.below(100);
        for (kind, share) in Self::SHARES {
            match rest.checked_sub(share) {
                None => return kind,
                Some(left) => rest = left,
            }
        }
        Self::ClientFirst
    }
}

/// The course of one connection. Client and server derive it from its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) family: Family,
    pub(super) client: u8,
    pub(super) server: u8,
    pub(super) port: u16,
    /// Bytes from client to server, and back.
    pub(super) up: u64,
    pub(super) down: u64,
    /// The pause between the client's pieces.
    pub(super) pause: Duration,
}

impl Plan {
    pub(super) fn new(seed: u64, number: u64) -> Self {
        // Derived from the number alone, so that both ends and both networks agree without a
        // message.
        let mut random = Rng::new(scramble(seed) ^ number);
        let kind = Kind::of(&mut random);
        // A few clients and servers have most of the connections.
        let mut popular = |count: u64| {
            // The smallest of three: low numbers are the most frequent.
            let one = random.below(count).min(random.below(count));
            one.min(random.below(count))
        };
        let client = 1 + small(popular(CLIENTS.into()));
        let server = 1 + small(popular(SERVERS.into()));
        let port = PORTS[usize::from(small(popular(PORTS.len() as u64)))];
        let uploads = kind == Kind::Large && random.below(2) == 0;
        let (server, port) = match kind {
            _ if uploads => (server, UPLOAD_PORT),
            Kind::Refused => (server, REFUSED_PORT),
            Kind::Dropped => (server, DROPPED_PORT),
            Kind::Rejected => (server, REJECTED_PORT),
            Kind::Forbidden => (FORBIDDEN_SERVER, port),
            _ => (server, port),
        };
        let mut size = |is_large| match is_large {
            true => 64 * 1024 + random.below(448 * 1024),
            false => 1 + random.below(8 * 1024),
        };
        let (up, down) = (size(uploads), size(kind == Kind::Large));
        let pause = match kind {
            Kind::Slow => Duration::from_millis(200 + random.below(1000)),
            _ => Duration::ZERO,
        };
        Self {
            number,
            kind,
            // All hosts have both families.
            family: Family::ALL[usize::from((client + server) % 2)],
            client,
            server,
            port,
            up,
            down,
            pause,
        }
    }

    pub(super) fn client_address(self) -> IpAddr {
        client_address(self.family, self.client)
    }

    pub(super) fn target(self) -> SocketAddr {
        SocketAddr::new(server_address(self.family, self.server), self.port)
    }

    /// Offsets in the pattern at which both directions begin.
    pub(super) fn offsets(self) -> (u64, u64) {
        (
            scramble(2 * self.number) >> 8,
            scramble(2 * self.number + 1) >> 8,
        )
    }
}

fn small(number: u64) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

pub(super) fn server_address(family: Family, server: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 200, 0, server).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x200, 0, 0, 0, 0, 0, server.into()).into(),
    }
}

/// One of the two links of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Side {
    Lan,
    Wan,
}

/// A fault of the router, or of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Fault {
    /// SIGKILL, and another node after a pause.
    Kill,
    /// Another process takes the node's place.
    Upgrade,
    /// SIGTERM, and another node when that one has ended.
    Drain,
    /// The node loads another configuration.
    Reload,
    /// A rule without effect is added and removed.
    Rule,
    /// A port is closed for new connections, and reopened.
    ClosePort(u16),
    /// New connections of a client are forbidden, and allowed again.
    ForbidClient(u8),
    /// A link loses all packets.
    Loss(Side),
    /// An interface is down.
    Down(Side),
    /// The router's address on the server's side, the source of translated connections, is removed.
    Address,
    /// Clients are reached by another interface.
    Move,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "node killed",
            Self::Upgrade => "node upgraded",
            Self::Drain => "node drained",
            Self::Reload => "node reloaded",
            Self::Rule => "rule added and removed",
            Self::ClosePort(_) => "port closed",
            Self::ForbidClient(_) => "client forbidden",
            Self::Loss(_) => "link loses all",
            Self::Down(_) => "link down",
            Self::Address => "address removed",
            Self::Move => "clients at another interface",
        }
    }

    /// Whether it also affects packets of a router without a node.
    pub(super) fn cuts(self) -> bool {
        matches!(self, Self::Loss(_) | Self::Down(_) | Self::Address)
    }

    /// Whether it also ends open connections of a router without a node.
    pub(super) fn breaks(self) -> bool {
        matches!(self, Self::Down(_) | Self::Address)
    }

    /// Whether it forbids new connections such as this one.
    pub(super) fn forbids(self, plan: &Plan) -> bool {
        match self {
            Self::ClosePort(port) => port == plan.port,
            Self::ForbidClient(client) => client == plan.client,
            _ => false,
        }
    }

    /// One of each kind that happens on a path.
    fn all(path: Path, random: &mut Rng) -> Vec<Self> {
        let mut side = || match random.below(2) {
            0 => Side::Lan,
            _ => Side::Wan,
        };
        match path {
            Path::Plain => {}
            Path::Lists | Path::Fragments | Path::Unlike => return Vec::new(),
            Path::Moving => return vec![Self::Move],
            Path::Outages => return vec![Self::Loss(side())],
        }
        let (loss, down) = (Self::Loss(side()), Self::Down(side()));
        let port = PORTS[usize::from(small(random.below(PORTS.len() as u64)))];
        vec![
            Self::Kill,
            Self::Upgrade,
            Self::Drain,
            Self::Reload,
            Self::Rule,
            Self::ClosePort(port),
            // One of the clients with many connections.
            Self::ForbidClient(1 + small(random.below(4))),
            loss,
            down,
            Self::Address,
        ]
    }
}

/// A fault, the connection before which it begins, and its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) before: u64,
    pub(super) fault: Fault,
    pub(super) lasts: Duration,
}

/// The faults of a run, in rounds of one of each kind.
pub(super) fn events(path: Path, seed: u64, connections: u64, rate: u32) -> Vec<Event> {
    let mut random = Rng::new(scramble(seed ^ 1));
    let rate = u64::from(rate);
    let kinds = Fault::all(path, &mut random).len() as u64;
    if kinds == 0 {
        return Vec::new();
    }
    let spacing = match path {
        Path::Outages => OUTAGE_SPACING,
        _ => SPACING,
    };
    let spaced = connections / (rate * spacing.as_secs());
    // A short run has less time between faults, but one of each kind.
    let count = spaced.max(kinds);
    // The first connections have no faults.
    let step = (connections / (count + 1)).max(1);
    let mut events = Vec::new();
    for round in 0..count.div_ceil(kinds) {
        let all = Fault::all(path, &mut random);
        let round = u32::try_from(round).unwrap_or(u32::MAX);
        for fault in shuffled(&all, seed, round) {
            let lasts = match fault {
                Fault::ClosePort(_) | Fault::ForbidClient(_) => 1200 + random.below(1000),
                Fault::Reload | Fault::Upgrade => 0,
                Fault::Loss(_) if path == Path::Outages => 200 + random.below(1800),
                _ => 200 + random.below(900),
            };
            events.push(Event {
                before: step * (events.len() as u64 + 1),
                fault,
                lasts: Duration::from_millis(lasts),
            });
        }
    }
    events.retain(|event| event.before < connections);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_make_a_whole() {
        let sum: u64 = Kind::SHARES.iter().map(|(_, share)| share).sum();
        assert_eq!(sum, 100);
    }

    #[test]
    fn the_seed_decides_everything() {
        let events = |seed| events(Path::Plain, seed, 2000, 100);
        assert_eq!(events(7), events(7));
        assert_ne!(events(7), events(8));
        let [one, same, other] = [(3, 5), (3, 5), (4, 5)].map(|(seed, n)| Plan::new(seed, n));
        assert_eq!(format!("{one:?}"), format!("{same:?}"));
        assert_ne!(format!("{one:?}"), format!("{other:?}"));
    }

    #[test]
    fn short_run_has_all_faults() {
        let events = events(Path::Plain, 1, 2000, 100);
        let names: std::collections::BTreeSet<_> = events.iter().map(|e| e.fault.name()).collect();
        assert_eq!(names.len(), 10);
        assert!(events.is_sorted_by_key(|event| event.before));
    }

    #[test]
    fn long_uploads_have_a_service_of_their_own() {
        let plans: Vec<_> = (0..5000).map(|number| Plan::new(1, number)).collect();
        assert!(plans.iter().any(|plan| plan.port == UPLOAD_PORT));
        for plan in plans {
            assert_eq!(plan.port == UPLOAD_PORT, plan.up > 30_000, "{plan:?}");
        }
    }

    #[test]
    fn paths_have_faults_of_their_own() {
        let names = |path| {
            let events = events(path, 1, 10_000, 100);
            let names = events.iter().map(|event| event.fault.name());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        assert!(names(Path::Unlike).is_empty());
        assert_eq!(names(Path::Moving), ["clients at another interface"].into());
        assert_eq!(names(Path::Outages), ["link loses all"].into());
    }

    #[test]
    fn kinds_in_both_families() {
        let plans: Vec<_> = (0..5000).map(|number| Plan::new(1, number)).collect();
        for (kind, _) in Kind::SHARES {
            for family in Family::ALL {
                let mut of = plans.iter();
                assert!(of.any(|plan| plan.kind == kind && plan.family == family));
            }
        }
    }
}
