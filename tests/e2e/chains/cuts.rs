// SPDX-License-Identifier: Apache-2.0
//! Nodes with silently cut links, or that send nothing any more, while flows begin.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;

use crate::payload::uninterrupted;
use crate::requests::{ALLOWED, KEY, LISTENER_PORT};
use crate::support::{
    PORT, counter, dial, firewall, listen, remove_firewall, start_relaying_in, target, until,
};

/// One way of each link to a node beside the path.
const DELAY: Duration = Duration::from_millis(5);
/// How long new flows keep coming after the cut, and how often.
const FLOWS: u32 = 40;
const EVERY: Duration = Duration::from_millis(75);
/// Those that begin after the node has noticed: by then the first of them have waited for 1.5 s.
const LATER_FROM: u32 = 27;
/// How long nothing returns from a node that gets and sends everything else: longer than a node waits
/// for the acknowledgement of a request.
const ONE_WAY: Duration = Duration::from_millis(1600);
/// What each flow may take on a machine that is busy. Before nodes noticed, it was 10 s to 20 s.
const AT_MOST: Duration = Duration::from_secs(5);

/// A node on the path, and nodes beside it, each on a link of its own: three that are one chain, and
/// one that is the other.
pub(super) struct Fixture {
    pub(super) network: Network,
    pub(super) first: Node,
    beside: Vec<Node>,
}

/// How the nodes of a scene are configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    accept: &'static str,
    warm: bool,
    hops: Family,
    /// The second way is none by other nodes, but directly.
    direct: bool,
    /// SYNs of cold hops have the option.
    option: bool,
}

impl Setup {
    fn peer(self, network: &Network, other: usize) -> String {
        let address = SocketAddr::new(network.aside_address(other, self.hops), LISTENER_PORT);
        let pool = if self.warm {
            "pool_min = 8\n"
        } else {
            "pool_max = 0\n"
        };
        format!(
            "[[peer]]\nname = \"beside-{other}\"\nid = {id}\naddress = \"{address}\"\n\
             key = \"{KEY}\"\n{pool}{}",
            self.encapsulation(address.ip()),
            id = other + 2,
        )
    }

    /// What carries chain headers from a peer that calls from there, and to it.
    fn encapsulation(self, ip: IpAddr) -> String {
        if self.option {
            format!("header_in = \"syn-option\"\nsource_addresses = [\"{ip}\"]\n")
        } else {
            String::new()
        }
    }

    /// The node on the path.
    fn first(self, network: &Network) -> String {
        let peers = (0..4).map(|other| self.peer(network, other));
        let (chains, direct) = if self.direct {
            ("\"long\"", true)
        } else {
            ("\"long\", \"short\"", false)
        };
        format!(
            "[node]\nid = 1\nworkers = 1\n{ALLOWED}[defaults]\naccept = \"{}\"\n{}{CHAINS}\
             [[rule]]\nname = \"clients\"\nsources = [\"10.0.0.0/24\", \"fd00::/64\"]\n\
             [[route]]\nchains = [{chains}]\ndirect = {direct}\n",
            self.accept,
            peers.collect::<String>(),
        )
    }

    /// One of the explicit nodes. The node on the path receives no requests.
    fn beside(self, network: &Network, node: usize) -> String {
        let others = (0..4).filter(|other| *other != node);
        let listener = SocketAddr::new(network.aside_address(node, self.hops), LISTENER_PORT);
        format!(
            "[node]\nid = {}\nworkers = 1\n{ALLOWED}{}\
             [[peer]]\nname = \"first\"\nid = 1\naddress = \"192.0.2.1:4480\"\nkey = \"{KEY}\"\n\
             pool_max = 0\n{}[transparent]\nenabled = false\n\
             [[listener]]\naddress = \"{listener}\"\n",
            node + 2,
            others
                .map(|other| self.peer(network, other))
                .collect::<String>(),
            self.encapsulation(across(network, node, Family::V4)),
        )
    }

