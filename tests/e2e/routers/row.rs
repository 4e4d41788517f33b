// SPDX-License-Identifier: Apache-2.0
//! One row: the same steps without a node and with one, and whether that made a difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::thread;
use std::time::Duration;

use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;

use super::probe::{Connected, Ended, Outcome, Probe, together};
use super::testbed::{ROUTER, Testbed};
use crate::observing::redirect;
use crate::support::{SOON, accepting, binary, counter, ended};

/// How nodes carry connections: the accept modes of relays, the packet path alone, and by default.
const WAYS: [&str; 5] = ["early", "strict", "late", PACKET, AUTO];
const PACKET: &str = "packet";
const AUTO: &str = "auto";
/// Within this time a change of the router has to hold for new connections.
const CHANGED: Duration = Duration::from_secs(1);
/// How often the test queries a node, by a program, for a finished relay.
const POLL: Duration = Duration::from_millis(50);
/// Lines of a node's log that are shown of a row that failed.
const LOG_LINES: usize = 40;

/// A change of the router, and connections after it.
#[derive(Debug)]
struct Step {
    change: Option<fn(&Testbed)>,
    probes: Vec<Probe>,
}

/// What the node has to have done with the connections of a row, beyond doing no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relaying {
    /// What it likes.
    Any,
    /// Some of them were relayed: the node has learned.
    Some,
    /// As [`Relaying::Some`], but the packet path carries none.
    BySockets,
    /// None was: there is nothing to relay.
    None,
    /// It did not even start, and reported this.
    Refused(&'static str),
}

/// A router, and steps.
#[derive(Debug)]
pub(super) struct Row {
    build: fn() -> Testbed,
    config: &'static str,
    steps: Vec<Step>,
    relaying: Relaying,
}

impl Row {
    /// A row that begins with a network and connections in it.
    pub(super) fn new(build: fn() -> Testbed, probes: impl Into<Vec<Probe>>) -> Self {
        let first = Step {
            change: None,
            probes: probes.into(),
        };
        Self {
            build,
            config: "",
            steps: vec![first],
            relaying: Relaying::Any,
        }
    }

    /// One more step: a change, and connections after it.
    pub(super) fn then(mut self, change: fn(&Testbed), probes: impl Into<Vec<Probe>>) -> Self {
        self.steps.push(Step {
            change: Some(change),
            probes: probes.into(),
        });
        self
    }

    /// Configures the node by more than the accept mode.
    pub(super) fn config(mut self, toml: &'static str) -> Self {
        self.config = toml;
        self
    }

    /// The node has to relay some of these connections.
    pub(super) fn relays(mut self) -> Self {
        self.relaying = Relaying::Some;
        self
    }

    /// The node has to relay some of these connections, but none by the packet path alone.
    pub(super) fn relays_by_sockets(mut self) -> Self {
        self.relaying = Relaying::BySockets;
        self
    }

    /// The node has to relay none of these connections.
    pub(super) fn relays_none(mut self) -> Self {
        self.relaying = Relaying::None;
        self
    }

    /// The node does not start with this configuration, and reports why.
    pub(super) fn refuses(mut self, words: &'static str) -> Self {
        self.relaying = Relaying::Refused(words);
        self
    }

    /// Runs the row.
    ///
    /// # Panics
    /// If a node made a difference, or the router without a node differs from the row.
    pub(super) fn run(&self) {
        let ways = [None].into_iter().chain(WAYS.map(Some));
        let mut observed = together(ways.map(|way| move || self.observe(way))).into_iter();
        let without = observed.next().expect("one without a node");
        let wrong = self.lines(&without, |probe, outcomes| !probe.fits(outcomes));
        assert!(wrong.is_empty(), "without a node:\n{wrong}");
        println!("without a node:\n{}", self.lines(&without, |_, _| true));
        let mut failures = String::new();
        for (way, with) in WAYS.into_iter().zip(observed) {
            let harm = self.harm(way, &without, &with);
            if harm.is_empty() {
                println!("{way}: as without; relayed: {:?}", with.relayed);
            } else {
                println!("{way}: the end of the node's log:\n{}", with.log);
                let _ = writeln!(failures, "{way}:\n{harm}");
            }
        }
        assert!(failures.is_empty(), "with a node:\n{failures}");
    }

