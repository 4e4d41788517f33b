// SPDX-License-Identifier: Apache-2.0
//! Peers, chains, routes, listeners and access.

use posthaste_relay::chain::{Encapsulation, Path as ChainPath, PoolLimits};
use posthaste_relay::policy::SideOptions;
use posthaste_wire::auth::Key;
use posthaste_wire::header::NodeId;

use super::super::Fixed;
use super::*;

#[test]
fn peers_chains_and_routes() {
    let config = parse(FULL).unwrap();
    let chains = &config.policy.chains;
    assert!(!config.transparent.enabled && config.transparent.wants("c0"));
    let listeners = ["127.0.0.1:4480", "[::1]:4480"].map(|text| text.parse().unwrap());
    assert_eq!(config.explicit, listeners);
    let fixed = Fixed {
        address: "192.0.2.1:443".parse().unwrap(),
        destination: "198.51.100.7:443".parse().unwrap(),
    };
    assert_eq!(config.fixed, [fixed]);
    assert_eq!(chains.me, NodeId::new(7));
    let access = &config.policy.access;
    assert!(access.admits("203.0.113.9".parse().unwrap()) && access.cookies);
    let [paris, rome] = &chains.peers[..] else {
        panic!("{:?}", chains.peers)
    };
    assert_eq!((&*paris.name, paris.id), ("paris", NodeId::new(8).unwrap()));
    assert_eq!(
        paris.key,
        Some(Key::new(
            std::array::from_fn(|at| u8::try_from(at).unwrap())
        ))
    );
    assert_eq!(paris.key_id, 3);
    let callers = ["192.0.2.8", "198.51.100.8"].map(|text| text.parse().unwrap());
    assert_eq!(
        (paris.encapsulation, &paris.source_addresses[..]),
        (Encapsulation::SynOption, &callers[..])
    );
    assert_eq!(paris.pool, PoolLimits { min: 4, max: 8 });
    assert_eq!(paris.socket.congestion.as_deref(), Some("cubic"));
    assert_eq!(rome.key, Some(Key::new([0x5a; 32])));
    assert_eq!(rome.key_id, 1);
    assert_eq!(rome.encapsulation, Encapsulation::Stream);
    assert_eq!(rome.source_addresses, [rome.address.ip()]);
    assert_eq!(rome.pool, PoolLimits { min: 0, max: 0 });
    assert_eq!(rome.socket, SideOptions::of_hops());
    let over = |nodes: &[NodeId]| ChainPath::over(nodes.iter().copied()).unwrap();
    let other = NodeId::new(12).unwrap();
    assert_eq!(chains.chains[0].path, over(&[paris.id, rome.id, other]));
    assert_eq!(chains.chains[1].path, over(&[rome.id]));
    assert_eq!(
        config.spelling.key_files[1].own.as_deref(),
        Some(Path::new("/etc/posthaste/rome.key"))
    );
    assert_eq!(
        (&chains.routes[0].chains[..], chains.routes[0].direct),
        (&[0, 1][..], false)
    );
    assert_eq!(
        (&chains.routes[1].chains[..], chains.routes[1].direct),
        (&[1][..], true)
    );
    assert_eq!(chains.routes[2].transfer_bytes, Some(450 << 10));
    let sizes = config.policy.rules.iter().map(|rule| rule.transfer_bytes);
    assert_eq!(sizes.collect::<Vec<_>>(), [Some(15_000), None]);
}

#[test]
fn lookup_permission() {
    let text = format!(
        "version = 1\n{NODE}{PEER}[controller]\nlookup = \"a\"\n[access]\nallow_lookup = [\"a\"]\n"
    );
    let config = parse(&text).unwrap();
    let chains = &config.policy.chains;
    let chain = &chains.chains[chains.resolve.unwrap()];
    assert_eq!(chain.path, ChainPath::by_resolve(chains.peers[0].id));
    assert_eq!(config.policy.access.resolve, [chains.peers[0].id]);
    assert_eq!(config.follow, None);
    let shown = config.to_string();
    assert!(shown.contains("[controller]\nlookup = \"a\"\n"), "{shown}");
    assert!(shown.contains("allow_lookup = [\"a\"]"), "{shown}");
    assert!(!shown.contains("[[chain]]"), "{shown}");
}