    pub(super) fn start(self) -> Fixture {
        let links = [Link::Veth, Link::Veth];
        let mut network = Network::line(links);
        for _ in 0..4 {
            network = network.beside(0, Link::delay(DELAY));
        }
        let network = network.build().expect("root can build a network");
        let beside = (0..4)
            .rev()
            .map(|node| start_relaying_in(network.aside(node), &self.beside(&network, node)));
        let mut beside: Vec<Node> = beside.collect();
        beside.reverse();
        let first = start_relaying_in(network.node(0), &self.first(&network));
        let fixture = Fixture {
            network,
            first,
            beside,
        };
        if self.warm {
            for (node, peer) in [(&fixture.first, "beside-0"), (&fixture.first, "beside-3")] {
                until("hops wait", || waiting(node, peer) >= 8);
            }
            until("hops wait", || waiting(&fixture.beside[0], "beside-1") >= 8);
            until("hops wait", || waiting(&fixture.beside[1], "beside-2") >= 8);
        }
        fixture
    }
}

/// The address from which the node on the path calls one beside it: the other of its link.
fn across(network: &Network, node: usize, family: Family) -> IpAddr {
    match network.aside_address(node, family) {
        IpAddr::V4(beside) => {
            let [a, b, c, _] = beside.octets();
            IpAddr::from([a, b, c, 1])
        }
        IpAddr::V6(beside) => {
            let [before @ .., _] = beside.segments();
            let mut first = [1; 8];
            first[..7].copy_from_slice(&before);
            IpAddr::from(first)
        }
    }
}

const CHAINS: &str = "[[chain]]\nname = \"long\"\n\
     nodes = [\"beside-0\", \"beside-1\", \"beside-2\"]\n\
     [[chain]]\nname = \"short\"\nnodes = [\"beside-3\"]\n";

fn waiting(node: &Node, peer: &str) -> u64 {
    let chains = node.admin_json("chains").expect("the node answers");
    let peers = chains["peers"].as_array().expect("a list");
    let named = peers.iter().find(|one| one["name"] == peer);
    named.expect("it is listed")["waiting"]
        .as_u64()
        .expect("a number")
}

/// Drops all that a host sends and gets, both ways, without a word.
pub(super) fn cut(host: &Namespace) {
    firewall(host, "cut", &[("input", "drop"), ("output", "drop")]);
}

/// What became of a flow, and after how long.
#[derive(Clone, Copy, Debug)]
struct Flow {
    answered: bool,
    took: Duration,
}

/// Starts flows one after the other. Each sends a request with its number and waits for the number
/// to return. Also counts how often the server received each number. When all have begun, `then` gets
/// the count of the later ones that are answered.
fn flows(
    network: &Network,
    listener: &TcpListener,
    family: Family,
    then: impl FnOnce(&AtomicU32),
) -> (Vec<Flow>, Vec<u32>) {
    let (done, seen) = (AtomicBool::new(false), Mutex::new(HashMap::new()));
    let later = AtomicU32::new(0);
    let to = target(network, family, listener);
    let flows = thread::scope(|scope| {
        scope.spawn(|| answer(listener, &done, &seen));
        let begun: Vec<_> = (0..FLOWS)
            .map(|number| {
                // The pace of new flows is what is tested.
                thread::sleep(EVERY);
                let later = &later;
                scope.spawn(move || {
                    let flow = query(network, to, number);
                    let is_later = flow.answered && number >= LATER_FROM;
                    later.fetch_add(is_later.into(), Ordering::Relaxed);
                    flow
                })
            })
            .collect();
        then(&later);
        let flows = begun.into_iter().map(|flow| flow.join().expect("it ends"));
        let flows = flows.collect();
        done.store(true, Ordering::Relaxed);
        flows
    });
    let seen = seen.into_inner().expect("no thread panicked");
    let times = (0..FLOWS).map(|number| seen.get(&number).copied().unwrap_or(0));
    (flows, times.collect())
}

