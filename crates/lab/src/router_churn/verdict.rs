// SPDX-License-Identifier: Apache-2.0
//! Compares the course of each connection with a node and without one. Pure.

use std::net::SocketAddr;
use std::time::Duration;

use super::clients::Life;
use super::plan::{Fault, Kind, Plan};
use crate::names::Named;
use crate::stream::End;

/// How long after a fault connections still count as hit by it: lost packets are retransmitted.
const TAIL: Duration = Duration::from_secs(1);
/// How soon a node applies new rules: 0.2 s as documented, with a generous margin for a busy
/// machine.
const NOTICE: Duration = Duration::from_secs(1);
/// How long a node may use profiles from before an address or a route changed
/// (docs/configuration.md, `observe.ttl`), with a generous margin.
const STALE: Duration = Duration::from_secs(12);

/// A fault of the run. Times are since the start of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) fault: Fault,
    /// When it was started, and when it was active in both networks.
    pub(super) from: Duration,
    pub(super) applied: Duration,
    /// When its end was started, and when it was over in both.
    pub(super) lifting: Duration,
    pub(super) to: Duration,
}

/// The result with the node, compared with the one without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// The same.
    Same,
    /// As planned, but not without the node.
    Better,
    /// Different, while a link was cut, which affects both.
    Cut,
    /// Closed or forbidden while it began, but not without the node.
    Closed,
    /// The node was killed, and the connection reset.
    Killed,
    /// Reset by a node that used an outdated address or route.
    Stale,
    /// It passed although it was forbidden.
    Passed,
    /// With wrong bytes, or with fewer and a clean end.
    Changed,
    /// Worse without an explanation.
    Worse,
}

/// A connection in both networks.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) plan: Plan,
    pub(super) direct: Life,
    pub(super) node: Life,
    pub(super) verdict: Verdict,
    /// Whether its server got it although it was forbidden, without and with the node.
    pub(super) passed: [bool; 2],
    /// The most relevant fault meanwhile.
    pub(super) phase: Option<Fault>,
}

impl Pair {
    /// Whether a promise is broken. `is_lossy`: links lose packets without a fault. They lose resets,
    /// which nobody repeats; and the next connection of the same ports passes as a part of that which
    /// the router takes for open. Both happen without a node too.
    pub(super) fn is_broken(&self, is_lossy: bool) -> bool {
        match self.verdict {
            Verdict::Changed => true,
            Verdict::Passed => !is_lossy || self.plan.kind.is_forbidden(),
            Verdict::Worse => !is_lossy,
            _ => false,
        }
    }
}

/// How a connection of this kind ends on an open path.
pub(super) fn expected(kind: Kind) -> End {
    match kind {
        Kind::Refused | Kind::Rejected => End::Refused,
        Kind::Dropped | Kind::Forbidden => End::Silent,
        _ => End::Planned,
    }
}

impl Life {
    /// Its end, combined from both ends: the worst one counts.
    pub(super) fn end(&self) -> End {
        let Some((_, client)) = self.client else {
            return End::Failed;
        };
        let server = match (self.server, self.arrived) {
            (Some((_, end)), _) => end,
            // Still active.
            (None, Some(_)) => End::Hung,
            // The client waited for a reset that the server did not send.
            (None, None) if client == End::Planned => End::Reset,
            (None, None) => client,
        };
        // A relay could hide these from one end: what either end notices counts.
        let worst = [End::Changed, End::Cut, End::Hung];
        let found = worst.into_iter().find(|end| [client, server].contains(end));
        found.unwrap_or(if client == End::Planned {
            server
        } else {
            client
        })
    }

    /// When both ends were over.
    fn over(&self) -> Duration {
        let ends = [self.client, self.server].into_iter().flatten();
        ends.map(|(time, _)| time).max().unwrap_or(Duration::MAX)
    }

    fn meets(&self, span: &Span) -> bool {
        self.begun <= span.to + TAIL && span.from <= self.over()
    }

