// SPDX-License-Identifier: Apache-2.0
//! The packet path, whose links and maps several nodes share one after the other.

use std::time::Duration;

use posthaste_bpf::Settings;
use posthaste_lab::network::Family;
use posthaste_lab::process::wait_until;
use posthaste_relay::policy::{Action, DataPath, Rule};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::host::{EARLY, Host, SETTINGS, client, interface, on_host, rule, server};
use crate::segment::Segment;
use crate::wire::{SOON, link_address};

/// A rule that wants the packet path for every flow.
pub(crate) fn packets() -> Rule {
    Rule {
        data_path: DataPath::Packet,
        ..rule(Action::Relay, EARLY)
    }
}

/// Gives this thread, and those it starts, a BPF file system of their own at the usual place.
fn mount_bpf() {
    // SAFETY: only this thread leaves the file systems of the others.
    let apart = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(apart, 0, "{}", std::io::Error::last_os_error());
    let mount = |kind: &std::ffi::CStr, at: &std::ffi::CStr, flags| {
        let none = std::ptr::null();
        // SAFETY: the texts live through the call, which needs no data.
        unsafe { libc::mount(none, at.as_ptr(), kind.as_ptr(), flags, none.cast()) }
    };
    assert_eq!(mount(c"", c"/", libc::MS_REC | libc::MS_PRIVATE), 0);
    assert_eq!(mount(c"bpf", c"/sys/fs/bpf", 0), 0);
}

/// Sends SYNs of a client until the programs of the host have counted one to learn from.
fn assert_learns(host: &Host<'_>, port: u16) {
    let mut to = server(Family::V4);
    to.set_port(port);
    let frame = Segment::syn(client(Family::V4), to).frame();
    let sender = Socket::new(Domain::PACKET, Type::RAW, None).unwrap();
    let before = host.stat("packet_learning");
    let learns = wait_until("a flow that learns", SOON, || {
        sender.send_to(&frame, &address_of_peer(host)).unwrap();
        std::thread::sleep(Duration::from_millis(10));
        host.stat("packet_learning") > before
    });
    learns.unwrap();
}

/// The other end of the client's cable, from which frames arrive.
fn address_of_peer(host: &Host<'_>) -> SockAddr {
    link_address(interface(host.namespace, "in1"), 0)
}

/// The last step of an upgrade fails: the programs of the successor must not go on by its rules.
#[test]
fn failed_successor_gives_flows_back() {
    on_host(|host| {
        mount_bpf();
        host.obey(&[packets()]);
        assert_learns(host, 81);
        host.redirect.set_followed(true).unwrap();
        let settings = Settings {
            successions: 1,
            ..SETTINGS
        };
        let mut successor = Host::new(host.namespace, settings);
        successor.obey(&[packets()]);
        assert_learns(&successor, 82);
        drop(successor);
        host.redirect.set_followed(false).unwrap();
        assert_learns(host, 83);
    });
}