    /// Takes all steps, in a network of their own.
    fn observe(&self, way: Option<&str>) -> Observed {
        let testbed = (self.build)();
        testbed.watch();
        let held = self.steps[0].connect(&testbed);
        let node = way.and_then(|way| self.start(&testbed, way));
        let take = |step: &Step| {
            if let Some(change) = step.change {
                change(&testbed);
                thread::sleep(CHANGED);
            }
            step.observe(&testbed)
        };
        let steps = self.steps.iter().map(take).collect();
        Observed {
            steps,
            held: self.steps[0].exchange(held),
            pairs: testbed.watched(),
            relayed: node
                .as_ref()
                .zip(way)
                .map(|(node, way)| self.relayed(node, way)),
            log: node.as_ref().map(last_lines).unwrap_or_default(),
        }
    }

    /// Starts a node; none if it has to refuse.
    fn start(&self, testbed: &Testbed, way: &str) -> Option<Node> {
        let defaults = match way {
            PACKET | AUTO => format!("[defaults]\ndata_path = {way:?}\n"),
            mode => format!("{}data_path = \"socket\"\n", accepting(mode)),
        };
        let host = testbed.host(ROUTER);
        let config = format!("[observe]\ngain_min = \"0s\"\n{defaults}{}", self.config);
        let Relaying::Refused(words) = self.relaying else {
            let node = Node::builder(host, binary()).config(&config);
            return Some(node.start().expect("the node becomes ready"));
        };
        let node = Node::builder(host, binary())
            .config(&config)
            .start_unready();
        let mut node = node.expect("a program can be started");
        let status = node.process_mut().wait(SOON).expect("it ends");
        let message = node.process().stderr();
        assert!(!status.success() && message.contains(words), "{message}");
        None
    }

    /// How many connections were relayed: to their end, if some have to be, or at least begun, if none may.
    fn relayed(&self, node: &Node, way: &str) -> u64 {
        let opened = counter(node, "relays_opened");
        if way == PACKET || way == AUTO {
            let packets = redirect(node, "packet_opened");
            let sockets = way == AUTO || self.relaying == Relaying::None;
            return packets + if sockets { opened } else { 0 };
        }
        if !matches!(self.relaying, Relaying::Some | Relaying::BySockets) {
            return opened;
        }
        // A relay may end after its connections; without any this ends at the deadline and is reported.
        let _ = wait_until("finished relay", SOON, || {
            thread::sleep(POLL);
            ended(node, "finished") > 0
        });
        ended(node, "finished")
    }

    /// Each probe by its step and its place in [`Observed`].
    fn probes(&self) -> impl Iterator<Item = (usize, usize, Family, &Probe)> {
        self.steps.iter().enumerate().flat_map(|(number, step)| {
            let probes = step.cases().enumerate();
            probes.map(move |(place, (probe, family))| (number, place, family, probe))
        })
    }

    /// What became of the connections of some probes.
    fn lines(&self, observed: &Observed, chosen: fn(&Probe, &[Ended]) -> bool) -> String {
        let mut text = String::new();
        for (step, place, family, probe) in self.probes() {
            let ended = &observed.steps[step][place];
            if chosen(probe, ended) {
                let (what, took) = (shown(&outcomes(ended)), longest(ended));
                let line = format!("{family}: {probe}: {what}, at most {took:.1?}");
                let _ = writeln!(text, "step {step}, {line}");
            }
        }
        text
    }

    /// What a node changed.
    fn harm(&self, way: &str, without: &Observed, with: &Observed) -> String {
        let mut text = String::new();
        for (step, place, family, probe) in self.probes() {
            let [direct, got] = [without, with].map(|observed| &observed.steps[step][place]);
            let [was, is] = [direct, got].map(|ended| outcomes(ended));
            let (fast, slow) = (longest(direct), most(got));
            if was != is {
                let line = format!("{probe}: {} without, {} with", shown(&was), shown(&is));
                let _ = writeln!(text, "step {step}, {family}: {line}");
            } else if slow > fast + probe.tolerance() {
                let line = format!("{probe}: at most {fast:.1?} without, mostly {slow:.1?} with");
                let _ = writeln!(text, "step {step}, {family}: {line}");
            }
        }
        for ((probe, family), (direct, got)) in self.steps[0]
            .cases()
            .zip(without.held.iter().zip(&with.held))
        {
            if direct != got {
                let (direct, got) = (shown(direct), shown(got));
                let line = format!("{family}: {probe}: {direct} without, {got} with");
                let _ = writeln!(text, "opened before the node, {line}");
            }
        }
        for pair in with.pairs.difference(&without.pairs) {
            let _ = writeln!(text, "addresses that did not meet without: {pair}");
        }
        let relayed = with.relayed.unwrap_or_default();
        match self.relaying {
            Relaying::Some if relayed == 0 => text.push_str("nothing was relayed\n"),
            Relaying::BySockets if relayed == 0 && way != PACKET => {
                text.push_str("nothing was relayed\n");
            }
            Relaying::None if relayed != 0 => {
                let _ = writeln!(text, "{relayed} were relayed");
            }
            _ => {}
        }
        text
    }
}