    /// Whether its server got it although it began and arrived while it was forbidden.
    fn passed(&self, plan: &Plan, spans: &[Span]) -> bool {
        let Some(arrived) = self.arrived else {
            return false;
        };
        let while_closed = |span: &Span| {
            span.fault.forbids(plan)
                && self.begun >= span.applied + NOTICE
                && arrived < span.lifting
        };
        plan.kind.is_forbidden() || spans.iter().any(while_closed)
    }
}

/// Compares one connection.
pub(super) fn pair(plan: Plan, direct: Life, node: Life, spans: &[Span]) -> Pair {
    let met = |span: &&Span| direct.meets(span) || node.meets(span);
    let met: Vec<Span> = spans.iter().filter(met).copied().collect();
    let phase = met.iter().map(|span| span.fault).max_by_key(|&f| weight(f));
    Pair {
        passed: [&direct, &node].map(|life| life.passed(&plan, &met)),
        verdict: match verdict(&plan, &direct, &node, &met) {
            Verdict::Worse if node.end() == End::Reset && is_stale(&node, spans) => Verdict::Stale,
            verdict => verdict,
        },
        plan,
        direct,
        node,
        phase,
    }
}

/// Whether an address or a route had changed shortly before.
fn is_stale(node: &Life, spans: &[Span]) -> bool {
    let changed = |span: &&Span| span.fault.breaks();
    let recent = |span: &Span| span.from <= node.begun && node.begun <= span.to + STALE;
    spans.iter().filter(changed).any(recent)
}

/// The relevance of a fault among simultaneous ones.
fn weight(fault: Fault) -> u8 {
    match fault {
        Fault::Rule => 0,
        Fault::Reload | Fault::Move => 1,
        Fault::ClosePort(_) | Fault::ForbidClient(_) => 2,
        Fault::Upgrade => 3,
        Fault::Drain => 4,
        Fault::Kill => 5,
        Fault::Loss(_) | Fault::Down(_) | Fault::Address => 6,
    }
}

fn verdict(plan: &Plan, direct: &Life, node: &Life, met: &[Span]) -> Verdict {
    let (without, with) = (direct.end(), node.end());
    let has = |check: &dyn Fn(Fault) -> bool| met.iter().any(|span| check(span.fault));
    // Only what the plain router blocks at the same time: a rule takes a moment to apply in either.
    if node.passed(plan, met) && !direct.passed(plan, met) {
        return Verdict::Passed;
    }
    match with {
        _ if with == without => Verdict::Same,
        // A relay may carry a connection over a fault that the plain path does not survive.
        _ if with == expected(plan.kind) => Verdict::Better,
        // No fault explains these.
        End::Changed | End::Cut => Verdict::Changed,
        End::Failed => Verdict::Worse,
        End::Reset if has(&|fault| fault == Fault::Kill) => Verdict::Killed,
        // A second of packet loss causes no reset.
        End::Reset if !has(&Fault::breaks) => Verdict::Worse,
        _ if has(&Fault::cuts) => Verdict::Cut,
        End::Silent if has(&|fault| fault.forbids(plan)) => Verdict::Closed,
        _ => Verdict::Worse,
    }
}

