// SPDX-License-Identifier: Apache-2.0
//! Networks for one row, configured by words that hold for both families.
//!
//! `LAN.7` is 10.1.0.7 in words for IPv4 and fd00:1::7 in those for IPv6; so for the other
//! [`NETS`]. The other words that differ are [`WORDS`]. A line of nft's words with `$80` is there once
//! for each [`Way`], with that way's port.

use std::collections::BTreeSet;
use std::net::IpAddr;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;
use posthaste_lab::process::wait_until;
use posthaste_lab::scratch::Scratch;

use super::server::Server;
use super::way::Way;
use crate::support::{SOON, firewall_script, talkative};

/// Networks by name, and the number in their prefixes.
const NETS: [(&str, u8); 7] = [
    ("LAN", 1),
    ("WAN", 2),
    ("DMZ", 3),
    ("ONE", 4),
    ("TWO", 5),
    ("MID", 6),
    ("NET", 9),
];

/// Words that differ, for IPv4 and IPv6. Longer ones stand before those that they contain.
const WORDS: [(&str, &str, &str); 9] = [
    // The length of a prefix of the nets, and that of one address.
    ("/LEN", "/24", "/64"),
    ("/ALL", "/32", "/128"),
    // An IPv6 address can be used at once only if nobody looks for a duplicate.
    ("address add", "address add", "address add nodad"),
    // Words of nft.
    ("ICMP", "icmp", "icmpv6"),
    ("ERRORS", "destination-unreachable", "packet-too-big"),
    ("IPADDR", "ipv4_addr", "ipv6_addr"),
    ("IP", "ip", "ip6"),
    ("[", "", "["),
    ("]", "", "]"),
];

/// Remembers between which addresses TCP packets reached a host.
const WATCH: &str = "table inet watched {
set pairs4 { type ipv4_addr . ipv4_addr; flags dynamic; size 4096; }
set pairs6 { type ipv6_addr . ipv6_addr; flags dynamic; size 4096; }
chain arriving {
type filter hook prerouting priority -310;
meta nfproto ipv4 meta l4proto tcp add @pairs4 { ip saddr . ip daddr }
meta nfproto ipv6 meta l4proto tcp add @pairs6 { ip6 saddr . ip6 daddr }
}
}";

/// The host on which the node is started.
pub(super) const ROUTER: &str = "router";

