// SPDX-License-Identifier: Apache-2.0
//! The network interfaces of this host, and notifications of their changes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use posthaste_netlink::{Message, Netlink, attribute, attributes, text, u16_at, u32_at};

/// `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_GETLINK`.
const NEW: u16 = 16;
const GONE: u16 = 17;
const GET: u16 = 18;
/// Bytes of `struct ifinfomsg`.
const BODY_BYTES: usize = 16;
/// The multicast groups of interfaces, of IPv4 and IPv6 routing rules, and of IPv4
/// settings of interfaces.
const GROUPS: u32 = 1 | 1 << 7 | 1 << 18 | 1 << 23;
/// `RTM_DELRULE`.
const RULE_GONE: u16 = 33;
/// `IFF_UP`
const UP: u32 = 1;
/// `IFLA_IFNAME`, `IFLA_LINK`, `IFLA_QDISC`, `IFLA_MASTER`, `IFLA_LINKINFO`, and in it `IFLA_INFO_KIND`,
/// `IFLA_INFO_DATA` and `IFLA_INFO_SLAVE_KIND`.
const NAME: u16 = 3;
const BELOW: u16 = 5;
const QDISC: u16 = 6;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const KIND: u16 = 1;
const DATA: u16 = 2;
const PORT_KIND: u16 = 4;
/// `IFLA_BR_NF_CALL_IPTABLES`, `IFLA_BR_NF_CALL_IP6TABLES`: what a bridge carries passes the hooks
/// of the firewall for IP.
const BRIDGE_FILTERS: [u16; 2] = [36, 37];

/// The header that starts the frames of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// An Ethernet header.
    Ethernet,
    /// The IP header.
    Ip,
    /// Another header, by its ARPHRD number: cannot be intercepted.
    Other(u16),
}

impl Framing {
    fn of(hardware: u16) -> Self {
        match hardware {
            libc::ARPHRD_ETHER => Self::Ethernet,
            // TUN and WireGuard, PPP, modems, and IP in IP, GRE.
            libc::ARPHRD_NONE
            | libc::ARPHRD_PPP
            | 519
            | libc::ARPHRD_TUNNEL
            | libc::ARPHRD_TUNNEL6
            | libc::ARPHRD_SIT
            | libc::ARPHRD_IPGRE
            | 823 => Self::Ip,
            other => Self::Other(other),
        }
    }
}

/// One interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) framing: Framing,
    pub(crate) up: bool,
    /// The kind of its master (`bridge`, `bond`, `vrf`), if it is a port.
    pub(crate) port_of: Option<String>,
    /// The index of its master.
    pub(crate) master: Option<u32>,
    /// For a VLAN device, the index of the interface below.
    pub(crate) vlan_on: Option<u32>,
    /// The same for a macvlan, as VRRP uses them.
    pub(crate) macvlan_on: Option<u32>,
    /// For a bridge, whether a setting of its own has the firewall see what it carries
    /// (`br_netfilter`).
    pub(crate) bridge: Option<bool>,
    /// Whether its queueing discipline sends packets at the times that they bear.
    pub(crate) paced: bool,
}

impl Link {
    fn parse(body: &[u8]) -> Option<Self> {
        let mut link = Self {
            index: u32_at(body, 4)?,
            name: String::new(),
            framing: Framing::of(u16_at(body, 2)?),
            up: u32_at(body, 8)? & UP != 0,
            port_of: None,
            master: None,
            vlan_on: None,
            macvlan_on: None,
            bridge: None,
            paced: false,
        };
        let (mut below, mut is_vlan, mut is_macvlan) = (None, false, false);
        for (kind, value) in attributes(body.get(BODY_BYTES..)?) {
            match kind {
                NAME => link.name = text(value),
                BELOW => below = u32_at(value, 0),
                QDISC => link.paced = text(value) == "fq",
                MASTER => link.master = u32_at(value, 0),
                INFO => {
                    link.port_of = attribute(value, PORT_KIND).map(text);
                    let kind = attribute(value, KIND).map(text);
                    is_vlan = kind.as_deref() == Some("vlan");
                    is_macvlan = kind.as_deref() == Some("macvlan");
                    let data = attribute(value, DATA);
                    let is_bridge = kind.as_deref() == Some("bridge");
                    link.bridge = is_bridge.then(|| filters(data.unwrap_or_default()));
                }
                _ => (),
            }
        }
        // `IFLA_LINK` of a veth is its peer, and of a tunnel the underlay: neither carries its
        // tags.
        link.vlan_on = below.filter(|_| is_vlan);
        link.macvlan_on = below.filter(|_| is_macvlan);
        Some(link)
    }

