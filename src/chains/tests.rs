// SPDX-License-Identifier: Apache-2.0
//! Lists and explanations of a small configuration.

use std::net::IpAddr;
use std::path::Path;

use posthaste_relay::control::{ChainState, HopTotals, PeerState};
use posthaste_wire::header::NodeId;

use posthaste_control::message::Egress;

use super::*;
use crate::api::control_client::Plan;
use crate::control_client::{Experience, PrefixOwner};
use posthaste_config::invariants::HOST;

const FILE: &str = r#"
version = 1
[node]
id = 7
[access]
clients = ["192.0.2.0/24"]
[[peer]]
name = "paris"
id = 8
address = "192.0.2.8:4480"
key_file = "/etc/posthaste/rome.key"
[[peer]]
name = "rome"
id = 9
address = "192.0.2.9:4480"
key_file = "/etc/posthaste/rome.key"
[[chain]]
name = "south"
nodes = ["paris", "rome"]
[[chain]]
name = "east"
nodes = ["rome"]
[[route]]
chains = ["east"]
[[route]]
destinations = ["198.51.100.0/24", "198.51.0.0/16", "2001:db8::/32", "10.0.0.0/8"]
chains = ["south", "east"]
direct = false
[[route]]
destinations = ["198.51.100.0/24"]
sources = ["192.0.2.0/24"]
ports = [443, "400-500"]
chains = ["east", "south"]
"#;

fn config() -> Config {
    Config::parse(Path::new("node.toml"), FILE, &HOST).unwrap()
}

