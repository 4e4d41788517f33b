// SPDX-License-Identifier: Apache-2.0
//! Conflicts between a configuration and the host: interfaces that cannot relay, and addresses that
//! the host lacks. Reported by `check`, `doctor` and a starting node.

use std::fmt;
use std::net::SocketAddr;

use posthaste_relay::sys;

use super::links::{Framing, Link, links};
use posthaste_config::{Config, Transparent};

/// A conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) what: String,
    /// The fix.
    pub(crate) fix: String,
    /// Whether it keeps a node from starting.
    pub(crate) is_fatal: bool,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.fix)
    }
}

/// All conflicts with this host. Unknown properties of the host are skipped.
pub(crate) fn conflicts(config: &Config) -> Vec<Conflict> {
    let mut all = match links() {
        Ok(links) => gaps(&config.transparent, &links),
        Err(_) => Vec::new(),
    };
    let fixed = config.fixed.iter().map(|fixed| fixed.address);
    let listeners = config.explicit.iter().copied().chain(fixed);
    let listeners = listeners.map(|address| ("listener.address", address));
    let metrics = config.metrics.map(|address| ("metrics.listen", address));
    let addresses = listeners.chain(metrics);
    let lacking = addresses.filter(|(_, address)| !sys::is_own_address(address.ip()));
    all.extend(lacking.map(|(key, address)| lacking_address(key, address)));
    all
}

fn lacking_address(key: &str, address: SocketAddr) -> Conflict {
    Conflict {
        what: format!(
            "{key} = \"{address}\": this host has no address {}",
            address.ip()
        ),
        fix: "a node does not start without it; ip address shows those there are".into(),
        is_fatal: true,
    }
}

/// The configured interfaces that cannot relay, or not as intended.
pub(crate) fn gaps(wanted: &Transparent, links: &[Link]) -> Vec<Conflict> {
    let names = &wanted.interfaces;
    // Without names the node intercepts on all interfaces that can be intercepted.
    if !wanted.enabled || names.is_empty() {
        return Vec::new();
    }
    let mut found: Vec<Conflict> = names.iter().filter_map(|name| gap(name, links)).collect();
    let usable: Vec<&Link> = links
        .iter()
        .filter(|link| wanted.wants(&link.name) && obstacle(link, links).is_none())
        .collect();
    match usable.as_slice() {
        [] => found.push(Conflict {
            what: "no interface that transparent.interfaces names can be intercepted: nothing is relayed".into(),
            fix: "name the interfaces on both sides of the path; ip link shows those there are"
                .into(),
            is_fatal: false,
        }),
        [only] => found.push(alone(only, links)),
        _ => {}
    }
    found
}

/// Why the interface of this name cannot relay.
fn gap(name: &str, links: &[Link]) -> Option<Conflict> {
    let Some(link) = links.iter().find(|link| link.name == name) else {
        return Some(Conflict {
            what: format!("transparent.interfaces: there is no interface {name} on this host"),
            fix: "a node does not start without it; ip link shows those there are".into(),
            is_fatal: true,
        });
    };
    obstacle(link, links)
}

/// The same for an existing interface.
fn obstacle(link: &Link, links: &[Link]) -> Option<Conflict> {
    let name = &link.name;
    if link.is_port() {
        return Some(port(link, links));
    }
    // The programs can parse Ethernet frames, and packets without a link layer header, only.
    if let Framing::Other(kind) = link.framing {
        return Some(Conflict {
            what: format!("{name}: frames of ARPHRD type {kind} cannot be intercepted"),
            fix: "its flows are forwarded; name the others in transparent.interfaces".into(),
            is_fatal: false,
        });
    }
    (!link.up).then(|| Conflict {
        what: format!("{name} is down: nothing is relayed by it"),
        fix: format!("ip link set {name} up"),
        is_fatal: false,
    })
}

/// A port hands its packets to its master, which is the interface for forwarding.
fn port(link: &Link, links: &[Link]) -> Conflict {
    let (name, kind) = (&link.name, link.port_of.as_deref().unwrap_or_default());
    let master = links.iter().find(|other| Some(other.index) == link.master);
    let master = master.map_or_else(|| "its master".into(), |master| master.name.clone());
    let (why, instead) = match kind {
        "bridge" => (
            "packets between its ports are bridged, not routed",
            format!("if this host routes by the bridge, name {master} in its place"),
        ),
        "openvswitch" => (
            "packets between its ports are switched, not routed",
            "if this host routes by the switch, name its internal port that has the address".into(),
        ),
        _ => (
            "packets come and leave by the master",
            format!("name {master} in its place"),
        ),
    };
    Conflict {
        what: format!(
            "{name} is a port of {master} ({kind}): {why}, so nothing is relayed by {name}"
        ),
        fix: instead,
        is_fatal: false,
    }
}