fn query(network: &Network, to: SocketAddr, number: u32) -> Flow {
    let begun = Instant::now();
    let question = number.to_be_bytes();
    let requested = dial(network.client(), to).and_then(|mut client| {
        client.write_all(&question)?;
        let mut answer = [0; 4];
        client.read_exact(&mut answer)?;
        Ok(answer)
    });
    Flow {
        answered: requested.is_ok_and(|answer| answer == question),
        took: begun.elapsed(),
    }
}

/// Answers every number that comes with the same.
fn answer(listener: &TcpListener, done: &AtomicBool, seen: &Mutex<HashMap<u32, u32>>) {
    listener.set_nonblocking(true).expect("a socket");
    thread::scope(|scope| {
        while !done.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((server, _)) => {
                    server.set_nonblocking(false).expect("a socket");
                    scope.spawn(|| answer_one(server, done, seen));
                }
                Err(_) => thread::sleep(Duration::from_millis(2)),
            }
        }
    });
}

fn answer_one(mut server: TcpStream, done: &AtomicBool, seen: &Mutex<HashMap<u32, u32>>) {
    let step = Some(Duration::from_millis(100));
    server.set_read_timeout(step).expect("a socket");
    let (mut number, mut have) = ([0; 4], 0);
    while have < number.len() {
        match uninterrupted(|| server.read(&mut number[have..])) {
            Ok(0) => return,
            Ok(count) => have += count,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if done.load(Ordering::Relaxed) {
                    return;
                }
            }
            Err(_) => return,
        }
    }
    let number = u32::from_be_bytes(number);
    *seen
        .lock()
        .expect("no thread panicked")
        .entry(number)
        .or_insert(0) += 1;
    let _ = server.write_all(&number.to_be_bytes());
}

/// Prints what flows took, and asserts that all were answered, none twice, and that these took another
/// way.
fn check(what: &str, flows: &[Flow], times: &[u32], move_from: u32) {
    let mut took: Vec<Duration> = flows.iter().map(|flow| flow.took).collect();
    took.sort();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    println!("{what}: median {median:?}, longest {longest:?}");
    let failed: Vec<&Flow> = flows.iter().filter(|flow| !flow.answered).collect();
    assert!(failed.is_empty(), "{what}: {failed:?}");
    let moving = flows.iter().skip(move_from as usize);
    let late: Vec<&Flow> = moving.filter(|flow| flow.took > AT_MOST).collect();
    assert!(late.is_empty(), "{what}: {late:?}");
    assert!(times.iter().all(|count| *count == 1), "{what}: {times:?}");
}

/// Cuts the node that is so far along the chain, and asserts that every flow that begins after that
/// takes the other way, unless bytes of it have left for a node. Those wait until the link is back.
fn every_flow_takes_other_chain(setup: Setup, node: usize) {
    let fixture = setup.start();
    let listener = listen(fixture.network.server(), PORT);
    let before = counter(&fixture.beside[3], "relays_opened");
    cut(fixture.network.aside(node));
    // In strict mode, and over a hop that is not open yet, bytes leave when the node is known to live.
    let waits = setup.warm && setup.accept == "early";
    let move_from = if waits { LATER_FROM } else { 0 };
    let (flows, times) = flows(&fixture.network, &listener, Family::V4, |later| {
        let moving = FLOWS - LATER_FROM;
        until("the other way", || later.load(Ordering::Relaxed) == moving);
        if !setup.direct {
            let after = counter(&fixture.beside[3], "relays_opened");
            assert!(after >= before + u64::from(moving), "by the other chain");
        }
        if waits {
            remove_firewall(fixture.network.aside(node), "cut");
        }
    });
    let what = format!("{setup:?}, node {node} cut");
    check(&what, &flows, &times, move_from);
}