fn id(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// The report of a worker that knows paris, with paris and south down or not.
fn worker(paris_down: bool, south_down: bool) -> Known {
    let down = |down: bool| down.then(|| Duration::from_secs(3));
    Known {
        peers: vec![PeerState {
            option_paused_for: None,
            peer: id(8),
            waiting: 2,
            dialing: 1,
            wanted: 4,
            rtt: Some(Duration::from_millis(20)),
            opened: None,
            lost_in_million: None,
            is_lossy: false,
            tunnels: 0,
            tunnel_failure: None,
            totals: HopTotals {
                taken: 5,
                ..HopTotals::default()
            },
            failure: None,
            down_for: down(paris_down),
        }],
        chains: vec![ChainState {
            path: chain::Path::over([id(8), id(9)]).unwrap(),
            down_for: down(south_down),
        }],
    }
}

fn workers<const N: usize>(known: [Known; N]) -> Workers {
    Workers {
        known: known.into(),
        incomplete: false,
    }
}

fn query(destination: &str, client: Option<&str>, workers: Option<&Workers>) -> api::Explanation {
    let client: Option<IpAddr> = client.map(|client| client.parse().unwrap());
    let question = Question::new(destination.parse().unwrap(), client).unwrap();
    explain(&config(), &question, workers, None, None)
}

/// The chains of the candidates; a dash for the direct connection.
fn chains_of(next_hops: &api::NextHops) -> Vec<&str> {
    let candidates = next_hops.candidates.iter();
    candidates
        .map(|candidate| candidate.chain.as_deref().unwrap_or("-"))
        .collect()
}

// promise: C6
#[test]
fn peers_chains_and_workers() {
    let known = workers([worker(true, false), worker(false, false)]);
    let list = list(&config(), &known);
    assert_eq!(list.id, Some(7));
    let paris = &list.peers[0];
    assert_eq!((paris.waiting, paris.dialing), (4, 2));
    let half_down = api::Health {
        usable: true,
        known_to: 2,
        down_at: 1,
        down_for_ms: 3000,
    };
    assert_eq!(paris.health, half_down);
    let rome = &list.peers[1];
    assert_eq!((rome.health.known_to, rome.health.usable), (0, true));
    assert_eq!(list.chains[0].nodes, ["paris", "rome"]);
    assert_eq!(list.routes[1].destinations.len(), 4);
    assert_eq!(chains_of(&list.routes[0].next_hops), ["east", "-"]);
    assert_eq!(chains_of(&list.routes[1].next_hops), ["south", "east"]);
}

#[test]
fn matched_route_named() {
    let answer = query("198.51.100.7:443", Some("192.0.2.5"), None);
    let [taken, others @ ..] = answer.routes.as_slice() else {
        panic!("{answer:?}")
    };
    let expected = api::AppliedRoute {
        number: 3,
        destination: Some("198.51.100.0/24".into()),
        source: Some("192.0.2.0/24".into()),
        ports: Some("443".into()),
    };
    assert_eq!(*taken, expected);
    let numbers: Vec<_> = others.iter().map(|route| route.number).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(chains_of(&answer.next_hops), ["east", "south", "-"]);
    assert!(!answer.workers_queried);

    // Without a client, routes for some of them do not apply.
    let answer = query("198.51.100.7:443", None, None);
    assert_eq!(answer.routes[0].number, 2);
    assert_eq!(answer.routes[0].source, None);
    let answer = query("203.0.113.1:80", None, None);
    assert_eq!((answer.routes[0].number, answer.routes.len()), (1, 1));
    let answer = query("[2001:db8::7]:80", None, None);
    assert_eq!(
        answer.routes[0].destination.as_deref(),
        Some("2001:db8::/32")
    );
}

// promise: C6
#[test]
fn first_usable_next_hop() {
    let taken = |known: [Known; 1]| {
        let answer = query("198.51.9.9:80", None, Some(&workers(known)));
        assert!(answer.workers_queried);
        answer
            .next_hops
            .taken
            .map(|index| answer.next_hops.candidates[index].chain.clone())
    };
    let chain = |name: &str| Some(Some(name.to_owned()));
    assert_eq!(taken([worker(false, false)]), chain("south"));
    assert_eq!(taken([worker(true, false)]), chain("east"));
    assert_eq!(taken([worker(false, true)]), chain("east"));
    let mut known = worker(true, true);
    known.peers.push(PeerState {
        option_paused_for: None,
        peer: id(9),
        waiting: 0,
        dialing: 0,
        wanted: 0,
        rtt: None,
        opened: None,
        lost_in_million: None,
        is_lossy: false,
        tunnels: 0,
        tunnel_failure: None,
        totals: HopTotals::default(),
        failure: Some("could not connect".into()),
        down_for: Some(Duration::from_millis(1)),
    });
    // With all of them down, the best is tried.
    assert_eq!(taken([known.clone()]), chain("south"));
    // A worker without knowledge tries.
    let answer = query(
        "198.51.9.9:80",
        None,
        Some(&workers([known, Known::default()])),
    );
    assert_eq!(answer.next_hops.taken, Some(0));
}

/// How a cold hop to the first peer is opened for a flow, and why not by the option.
fn cold(config: &str, destination: &str, workers: Option<&Workers>) -> [Option<String>; 2] {
    let config = Config::parse(Path::new("node.toml"), config, &HOST).unwrap();
    let question = Question::new(destination.parse().unwrap(), None).unwrap();
    let candidate = explain(&config, &question, workers, None, None)
        .next_hops
        .candidates[0]
        .clone();
    [candidate.header_in, candidate.no_option]
}

#[test]
fn encapsulation_and_reason() {
    let in_stream = |why: Option<&str>| [Some("stream".into()), why.map(str::to_owned)];
    let by_option = [Some("syn-option".into()), None];
    assert_eq!(cold(FILE, "198.51.9.9:80", None), in_stream(None));
    let option = FILE.replacen(
        "name = \"paris\"\n",
        "name = \"paris\"\nheader_in = \"syn-option\"\n",
        1,
    );
    assert_eq!(cold(&option, "198.51.9.9:80", None), by_option);
    let v6 = cold(&option, "[2001:db8::7]:80", None);
    assert_eq!(v6, in_stream(Some("the destination is IPv6")));
    let mut known = worker(false, false);
    let unpaused = workers([known.clone()]);
    assert_eq!(cold(&option, "198.51.9.9:80", Some(&unpaused)), by_option);
    known.peers[0].option_paused_for = Some(Duration::from_secs(5));
    let paused = cold(&option, "198.51.9.9:80", Some(&workers([known])));
    assert_eq!(
        paused,
        in_stream(Some("the peer did not accept the last ones"))
    );
}

/// What carries a flow to the first peer with this transport.
fn carried(transport: &str, lost: Option<u32>, is_lossy: bool, tunnels: u32) -> [String; 2] {
    let peer = format!("name = \"paris\"\ntransport = \"{transport}\"\n");
    let config = FILE.replacen("name = \"paris\"\n", &peer, 1);
    let config = Config::parse(Path::new("node.toml"), &config, &HOST).unwrap();
    let mut known = worker(false, false);
    let paris = &mut known.peers[0];
    (paris.lost_in_million, paris.is_lossy, paris.tunnels) = (lost, is_lossy, tunnels);
    paris.tunnel_failure = Some("nothing answers by UDP");
    let question = Question::new("198.51.9.9:80".parse().unwrap(), None).unwrap();
    let answer = explain(&config, &question, Some(&workers([known])), None, None);
    let carrier = answer.next_hops.candidates[0].carried_by.clone();
    carrier.map_or_else(Default::default, |carrier| {
        [carrier.transport, carrier.why.unwrap_or_default()]
    })
}

#[test]
fn transport_and_reason() {
    for (transport, lost, is_lossy, tunnels, expected) in [
        ("tcp", Some(20_000), true, 0, ["", ""]),
        ("mptcp", None, false, 0, ["mptcp", ""]),
        ("quic", None, false, 2, ["quic", ""]),
        (
            "quic",
            None,
            false,
            0,
            ["tcp", "no tunnel is up: nothing answers by UDP"],
        ),
        ("quic-only", None, false, 2, ["quic", ""]),
        (
            "quic-only",
            None,
            false,
            0,
            ["none", "no tunnel is up: nothing answers by UDP"],
        ),
        (
            "auto",
            None,
            false,
            2,
            ["tcp", "no loss of hops over TCP is known"],
        ),
        (
            "auto",
            Some(100),
            false,
            2,
            ["tcp", "hops over TCP lose 0.01 % of their segments"],
        ),
        (
            "auto",
            Some(21_400),
            true,
            2,
            ["quic", "hops over TCP lose 2.14 % of their segments"],
        ),
        (
            "auto",
            Some(21_400),
            true,
            0,
            ["tcp", "no tunnel is up: nothing answers by UDP"],
        ),
    ] {
        assert_eq!(
            carried(transport, lost, is_lossy, tunnels),
            expected,
            "{transport}"
        );
    }
}

#[test]
fn denied_access_is_explained() {
    let answer = query("10.1.1.1:80", Some("192.0.2.5"), None);
    assert_eq!(answer.access.denied.as_deref(), Some("private"));
    assert_eq!(answer.access.client_admitted, Some(true));
    let answer = query("198.51.100.7:80", Some("203.0.113.5"), None);
    assert_eq!(answer.access.denied.as_deref(), Some("reserved"));
    assert_eq!(answer.access.client_admitted, Some(false));
    let answer = query("1.1.1.1:80", Some("203.0.113.5"), None);
    assert_eq!(answer.access.denied, None);
    assert_eq!(
        query("198.51.100.7:80", None, None).access.client_admitted,
        None
    );
}

#[test]
fn no_flow_goes_between_families() {
    let error = Question::new(
        "[2001:db8::7]:80".parse().unwrap(),
        Some("192.0.2.1".parse().unwrap()),
    );
    assert!(error.unwrap_err().contains("one family"));
    let mapped = "[::ffff:198.51.100.7]:80".parse().unwrap();
    let client = Some("192.0.2.1".parse().unwrap());
    let plain = Question::new(mapped, client).unwrap();
    assert_eq!(
        plain,
        Question::new("198.51.100.7:80".parse().unwrap(), client).unwrap()
    );
}

/// A node with a controller, whose plan has routes to node 9 for small transfers, and none for
/// large ones.
fn followed_config(route: &str) -> Config {
    let key = "00".repeat(32);
    let text = format!(
        "version = 1\n[node]\nid = 7\n[controller]\naddress = \"192.0.2.1:4490\"\nkey = \"{key}\"\n\
         identity_file = \"/etc/posthaste/identity.key\"\n[[peer]]\nname = \"rome\"\nid = 9\n\
         address = \"192.0.2.9:4480\"\nkey_file = \"/etc/posthaste/rome.key\"\n{route}"
    );
    let mut config = Config::parse(Path::new("node.toml"), &text, &HOST).unwrap();
    let mut chains = Chains::clone(&config.policy.chains);
    let path = chain::Path::to(id(9));
    let by_rome = chain::NextHop::Hop(path);
    let name = "to rome".into();
    chains.chains = vec![chain::Chain { name, path }];
    let prefix = |bits| Prefix::new([203, 0, 113, 0].into(), bits);
    chains.planned = Some(chain::Planned {
        egresses: chain::Prefixes::new([(prefix(24).unwrap(), 0)]),
        toward: vec![chain::Toward {
            classes: [0, 1].into(),
            choices: [[by_rome].into(), [].into()].into(),
        }],
        sizes: [15_000, 450_000].into(),
        learned: chain::Prefixes::default(),
        usual_bytes: 64 << 10,
    });
    config.policy.chains = chains.into();
    config
}

/// Knowledge by which node 9 owns the destination by a table, or measured it.
fn followed(rtt_us: Option<u32>, experience: Experience) -> Followed {
    let prefix = crate::destinations::prefix_of([203, 0, 113, 0].into());
    let egress = Egress {
        prefix,
        node: 9,
        rtt_us,
    };
    Followed {
        plan: Some(Plan {
            epoch: 3,
            version: 4,
            in_force: true,
            ..Plan::default()
        }),
        whose: Some(PrefixOwner { egress, classes: 1 }),
        experience,
    }
}

fn query_followed(
    config: &Config,
    followed: &Followed,
    bytes: Option<u32>,
) -> (api::Size, api::AppliedPlan, Vec<String>) {
    let question = Question::new("203.0.113.7:443".parse().unwrap(), None).unwrap();
    let answer = explain(
        config,
        &question.carrying(bytes),
        None,
        Some(followed),
        None,
    );
    let next_hops = chains_of(&answer.next_hops).into_iter().map(str::to_owned);
    let next_hops = next_hops.collect();
    (answer.size.unwrap(), answer.plan.unwrap(), next_hops)
}

// promise: E6
#[test]
fn size_and_class_source() {
    let config = followed_config("");
    let nothing = followed(None, Experience::default());
    let (size, _, next_hops) = query_followed(&config, &nothing, Some(9_000));
    assert_eq!(
        (size.bytes, size.source.as_str(), size.class),
        (9_000, "given", Some(0))
    );
    assert_eq!(
        (size.class_bytes, next_hops),
        (Some(15_000), vec!["to rome".into(), "-".into()])
    );
    let (size, _, next_hops) = query_followed(&config, &nothing, None);
    assert_eq!(
        (size.bytes, size.source.as_str(), size.class),
        (64 << 10, "default", Some(1))
    );
    assert_eq!(next_hops, ["-"]);
    let learned = Experience {
        size: Some((20_000, 31)),
        rtt_us: None,
    };
    let (size, ..) = query_followed(&config, &followed(None, learned), None);
    assert_eq!(
        (size.source.as_str(), size.transfers),
        ("learned", Some(31))
    );
    assert_eq!(size.prefix.as_deref(), Some("203.0.113.0/24"));
    let reason = followed_config("[[route]]\ntransfer_size = \"10KiB\"\n");
    let (size, _, next_hops) = query_followed(&reason, &followed(None, learned), None);
    assert_eq!((size.bytes, size.source.as_str()), (10 << 10, "route 1"));
    assert_eq!(next_hops.len(), 2);
    let (size, ..) = query_followed(&reason, &nothing, Some(1_000_000));
    assert_eq!((size.source.as_str(), size.class), ("given", Some(1)));
}

// promise: E6
#[test]
fn plan_reasons() {
    let config = followed_config("");
    let measured = |own: Option<u32>| Experience {
        size: None,
        rtt_us: own,
    };
    let why = |followed: &Followed, bytes| query_followed(&config, followed, Some(bytes)).1.why;
    let table = followed(None, Experience::default());
    assert_eq!(
        why(&table, 9_000),
        "203.0.113.0/24 is rome's, by a table of the controller"
    );
    let unknown = followed(Some(2_000), measured(None));
    assert!(
        why(&unknown, 9_000)
            .ends_with("and this node has not: flows go directly, which measures it")
    );
    let known = followed(Some(2_000), measured(Some(80_000)));
    assert!(
        why(&known, 9_000).ends_with("which measured the least, 2.000 ms, this node 80.000 ms")
    );
    assert!(
        why(&known, 400_000).ends_with("flows of this size go directly, as they gain too little")
    );
    let mut old = table.clone();
    old.plan.as_mut().unwrap().in_force = false;
    assert!(why(&old, 9_000).contains("too old"));
    let unowned = Followed {
        whose: None,
        ..table.clone()
    };
    assert!(why(&unowned, 9_000).contains("no node is its egress"));
    let early = Followed {
        plan: None,
        ..table
    };
    assert!(why(&early, 9_000).contains("none yet"));
}

#[test]
fn named_chains_ignore_size() {
    let config = followed_config(
        "[[chain]]\nname = \"own\"\nnodes = [\"rome\"]\n[[route]]\nchains = [\"own\"]\n",
    );
    let question = Question::new("203.0.113.7:443".parse().unwrap(), None).unwrap();
    let known = followed(None, Experience::default());
    let answer = explain(
        &config,
        &question.carrying(Some(9_000)),
        None,
        Some(&known),
        None,
    );
    assert_eq!(answer.size, None);
    assert_eq!(answer.plan.unwrap().why, "route 1 goes first");
}