impl Step {
    /// Every probe, for each family.
    fn cases(&self) -> impl Iterator<Item = (&Probe, Family)> {
        let both = |probe| Family::ALL.map(|family| (probe, family));
        self.probes.iter().flat_map(both)
    }

    /// Opens a connection of each kind that should be answered.
    fn connect(&self, testbed: &Testbed) -> Vec<Vec<Connected>> {
        let connect = |(probe, family): (&Probe, Family)| {
            let held = probe.is_answered().then(|| probe.connect(testbed, family));
            held.into_iter().collect()
        };
        self.cases().map(connect).collect()
    }

    /// Uses connections that were opened before.
    fn exchange(&self, held: Vec<Vec<Connected>>) -> Vec<Vec<Outcome>> {
        let of_case = self.cases().zip(held).map(|((probe, _), held)| {
            let exchange = move |connected| probe.exchange(connected).outcome;
            move || held.into_iter().map(exchange).collect()
        });
        together(of_case)
    }

    /// Makes all connections, different kinds side by side. Those that are not answered begin with the
    /// others, and again when the node has seen the others succeed.
    fn observe(&self, testbed: &Testbed) -> Vec<Vec<Ended>> {
        let numbered = self.cases().enumerate();
        let (silent, received): (Vec<_>, Vec<_>) =
            numbered.partition(|(_, (probe, _))| probe.is_silent());
        let each = |cases: &[Case<'_>], connect: Connect| {
            let works = cases.iter().map(|(number, (probe, family))| {
                move || (*number, connect(probe, testbed, *family))
            });
            together(works)
        };
        let ended = thread::scope(|scope| {
            let first = scope.spawn(|| each(&silent, Probe::first));
            let all = each(&received, Probe::all);
            let again = each(&silent, Probe::others);
            let first = first.join().expect("connecting does not panic");
            [first, all, again].concat()
        });
        let mut by_case = BTreeMap::<usize, Vec<Ended>>::new();
        for (number, ended) in ended {
            by_case.entry(number).or_default().extend(ended);
        }
        by_case.into_values().collect()
    }
}

/// A probe and a family, with their place in [`Observed`].
type Case<'a> = (usize, (&'a Probe, Family));

/// Some of a probe's connections.
type Connect = fn(&Probe, &Testbed, Family) -> Vec<Ended>;

/// What was seen in one network.
#[derive(Debug)]
struct Observed {
    /// By step, then by probe and family.
    steps: Vec<Vec<Vec<Ended>>>,
    /// By probe and family of the first step, of connections from before the node.
    held: Vec<Vec<Outcome>>,
    pairs: BTreeSet<String>,
    relayed: Option<u64>,
    log: String,
}

fn outcomes(ended: &[Ended]) -> Vec<Outcome> {
    ended.iter().map(|ended| ended.outcome.clone()).collect()
}

/// How long the slowest of some connections took.
fn longest(ended: &[Ended]) -> Duration {
    let longest = ended.iter().map(|ended| ended.took).max();
    longest.unwrap_or_default()
}

/// How long three quarters of some connections took at least. A slow machine does not delay that many.
fn most(ended: &[Ended]) -> Duration {
    let mut took: Vec<_> = ended.iter().map(|ended| ended.took).collect();
    took.sort();
    took.get(took.len() / 4).copied().unwrap_or_default()
}

/// Outcomes, each with how often.
fn shown(outcomes: &[Outcome]) -> String {
    let mut runs: Vec<(usize, &Outcome)> = Vec::new();
    for outcome in outcomes {
        match runs.last_mut() {
            Some((count, last)) if *last == outcome => *count += 1,
            _ => runs.push((1, outcome)),
        }
    }
    let texts = runs
        .iter()
        .map(|(count, outcome)| format!("{count} {outcome}"));
    texts.collect::<Vec<_>>().join("; ")
}

/// The end of a node's log.
fn last_lines(node: &Node) -> String {
    let log = node.log();
    let lines = &log[log.len().saturating_sub(LOG_LINES)..];
    lines.iter().map(|line| format!("    {line}\n")).collect()
}
