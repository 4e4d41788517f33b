// SPDX-License-Identifier: Apache-2.0
//! Whether a load was carried in full, so that no subject wins by leaving something out. Pure.
//!
//! Every connection that a client began must have reached the server, carried every byte, and been
//! closed by FINs in both directions, as observed by the programs at both ends. Broken connections
//! must not occur at all, and on one CPU no reset either. On two CPUs a packet may overtake
//! another: an acknowledgement that arrives after the FIN that followed it is answered, and that
//! answer by a reset, after both ends have closed. Packets per connection are counted on both
//! links: a relay that sends fewer than forwarding does is not wrong for that, but the record shows
//! it.

use super::counts::Counts;
use super::testbed::Look;
use crate::load::{Outcome, Served, Work};

/// The counters of one load.
#[derive(Clone, Debug)]
pub(super) struct Account {
    client: Counts,
    server: Counts,
    served: Served,
    outcome: Outcome,
    /// Whether packets cannot overtake each other.
    in_order: bool,
}

impl Account {
    pub(super) fn new(before: &Look, after: &Look, outcome: &Outcome, in_order: bool) -> Self {
        let (then, now) = (before.served, after.served);
        Self {
            client: after.client - before.client,
            server: after.server - before.server,
            served: Served {
                accepted: now.accepted - then.accepted,
                ended: now.ended - then.ended,
                broken: now.broken - then.broken,
                sent: now.sent - then.sent,
            },
            outcome: outcome.clone(),
            in_order,
        }
    }

    /// Segments that either end retransmitted: slow, but not wrong.
    pub(super) fn retransmitted(&self) -> u64 {
        self.client.retransmitted + self.server.retransmitted
    }

    /// Packets for each connection on the client's and on the server's link.
    pub(super) fn packets_per_connection(&self) -> [f64; 2] {
        let connections = self.outcome.begun.max(1) as f64;
        [self.client, self.server].map(|counts| counts.packets as f64 / connections)
    }
}

/// Violations; empty if there are none.
pub(super) fn problems(account: &Account, work: &Work) -> Vec<String> {
    let Account {
        client,
        server,
        served,
        outcome,
        in_order,
    } = account;
    let mut problems: Vec<String> = outcome
        .errors
        .iter()
        .map(|(what, count)| format!("{count} x {what}"))
        .collect();
    let mut equal = |what: &str, is: u64, should: u64| {
        if is != should {
            problems.push(format!("{what}: {is}, not {should}"));
        }
    };
    equal("connections completed", outcome.completed, outcome.begun);
    equal("connections at the server", served.accepted, outcome.begun);
    equal("closed by both at the server", served.ended, outcome.begun);
    equal("broken at the server", served.broken, 0);
    // A relay that drops the rest of a broken connection would need less CPU time.
    equal("bytes received", outcome.received, served.sent);
    if *in_order {
        equal("resets by the client", client.resets, 0);
        equal("resets by the server", server.resets, 0);
    }
    equal("broken at the client", client.broken, 0);
    equal("broken at the server's host", server.broken, 0);
    // A stream ends after the window, so none completes within it.
    if !matches!(work, Work::Stream { .. }) && outcome.counted == 0 {
        problems.push("nothing completed within the window".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Account {
        Account {
            client: Counts {
                packets: 1200,
                ..Counts::default()
            },
            server: Counts {
                packets: 1190,
                ..Counts::default()
            },
            served: Served {
                accepted: 100,
                ended: 100,
                broken: 0,
                sent: 819_200,
            },
            outcome: Outcome {
                counted: 90,
                begun: 100,
                completed: 100,
                received: 819_200,
                ..Outcome::default()
            },
            in_order: true,
        }
    }

    fn found(change: impl FnOnce(&mut Account)) -> usize {
        let mut account = good();
        change(&mut account);
        let work = Work::Closed {
            at_once: 1,
            sizes: vec![8192],
        };
        problems(&account, &work).len()
    }

    #[test]
    fn full_load_has_no_problem() {
        assert_eq!(found(|_| {}), 0);
        assert_eq!(good().packets_per_connection(), [12.0, 11.9]);
    }

    #[test]
    fn every_shortcut_is_found() {
        assert_eq!(found(|account| account.outcome.received -= 1), 1);
        assert_eq!(found(|account| account.outcome.completed -= 1), 1);
        assert_eq!(found(|account| account.served.accepted -= 1), 1);
        // A missing FIN, as with a reset in its place.
        assert_eq!(found(|account| account.served.ended -= 1), 1);
        assert_eq!(found(|account| account.served.broken += 1), 1);
        assert_eq!(found(|account| account.server.resets += 1), 1);
        let overtaken = |account: &mut Account| {
            account.in_order = false;
            account.client.resets += 1;
        };
        assert_eq!(found(overtaken), 0);
        assert_eq!(found(|account| account.client.broken += 1), 1);
        assert_eq!(found(|account| account.outcome.counted = 0), 1);
        let error = ("fetch: wrong bytes".to_owned(), 2);
        assert_eq!(found(|account| account.outcome.errors.extend([error])), 1);
    }
}
