// SPDX-License-Identifier: Apache-2.0
//! The rule and the route that deliver redirected packets to this host:
//!
//! ```text
//! ip rule  add priority 180 fwmark MARK/MARK lookup TABLE protocol 180
//! ip route add local default dev lo table TABLE protocol 180
//! ```
//!
//! for each family. The protocol number identifies them: exactly the rules and routes with it are
//! removed, whatever their mark and table, so that a node with a new configuration finds what an
//! old one left.

use std::io;
use std::net::IpAddr;

use anyhow::{Context, bail};

use super::Report;
use posthaste_config::Transparent;
use posthaste_netlink::{CREATE, Message, Netlink, attribute, attributes, u32_at};

/// Routing protocol number of nodes' rules and routes (not in `/etc/iproute2/rt_protos`).
pub(crate) const PROTOCOL: u8 = 180;
/// Priority of the node's rule: after the table `local`, before `main` and the rules of VPNs.
pub(crate) const PRIORITY: u32 = 180;

/// `RTM_NEWROUTE` and its two followers.
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
/// `RTM_NEWRULE` and its two followers.
const NEW_RULE: u16 = 32;
const DELETE_RULE: u16 = 33;
const GET_RULE: u16 = 34;
/// Bytes of `struct fib_rule_hdr` and of `struct rtmsg`.
const RULE_BODY_BYTES: usize = 12;
const ROUTE_BODY_BYTES: usize = 12;
/// `FR_ACT_TO_TBL`
const LOOKUP: u8 = 1;
/// `RTN_LOCAL`, `RT_SCOPE_HOST`
const LOCAL: u8 = 2;
const SCOPE_HOST: u8 = 254;
/// Attributes of rules: `FRA_PRIORITY` and so on.
const RULE_INCOMING: u16 = 3;
const RULE_PRIORITY: u16 = 6;
const RULE_MARK: u16 = 10;
const RULE_TABLE: u16 = 15;
const RULE_MASK: u16 = 16;
const RULE_PROTOCOL: u16 = 21;
/// Attributes of routes: `RTA_OIF` and so on.
const ROUTE_DEVICE: u16 = 4;
const ROUTE_TABLE: u16 = 15;
/// `lo` is the first interface of every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) const BOTH: [Self; 2] = [Self::V4, Self::V6];

    pub(super) fn of(ip: IpAddr) -> Self {
        if ip.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// `AF_INET` or `AF_INET6`.
    pub(super) fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }

    /// `IPv4` or `IPv6`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// One policy routing rule of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) family: Family,
    pub(crate) priority: u32,
    pub(crate) mark: u32,
    pub(crate) mask: u32,
    pub(crate) table: u32,
    pub(crate) protocol: u8,
    /// Whether it matches by source address, and by input interface.
    pub(crate) by_source: bool,
    pub(crate) by_interface: bool,
    /// The body and attributes from the kernel.
    pub(crate) message: Vec<u8>,
}

impl Rule {
    fn parse(family: Family, body: &[u8]) -> Option<Self> {
        let mut rule = Self {
            family,
            priority: 0,
            mark: 0,
            mask: 0,
            table: u32::from(*body.get(4)?),
            protocol: 0,
            // The length of the source prefix.
            by_source: *body.get(2)? != 0,
            by_interface: false,
            message: body.to_vec(),
        };
        for (kind, value) in attributes(body.get(RULE_BODY_BYTES..)?) {
            let number = u32_at(value, 0);
            match kind {
                RULE_INCOMING => rule.by_interface = true,
                RULE_PRIORITY => rule.priority = number?,
                RULE_MARK => rule.mark = number?,
                RULE_MASK => rule.mask = number?,
                RULE_TABLE => rule.table = number?,
                RULE_PROTOCOL => rule.protocol = *value.first()?,
                _ => (),
            }
        }
        Some(rule)
    }