    /// Whether packets reach IP forwarding under another interface: a port of a bridge or a bond
    /// hands them to its master.
    pub(crate) fn is_port(&self) -> bool {
        // Not `vrf`: its ports are routed themselves, and tc sees their packets there.
        let layer_two = ["bridge", "bond", "team", "openvswitch"];
        self.port_of
            .as_deref()
            .is_some_and(|kind| layer_two.contains(&kind))
    }
}

/// Whether a bridge's data (`IFLA_INFO_DATA`) has the firewall see what it carries.
fn filters(data: &[u8]) -> bool {
    let mut own = attributes(data).filter(|(kind, _)| BRIDGE_FILTERS.contains(kind));
    own.any(|(_, value)| value.first().is_some_and(|set| *set != 0))
}

/// Whether the firewall sees what any bridge of this network namespace carries. Without
/// `br_netfilter` there is no such setting.
pub(crate) fn bridges_filter() -> bool {
    ["iptables", "ip6tables"].iter().any(|family| {
        let setting = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
        std::fs::read_to_string(setting).is_ok_and(|set| set.trim() != "0")
    })
}

/// The current interfaces.
pub(crate) fn links() -> io::Result<Vec<Link>> {
    let mut found = Vec::new();
    Netlink::route()?.dump(Message::new(GET, 0, &[0; BODY_BYTES]), |kind, body| {
        found.extend(Link::parse(body).filter(|_| kind == NEW));
    })?;
    Ok(found)
}

/// A change of the interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkEvent {
    /// Added or changed.
    Present(Link),
    /// The interface with this index was removed.
    Gone(u32),
    /// A routing rule was removed, possibly the node's.
    RuleGone,
    /// A setting of an interface changed.
    Settings,
    /// Events were lost: call [`links`].
    Unknown,
}

/// A subscription to [`LinkEvent`]s. Its descriptor is readable when some are pending.
#[derive(Debug)]
pub(crate) struct LinkWatch(Netlink);

/// Subscribes. Earlier events are missing, so list the interfaces after subscribing.
pub(crate) fn watch_links() -> io::Result<LinkWatch> {
    Netlink::subscribed(GROUPS).map(LinkWatch)
}

impl LinkWatch {
    /// The pending events; `WouldBlock` when there are none.
    pub(crate) fn read(&self) -> io::Result<Vec<LinkEvent>> {
        let mut events = Vec::new();
        let read = self.0.notifications(|kind, body| match kind {
            NEW => events.extend(Link::parse(body).map(LinkEvent::Present)),
            GONE => events.extend(u32_at(body, 4).map(LinkEvent::Gone)),
            RULE_GONE => events.push(LinkEvent::RuleGone),
            super::reverse_path::NEW => events.push(LinkEvent::Settings),
            _ => (),
        });
        match read {
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                // The caller lists everything anew, so earlier events add nothing.
                Ok(vec![LinkEvent::Unknown])
            }
            Err(error) => Err(error),
            Ok(()) => Ok(events),
        }
    }
}

impl AsRawFd for LinkWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: u8) -> Vec<u8> {
        let head = [5_u16.to_ne_bytes(), kind.to_ne_bytes()].concat();
        [head, vec![value, 0, 0, 0]].concat()
    }

    #[test]
    fn filtering_bridge_recognized() {
        let data = |first, second| [attribute(36, first), attribute(37, second)].concat();
        assert!(!filters(&data(0, 0)));
        assert!(filters(&data(1, 0)) && filters(&data(0, 1)));
        assert!(!filters(&attribute(38, 1)));
    }
}