#[test]
fn route_chains_or_size() {
    let route = "version = 1\n[[route]]\ntransfer_size = ";
    for (rest, message) in [
        (
            "\"1KiB\"\ndirect = true",
            "expected neither chains nor direct beside it",
        ),
        (
            "\"1KiB\"\nchains = []",
            "expected neither chains nor direct beside it",
        ),
        ("0", "expected a size from 1B to 2GiB"),
    ] {
        let error = parse(&format!("{route}{rest}")).unwrap_err().to_string();
        assert!(
            error.starts_with("node.toml:3:17: route 1: transfer_size"),
            "{error}"
        );
        assert!(error.contains(message), "{error}");
    }
}

/// Likewise, below [`NODE`] and [`PEER`] on lines 2 to 8.
const INVALID_CHAINS: &[(&str, &str, &[&str])] = &[
    (
        "pool_min = 65",
        ":9:12",
        &["peer \"a\": pool_min = 65", "at most pool_max, which is 64"],
    ),
    ("pool_max = 5000", ":9:12", &["from 0 to 4096"]),
    (
        "rate_limit = \"100Mbit\"",
        ":9:14",
        &["peer \"a\": rate_limit", "from \"1Mbit/s\" to \"34Gbit/s\""],
    ),
    (
        "rate_limit = \"999kbit/s\"",
        ":9:14",
        &["peer \"a\": rate_limit", "from \"1Mbit/s\" to \"34Gbit/s\""],
    ),
    (
        "rate_limit = \"35Gbit/s\"",
        ":9:14",
        &["peer \"a\": rate_limit", "from \"1Mbit/s\" to \"34Gbit/s\""],
    ),
    (
        "rate_limit = \"5Mbit/s\"\ntransport = \"mptcp\"",
        ":9:14",
        &[
            "peer \"a\": rate_limit",
            "socket.congestion = \"posthaste\"",
        ],
    ),
    (
        "key_id = -1",
        ":9:10",
        &["peer \"a\": key_id = -1", "from 0 to 4294967295"],
    ),
    (
        "header_in = \"tcp\"",
        ":9:13",
        &[
            "peer \"a\": header_in = \"tcp\"",
            "\"stream\" or \"syn-option\"",
        ],
    ),
    (
        "source_addresses = [\"192.0.2.1\", \"0.0.0.0\", \"192.0.2.0/24\"]",
        ":9:34",
        &[
            "peer \"a\": source_addresses = \"0.0.0.0\"",
            "source_addresses = \"192.0.2.0/24\"",
            "an address such as",
        ],
    ),
    (
        "source_addresses = [\"192.0.2.1\", \"192.0.2.1\"]",
        ":9:34",
        &[
            "peer \"a\": source_addresses = \"192.0.2.1\"",
            "named twice",
        ],
    ),
    (
        "source_addresses = [\"::1\", \"::2\", \"::3\", \"::4\", \"::5\"]",
        ":9:49",
        &[
            "peer \"a\": source_addresses = \"::5\"",
            "at most 4 addresses",
        ],
    ),
    (
        "key_file = \"/x\"",
        ":9:12",
        &["key and key_file", "one of them"],
    ),
    (
        "other_key_file = \"/etc/posthaste/rome.key\"",
        ":9:18",
        &["peer \"a\": other_key_id is missing"],
    ),
    (
        "other_key = \"5a\"\nother_key_id = 2",
        ":9:13",
        &["peer \"a\": other_key = (hidden): expected 64 hexadecimal digits"],
    ),
    (
        "other_key_file = \"/etc/posthaste/rome.key\"\nother_key_id = 1",
        ":10:16",
        &["peer \"a\": other_key_id = 1: is the number of the first key"],
    ),
    (
        "[peer.socket]\ninitial_window = 0",
        ":10:18",
        &["peer \"a\": socket.initial_window = 0", "from 1 to 1000"],
    ),
    (
        "[peer.socket]\ncongestion = \"bbq\"",
        ":10:14",
        &["peer \"a\": socket.congestion = \"bbq\"", "cubic, bbr"],
    ),
    (
        "[[peer]]",
        ":9:1",
        &[
            "peer.name is missing",
            "peer.id is missing",
            "peer.address is missing",
            "peer.key is missing",
        ],
    ),
    (
        "[[peer]]\nname = \"a\"",
        ":9:1",
        &["peer.name = \"a\": is the name of peer 1 already: expected a different name"],
    ),
    (
        "[[peer]]\nid = 8",
        ":9:1",
        &["peer.id = 8: is the id of peer 1 already: expected a different id"],
    ),
    (
        "[[peer]]\nname = \"b\"\nid = 7",
        ":9:1",
        &["peer \"b\": id = 7: is this node's own number"],
    ),
    (
        "[[peer]]\nid = 0",
        ":9:1",
        &["peer.id = 0: expected a whole number from 1 to 65534"],
    ),
    (
        "[[peer]]\naddress = \"0.0.0.0:4480\"",
        ":9:1",
        &["peer.address = \"0.0.0.0:4480\"", "\"192.0.2.1:4480\""],
    ),
    (
        "[[peer]]\naddress = \"rome:4480\"",
        ":9:1",
        &["peer.address = \"rome:4480\""],
    ),
    (
        "[[peer]]\nkey_file = \"rome.key\"",
        ":9:1",
        &["key_file = \"rome.key\": expected an absolute path"],
    ),
    (
        "[[peer]]\nkey_file = \"/nowhere\"",
        ":9:1",
        &["peer.key_file = \"/nowhere\": cannot be read"],
    ),
    (
        "[[chain]]\nname = \"c\"",
        ":9:1",
        &["chain \"c\": nodes has 0 entries", "1 to 8"],
    ),
    (
        "[[chain]]\nnumber = 1\nnodes = [\"a\"]",
        ":9:1",
        &["chain.number: unknown key"],
    ),
    (
        "[[chain]]\nname = \"c\"\nnodes = [\"a\", 9, 8, 7]",
        ":11:18",
        &[
            "chain \"c\": nodes = 8: is named twice",
            ":11:21: chain \"c\": nodes = 7: is this node itself",
        ],
    ),
    (
        "[[chain]]\nname = \"c\"\nnodes = [\"a b\"]",
        ":11:10",
        &["chain \"c\": nodes = \"a b\": expected a name"],
    ),
    (
        "[[chain]]\nname = \"c\"\nnodes = [\"a\"]\n[[chain]]\nname = \"c\"\nnodes = [\"a\"]",
        ":13:8",
        &["chain.name = \"c\": is the name of chain 1 already"],
    ),
    (
        "[[route]]\nchains = [\"c\"]",
        ":10:11",
        &["route 1: chains = \"c\": expected the name of a [[chain]], and there is none"],
    ),
    (
        "[[chain]]\nname = \"c\"\nnodes = [\"a\"]\n[[route]]\nchains = [\"c\", \"d\", \"c\"]",
        ":13:16",
        &[
            "route 1: chains = \"d\": expected the name of a chain: c",
            ":13:21: route 1: chains = \"c\": is named twice",
        ],
    ),
    (
        "[[chain]]\nname = \"c\"\nnodes = [\"b\", \"a\"]\n[[route]]\nchains = [\"c\"]",
        ":11:10",
        &[
            "chain \"c\": nodes = \"b\": is no peer: expected the name of a [[peer]], or the number of a node",
        ],
    ),
    (
        "[[route]]\ndirect = false",
        ":9:1",
        &["route 1 leads nowhere"],
    ),
    (
        "[[route]]\n[[route]]\nsources = [\"10.0.0.1/8\"]\nports = [0]\ndirect = \"no\"",
        ":11:12",
        &[
            "route 2: sources = \"10.0.0.1/8\"",
            "route 2: ports = 0",
            "route 2: direct = \"no\": expected true or false",
        ],
    ),
    (
        "[[listener]]\nmode = \"open\"",
        ":10:8",
        &["listener.mode = \"open\": expected \"explicit\" or \"fixed\""],
    ),
    (
        "[[listener]]\nmode = \"fixed\"",
        ":9:1",
        &["listener.destination is missing: mode = \"fixed\" needs"],
    ),
    (
        "[[listener]]\nmode = \"fixed\"\ndestination = \"192.0.2.1\"",
        ":11:15",
        &["listener.destination = \"192.0.2.1\": expected an address and port"],
    ),
    (
        "[[listener]]\nmode = \"fixed\"\ndestination = \"[fe80::1]:4480\"",
        ":11:15",
        &[
            "listener.destination = \"[fe80::1]:4480\": a link-local address needs the number of its interface",
        ],
    ),
    (
        "[[listener]]\ndestination = \"192.0.2.1:80\"",
        ":10:15",
        &["listener.destination: is for mode = \"fixed\""],
    ),
    (
        "[[listener]]\nmode = \"fixed\"\naddress = \"0.0.0.0:81\"\ndestination = \"127.0.0.1:81\"",
        ":9:1",
        &["listener.destination = \"127.0.0.1:81\": this node listens there itself"],
    ),
    (
        "[[listener]]\n[[listener]]\nmode = \"fixed\"\naddress = \"[::1]:81\"\ndestination = \"127.0.0.1:4480\"",
        ":10:1",
        &["this node listens there itself: expected the address of a server"],
    ),
    (
        "[[listener]]\naddress = \"4480\"",
        ":10:11",
        &[
            "listener.address = \"4480\"",
            "\"127.0.0.1:4480\" or \"[::1]:4480\"",
        ],
    ),
    (
        "[[listener]]\n[[listener]]\naddress = \"127.0.0.1:4480\"",
        ":11:11",
        &["is the address of listener 1 already"],
    ),
    (
        "[[listener]]\n[[listener]]",
        ":10:1",
        &["is the address of listener 1 already"],
    ),
    (
        "[access]\nclients = [\"10.0.0.1/8\"]\ndestinations = [5]\ncookies = 1",
        ":10:12",
        &[
            "access.clients = \"10.0.0.1/8\"",
            "access.destinations = 5",
            "access.cookies = 1",
        ],
    ),
    (
        "[transparent]\nenabled = false",
        ":10:11",
        &["transparent.enabled = false: expected a [[listener]] as well"],
    ),
    (
        "[[listener]]\naddress = \"lille.example.com:4480\"",
        ":10:11",
        &[
            "listener.address = \"lille.example.com:4480\": expected an address",
            "names are not looked up",
        ],
    ),
    (
        "[access]\nallow_lookup = [\"unknown\"]",
        ":10:17",
        &["access.allow_lookup = \"unknown\": expected names of [[peer]] sections"],
    ),
    (
        "[controller]\nlookup = \"unknown\"\nkey = \"x\"",
        ":10:10",
        &[
            "controller.lookup = \"unknown\": expected the name of a [[peer]] with a key",
            "controller.key is beside controller.lookup",
        ],
    ),
    (
        "[access]\nclient = []",
        ":10:1",
        &["access.client", "did you mean \"clients\"?"],
    ),
    ("[[peers]]", ":9:3", &["peers", "did you mean \"peer\"?"]),
];