/// Flows must leave by an intercepted interface as well, or the node would miss their answers.
fn alone(only: &Link, links: &[Link]) -> Conflict {
    let name = &only.name;
    let tagged: Vec<&str> = links
        .iter()
        .filter(|link| link.vlan_on == Some(only.index))
        .map(|link| link.name.as_str())
        .collect();
    let vlans = match tagged.as_slice() {
        [] => String::new(),
        some => format!(", and {} for tagged frames", some.join(", ")),
    };
    Conflict {
        what: format!(
            "of transparent.interfaces only {name} can be intercepted: flows that come and leave by {name} are relayed, and all others are forwarded"
        ),
        fix: format!(
            "unless {name} is both sides of the path, name the interface on the other side too{vlans}"
        ),
        is_fatal: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str) -> Link {
        Link {
            index,
            name: name.into(),
            framing: Framing::Ethernet,
            up: true,
            port_of: None,
            master: None,
            vlan_on: None,
            macvlan_on: None,
            bridge: None,
            paced: false,
        }
    }

    fn port_link(index: u32, name: &str, kind: &str, master: u32) -> Link {
        Link {
            port_of: Some(kind.into()),
            master: Some(master),
            ..link(index, name)
        }
    }

    fn message(names: &[&str], links: &[Link]) -> Vec<String> {
        let wanted = Transparent {
            interfaces: names.iter().map(|name| (*name).to_owned()).collect(),
            ..Transparent::default()
        };
        gaps(&wanted, links)
            .iter()
            .map(Conflict::to_string)
            .collect()
    }

    #[test]
    fn two_sides_fit() {
        let links = [link(2, "eth0"), link(3, "eth1"), link(4, "eth2")];
        assert_eq!(message(&["eth0", "eth1"], &links), [""; 0]);
        assert_eq!(message(&[], &links), [""; 0]);
        let off = Transparent {
            enabled: false,
            interfaces: vec!["eth9".into()],
            ..Transparent::default()
        };
        assert_eq!(gaps(&off, &links), []);
    }

    #[test]
    fn single_interface_turns_around() {
        let tagged = Link {
            vlan_on: Some(2),
            ..link(5, "eth0.10")
        };
        let links = [link(2, "eth0"), link(3, "eth1"), tagged];
        let [alone] = &message(&["eth0"], &links)[..] else {
            panic!("one sentence")
        };
        for words in ["only eth0", "come and leave by eth0", "eth0.10 for tagged"] {
            assert!(alone.contains(words), "{alone}");
        }
        assert!(!message(&["eth1"], &links)[0].contains("tagged"));
        // With two, one of them is down.
        let down = Link {
            up: false,
            ..link(3, "eth1")
        };
        let both = message(&["eth0", "eth1"], &[link(2, "eth0"), down]);
        assert!(
            both[0].contains("eth1 is down") && both[1].contains("only eth0"),
            "{both:?}"
        );
    }

    #[test]
    fn missing_or_bridged_interface() {
        let links = [
            link(2, "br0"),
            port_link(3, "eth0", "bridge", 2),
            link(4, "bond0"),
            port_link(5, "eth1", "bond", 4),
        ];
        let missing = message(&["eth7"], &links);
        assert!(missing[0].contains("no interface eth7"), "{missing:?}");
        assert!(missing[1].contains("nothing is relayed"), "{missing:?}");
        let ports = message(&["eth0", "eth1"], &links);
        assert!(
            ports[0].contains("eth0 is a port of br0 (bridge)"),
            "{ports:?}"
        );
        assert!(ports[0].contains("bridged, not routed"), "{ports:?}");
        assert!(ports[1].contains("name bond0 in its place"), "{ports:?}");
        assert!(ports[2].contains("nothing is relayed"), "{ports:?}");
        let master = message(&["br0", "bond0"], &links);
        assert_eq!(master, [""; 0]);
    }
}
