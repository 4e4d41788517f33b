// SPDX-License-Identifier: Apache-2.0
//! Removes the tc filters that a killed node leaves on kernels before 6.6, where the programs are
//! not attached by links. These filters pass every packet, but cost time per packet.

use std::io;

use anyhow::Context;

use super::Report;
use super::links::{Link, links};
use posthaste_netlink::{Message, Netlink, attribute, text, u32_at};

/// `RTM_DELTFILTER` and `RTM_GETTFILTER`.
const DELETE_FILTER: u16 = 45;
const GET_FILTER: u16 = 46;
/// Bytes of `struct tcmsg`.
const BODY_BYTES: usize = 20;
/// The two sides of the clsact queueing discipline.
const SIDES: [u32; 2] = [0xffff_fff2, 0xffff_fff3];
/// Names of the node's programs there.
const PROGRAMS: [&str; 2] = ["redirect", "observe"];
/// Handle and priority of the loader's filter; the priority is one higher for each node that was
/// replaced before.
const HANDLE: u32 = 0x7068;
const PRIORITY: u16 = 0x7068;
/// `TCA_KIND`, `TCA_OPTIONS`, and in the options `TCA_BPF_NAME`.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const PROGRAM_NAME: u16 = 7;

/// Removes the filters of all nodes from every interface.
pub(super) fn remove(report: &mut Report) -> anyhow::Result<()> {
    remove_with(report, |priority| priority >= PRIORITY)
}

/// Removes the filters of the node with this number of predecessors.
pub(super) fn remove_of(successions: u16, report: &mut Report) -> anyhow::Result<()> {
    let own = PRIORITY.saturating_add(successions);
    remove_with(report, |priority| priority == own)
}

fn remove_with(report: &mut Report, which: impl Fn(u16) -> bool) -> anyhow::Result<()> {
    let mut netlink = Netlink::route().context("open a netlink socket")?;
    let links = links().context("list interfaces")?;
    let places = links.iter().flat_map(|link| SIDES.map(|side| (link, side)));
    for (link, side) in places {
        // An interface that is gone or has no clsact has no filter.
        let found = find(&mut netlink, link, side).unwrap_or_default();
        // `tcm_info` has the priority in its upper half, the protocol in the lower one.
        let found = found.iter().filter(|info| which((**info >> 16) as u16));
        for info in found {
            let message = Message::new(DELETE_FILTER, 0, &body(link.index, HANDLE, side, *info))
                .attribute(KIND, b"bpf\0");
            netlink
                .request(message)
                .with_context(|| format!("remove the tc filter of {}", link.name))?;
            report
                .done
                .push(format!("removed the tc filter of {}", link.name));
        }
    }
    Ok(())
}

/// Priorities and protocols of nodes' filters on the interface, as `tcm_info`.
fn find(netlink: &mut Netlink, link: &Link, side: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    netlink.dump(
        Message::new(GET_FILTER, 0, &body(link.index, 0, side, 0)),
        |_, answer| found.extend(info_if_ours(answer)),
    )?;
    Ok(found)
}

fn info_if_ours(answer: &[u8]) -> Option<u32> {
    let (handle, info) = (u32_at(answer, 8)?, u32_at(answer, 16)?);
    let options = attribute(answer.get(BODY_BYTES..)?, OPTIONS)?;
    let program = attribute(options, PROGRAM_NAME)?;
    let ours = handle == HANDLE && PROGRAMS.iter().any(|name| text(program).starts_with(name));
    ours.then_some(info)
}

/// `struct tcmsg`: family, padding, interface, handle, parent, info.
fn body(ifindex: u32, handle: u32, side: u32, info: u32) -> [u8; BODY_BYTES] {
    let mut body = [0; BODY_BYTES];
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    body[8..12].copy_from_slice(&handle.to_ne_bytes());
    body[12..16].copy_from_slice(&side.to_ne_bytes());
    body[16..20].copy_from_slice(&info.to_ne_bytes());
    body
}