    /// Whether a node installed it.
    pub(crate) fn is_ours(&self) -> bool {
        self.protocol == PROTOCOL && self.mask != 0
    }
}

/// Installs rule and route for both families. Existing ones stay.
///
/// If a step fails, the steps before it are reverted.
pub(super) fn install(wanted: &Transparent, report: &mut Report) -> anyhow::Result<()> {
    let mut netlink = Netlink::route().context("open a netlink socket")?;
    for family in Family::BOTH {
        if family == Family::V6 && !ipv6_enabled() {
            report
                .notes
                .push("IPv6 is off on this host: no IPv6 flow is relayed".into());
            continue;
        }
        let installed = install_route(&mut netlink, family, wanted, report)
            .and_then(|()| install_rule(&mut netlink, family, wanted, report));
        if let Err(error) = installed {
            // Only if something was added: removal goes by protocol number, and would take another
            // node's.
            if !report.done.is_empty() {
                remove(&mut Report::default())?;
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Removes every rule and route with the node's protocol number.
pub(super) fn remove(report: &mut Report) -> anyhow::Result<()> {
    let mut netlink = Netlink::route().context("open a netlink socket")?;
    for family in Family::BOTH {
        let ours = rules(&mut netlink, family).context("list routing rules")?;
        for rule in ours.into_iter().filter(Rule::is_ours) {
            let what = rule_text(family, rule.mark, rule.table);
            delete(&mut netlink, DELETE_RULE, &rule.message)
                .with_context(|| format!("remove the {what}"))?;
            report.done.push(format!("removed the {what}"));
        }
        let ours = our_routes(&mut netlink, family).context("list routes")?;
        for route in ours {
            let what = route_text(family, route_table(&route));
            delete(&mut netlink, DELETE_ROUTE, &route)
                .with_context(|| format!("remove the {what}"))?;
            report.done.push(format!("removed the {what}"));
        }
    }
    Ok(())
}

/// The rules of a family; empty if the kernel lacks the family.
pub(super) fn rules(netlink: &mut Netlink, family: Family) -> io::Result<Vec<Rule>> {
    let mut body = [0; RULE_BODY_BYTES];
    body[0] = family.number();
    let mut found = Vec::new();
    let listed = netlink.dump(Message::new(GET_RULE, 0, &body), |_, body| {
        found.extend(Rule::parse(family, body).filter(|_| body.first() == Some(&family.number())));
    });
    absent_family_is_empty(listed)?;
    Ok(found)
}

/// Whether the table has a route that no node installed.
pub(super) fn table_in_use(netlink: &mut Netlink, family: Family, table: u32) -> io::Result<bool> {
    let mut foreign = false;
    let listed = netlink.dump(routes_request(family, 0), |_, body| {
        foreign |= route_table(body) == table && body.get(5) != Some(&PROTOCOL);
    });
    absent_family_is_empty(listed)?;
    Ok(foreign)
}

/// Whether IPv6 packets can be delivered through `lo`.
pub(super) fn ipv6_enabled() -> bool {
    // A kernel without IPv6 has no such file.
    let off = std::fs::read_to_string("/proc/sys/net/ipv6/conf/lo/disable_ipv6");
    off.is_ok_and(|value| value.trim() == "0")
}

fn install_rule(
    netlink: &mut Netlink,
    family: Family,
    wanted: &Transparent,
    report: &mut Report,
) -> anyhow::Result<()> {
    let what = rule_text(family, wanted.mark, wanted.table);
    let mut body = [0; RULE_BODY_BYTES];
    body[0] = family.number();
    body[7] = LOOKUP;
    let message = Message::new(NEW_RULE, CREATE, &body)
        .attribute(RULE_PRIORITY, &PRIORITY.to_ne_bytes())
        .attribute(RULE_MARK, &wanted.mark.to_ne_bytes())
        // The other bits of a packet's mark belong to other programs.
        .attribute(RULE_MASK, &wanted.mark.to_ne_bytes())
        .attribute(RULE_TABLE, &wanted.table.to_ne_bytes())
        .attribute(RULE_PROTOCOL, &[PROTOCOL]);
    match netlink.request(message) {
        // The kernel compares the protocol number too: the rule is a node's.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => report.unchanged.push(what),
        added => {
            added.with_context(|| format!("add the {what}"))?;
            report.done.push(format!("added the {what}"));
        }
    }
    Ok(())
}

fn install_route(
    netlink: &mut Netlink,
    family: Family,
    wanted: &Transparent,
    report: &mut Report,
) -> anyhow::Result<()> {
    let what = route_text(family, wanted.table);
    // family, dst_len, src_len, tos, table, protocol, scope, type, flags
    let mut body = [0; ROUTE_BODY_BYTES];
    body[0] = family.number();
    (body[5], body[6], body[7]) = (PROTOCOL, SCOPE_HOST, LOCAL);
    let message = Message::new(NEW_ROUTE, CREATE, &body)
        .attribute(ROUTE_TABLE, &wanted.table.to_ne_bytes())
        .attribute(ROUTE_DEVICE, &LOOPBACK_INDEX.to_ne_bytes());
    let added = netlink.request(message);
    match added {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let ours = our_routes(netlink, family).context("list routes")?;
            if !ours.iter().any(|route| route_table(route) == wanted.table) {
                bail!(
                    "routing table {} has an {} default route that is not ours: choose another transparent.table",
                    wanted.table,
                    family.name()
                );
            }
            report.unchanged.push(what);
        }
        Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
            bail!("could not add the {what}: the interface lo is down (ip link set lo up)")
        }
        added => {
            added.with_context(|| format!("add the {what}"))?;
            report.done.push(format!("added the {what}"));
        }
    }
    Ok(())
}

fn our_routes(netlink: &mut Netlink, family: Family) -> io::Result<Vec<Vec<u8>>> {
    let mut ours = Vec::new();
    let listed = netlink.dump(routes_request(family, PROTOCOL), |_, body| {
        // The number alone is no proof: it is not registered, so other programs may use it, too.
        let is_ours = body.get(5) == Some(&PROTOCOL)
            && body.get(7) == Some(&LOCAL)
            && body.get(1) == Some(&0);
        if is_ours {
            ours.push(body.to_vec());
        }
    });
    absent_family_is_empty(listed)?;
    Ok(ours)
}

fn routes_request(family: Family, protocol: u8) -> Message {
    let mut body = [0; ROUTE_BODY_BYTES];
    body[0] = family.number();
    body[5] = protocol;
    Message::new(GET_ROUTE, 0, &body)
}

fn route_table(body: &[u8]) -> u32 {
    let all = body.get(ROUTE_BODY_BYTES..).unwrap_or_default();
    let wide = attribute(all, ROUTE_TABLE).and_then(|value| u32_at(value, 0));
    // The header has one byte for the table; larger numbers are in the attribute alone.
    wide.unwrap_or_else(|| u32::from(body.get(4).copied().unwrap_or(0)))
}

/// Sends a listed message back as a request to delete it.
fn delete(netlink: &mut Netlink, kind: u16, listed: &[u8]) -> io::Result<()> {
    match netlink.request(Message::new(kind, 0, listed)) {
        // Another process has deleted it already.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(()),
        verdict => verdict,
    }
}

fn absent_family_is_empty(listed: io::Result<()>) -> io::Result<()> {
    match listed {
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)
            ) =>
        {
            Ok(())
        }
        listed => listed,
    }
}

fn rule_text(family: Family, mark: u32, table: u32) -> String {
    format!(
        "{} rule fwmark {mark:#x}/{mark:#x} lookup {table}",
        family.name()
    )
}

fn route_text(family: Family, table: u32) -> String {
    format!("{} route local default dev lo table {table}", family.name())
}
