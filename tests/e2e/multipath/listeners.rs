// SPDX-License-Identifier: Apache-2.0
//! Multipath TCP at listeners of the node, toward servers, and on a host without it.

use std::net::SocketAddr;

use posthaste_lab::network::Family;
use socket2::Protocol;

use super::converting;
use super::testbed::{TRANSFER, TwoPaths, address, multipath, server, transfer, until_joined};
use crate::support::{
    MODES_BY_PORT, PORT, SOON, counter, deliver, dial, each_mode, errno, relay_of, until_ended,
};

// promise: MP7
#[test]
fn fixed_listener_accepts_both() {
    const OWN: u16 = 8080;
    let bed = TwoPaths::new();
    let listeners = Family::ALL.map(|family| {
        let (own, to) = (
            SocketAddr::new(address(family, 1, 1), OWN),
            server(family, PORT),
        );
        format!(
            "[[listener]]\nmode = \"fixed\"\naddress = \"{own}\"\ndestination = \"{to}\"\n\
             multipath = true\n"
        )
    });
    let node = bed.node(&listeners.concat());
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::TCP);
        let own = SocketAddr::new(address(family, 1, 1), OWN);
        let mut client = bed.dial(own).expect("the client connects");
        let (mut server, _) = listener.accept().expect("it arrives");
        server.set_read_timeout(Some(SOON)).expect("a bound");
        deliver(&mut client, &mut server, b"!");
        until_joined(&bed.router, count);
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
        let client = dial(&bed.client, own).expect("a client with TCP connects");
        let (mut server, _) = listener.accept().expect("it arrives");
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
    }
    until_ended(&node, "finished", 4);
    assert_eq!(counter(&node, "multipath_accepted"), 2);
}

/// The client has TCP, the server Multipath TCP and a second address.
// promise: MP8
#[test]
fn several_paths_to_a_server() {
    let bed = TwoPaths::new();
    let config = format!("[defaults]\nupstream_multipath = true\n{}", each_mode());
    let node = bed.node(&config);
    for family in Family::ALL {
        let second = address(family, 3, 3);
        let (length, nodad) = match family {
            Family::V4 => (24, ""),
            Family::V6 => (64, " nodad"),
        };
        let words = format!("address add {second}/{length} dev eth0{nodad}");
        bed.server.ip(&words).expect("an address");
    }
    let mut count = 0;
    for (mode, port) in MODES_BY_PORT {
        for family in Family::ALL {
            count += 1;
            let second = address(family, 3, 3);
            let endpoint = format!("mptcp endpoint add {second} signal");
            bed.server.ip(&endpoint).expect("an endpoint");
            let listener = bed.listen_at(port, family, Protocol::MPTCP);
            let mut client = dial(&bed.client, server(family, port)).expect("it connects");
            let (mut server, from) = listener.accept().expect("it arrives");
            assert_eq!(from, client.local_addr().expect("connected"), "{mode}");
            deliver(&mut client, &mut server, b"?");
            deliver(&mut server, &mut client, b"!");
            until_joined(&bed.server, count);
            let id = relay_of(&node, from).expect("a relay")["id"].clone();
            let id = id.as_str().expect("text");
            let shown = node
                .admin_json(&format!("relays show {id}"))
                .expect("it answers");
            let paths = shown["upstream"]["multipath"]["paths"].as_array();
            assert_eq!(paths.map(Vec::len), Some(2), "{shown:#}");
            let mut client = transfer(client, &mut server, TRANSFER);
            transfer(server, &mut client, TRANSFER);
            until_ended(&node, "finished", count);
            // The kernel announces each address to connections of either family that are not gone.
            bed.server.ip("mptcp endpoint flush").expect("it has one");
        }
    }
}

// promise: MP8
#[test]
fn servers_without_multipath_get_tcp() {
    let bed = TwoPaths::new();
    let node = bed.node("[defaults]\naccept = \"strict\"\nupstream_multipath = true\n");
    for family in Family::ALL {
        let refused = dial(&bed.client, server(family, PORT));
        assert_eq!(errno(&refused), Some(libc::ECONNREFUSED), "{family}");
        let listener = bed.listen(family, Protocol::TCP);
        let client = dial(&bed.client, server(family, PORT)).expect("it connects");
        let (mut server, _) = listener.accept().expect("it arrives");
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
    }
    until_ended(&node, "finished", 2);
    assert_eq!(counter(&node, "multipath_fell_back_server"), 2);
}

/// Both sides at once.
// promise: MP8
#[test]
fn multipath_on_both_sides() {
    let bed = TwoPaths::new();
    let node = bed.node(&format!(
        "{}upstream_multipath = true\n",
        converting("early")
    ));
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::MPTCP);
        let (client, mut server) = bed.connect(family, &listener);
        until_joined(&bed.router, count);
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
        assert_eq!(multipath(&bed.server, "MPCapableSYNRX"), count);
    }
    until_ended(&node, "finished", 2);
    for reason in ["", "_later", "_server"] {
        assert_eq!(counter(&node, &format!("multipath_fell_back{reason}")), 0);
    }
}

// promise: MP9
#[test]
fn host_without_multipath() {
    let bed = TwoPaths::new();
    bed.router
        .sysctl("net.mptcp.enabled", "0")
        .expect("a sysctl");
    let node = bed.node(&format!(
        "{}upstream_multipath = true\n",
        converting("early")
    ));
    let named = |line: &&String| line.contains("no Multipath TCP");
    assert_eq!(node.log().iter().filter(named).count(), 1);
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::MPTCP);
        let (client, mut server) = bed.connect(family, &listener);
        until_joined(&bed.server, count);
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
        let client = dial(&bed.client, super::testbed::server(family, PORT)).expect("connects");
        let (mut server, _) = listener.accept().expect("it arrives");
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
    }
    assert_eq!(counter(&node, "relays_opened"), 2);
    assert_eq!(counter(&node, "multipath_passed"), 2);
}