// promise: C1, Q18
#[test]
fn peer_mistakes_named() {
    assert_mistakes(&format!("{NODE}{PEER}"), INVALID_CHAINS);
}

// promise: C1
#[test]
fn peers_need_node_id() {
    let error = error_of(PEER);
    assert!(
        error.starts_with("node.toml:2:1: node.id is missing: a node with peers"),
        "{error}"
    );
    let error = error_of("[[listener]]");
    assert!(
        error.contains("a node with explicit listeners needs a number"),
        "{error}"
    );
    for wrong in ["0", "-1", "\"7\"", "9223372036854775808"] {
        let error = error_of(&format!("[node]\nid = {wrong}\n{PEER}"));
        assert!(error.starts_with("node.toml:3:6: "), "{wrong}: {error}");
        assert!(!error.contains("missing"), "{error}");
    }
}

#[test]
fn doubtful_peers_warned() {
    let text = format!("version = 1\n{NODE}[[listener]]");
    let message = parse(&text).unwrap().warnings.join("\n");
    let text = format!(
        "version = 1\n{NODE}[[listener]]\n[transparent]\nenabled = false\n[[rule]]\nname = \"web\"\nsource_address = \"client\""
    );
    let alone = parse(&text).unwrap().warnings.join("\n");
    assert!(
        alone.contains("rule \"web\": source_address = \"client\""),
        "{alone}"
    );
    assert!(
        message.contains("no client may use the explicit listeners"),
        "{message}"
    );
}

// promise: C4
#[test]
fn peers_reload() {
    let now = parse(FULL).unwrap();
    let changed = FULL.replace("pool_min = 4", "pool_min = 5");
    let changed = changed.replace("chains = [\"east\"]", "chains = [\"south\"]");
    let changed = changed.replace("cookies = true", "cookies = false");
    let changed = changed.replace("\"rome\", 12]", "13]");
    let next = parse(&changed).unwrap();
    let (adopted, waiting) = now.adopt(next.clone());
    assert_eq!((adopted, waiting.len()), (next, 0));
}
