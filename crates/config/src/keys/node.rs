// SPDX-License-Identifier: Apache-2.0
//! The keys of a node's file.

use std::time::Duration;

use posthaste_relay::accept_mode::AcceptMode;

use super::Accepted::{Duration as Length, Form, Number, Or, Size, Switch, Words};
use super::Kind::{Many, Named, Numbered, One};
use super::Usual::{Computed, Is, Required};
use super::{Config, Reload, Table, keep, key, rows};

pub(in super::super) const SECOND: Duration = Duration::from_secs(1);
const MILLISECONDS_10: Duration = Duration::from_millis(10);
const MINUTES_5: Duration = Duration::from_secs(300);
pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// Bound on worker threads.
pub(in super::super) const WORKERS_MAX: u32 = 256;
/// Bound on relays of a node; one worker's table has 2^24 slots.
pub(in super::super) const RELAYS_MAX: u32 = 1 << 24;
/// The kernel's bound on TCP_KEEPIDLE and TCP_KEEPINTVL.
const KEEPALIVE_MAX: Duration = Duration::from_secs(32_767);
/// The kernel's bound on TCP_KEEPCNT.
const PROBES_MAX: u32 = 127;
/// Workers look at connections once a second whether their windows are closed.
const USER_TIMEOUT_MIN: Duration = Duration::from_secs(5);
/// TCP_USER_TIMEOUT is an int of milliseconds.
const USER_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 86_400);
const GIBIBYTE: u32 = 1 << 30;
/// The kernel keeps about 150 bytes for each profile, also for those that are not used.
const PROFILES_MAX: u32 = 1 << 20;
/// 1 GB of kernel memory.
const PACKET_FLOWS_MAX: u32 = 1 << 22;
/// Between two probes of a link: more probes show little more, and are bounded by what reflectors
/// answer.
pub(in super::super) const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Source ports: as many ways of a network as flows are spread over, at most.
const PORTS_MAX: u32 = 16;
/// Bound on warm hops to one peer that wait, at each worker.
const POOL_MAX: u32 = 4096;

const PREFIXES: super::Accepted = Form("prefixes");
const ADDRESS: super::Accepted = Form("address and port");
pub(super) const NAME: super::Accepted = Form("1 to 64 letters, digits, `-`, `_`, `.`; used once");
pub(super) const HEX: super::Accepted = Form("64 hexadecimal digits");
pub(super) const PATH: super::Accepted = Form("an absolute path");
const TRANSFER: super::Accepted = Size(1, 1 << 31);
const SIDES: &[&str] = &[
    "defaults.downstream",
    "defaults.upstream",
    "rule.downstream",
    "rule.upstream",
];
const SIDES_AND_HOPS: &[&str] = &[
    "defaults.downstream",
    "defaults.upstream",
    "rule.downstream",
    "rule.upstream",
    "peer.socket",
];
const CONGESTION: super::Accepted =
    Form("`\"auto\"`, `\"posthaste\"`, or a congestion control that this host has or can load");

