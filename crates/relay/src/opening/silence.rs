// SPDX-License-Identifier: Apache-2.0
//! When the next node has been silent about a flow for too long. Pure: the caller passes what the
//! kernel and the node have sent, and the time.
//!
//! A node whose link is cut acknowledges nothing; one that hangs acknowledges and sends nothing of
//! its own. One that only waits for a server sends progress reports.
//!
//! A missing acknowledgement shows nothing about what was sent: bytes may have reached the server
//! while the acknowledgement was lost. So a flow takes another route only if none of its bytes has
//! left for the next node. Otherwise it waits, as without nodes, and is reset if its hop is gone.

use std::time::Duration;

use crate::chain::Path;
use crate::outcome::Outcome;

use super::{Action, Actions, Report};

/// After how long without a reply a node reports to the requester that it is working.
pub(crate) const WORKING_AFTER: Duration = Duration::from_millis(200);
/// What the acknowledgement of a request may take, in time and in round trips of the hop: what is
/// lost is sent again twice within it.
const ACKED_MIN: Duration = Duration::from_millis(700);
const ACKED_MAX: Duration = Duration::from_millis(1500);
const ACKED_ROUND_TRIPS: u32 = 4;
/// What the first message of a node that acknowledges may take, beyond as many round trips:
/// [`WORKING_AFTER`] and a retransmission of it.
const MESSAGE_MIN: Duration = Duration::from_millis(1200);
/// After that time a flow is reset that takes no other route.
const MESSAGE_MAX: Duration = Duration::from_secs(5);
/// How often the request of a hop that was open before is sent again in vain, while other hops to its
/// node bring something, until the hop counts as dead: as long as a link that loses a third of
/// packets makes that once in hundreds of flows.
const VAIN_MAX: u8 = 5;

/// What is known of a flow that waits for the next node's reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The request is acknowledged.
    pub(crate) acked: bool,
    /// Bytes of the flow have left for the node, so that they may be delivered.
    pub(crate) sent: bool,
    /// The node itself has sent something, or is none that reports progress.
    pub(crate) works: bool,
    /// The smoothed round trip time of the hop, once known.
    pub(crate) round: Option<Duration>,
    /// It can take another route: from here, or from the node that requested it.
    pub(crate) movable: bool,
    /// Another hop to the node has brought something after the request. Then only this one may be
    /// dead, as where a firewall has forgotten it: how often the kernel has sent again in vain since.
    pub(crate) in_vain: Option<u8>,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing any more: others bound what it may take.
    Done,
    /// Nothing until then.
    Wait(Duration),
    /// Nothing until then for this flow, but others should take another route.
    Warn(Duration),
    /// Take another route. Nothing of the flow can have arrived.
    Move,
    /// Reset the flow: what the node has done with its bytes is unknown.
    GiveUp,
}

/// When to look for the first time at a flow that was requested at `since`.
pub(crate) fn first_look(since: Duration) -> Duration {
    since + ACKED_MIN
}

/// What to do at `now` about a flow that was requested over `via` at `since`.
pub(crate) fn on_look(via: Path, since: Duration, now: Duration, seen: Seen) -> Actions {
    let silent = Action::Report(Report::Silent(via, since));
    let failed = || Actions::from(Action::HopFailed);
    match next_step(since, now, seen) {
        Step::Done => Actions::default(),
        Step::Wait(until) => Action::LookAt(until).into(),
        Step::Warn(until) => Actions::from(silent).push(Action::LookAt(until)),
        Step::Move => failed().push(silent).push(Action::Leave),
        Step::GiveUp => failed().push(silent).push(Action::End(Outcome::HopFailed)),
    }
}

