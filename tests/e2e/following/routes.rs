// SPDX-License-Identifier: Apache-2.0
//! The ways between the hosts of a scene, and what becomes of them.

use std::net::IpAddr;

use posthaste_control::message::NodeNumber;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};

use super::fixture::{Fixture, SERVERS};
use crate::support::{firewall, remove_firewall};

/// The link between two and three, which the lab's lines do not have.
const SHORT: [[&str; 2]; 2] = [["10.1.0.1", "10.1.0.2"], ["fd01::1", "fd01::2"]];
/// The link between one and the controller, likewise.
pub(super) const CONTROL: [[&str; 2]; 2] = [["10.2.0.1", "10.2.0.2"], ["fd02::1", "fd02::2"]];

impl Fixture {
    /// Has the way between one and two be that by three: 60 ms instead of 10.
    pub(super) fn lengthen(&self) {
        for (place, family) in Family::ALL.into_iter().enumerate() {
            let three = self.address(3, family);
            let [_, by_three] = SHORT[place];
            let routes = [
                (1, self.address(2, family), three.to_string()),
                (2, self.address(1, family), by_three.to_owned()),
                (2, self.calling_two(family), by_three.to_owned()),
            ];
            for (host, to, by) in routes {
                let route = format!("route add {to} via {by}");
                self.host(host).ip(&route).expect("a route");
            }
        }
    }

    /// Undoes [`Self::lengthen`].
    pub(super) fn shorten(&self) {
        for family in Family::ALL {
            let routes = [
                (1, self.address(2, family)),
                (2, self.address(1, family)),
                (2, self.calling_two(family)),
            ];
            for (host, to) in routes {
                let route = format!("route del {to}/{}", if to.is_ipv4() { 32 } else { 128 });
                self.host(host).ip(&route).expect("the route was there");
            }
        }
    }

    /// From which address one calls two.
    fn calling_two(&self, family: Family) -> IpAddr {
        let text = self.network.aside_address(0, family).to_string();
        let (net, _) = text.rsplit_once(['.', ':']).expect("an address");
        let sign = if family == Family::V4 { "." } else { ":" };
        let text = format!("{net}{sign}1");
        text.parse().expect("an address")
    }

    /// Lets nothing through between a host and some addresses, until [`Self::restore`].
    pub(super) fn cut(&self, host: NodeNumber, others: &[IpAddr]) {
        let rules = |word: &str| {
            let rules = others.iter().map(|other| {
                let family = if other.is_ipv4() { "ip" } else { "ip6" };
                format!("{family} {word} {other} drop\n")
            });
            rules.collect::<String>()
        };
        let hooks = [("input", rules("saddr")), ("output", rules("daddr"))];
        let hooks = hooks
            .each_ref()
            .map(|(hook, rules)| (*hook, rules.as_str()));
        firewall(self.host(host), "cut", &hooks);
    }

    /// Gives two a way of its own to the servers, by three, so that it can connect to them.
    pub(super) fn lead_to_servers(&self) {
        for (place, family) in Family::ALL.into_iter().enumerate() {
            let [_, by_three] = SHORT[place];
            let (to, from) = (SERVERS[place], self.address(2, family));
            let route = format!("route add {to} via {by_three} src {from}");
            self.host(2).ip(&route).expect("a route");
        }
    }

    /// Where nodes find the controller.
    pub(super) fn controller(&self) -> Vec<IpAddr> {
        let addresses = CONTROL.map(|[_, it]| it.parse().expect("an address"));
        addresses.to_vec()
    }

    /// Undoes what was done to a host by [`Self::cut`].
    pub(super) fn restore(&self, host: NodeNumber) {
        remove_firewall(self.host(host), "cut");
    }
}

/// Adds what a line does not have: the short way between two and three, and the controller.
pub(super) fn join(network: &Network, controller: &Namespace) {
    let (one, two, three) = (network.node(0), network.aside(0), network.node(1));
    cable(
        (two, "x3", SHORT.map(|[two, _]| two)),
        (three, "x2", SHORT.map(|[_, three]| three)),
    );
    cable(
        (one, "k", CONTROL.map(|[one, _]| one)),
        (controller, "k", CONTROL.map(|[_, it]| it)),
    );
    for (place, family) in Family::ALL.into_iter().enumerate() {
        let [at_two, at_three] = [
            network.aside_address(0, family),
            network.node_address(1, family),
        ];
        let [by_two, by_three] = SHORT[place];
        let [by_one, at_controller] = CONTROL[place];
        let far = network.calling_address(0, family);
        let routes = [
            (two, format!("{at_three} via {by_three} src {at_two}")),
            (three, format!("{at_two} via {by_two} src {at_three}")),
            (three, format!("{at_controller} via {far}")),
            (controller, format!("default via {by_one}")),
        ];
        for (host, route) in routes {
            host.ip(&format!("route add {route}")).expect("a route");
        }
    }
}

/// Joins two hosts by a cable: host, name of the interface, and both addresses of each.
fn cable(one: (&Namespace, &str, [&str; 2]), other: (&Namespace, &str, [&str; 2])) {
    let (name, other_name, other_host) = (one.1, other.1, other.0.name());
    let link = format!("link add {name} type veth peer name {other_name} netns {other_host}");
    one.0.ip(&link).expect("a cable");
    for (host, name, [v4, v6]) in [one, other] {
        host.ip_batch(&[
            format!("address add {v4}/24 dev {name}"),
            format!("address add {v6}/64 dev {name} nodad"),
            format!("link set {name} up"),
        ])
        .expect("addresses");
    }
}