/// Every key of a node's file.
#[rustfmt::skip]
pub(in super::super) static NODE: Table = &[
    rows(&[""], One, &[
        key("version", Required, Number(1, 1), "the version of the format of the file"),
    ]),
    rows(&["node"], One, &[
        key("workers", Computed("one per CPU the process may use, at most 256"), Number(1, WORKERS_MAX),
            "threads that carry relays").at_start(keep!(NodeKeeps, node.workers)),
        key("relays_max", Computed("what the limit of open files allows, see below"), Number(1, RELAYS_MAX),
            "relays at once, opening ones included"),
        key("drain_timeout", Is("\"30s\""), Length(Duration::ZERO, MONTH),
            "how long a drain waits for open relays before it resets them"),
        key("upgrade_timeout", Is("\"1h\""), Length(Duration::ZERO, MONTH),
            "how long open relays continue at a process that was"),
        key("log_connections", Is("true"), Switch, "one line on stdout for each ended relay"),
        key("id", Computed("none: required with a `[[peer]]` or `[[listener]]`"), NODE_ID,
            "the number of this node among its peers").at_start(Reload::NodeKeeps(keep_number)),
    ]),
    rows(&["admin"], One, &[
        key("socket", Is("\"/run/posthaste/admin.sock\""), Form("an absolute path of at most 107 bytes"),
            "unix socket of `status`, `relays`, `drain` ..., mode 0660").at_start(keep!(NodeKeeps, admin_socket)),
        key("group", Computed("that of the node's process"), Form("the name of a group of `/etc/group`, or a number"),
            "its members may use the socket, besides root and the node's own user").at_start(keep!(NodeKeeps, admin_group)),
    ]),
    rows(&["metrics"], One, &[
        key("listen", Is("\"127.0.0.1:9464\""), Or(&ADDRESS, "off"),
            "`/metrics`, `/healthz`, `/readyz`").at_start(keep!(NodeKeeps, metrics)),
    ]),
    rows(&["transparent"], One, &[
        key("enabled", Is("true"), Switch,
            "with `false` the node intercepts no flow and installs no rule or route").at_start(keep!(NodeKeeps, transparent.enabled)),
        key("interfaces", Computed("every interface but `lo`"), Form("names, 1 to 15 characters each, not `lo`"),
            "where to intercept").list().at_start(keep!(NodeKeeps, transparent.interfaces)),
        key("mark", Is("0x10000000"), Form("a number with one bit set"),
            "the mark of redirected packets").at_start(keep!(NodeKeeps, transparent.mark)),
        key("socket_mark", Is("0x20000000"), Form("another bit"),
            "the mark of the node's sockets").at_start(keep!(NodeKeeps, transparent.socket_mark)),
        key("table", Is("20117"), Form("1 to 4294967295, not 253 to 255"),
            "the routing table of the local route").at_start(keep!(NodeKeeps, transparent.table)),
    ]),
    rows(&["observe"], One, &[
        key("gain_min", Is("\"1ms\""), Length(Duration::ZERO, Duration::from_secs(10)),
            "minimum saving of a relay, by the observed round trips"),
        key("ttl", Is("\"1h\""), Length(SECOND, MONTH), "how long an observation is valid"),
        key("profiles_max", Is("32768"), Number(64, PROFILES_MAX),
            "clients and services that the node stores; the last used ones stay").at_start(keep!(NodeKeeps, observe.profiles_max)),
        key("bypass_for", Is("\"10m\""), Length(SECOND, MONTH),
            "how long the node forwards connections for which a relay got no answer while forwarding did"),
    ]),
    rows(&["packet"], One, &[
        key("flows", Is("65536"), Number(1024, PACKET_FLOWS_MAX),
            "flows of the packet path at a time; others are forwarded").at_start(keep!(NodeKeeps, packet.flows)),
        key("idle", Is("\"124m\""), Length(SECOND, MONTH),
            "how long a flow may be quiet; then the node probes both its ends, and resets them unless both answer"),
    ]),
    rows(&["half_open"], One, &[
        key("total", Is("4096"), Number(0, RELAYS_MAX), "in all").at_start(keep!(NodeKeeps, policy.half_open.total)),
        key("reserve", Computed("1024, at most a quarter of `total`"), Form("0 to `total`"),
            "of `total`, kept for client prefixes that completed a handshake before").at_start(keep!(NodeKeeps, policy.half_open.reserve)),
        key("per_prefix", Is("256"), Number(0, RELAYS_MAX),
            "for one client prefix (IPv4 /24, IPv6 /64), at each worker"),
        key("expiry", Is("\"5s\""), Length(SECOND, MINUTES_5),
            "how long a client may take; then the server gets a reset"),
    ]),
    rows(&["rule"], Named, &[
        key("name", Required, NAME, "shown in logs and lists"),
    ]),
    rows(&["route"], Numbered, &[
        key("chains", Is("[]"), Form("names of chains that begin with a peer of this node, each once"), "the best first").list(),
        key("direct", Is("true"), Switch, "if no chain is available: go directly, or refuse the flow"),
        key("transfer_size", Computed("none"), TRANSFER, "instead of the two: the flow takes the plan's chain for transfers of this size"),
    ]),
    rows(&["rule", "route"], Named, &[
        key("destinations", Computed("all"), Form("prefixes or addresses; no bits set behind a prefix"),
            "of the original destination").list(),
        key("sources", Computed("all"), Form("likewise"), "of the client").list(),
        key("ports", Computed("all"), Form("ports, and ranges such as `\"8000-8999\"`; 1 to 65535"),
            "of the original destination").list(),
    ]),
    rows(&["rule"], Named, &[
        key("action", Is("\"relay\""), Words(&["relay", "forward", "reject"]),
            "split the connection; leave it to IP forwarding; answer its SYN with a reset"),
    ]),
    rows(&["defaults"], One, &[
        key("strict_after_failure", Is("\"60s\""), Length(Duration::ZERO, MONTH),
            "`[defaults]` only: how long a destination (address and port) that failed in early mode is treated as strict, \
             unless it answers before"),
    ]),
    rows(&["defaults", "rule"], One, &[
        key("accept", Is("\"early\""), Words(&AcceptMode::NAMES), "when the client is answered, see below"),
        key("observe", Is("true"), Switch, "relay only what was [observed](#observe) to work"),
        key("data_path", Is("\"auto\""), Words(&["auto", "packet", "socket"]),
            "by the length of answers, translated [packet by packet](#packet-path), or through sockets of the node"),
        key("bypass", Is("\"off\""), Words(&["off", "auto", "always"]),
            "a relay that no longer makes its connection faster [leaves it](#bypass) to the packet path; `always`: also one that repairs losses"),
        key("multipath", Is("\"pass\""), Words(&["convert", "pass", "off"]),
            "connections of Multipath TCP: answered by the node [for a server with TCP](#multipath), left to the server, or relayed as TCP"),
        key("upstream_multipath", Is("false"), Switch, "the node requests Multipath TCP from servers; those without answer with TCP"),
        key("source_address", Is("\"auto\""), Words(&["auto", "client", "node"]),
            "the address that the server sees: the client's address and port, or an address of this host"),
    ]),
    rows(&["rule"], Named, &[
        key("proxy_protocol", Is("false"), Switch,
            "sends the server the client's address by the PROXY protocol, version 2, before the first byte"),
        key("transfer_size", Computed("learned"), TRANSFER,
            "the assumed size of a connection when a controller's plan chooses its chain"),
    ]),
    rows(SIDES, One, &[
        key("congestion", Is("\"auto\""), CONGESTION, "`bbr`, `cubic` ..."),
    ]),
    rows(&["peer.socket"], One, &[
        key("congestion", Computed("`posthaste`; `cubic` with `transport = \"mptcp\"`"), CONGESTION, "as in `[defaults.upstream]`; `posthaste` is [for hops](#congestion-control-of-hops)"),
    ]),
    rows(SIDES_AND_HOPS, One, &[
        key("initial_window", Is("\"auto\""), Or(&Number(1, 1000), "auto"), "first congestion window in segments"),
        key("send_buffer", Is("\"auto\""), Or(&Size(4096, GIBIBYTE), "auto"), "`SO_SNDBUF`"),
        key("receive_buffer", Is("\"auto\""), Or(&Size(4096, GIBIBYTE), "auto"), "`SO_RCVBUF`"),
        key("notsent_lowat", Is("\"128KiB\""), Size(1, GIBIBYTE),
            "`TCP_NOTSENT_LOWAT`: how much may wait unsent in the kernel"),
        key("keepalive_idle", Is("\"180s\""), Or(&Length(SECOND, KEEPALIVE_MAX), "0s"), "idle time before the first probe"),
        key("keepalive_interval", Is("\"60s\""), Length(SECOND, KEEPALIVE_MAX), "between probes"),
        key("keepalive_probes", Is("121"), Number(1, PROBES_MAX),
            "consecutive probes without an answer that end the relay"),
        key("user_timeout", Is("\"0s\""), Or(&Length(USER_TIMEOUT_MIN, USER_TIMEOUT_MAX), "0s"),
            "how long bytes in flight may stay unacknowledged (`TCP_USER_TIMEOUT`)"),
    ]),
    rows(&["defaults.timeouts", "rule.timeouts"], One, &[
        key("connect", Is("\"30s\""), Length(MILLISECONDS_10, Duration::from_secs(600)),
            "the server has not answered the SYN"),
        key("idle", Is("\"1d\""), Length(MILLISECONDS_10, MONTH), "no byte moved in either direction"),
        key("client-fin", Is("\"1d\""), Length(MILLISECONDS_10, MONTH),
            "the client closed its direction, and the node received neither a byte nor the server's FIN since"),
        key("server-fin", Is("\"1d\""), Length(MILLISECONDS_10, MONTH),
            "the server has closed its direction, likewise"),
    ]),
    rows(&["listener"], Many, &[
        key("mode", Is("\"explicit\""), Words(&["explicit", "fixed"]), "`explicit`: peers and clients request a relay by RFC 8803"),
        key("address", Is("\"127.0.0.1:4480\""), Form("an IPv4 or IPv6 address and port; each once"), "where to listen"),
        key("destination", Computed("none: required with `fixed`"), Form("an IPv4 or IPv6 address and port, no listener of this node"),
            "of either family, whichever `address` has"),
        key("multipath", Is("false"), Switch,
            "accepts [Multipath TCP](#multipath) as well as TCP, and no data in SYNs: peers should use another listener"),
    ]).at_start(Reload::NodeKeeps(keep_listeners)),
    rows(&["access"], One, &[
        key("clients", Is("[]"), PREFIXES, "clients that may send requests without a key, by their own address").list(),
        key("destinations", Is("[]"), PREFIXES, "destinations to which this node connects, and that are denied otherwise").list(),
        key("cookies", Is("false"), Switch,
            "clients without a key first have to prove, by a cookie, that they receive packets at their address"),
        key("cookie", Computed("none"), Form("1 to 64 printable ASCII characters without spaces"),
            "clients without a key have to send this text as their cookie"),
        key("allow_lookup", Is("[]"), Form("names of `[[peer]]`"), "peers that [hold no plan](chains.md#a-node-without-a-plan)").list(),
    ]),
    rows(&["measure"], One, &[
        key("enabled", Is("true"), Switch,
            "whether this node measures its peers, and answers probes").at_start(keep!(NodeKeeps, measure.enabled)),
        key("reflector", Computed("port 862 at each address of the explicit listeners, if there is a peer"),
            Form("addresses and ports, each once; `[]` for none"),
            "where it answers").list().at_start(keep!(NodeKeeps, measure.reflectors)),
        key("open_to", Is("[]"), PREFIXES, "sources that receive answers to probes without an authentication tag").list(),
        key("interval", Is("\"10s\""), Length(INTERVAL_MIN, HOUR), "between two probes of a link"),
        key("interval_in_use", Computed("`\"1s\"`, at most `interval`"), Form("`\"100ms\"` to `interval`"),
            "between two probes of a link that flows took in the last minute"),
        key("source_ports", Is("4"), Number(1, PORTS_MAX), "number of ports that probes use in turn"),
    ]),
    rows(&["controller"], One, &[
        key("address", Required, ADDRESS, "where the controller listens"),
        key("key", Required, HEX, "the Ed25519 public key of the controller, as `posthaste keys public` prints it"),
        key("identity_file", Required, Form("the absolute path of a file with 64 hexadecimal digits"), "this node's own secret"),
        key("state", Is("\"/var/lib/posthaste\""), PATH, "the directory of the last plan and the keys of other nodes"),
        key("transfer_size", Is("\"64KiB\""), TRANSFER, "the assumed size of a connection if no rule or route sets it"),
    ]).at_start(keep!(NodeKeeps, follow)),
    rows(&["controller"], One, &[
        key("lookup", Computed("none"), Form("the name of a `[[peer]]` with a key"),
            "a node that [looks up the next hop](chains.md#a-node-without-a-plan) of each flow without a route"),
    ]),
    rows(&["peer"], Named, &[
        key("name", Required, NAME, "shown in logs and lists"),
        key("id", Required, Form("its `node.id`; used once, and not this node's"), "its number"),
        key("address", Required, ADDRESS, "its explicit listener"),
        key("key", Computed("none: this or `key_file` is required"), HEX, "the key that the two nodes share"),
        key("key_file", Computed("none: this or `key` is required"),
            Form("the absolute path of a file with 64 hexadecimal digits"), "a file with the key"),
        key("key_id", Is("1"), Number(0, u32::MAX), "which of their keys it is; the same at both"),
        key("other_key", Computed("none"), HEX, "another key that the peer may use, and this node does not"),
        key("other_key_file", Computed("none"), Form("the absolute path of a file with 64 hexadecimal digits"),
            "a file with that key"),
        key("other_key_id", Computed("none: required with another key"), Number(0, u32::MAX), "which of their keys that is"),
        key("header_in", Is("\"stream\""), Words(&["stream", "syn-option"]), "what carries chain headers over cold hops"),
        key("transport", Is("\"tcp\""), Words(&["tcp", "mptcp", "quic", "quic-only", "auto"]), "what carries hops to it"),
        key("rate_limit", Computed("none"), Form("\"1Mbit/s\" to \"34Gbit/s\""), "what this node sends over hops to it at most"),
        key("source_addresses", Computed("the address in `address`"), Form("at most 4 addresses"),
            "addresses from which this node accepts the peer's options").list(),
        key("pool_min", Computed("2, at most `pool_max`"), Form("0 to `pool_max`"), "warm hops that each worker keeps open"),
        key("pool_max", Is("64"), Number(0, POOL_MAX), "warm hops that wait at each worker, at the most; 0 for none"),
        key("reflector", Computed("port 862 of the address in `address`"), Or(&ADDRESS, "off"), "where the peer answers probes"),
    ]),
    rows(&["chain"], Named, &[
        key("name", Required, NAME, "shown in logs and lists"),
        key("nodes", Required, Form("1 to 8 names of peers or ids of nodes, each once"), "the nodes after the first, in order").list(),
    ]),
];

const NODE_ID_WORDS: &str = "1 to 65534";
/// The number of a node.
pub(super) const NODE_ID: super::Accepted = Form(NODE_ID_WORDS);

/// Peers identify this node by the former number, so all sections about other nodes wait for it.
fn keep_number(now: &Config, next: &mut Config) -> bool {
    let is_same = now.policy.chains.me == next.policy.chains.me;
    // Otherwise requests to the peers would contain a number for which they have no key.
    if !is_same {
        next.policy.chains.clone_from(&now.policy.chains);
        next.spelling.clone_from(&now.spelling);
        let former = &now.measure.reflectors_of_peers;
        next.measure.reflectors_of_peers.clone_from(former);
    }
    is_same
}

fn keep_listeners(now: &Config, next: &mut Config) -> bool {
    let is_same = now.explicit == next.explicit
        && now.fixed == next.fixed
        && now.multipath_listeners == next.multipath_listeners;
    next.multipath_listeners
        .clone_from(&now.multipath_listeners);
    next.explicit.clone_from(&now.explicit);
    next.fixed.clone_from(&now.fixed);
    is_same
}
