// SPDX-License-Identifier: Apache-2.0
//! How the redirect program is held on an interface.
//!
//! A TCX link (Linux 6.6) ends with the process that holds it, but making one
//! waits for every packet in flight on the host, some ten milliseconds each. A
//! filter on the clsact queueing discipline takes effect at once but outlives
//! the process. So a node begins with filters and turns them into links once it
//! relays; on older kernels the filters stay.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use libbpf_rs::ProgramMut;
use libbpf_sys::{bpf_tc_hook, bpf_tc_opts};

/// Handle and priority of our filter, by which it is found again.
const HANDLE: u32 = 0x7068;
const PRIORITY: u32 = 0x7068;

/// The program, held on an interface.
#[derive(Debug)]
pub(crate) enum Hold {
    /// Ends with the process.
    Link(#[expect(dead_code, reason = "held for its Drop")] OwnedFd),
    /// Has to be removed.
    Filter(Filter),
}

impl Hold {
    /// The best hold that the kernel offers, however long it takes.
    pub(crate) fn lasting(program: &ProgramMut<'_>, ifindex: u32) -> io::Result<Self> {
        match link(program, ifindex) {
            Ok(link) => Ok(Self::Link(link)),
            Err(_) => Filter::attach(program, ifindex).map(Self::Filter),
        }
    }

    /// A hold that takes effect at once.
    pub(crate) fn quick(program: &ProgramMut<'_>, ifindex: u32) -> io::Result<Self> {
        Filter::attach(program, ifindex).map(Self::Filter)
    }

    /// Turns a quick hold into the best one. In between both are there, which
    /// the program bears: what it has marked it leaves alone.
    pub(crate) fn settle(&mut self, program: &ProgramMut<'_>) {
        let Self::Filter(filter) = self else {
            return;
        };
        if let Ok(link) = link(program, filter.ifindex()) {
            filter.takes_qdisc = filter.made_qdisc;
            *self = Self::Link(link);
        }
    }

    /// Whether it ends with the process.
    pub(crate) fn ends_with_process(&self) -> bool {
        matches!(self, Self::Link(_))
    }
}

/// Not by way of libbpf's own call, which complains on stderr where there are no
/// such links.
fn link(program: &ProgramMut<'_>, ifindex: u32) -> io::Result<OwnedFd> {
    let ifindex = i32::try_from(ifindex).expect("interface numbers are positive");
    let program = program.as_fd().as_raw_fd();
    let hook = libbpf_sys::BPF_TCX_INGRESS;
    // SAFETY: the program's descriptor is open, and no options are given.
    let made = unsafe { libbpf_sys::bpf_link_create(program, ifindex, hook, std::ptr::null()) };
    if made < 0 {
        return Err(io::Error::from_raw_os_error(-made));
    }
    // SAFETY: the kernel has just made it, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

/// A filter of ours at the ingress of an interface; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Filter {
    hook: bpf_tc_hook,
    /// The queueing discipline is ours too.
    made_qdisc: bool,
    /// It goes with the filter. Only a filter of a moment takes it along: on a
    /// lasting one others may have put filters of theirs.
    takes_qdisc: bool,
}

impl Filter {
    fn attach(program: &ProgramMut<'_>, ifindex: u32) -> io::Result<Self> {
        let mut hook = bpf_tc_hook {
            sz: size_of::<bpf_tc_hook>() as libbpf_sys::size_t,
            ifindex: i32::try_from(ifindex).expect("interface numbers are positive"),
            attach_point: libbpf_sys::BPF_TC_INGRESS,
            ..Default::default()
        };
        // SAFETY: `hook` is a complete structure of the stated size.
        let made = unsafe { libbpf_sys::bpf_tc_hook_create(&raw mut hook) };
        if made != 0 && made != -libc::EEXIST {
            return Err(io::Error::from_raw_os_error(-made));
        }
        let filter = Self {
            hook,
            made_qdisc: made == 0,
            takes_qdisc: false,
        };
        let mut options = bpf_tc_opts {
            prog_fd: program.as_fd().as_raw_fd(),
            flags: libbpf_sys::BPF_TC_F_REPLACE,
            ..Self::options()
        };
        // SAFETY: both structures are complete and outlive the call.
        let attached =
            unsafe { libbpf_sys::bpf_tc_attach(&raw const filter.hook, &raw mut options) };
        if attached == 0 {
            Ok(filter)
        } else {
            Err(io::Error::from_raw_os_error(-attached))
        }
    }

    fn options() -> bpf_tc_opts {
        bpf_tc_opts {
            sz: size_of::<bpf_tc_opts>() as libbpf_sys::size_t,
            handle: HANDLE,
            priority: PRIORITY,
            ..Default::default()
        }
    }

    fn ifindex(&self) -> u32 {
        u32::try_from(self.hook.ifindex).expect("it was one before")
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        let options = Self::options();
        // SAFETY: both structures are complete and outlive the calls. Errors
        // mean that the interface is gone, and the filter with it.
        unsafe {
            libbpf_sys::bpf_tc_detach(&raw const self.hook, &raw const options);
            if self.takes_qdisc {
                self.hook.attach_point = libbpf_sys::BPF_TC_INGRESS | libbpf_sys::BPF_TC_EGRESS;
                libbpf_sys::bpf_tc_hook_destroy(&raw mut self.hook);
            }
        }
    }
}