/// Hosts and the cables between them.
#[derive(Debug)]
pub(super) struct Testbed {
    servers: Vec<Server>,
    hosts: Vec<(&'static str, Namespace)>,
}

impl Testbed {
    /// Hosts without cables.
    pub(super) fn new(names: &[&'static str]) -> Self {
        let make = |name: &&'static str| (*name, Namespace::new().expect("root makes namespaces"));
        Self {
            servers: Vec::new(),
            hosts: names.iter().map(make).collect(),
        }
    }

    /// `client eth0 -- lan router wan -- eth0 server`. The client has the addresses LAN.2 to
    /// LAN.4, the server WAN.2 to WAN.4, the router LAN.1 and WAN.1. The server has no route to
    /// the LAN.
    pub(super) fn with_private_lan() -> Self {
        let mut testbed = Self::new(&["client", ROUTER, "server"]);
        testbed.cable(["client", "eth0"], [ROUTER, "lan"]);
        testbed.cable(["server", "eth0"], [ROUTER, "wan"]);
        let of_host = |net: &str| {
            let own = (2..=4).map(|host| format!("address add {net}.{host}/LEN dev eth0\n"));
            own.collect::<String>()
        };
        let route = "route add default via LAN.1";
        testbed.ip("client", &format!("{}{route}", of_host("LAN")));
        testbed.ip("server", &of_host("WAN"));
        testbed.ip(
            ROUTER,
            "address add LAN.1/LEN dev lan\naddress add WAN.1/LEN dev wan",
        );
        testbed.forward(ROUTER);
        testbed.serve("server", &[80, 81]);
        testbed
    }

    /// The same with a server that sends what is for the LAN to the router.
    pub(super) fn with_routed_lan() -> Self {
        let testbed = Self::with_private_lan();
        testbed.ip("server", "route add default via WAN.1");
        testbed
    }

    /// A host by its name.
    pub(super) fn host(&self, name: &str) -> &Namespace {
        let mut hosts = self.hosts.iter();
        let found = hosts.find(|(candidate, _)| *candidate == name);
        &found
            .unwrap_or_else(|| panic!("the site has no host {name}"))
            .1
    }

    /// Joins two hosts, each given with the name of its interface.
    pub(super) fn cable(&self, left: [&str; 2], right: [&str; 2]) {
        let ([left, near], [right, far]) = (left, right);
        let other = self.host(right).name();
        let lines = [
            format!("link add {near} type veth peer name {far} netns {other}"),
            format!("link set {near} up"),
        ];
        let made = self.host(left).ip_batch(&lines);
        made.expect("root makes cables");
        let up = self.host(right).ip(&format!("link set {far} up"));
        up.expect("an interface can be used");
    }

    /// Carries out `ip` commands, one a line without the word `ip`, for each family.
    pub(super) fn ip(&self, host: &str, lines: &str) {
        for (family, option) in Family::ALL.into_iter().zip(["-4", "-6"]) {
            let words = words(lines, family);
            let directory = Scratch::new().expect("a directory for the commands");
            let file = directory.path().join("commands");
            std::fs::write(&file, &words).expect("the commands can be written");
            let mut command = self.host(host).command("ip").expect("an open namespace");
            let output = command.args([option, "-batch"]).arg(&file).output();
            let output = output.expect("ip (package iproute2) can be run");
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{host}: {stderr}\n{words}");
        }
    }

    /// Waits until a host has dropped the connections that it masqueraded with an address that it lost. The kernel
    /// does so in a worker, on a busy machine seconds later.
    pub(super) fn wait_untracked(&self, host: &str, address: &str) {
        let parsed = |family| words(address, family).parse().expect("an address");
        let lost: [IpAddr; 2] = Family::ALL.map(parsed);
        let masquerades = |line: &str| {
            let named = |name| {
                line.split(' ')
                    .filter_map(move |word| word.strip_prefix(name))
            };
            let [from, to] = ["src=", "dst="]
                .map(|name| named(name).flat_map(str::parse).collect::<Vec<IpAddr>>());
            // Of what came from the client, and of the answers.
            to.len() == 2 && lost.contains(&to[1]) && from[0] != to[1]
        };
        let tracked = || std::fs::read_to_string("/proc/thread-self/net/nf_conntrack");
        let dropped = wait_until("dropped connections", SOON, || {
            let lines = self.host(host).run_in(tracked);
            let lines = lines.expect("the kernel shows what it tracks");
            !lines.lines().any(masquerades)
        });
        dropped.expect("the kernel drops what it cannot answer any more");
    }

    /// Has nft carry out a script on a host, for each family.
    pub(super) fn nft(&self, host: &str, script: &str) {
        let both = Family::ALL.map(|family| of_all_ways(&words(script, family)));
        firewall_script(self.host(host), &both.join("\n"));
    }

    /// Sets a sysctl, named with dots.
    pub(super) fn sysctl(&self, host: &str, key: &str, value: &str) {
        let set = self.host(host).sysctl(key, value);
        set.expect("a namespace has its own settings");
    }

    /// Makes a host a router, one that reports every packet that it cannot deliver.
    pub(super) fn forward(&self, host: &str) {
        self.sysctl(host, "net.ipv4.ip_forward", "1");
        self.sysctl(host, "net.ipv6.conf.all.forwarding", "1");
        talkative(std::slice::from_ref(self.host(host)));
    }

    /// Serves on each way's ports of all addresses of a host.
    pub(super) fn serve(&mut self, host: &str, ports: &[u16]) {
        let of_way = |way: Way| ports.iter().map(move |port| way.port(*port));
        let ports: Vec<_> = Way::ALL.into_iter().flat_map(of_way).collect();
        let server = Server::start(self.host(host), &ports);
        self.servers.push(server);
    }

    /// Begins to remember which addresses meet at the hosts that the node is not on.
    pub(super) fn watch(&self) {
        for (_, host) in self.others() {
            firewall_script(host, WATCH);
        }
    }

    /// Between which addresses TCP packets reached a host since [`Testbed::watch`].
    pub(super) fn watched(&self) -> BTreeSet<String> {
        let mut pairs = BTreeSet::new();
        for (name, host) in self.others() {
            let mut command = host.command("nft").expect("an open namespace");
            let output = command.args(["list", "table", "inet", "watched"]).output();
            let text = output.expect("nft (package nftables) can be run").stdout;
            let text = String::from_utf8(text).expect("nft prints text");
            let lists = text
                .split("elements = {")
                .skip(1)
                .map(|rest| rest.split('}').next());
            let elements = lists.flatten().flat_map(|list| list.split(','));
            pairs.extend(elements.map(|pair| format!("at {name}: {}", pair.trim())));
        }
        pairs
    }

    fn others(&self) -> impl Iterator<Item = &(&'static str, Namespace)> {
        self.hosts.iter().filter(|(name, _)| *name != ROUTER)
    }
}

/// Words for both families as those of one.
fn words(template: &str, family: Family) -> String {
    let v4 = family == Family::V4;
    let mut words = template.to_owned();
    for (net, number) in NETS {
        let prefix = match v4 {
            true => format!("10.{number}.0."),
            false => format!("fd00:{number}::"),
        };
        words = words.replace(&format!("{net}."), &prefix);
    }
    for (word, of_v4, of_v6) in WORDS {
        words = words.replace(word, if v4 { of_v4 } else { of_v6 });
    }
    words
}

/// Each line with a port such as `$80` once for each way, the others as they are.
fn of_all_ways(script: &str) -> String {
    let of_way = |line: &str, way: Way| {
        let mut parts = line.split('$');
        let mut own = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_digit());
            let (port, rest) = part.split_at(end.unwrap_or(part.len()));
            let port = way.port(port.parse().expect("a port"));
            own += &format!("{port}{rest}");
        }
        own + "\n"
    };
    let of_line = |line: &str| match line.contains('$') {
        true => Way::ALL.map(|way| of_way(line, way)).concat(),
        false => format!("{line}\n"),
    };
    script.lines().map(of_line).collect()
}

/// An address such as `LAN.7`.
pub(super) fn address(template: &str, family: Family) -> IpAddr {
    let words = words(template, family);
    words
        .parse()
        .unwrap_or_else(|_| panic!("{template} is no address"))
}