const EARLY: Setup = Setup {
    accept: "early",
    warm: true,
    hops: Family::V4,
    direct: false,
    option: false,
};

pub(super) const EARLY_OR_DIRECT: Setup = Setup {
    direct: true,
    ..EARLY
};

// promise: K15
#[test]
fn first_hop_cut() {
    for hops in Family::ALL {
        every_flow_takes_other_chain(Setup { hops, ..EARLY }, 0);
    }
    let accept = "strict";
    every_flow_takes_other_chain(Setup { accept, ..EARLY }, 0);
    every_flow_takes_other_chain(EARLY_OR_DIRECT, 0);
}

// promise: K15
#[test]
fn middle_node_cut() {
    for accept in ["early", "strict"] {
        every_flow_takes_other_chain(Setup { accept, ..EARLY }, 1);
    }
}

// promise: K15
#[test]
fn last_node_cut() {
    for hops in Family::ALL {
        every_flow_takes_other_chain(Setup { hops, ..EARLY }, 2);
    }
    every_flow_takes_other_chain(EARLY_OR_DIRECT, 2);
}

// promise: K15
#[test]
fn cold_hops_cut() {
    let warm = false;
    for node in 0..3 {
        every_flow_takes_other_chain(Setup { warm, ..EARLY }, node);
    }
}

// promise: K15
#[test]
fn syn_option_hops_cut() {
    let (warm, option) = (false, true);
    for node in 0..3 {
        let setup = Setup {
            warm,
            option,
            ..EARLY
        };
        every_flow_takes_other_chain(setup, node);
    }
}

/// The node on the path gets nothing from the next one, which gets everything and passes it on. So what
/// is not acknowledged has arrived.
fn nothing_delivered_twice(setup: Setup) {
    let fixture = setup.start();
    let listener = listen(fixture.network.server(), PORT);
    let next = fixture.network.aside(0);
    let returns = match across(&fixture.network, 0, setup.hops) {
        IpAddr::V4(first) => format!("ip daddr {first} drop"),
        IpAddr::V6(first) => format!("ip6 daddr {first} drop"),
    };
    firewall(next, "one-way", &[("output", &returns)]);
    let (flows, times) = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(ONE_WAY);
            remove_firewall(next, "one-way");
        });
        flows(&fixture.network, &listener, Family::V4, |_| ())
    });
    check(&format!("{setup:?}, one way"), &flows, &times, FLOWS);
}

// promise: K15
#[test]
fn unacknowledged_bytes_not_repeated() {
    for hops in Family::ALL {
        for direct in [false, true] {
            nothing_delivered_twice(Setup {
                hops,
                direct,
                ..EARLY
            });
        }
    }
    let warm = false;
    nothing_delivered_twice(Setup { warm, ..EARLY });
}

/// The kernel of a stopped node still accepts and acknowledges. The node may later deliver
/// acknowledged bytes, so the flow is reset and not sent again; flows that begin after the
/// detection take the other next hop.
// promise: K16, K15
#[test]
fn silent_acceptor() {
    for warm in [true, false] {
        let fixture = Setup { warm, ..EARLY }.start();
        let listener = listen(fixture.network.server(), PORT);
        let stopped = fixture.beside[0].process();
        stopped.signal(Signal::SIGSTOP).expect("it is there");
        let (flows, times) = flows(&fixture.network, &listener, Family::V4, |_| ());
        stopped.signal(Signal::SIGCONT).expect("it is there");
        let most = flows.iter().map(|flow| flow.took).max().expect("some");
        let answered = flows.iter().filter(|flow| flow.answered).count();
        println!("warm: {warm}: {answered} of {FLOWS} answered, longest {most:?}");
        assert!(most < Duration::from_secs(10), "warm: {warm}: {flows:?}");
        assert!(
            flows[FLOWS as usize - 1].answered,
            "warm: {warm}: {flows:?}"
        );
        assert!(times.iter().all(|count| *count <= 1), "{times:?}");
    }
}