/// What to do at `now` about a flow that was requested at `since`.
fn next_step(since: Duration, now: Duration, seen: Seen) -> Step {
    if seen.acked && seen.works {
        return Step::Done;
    }
    let rounds = seen.round.map(|round| round * ACKED_ROUND_TRIPS);
    let within = if seen.acked {
        MESSAGE_MIN + rounds.unwrap_or_default()
    } else {
        rounds.unwrap_or(ACKED_MAX).clamp(ACKED_MIN, ACKED_MAX)
    };
    if now < since + within {
        return Step::Wait(since + within);
    }
    if seen.movable && !seen.sent {
        return Step::Move;
    }
    let give_up = since + MESSAGE_MAX + rounds.unwrap_or_default();
    match seen.acked {
        true if now >= give_up => Step::GiveUp,
        true => Step::Warn(give_up),
        false if seen.in_vain >= Some(VAIN_MAX) => Step::GiveUp,
        // The hop may come back.
        false => Step::Warn(now + MESSAGE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINCE: Duration = Duration::from_secs(100);
    const NOTHING: Seen = Seen {
        acked: false,
        sent: false,
        works: false,
        round: Some(Duration::from_millis(20)),
        movable: true,
        in_vain: None,
    };

    fn after(millis: u64, seen: Seen) -> Step {
        next_step(SINCE, SINCE + Duration::from_millis(millis), seen)
    }

    fn until(millis: u64) -> Step {
        Step::Wait(SINCE + Duration::from_millis(millis))
    }

    fn warn_until(millis: u64) -> Step {
        Step::Warn(SINCE + Duration::from_millis(millis))
    }

    // promise: K15
    #[test]
    fn unacknowledged_hop_left() {
        assert_eq!(after(100, NOTHING), until(700));
        assert_eq!(after(700, NOTHING), Step::Move);
    }

    // promise: K15
    #[test]
    fn patience_follows_rtt() {
        let long = |millis| Seen {
            round: Some(Duration::from_millis(millis)),
            ..NOTHING
        };
        assert_eq!(after(700, long(300)), until(1200));
        assert_eq!(after(700, long(900)), until(1500));
        let unknown = Seen {
            round: None,
            ..NOTHING
        };
        assert_eq!(after(1400, unknown), until(1500));
    }

    // promise: K15
    #[test]
    fn working_node_has_time() {
        let works = Seen {
            acked: true,
            sent: true,
            works: true,
            ..NOTHING
        };
        assert_eq!(after(60_000, works), Step::Done);
    }

    // promise: K15
    #[test]
    fn acknowledging_node_left() {
        let acked = Seen {
            acked: true,
            ..NOTHING
        };
        assert_eq!(after(700, acked), until(1280));
        assert_eq!(after(1280, acked), Step::Move);
    }

    // promise: K15
    #[test]
    fn possible_arrival_not_resent() {
        let sent = Seen {
            sent: true,
            ..NOTHING
        };
        assert_eq!(after(700, sent), warn_until(5700));
        assert_eq!(after(60_000, sent), warn_until(65_000));
        let acked = Seen {
            acked: true,
            ..sent
        };
        assert_eq!(after(1279, acked), until(1280));
        assert_eq!(after(1280, acked), warn_until(5080));
        assert_eq!(after(5080, acked), Step::GiveUp);
    }

    // promise: K28
    #[test]
    fn dead_hop_given_up() {
        let unacknowledged = |times| Seen {
            sent: true,
            in_vain: Some(times),
            ..NOTHING
        };
        assert_eq!(after(699, unacknowledged(5)), until(700));
        assert_eq!(after(5000, unacknowledged(4)), warn_until(10_000));
        assert_eq!(after(5000, unacknowledged(5)), Step::GiveUp);
        let unsent = Seen {
            sent: false,
            ..unacknowledged(0)
        };
        assert_eq!(after(700, unsent), Step::Move);
    }

    // promise: K15
    #[test]
    fn last_next_hop_waits() {
        let only = Seen {
            movable: false,
            ..NOTHING
        };
        assert_eq!(after(30_000, only), warn_until(35_000));
        let acked = Seen {
            acked: true,
            ..only
        };
        assert_eq!(after(5080, acked), Step::GiveUp);
    }
}
