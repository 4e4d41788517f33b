// SPDX-License-Identifier: Apache-2.0
//! The documents of the admin API about links to other nodes.

use std::collections::BTreeMap;

use posthaste_config::Config;
use posthaste_daemon::http::millis;
use serde::{Deserialize, Serialize};

use super::link::State;
use super::links::Status;
use super::refusal::Counts;
use super::window::Source;

/// `GET /links`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// Where this node answers probes.
    pub reflectors: Vec<Reflector>,
    /// One for each peer that is measured.
    pub links: Vec<Link>,
    /// Probes of other nodes that were answered.
    pub reflected: u64,
    /// Rejected packets, by reason.
    pub refused: BTreeMap<String, u64>,
}

/// An address at which probes are answered, or should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reflector {
    /// Address and port.
    pub address: String,
    /// Why it could not be opened.
    pub failure: Option<String>,
}

/// The link from this node to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The peer's name.
    pub peer: String,
    /// Its node number.
    pub id: u64,
    /// `up`, `dead` or `unmeasured`.
    pub state: String,
    /// The shortest recent round trip; absent unless the link is up.
    pub rtt_us: Option<u32>,
    /// Its source: `hops`, `stamp` or `handshake`.
    pub source: Option<String>,
    /// Mean of the round trips.
    pub smoothed_us: Option<u32>,
    /// Mean deviation of the round trips.
    pub jitter_us: Option<u32>,
    /// Recently lost probes per million, in either direction; absent after too few probes.
    pub loss_ppm: Option<u32>,
    /// Time since the measurement.
    pub age_ms: Option<u64>,
    /// Time between two measurements.
    pub interval_ms: u64,
    /// Whether flows use it.
    pub in_use: bool,
    /// Whether TCP passes and UDP does not.
    pub udp_blocked: bool,
    /// Probes sent.
    pub probes: u64,
    /// Probes answered.
    pub answers: u64,
    /// Probes lost.
    pub losses: u64,
    /// Handshakes made to measure it.
    pub handshakes: u64,
    /// Reports of changes.
    pub reports: u64,
}

/// The document of the links' states, with the names of peers.
pub(super) fn links(
    config: &Config,
    status: &[Status],
    reflectors: &[Reflector],
    counts: &Counts,
) -> Links {
    Links {
        reflectors: reflectors.to_vec(),
        links: status.iter().map(|status| link(config, status)).collect(),
        reflected: counts.reflected(),
        refused: counts
            .refused()
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect(),
    }
}

fn link(config: &Config, status: &Status) -> Link {
    let Status { report, counts, .. } = status;
    let mut peers = config.policy.chains.peers.iter();
    let name = peers.find(|peer| peer.id == report.peer);
    Link {
        // A peer may have left the configuration since it was measured.
        peer: name.map_or_else(|| report.peer.to_string(), |peer| peer.name.to_string()),
        id: report.peer.into(),
        state: state_word(report.state).into(),
        rtt_us: report.rtt_us,
        source: report.source.map(|source| source_word(source).into()),
        smoothed_us: report.smoothed_us,
        jitter_us: report.jitter_us,
        loss_ppm: report.loss_ppm,
        age_ms: status.age.map(millis),
        interval_ms: millis(status.interval),
        in_use: status.in_use,
        udp_blocked: status.udp_blocked,
        probes: counts.sent,
        answers: counts.answered,
        losses: counts.lost,
        handshakes: counts.handshakes,
        reports: status.reports,
    }
}

fn state_word(state: State) -> &'static str {
    match state {
        State::Unmeasured => "unmeasured",
        State::Up => "up",
        State::Dead => "dead",
    }
}

fn source_word(source: Source) -> &'static str {
    match source {
        Source::Hops => "hops",
        Source::Stamp => "stamp",
        Source::Handshake => "handshake",
    }
}