impl Pair {
    /// Its lines in the node's log.
    fn logged<'a>(&self, log: &'a [String]) -> Vec<&'a str> {
        let Some(port) = self.node.port else {
            return Vec::new();
        };
        let client = SocketAddr::new(self.plan.client_address(), port);
        let words = [client, self.plan.target()].map(|address| address.to_string());
        // Both addresses: clients reuse ports toward different servers.
        let has = |line: &&String| words.iter().all(|word| line.contains(word.as_str()));
        log.iter().filter(has).map(String::as_str).collect()
    }

    /// A line about it, with the node's log lines.
    pub(super) fn line(&self, log: &[String]) -> String {
        let side = |life: &Life| {
            let end = |end: Option<(Duration, End)>| {
                end.map_or_else(
                    || "no end".to_owned(),
                    |(time, end)| format!("{} at {:.3} s", end.name(), time.as_secs_f64()),
                )
            };
            format!("client {}, server {}", end(life.client), end(life.server))
        };
        format!(
            "connection {}, {}, from {} to {} at {:.3} s, {}: {:?}; without node: {}; with: {}; {}",
            self.plan.number,
            self.plan.kind.name(),
            self.plan.client_address(),
            self.plan.target(),
            self.node.begun.as_secs_f64(),
            self.phase.map_or("nothing happened", Fault::name),
            self.verdict,
            side(&self.direct),
            side(&self.node),
            self.logged(log).join("; "),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn plan(kind: Kind) -> Plan {
        let mut plans = (0..10_000).map(|number| Plan::new(1, number));
        plans.find(|plan| plan.kind == kind).unwrap()
    }

    fn life(client: End, server: Option<End>) -> Life {
        Life {
            begun: at(5000),
            port: None,
            client: Some((at(5100), client)),
            arrived: server.map(|_| at(5050)),
            server: server.map(|end| (at(5100), end)),
        }
    }

    fn span(fault: Fault) -> Span {
        Span {
            fault,
            from: at(3000),
            applied: at(3100),
            lifting: at(6000),
            to: at(6100),
        }
    }

    fn verdict_of(kind: Kind, direct: Life, node: Life, faults: &[Fault]) -> Verdict {
        let spans: Vec<Span> = faults.iter().map(|&fault| span(fault)).collect();
        pair(plan(kind), direct, node, &spans).verdict
    }

    #[test]
    fn excused_resets_lost_bytes() {
        let good = life(End::Planned, Some(End::Planned));
        let of = |end, faults: &[Fault]| {
            verdict_of(Kind::ServerFirst, good, life(end, Some(End::Reset)), faults)
        };
        assert_eq!(of(End::Reset, &[Fault::Kill]), Verdict::Killed);
        assert_eq!(of(End::Reset, &[Fault::Upgrade]), Verdict::Worse);
        assert_eq!(of(End::Reset, &[]), Verdict::Worse);
        assert_eq!(of(End::Hung, &[Fault::Kill]), Verdict::Worse);
        assert_eq!(of(End::Hung, &[Fault::Address]), Verdict::Cut);
        for end in [End::Cut, End::Changed] {
            assert_eq!(of(end, &[Fault::Kill, Fault::Address]), Verdict::Changed);
        }
    }

    #[test]
    fn forbidden_must_not_pass() {
        let silent = life(End::Silent, None);
        let good = life(End::Planned, Some(End::Planned));
        assert_eq!(
            verdict_of(Kind::Dropped, silent, good, &[]),
            Verdict::Passed
        );
        assert_eq!(
            verdict_of(Kind::Dropped, silent, silent, &[]),
            Verdict::Same
        );
        let closes = Fault::ClosePort(plan(Kind::ClientFirst).port);
        let passed = verdict_of(Kind::ClientFirst, silent, good, &[closes]);
        assert_eq!(passed, Verdict::Passed);
        assert_eq!(
            verdict_of(Kind::ClientFirst, silent, good, &[]),
            Verdict::Better
        );
        let mut late = good;
        late.arrived = Some(at(6050));
        let opened = verdict_of(Kind::ClientFirst, silent, late, &[closes]);
        assert_eq!(opened, Verdict::Better);
    }

    #[test]
    fn stale_address_is_separate() {
        let later = |mut life: Life, begun: u64| {
            let over = |end: Option<(Duration, End)>| end.map(|(_, end)| (at(begun + 100), end));
            (life.client, life.server) = (over(life.client), over(life.server));
            life.begun = at(begun);
            life
        };
        let of = |fault, begun| {
            let good = later(life(End::Planned, Some(End::Planned)), begun);
            let reset = later(life(End::Reset, None), begun);
            verdict_of(Kind::ServerFirst, good, reset, &[fault])
        };
        assert_eq!(of(Fault::Address, 17_000), Verdict::Stale);
        assert_eq!(of(Fault::Upgrade, 17_000), Verdict::Worse);
        assert_eq!(of(Fault::Address, 19_000), Verdict::Worse);
    }

    #[test]
    fn worst_end_counts() {
        assert_eq!(life(End::Planned, Some(End::Cut)).end(), End::Cut);
        assert_eq!(life(End::Reset, Some(End::Hung)).end(), End::Hung);
        assert_eq!(life(End::Planned, None).end(), End::Reset);
        assert_eq!(life(End::Silent, None).end(), End::Silent);
    }
}
