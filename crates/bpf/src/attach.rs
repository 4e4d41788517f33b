// SPDX-License-Identifier: Apache-2.0
//! Attaches the programs to an interface.
//!
//! A TCX link (Linux 6.6) ends with the process that holds it, but creating one waits for every
//! packet in flight on the host, some ten milliseconds each time. A filter on the clsact queueing
//! discipline takes effect at once but outlives the process. So a node starts with filters and
//! replaces them by links once it relays; on older kernels the filters stay.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use posthaste_netlink::{CREATE, Message, Netlink, REPLACE};

use crate::object::Program;
use crate::sys;

/// `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`
const TCX_INGRESS: u32 = 46;
const TCX_EGRESS: u32 = 47;
/// Handle and priority of the node's filter, which identify it. A successor's filter has a later
/// priority: filters see packets in this order.
const HANDLE: u32 = 0x7068;
const PRIORITY: u16 = 0x7068;
/// `ETH_P_ALL` in network order.
const EVERY_PROTOCOL: u32 = 0x0003_u16.to_be() as u32;
/// `RTM_NEWQDISC`, `RTM_DELQDISC`, `RTM_NEWTFILTER`, `RTM_DELTFILTER`.
const NEW_QDISC: u16 = 36;
const DELETE_QDISC: u16 = 37;
const NEW_FILTER: u16 = 44;
const DELETE_FILTER: u16 = 45;
/// The clsact queueing discipline: handle, parent, and its two sides.
const CLSACT: u32 = 0xffff_0000;
const CLSACT_PARENT: u32 = 0xffff_fff1;
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;
/// `TCA_KIND`, `TCA_OPTIONS`; in the options `TCA_BPF_FD`, `TCA_BPF_NAME`, `TCA_BPF_FLAGS`.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const PROGRAM: u16 = 6;
const NAME: u16 = 7;
const FLAGS: u16 = 8;
/// `TCA_BPF_FLAG_ACT_DIRECT`: the program's return value is the verdict.
const ACT_DIRECT: u32 = 1;

/// The direction of the packets that a program handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Received packets.
    Ingress,
    /// Sent packets.
    Egress,
}

/// Where to attach a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) ifindex: u32,
    pub(crate) hook: Hook,
    /// Number of nodes replaced before this one: its filter follows theirs.
    pub(crate) successions: u16,
}

/// The attachment of a program to an interface.
#[derive(Debug)]
pub(crate) enum Hold {
    /// Ends with the process.
    Link(#[expect(dead_code, reason = "held for its Drop")] OwnedFd),
    /// Must be removed.
    Filter(Filter),
}

impl Hold {
    /// The best attachment that the kernel offers, which may take long.
    pub(crate) fn lasting(program: &Program, place: Place) -> io::Result<Self> {
        match link(program, place) {
            Ok(link) => Ok(Self::Link(link)),
            // Kernels before 6.6 have no TCX links.
            Err(_) => Self::quick(program, place),
        }
    }

    /// An attachment that takes effect at once.
    pub(crate) fn quick(program: &Program, place: Place) -> io::Result<Self> {
        Filter::attach(program, place).map(Self::Filter)
    }

    /// Replaces a quick attachment by the best one. Both exist for a moment, which is safe: the
    /// program skips packets that it has marked.
    pub(crate) fn settle(&mut self, program: &Program) {
        let Self::Filter(filter) = self else {
            return;
        };
        if let Ok(link) = link(program, filter.place) {
            filter.takes_qdisc = filter.made_qdisc;
            *self = Self::Link(link);
        }
    }

    /// Whether it ends with the process.
    pub(crate) fn ends_with_process(&self) -> bool {
        matches!(self, Self::Link(_))
    }
}

fn link(program: &Program, place: Place) -> io::Result<OwnedFd> {
    let hook = match place.hook {
        Hook::Ingress => TCX_INGRESS,
        Hook::Egress => TCX_EGRESS,
    };
    sys::link(program.as_fd(), place.ifindex, hook)
}

/// A filter on an interface; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Filter {
    place: Place,
    /// Whether this filter created the queueing discipline.
    made_qdisc: bool,
    /// Whether dropping the filter removes the queueing discipline. Only a short-lived filter does:
    /// others may have added filters to a long-lived one.
    takes_qdisc: bool,
}

impl Filter {
    fn attach(program: &Program, place: Place) -> io::Result<Self> {
        let mut netlink = Netlink::route()?;
        let qdisc = qdisc(NEW_QDISC, CREATE, place.ifindex);
        let made_qdisc = match netlink.request(qdisc) {
            Ok(()) => true,
            // All programs of an interface share one clsact.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) => return Err(error),
        };
        let filter = Self {
            place,
            made_qdisc,
            takes_qdisc: false,
        };
        let descriptor = program.as_fd().as_raw_fd().to_ne_bytes();
        let name = [program.name.as_bytes(), b"\0"].concat();
        // A node that was killed within its first milliseconds leaves a filter at the same place.
        let message = filter.message(NEW_FILTER, REPLACE).nested(
            OPTIONS,
            &[
                (PROGRAM, &descriptor),
                (NAME, &name),
                (FLAGS, &ACT_DIRECT.to_ne_bytes()),
            ],
        );
        netlink.request(message)?;
        Ok(filter)
    }

    fn message(&self, kind: u16, flags: u16) -> Message {
        let priority = PRIORITY.saturating_add(self.place.successions);
        let info = u32::from(priority) << 16 | EVERY_PROTOCOL;
        let parent = match self.place.hook {
            Hook::Ingress => INGRESS,
            Hook::Egress => EGRESS,
        };
        let body = body(self.place.ifindex, HANDLE, parent, info);
        Message::new(kind, flags, &body).attribute(KIND, b"bpf\0")
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        // An error means that the interface is gone, and the filter with it.
        let Ok(mut netlink) = Netlink::route() else {
            return;
        };
        let _ = netlink.request(self.message(DELETE_FILTER, 0));
        if self.takes_qdisc {
            let _ = netlink.request(qdisc(DELETE_QDISC, 0, self.place.ifindex));
        }
    }
}

fn qdisc(kind: u16, flags: u16, ifindex: u32) -> Message {
    let body = body(ifindex, CLSACT, CLSACT_PARENT, 0);
    Message::new(kind, flags, &body).attribute(KIND, b"clsact\0")
}

/// `struct tcmsg`: family and padding, interface, handle, parent, info.
fn body(ifindex: u32, handle: u32, parent: u32, info: u32) -> Vec<u8> {
    let words = [0, ifindex, handle, parent, info];
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}
