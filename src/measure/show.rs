// SPDX-License-Identifier: Apache-2.0
//! Links in the documents of the admin API.

use std::time::Duration;

use super::link::State;
use super::links::Status;
use super::refusal::Counts;
use super::window::Source;
use crate::admin::api::links as api;
use posthaste_config::Config;

pub(super) fn links(
    config: &Config,
    status: &[Status],
    reflectors: &[api::Reflector],
    counts: &Counts,
) -> api::Links {
    api::Links {
        reflectors: reflectors.to_vec(),
        links: status.iter().map(|status| link(config, status)).collect(),
        reflected: counts.reflected(),
        refused: counts
            .refused()
            .map(|(reason, count)| (reason.to_owned(), count))
            .collect(),
    }
}

fn link(config: &Config, status: &Status) -> api::Link {
    let Status { report, counts, .. } = status;
    let mut peers = config.policy.chains.peers.iter();
    let name = peers.find(|peer| peer.id == report.peer);
    api::Link {
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

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
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
