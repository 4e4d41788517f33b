// SPDX-License-Identifier: Apache-2.0
//! One row: the same steps without a node and with one, and whether that made a difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;
use serde_json::Value;

use super::probe::{Connected, Ended, Outcome, Probe, Site, together};
use super::testbed::{ROUTER, Testbed};
use super::way::Way;
use crate::observing::redirect;
use crate::support::{SOON, binary, counter};
use crate::watch::relay_lines;

/// The ways that share a node. Early flows of near clients open late after some handshakes, and those of
/// other ways would count.
const NODES: [&[Way]; 2] = [
    &[Way::Early],
    &[Way::Strict, Way::Late, Way::Packet, Way::Auto],
];
/// The ports that are used where there is no node.
const DIRECT: &[Way] = &[Way::Early];
/// Within this time a change of the router has to hold for new connections.
const CHANGED: Duration = Duration::from_secs(1);
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
    /// The packet path carries some of them, and sockets relay none.
    ByPackets,
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
    is_apart: bool,
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
            is_apart: false,
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

    /// The packet path has to carry some of these connections, and sockets must relay none.
    pub(super) fn relays_by_packets(mut self) -> Self {
        self.relaying = Relaying::ByPackets;
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

    /// Each way in a network of its own, with a node that has no other.
    pub(super) fn apart(mut self) -> Self {
        self.is_apart = true;
        self
    }

    /// Runs the row.
    ///
    /// # Panics
    /// If a node made a difference, or the router without a node differs from the row.
    pub(super) fn run(&self) {
        let all = Way::ALL;
        let nodes: Vec<&[Way]> = match self.is_apart {
            true => all.chunks(1).collect(),
            false => NODES.to_vec(),
        };
        let sites = [(DIRECT, false)].into_iter();
        let sites = sites.chain(nodes.into_iter().map(|ways| (ways, true)));
        let works = sites.map(|(ways, has_node)| move || self.observe(ways, has_node));
        let mut observed = together(works).into_iter();
        let without = observed.next().expect("one without a node");
        let direct = &without.ways[0];
        let wrong = self.lines(direct, |probe, outcomes| !probe.fits(outcomes));
        assert!(wrong.is_empty(), "without a node:\n{wrong}");
        println!("without a node:\n{}", self.lines(direct, |_, _| true));
        let harm = observed.map(|with| self.harm(&without, &with));
        let harm: String = harm.collect();
        assert!(harm.is_empty(), "with a node:\n{harm}");
    }

    /// Takes all steps by some ways, in a network of their own.
    fn observe(&self, ways: &[Way], has_node: bool) -> Observed {
        let testbed = &(self.build)();
        testbed.watch();
        let connect = |way: &Way| self.steps[0].connect(testbed, *way);
        let held: Vec<_> = ways.iter().map(connect).collect();
        let node = has_node.then(|| self.start(testbed, ways));
        let node = node.flatten();
        let mut flows = Flows::new();
        let mut take = |step: &Step| {
            if let Some(change) = step.change {
                change(testbed);
                thread::sleep(CHANGED);
            }
            let each = ways.iter().map(|way| move || step.observe(testbed, *way));
            let observed = together(each);
            flows.extend(node.iter().flat_map(packet_flows));
            observed
        };
        let steps: Vec<_> = self.steps.iter().map(&mut take).collect();
        let of_way = |(place, (way, held)): (usize, (&Way, _))| OfWay {
            way: *way,
            steps: steps.iter().map(|step| step[place].clone()).collect(),
            held: self.steps[0].exchange(held, *way),
            relayed: node
                .as_ref()
                .map(|node| self.relayed(node, testbed, *way, &mut flows))
                .unwrap_or_default(),
        };
        Observed {
            ways: ways.iter().zip(held).enumerate().map(of_way).collect(),
            pairs: testbed.watched(),
            begun: node.as_ref().map(begun).unwrap_or_default(),
            log: node.as_ref().map(last_lines).unwrap_or_default(),
        }
    }

    /// Starts a node with some ways; none if it has to refuse.
    fn start(&self, testbed: &Testbed, ways: &[Way]) -> Option<Node> {
        let rules: String = ways.iter().map(|way| way.rule()).collect();
        let config = format!("[observe]\ngain_min = \"0s\"\n{}{rules}", self.config);
        let node = Node::builder(testbed.host(ROUTER), binary()).config(&config);
        let Relaying::Refused(words) = self.relaying else {
            return Some(node.start().expect("the node becomes ready"));
        };
        let mut node = node.start_unready().expect("a program can be started");
        let status = node.process_mut().wait(SOON).expect("it ends");
        let message = node.process().stderr();
        assert!(!status.success() && message.contains(words), "{message}");
        None
    }

    /// How many connections of a way were relayed to their end, or are among these flows of the packet path.
    fn relayed(&self, node: &Node, testbed: &Testbed, way: Way, flows: &mut Flows) -> usize {
        // A relay may end after its connections, the packet path may be attached late, and it lists flows that
        // have ended for some seconds: more connections show it. Without any relay this ends at the deadline
        // and is reported.
        if self.has_to_relay(way) {
            let _ = wait_until("relayed connection", SOON, || {
                if count_of(node, way, flows) > 0 {
                    return true;
                }
                let more = self.steps[0].connect(testbed, way);
                self.steps[0].exchange(more, way);
                flows.extend(packet_flows(node));
                false
            });
        }
        count_of(node, way, flows)
    }

    fn has_to_relay(&self, way: Way) -> bool {
        match self.relaying {
            Relaying::Some => true,
            Relaying::BySockets => way != Way::Packet,
            Relaying::ByPackets => [Way::Packet, Way::Auto].contains(&way),
            Relaying::Any | Relaying::None | Relaying::Refused(_) => false,
        }
    }

    /// Each probe by its step and its place in [`Observed`].
    fn probes(&self) -> impl Iterator<Item = (usize, usize, Family, &Probe)> {
        self.steps.iter().enumerate().flat_map(|(number, step)| {
            let probes = step.cases().enumerate();
            probes.map(move |(place, (probe, family))| (number, place, family, probe))
        })
    }

    /// What became of the connections of some probes.
    fn lines(&self, observed: &OfWay, chosen: fn(&Probe, &[Ended]) -> bool) -> String {
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

    /// What a node changed, by any of its ways.
    fn harm(&self, without: &Observed, with: &Observed) -> String {
        let mut text = String::new();
        for of_way in &with.ways {
            let (way, harm) = (of_way.way.name(), self.harm_by(&without.ways[0], of_way));
            if harm.is_empty() {
                println!("{way}: as without; relayed: {}", of_way.relayed);
            } else {
                let _ = writeln!(text, "{way}:\n{harm}");
            }
        }
        for pair in with.pairs.difference(&without.pairs) {
            let _ = writeln!(text, "addresses that did not meet without: {pair}");
        }
        let [sockets, packets] = with.begun;
        let forbidden = match self.relaying {
            Relaying::None => sockets + packets,
            Relaying::ByPackets => sockets,
            _ => 0,
        };
        if forbidden > 0 {
            let _ = writeln!(text, "{forbidden} were relayed");
        }
        if !text.is_empty() {
            println!("the end of the node's log:\n{}", with.log);
        }
        text
    }

    /// What a node changed for the connections of one way.
    fn harm_by(&self, without: &OfWay, with: &OfWay) -> String {
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
        if self.has_to_relay(with.way) && with.relayed == 0 {
            text.push_str("nothing was relayed\n");
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
    fn connect(&self, testbed: &Testbed, way: Way) -> Vec<Vec<Connected>> {
        let connect = |(probe, family): (&Probe, Family)| {
            let site = Site {
                testbed,
                family,
                way,
            };
            let held = probe.is_answered().then(|| probe.connect(site));
            held.into_iter().collect()
        };
        self.cases().map(connect).collect()
    }

    /// Uses connections that were opened before.
    fn exchange(&self, held: Vec<Vec<Connected>>, way: Way) -> Vec<Vec<Outcome>> {
        let of_case = self.cases().zip(held).map(|((probe, _), held)| {
            let exchange = move |connected| probe.exchange(connected, way).outcome;
            move || held.into_iter().map(exchange).collect()
        });
        together(of_case)
    }

    /// Makes all connections, different kinds side by side. Those that are not answered begin with the
    /// others, and again when the node has seen the others succeed.
    fn observe(&self, testbed: &Testbed, way: Way) -> Vec<Vec<Ended>> {
        let numbered = self.cases().enumerate();
        let (silent, received): (Vec<_>, Vec<_>) =
            numbered.partition(|(_, (probe, _))| probe.is_silent());
        let each = |cases: &[Case<'_>], connect: Connect| {
            let works = cases.iter().map(|(number, (probe, family))| {
                let site = Site {
                    testbed,
                    family: *family,
                    way,
                };
                move || (*number, connect(probe, site))
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
type Connect = fn(&Probe, Site<'_>) -> Vec<Ended>;

/// What was seen in one network.
#[derive(Debug)]
struct Observed {
    ways: Vec<OfWay>,
    pairs: BTreeSet<String>,
    /// How many connections the node has begun to relay, by sockets and by packets.
    begun: [u64; 2],
    log: String,
}

/// What became of the connections of one way.
#[derive(Debug)]
struct OfWay {
    way: Way,
    /// By step, then by probe and family.
    steps: Vec<Vec<Vec<Ended>>>,
    /// By probe and family of the first step, of connections from before the node.
    held: Vec<Vec<Outcome>>,
    relayed: usize,
}

/// Flows of the packet path, each its server and its client.
type Flows = BTreeSet<String>;

/// How many relays of a way have finished, and how many of these flows are of it.
fn count_of(node: &Node, way: Way, flows: &Flows) -> usize {
    let is_of_way = |server: &str| {
        let server: SocketAddr = server.parse().expect("an address and port");
        way.has(server.port())
    };
    let lines = relay_lines(node).into_iter();
    let finished = lines.filter(|line| line["outcome"] == "finished");
    let relays = finished.filter(|line| is_of_way(&line["server"])).count();
    let is_flow = |flow: &&String| flow.split(' ').next().is_some_and(is_of_way);
    let packets = flows.iter().filter(is_flow).count();
    match way {
        Way::Packet => packets,
        Way::Auto => packets + relays,
        Way::Early | Way::Strict | Way::Late => relays,
    }
}

fn begun(node: &Node) -> [u64; 2] {
    [
        counter(node, "relays_opened"),
        redirect(node, "packet_opened"),
    ]
}

/// The flows that the packet path carries. One that has ended is listed for some seconds.
fn packet_flows(node: &Node) -> Vec<String> {
    let list = node.admin_json("relays list --limit 10000");
    let list = list.expect("the node answers");
    let flows = list["packet_flows"].as_array().expect("a list").iter();
    let carried = flows.filter(|flow| flow["phase"] != "learning");
    let end = |flow: &Value, name: &str| flow[name].as_str().expect("an address").to_owned();
    carried
        .map(|flow| end(flow, "server") + " " + &end(flow, "client"))
        .collect()
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
