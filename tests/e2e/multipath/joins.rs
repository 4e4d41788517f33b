// SPDX-License-Identifier: Apache-2.0
//! Which further paths join, and what the node needs on its host for that.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use socket2::{Domain, Protocol, Socket, Type};

use super::converting;
use super::testbed::{TRANSFER, TwoPaths, address, server as server_at, transfer, until_joined};
use crate::payload::uninterrupted;
use crate::support::{
    PORT, binary, counter, dial, firewall, kernel_counter, remove_firewall, until, until_counter,
    until_ended,
};
use crate::syn_options::raw::send_syn;

/// Listens as a service does, on all addresses of a family.
fn serve(host: &Namespace, family: Family) -> io::Result<Socket> {
    let any = match family {
        Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let at = SocketAddr::new(any, PORT);
    host.run_in(|| {
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
        if at.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(8)?;
        Ok(socket)
    })
}

/// A service may begin to listen on the port of open connections whose paths have joined.
// promise: MP10
#[test]
fn services_of_the_host_listen() {
    let bed = TwoPaths::new();
    let node = bed.node(&converting("early"));
    let mut open = Vec::new();
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::TCP);
        open.push(bed.connect(family, &listener));
        until_joined(&bed.router, count);
    }
    let services = Family::ALL.map(|family| {
        let mut service = None;
        until("a service listens", || {
            service = serve(&bed.router, family).ok();
            service.is_some()
        });
        service
    });
    // Paths cannot join there now, and the connection works over the first.
    let listener = bed.listen(Family::V4, Protocol::TCP);
    open.push(bed.connect(Family::V4, &listener));
    until_counter(&node, "multipath_ports_unavailable", 1);
    for (client, mut server) in open {
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
    }
    until_ended(&node, "finished", 3);
    drop(services);
}

// promise: MP1
#[test]
fn paths_join_by_syn_cookies() {
    let bed = TwoPaths::new();
    let always = bed.router.sysctl("net.ipv4.tcp_syncookies", "2");
    always.expect("a namespace has its own settings");
    let node = bed.node(&converting("early"));
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::TCP);
        let (client, mut server) = bed.connect(family, &listener);
        until_joined(&bed.router, count);
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
    }
    until_ended(&node, "finished", 2);
}

/// A path whose own rule does not convert is forwarded, though its token is the node's.
// promise: MP11
#[test]
fn the_rule_of_a_path_decides() {
    let bed = TwoPaths::new();
    let rules = Family::ALL.map(|family| {
        let second = address(family, 2, 2);
        format!(
            "[[rule]]\nname = \"second-{family}\"\nsources = [\"{second}\"]\nmultipath = \"pass\"\n"
        )
    });
    let all = "[[rule]]\nname = \"all\"\n";
    let node = bed.node(&format!("{}{}{all}", converting("early"), rules.concat()));
    for family in Family::ALL {
        let listener = bed.listen(family, Protocol::TCP);
        let (client, mut server) = bed.connect(family, &listener);
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
    }
    until_ended(&node, "finished", 2);
    assert_eq!(counter(&node, "multipath_accepted"), 2);
    assert_eq!(counter(&node, "multipath_joins"), 0);
}

/// Sockets carry what the packet path does not take.
// promise: MP1
#[test]
fn converts_beside_the_packet_path() {
    let bed = TwoPaths::new();
    let config = format!("{}data_path = \"packet\"\n", converting("early"));
    let node = bed.node(&config);
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::TCP);
        let (client, mut server) = bed.connect(family, &listener);
        until_joined(&bed.router, count);
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
        let client = dial(&bed.client, server_at(family, PORT)).expect("it connects");
        let (mut server, _) = listener.accept().expect("it arrives");
        let mut client = transfer(client, &mut server, 100_000);
        transfer(server, &mut client, 100_000);
    }
    until_ended(&node, "finished", 2);
    assert_eq!(counter(&node, "relays_opened"), 2, "TCP has no relay");
}

/// Connects until a path joins; returns whether one did.
fn joins(bed: &TwoPaths, node: &Node, connections: u32) -> bool {
    let listener = bed.listen(Family::V4, Protocol::TCP);
    (0..connections).any(|_| {
        let open = bed.connect(Family::V4, &listener);
        std::thread::sleep(Duration::from_millis(200));
        drop(open);
        counter(node, "multipath_joins") > 0
    })
}

/// Under a rule that observes, no path joins past a firewall that would drop what it forwards.
// promise: MP11
#[test]
fn the_firewall_decides_on_each_path() {
    let bed = TwoPaths::new();
    let config = format!("[observe]\ngain_min = \"0s\"\n{}", converting("early"));
    let node = Node::builder(&bed.router, binary()).config(&config);
    let node = node.start().expect("the node becomes ready");
    firewall(&bed.router, "second", &[("forward", "iifname \"c2\" drop")]);
    assert!(!joins(&bed, &node, 8));
    assert!(counter(&node, "multipath_accepted") > 0);
    remove_firewall(&bed.router, "second");
    until("a path joins", || joins(&bed, &node, 3));
}

/// The node closes first, so that its sockets of former paths wait with the ports of later ones.
// promise: MP2
#[test]
fn paths_join_with_ports_of_former_ones() {
    const COUNT: u64 = 40;
    let bed = TwoPaths::new();
    let ports = bed
        .client
        .sysctl("net.ipv4.ip_local_port_range", "40000 40015");
    ports.expect("a sysctl");
    let node = bed.node(&converting("early"));
    for (before, family) in [0, COUNT].into_iter().zip(Family::ALL) {
        let listener = bed.listen(family, Protocol::TCP);
        for count in 1..=COUNT {
            let (mut client, server) = bed.connect(family, &listener);
            until_joined(&bed.router, before + count);
            drop(server);
            assert_eq!(uninterrupted(|| client.read(&mut [0])).expect("the end"), 0);
            drop(client);
            until_ended(&node, "finished", before + count);
        }
    }
    assert_eq!(counter(&node, "multipath_joins_expired"), 0);
}

// promise: MP6
#[test]
fn forged_tokens_delay_no_path() {
    // A machine that stands still for a second delays one too.
    let at_once = (0..3).any(|_| joins_at_once_in_a_flood());
    assert!(at_once, "a SYN was sent again, in each of three floods");
}

/// At each of two workers more forged tokens than a client prefix may send known ones in a second.
/// Returns whether each SYN of the client was sent once.
fn joins_at_once_in_a_flood() -> bool {
    const FORGED: u16 = 1400;
    let bed = TwoPaths::new();
    let node = bed.node(&converting("early"));
    let listener = bed.listen(Family::V4, Protocol::TCP);
    let first = bed.connect(Family::V4, &listener);
    until_joined(&bed.router, 1);
    let (IpAddr::V4(client), SocketAddr::V4(to)) =
        (address(Family::V4, 2, 2), server_at(Family::V4, PORT))
    else {
        panic!("addresses of IPv4");
    };
    for number in 0..FORGED {
        // MP_JOIN of a SYN (RFC 8684 section 3.2): address 1, token, random number.
        let mut option = vec![30, 12, 0x10, 1, 0xfe, 0xe1];
        option.extend(number.to_be_bytes());
        option.extend([7; 4]);
        let from = SocketAddrV4::new(client, 20_000 + number);
        send_syn(&bed.client, from, to, &option);
    }
    let second = bed.connect(Family::V4, &listener);
    until_joined(&bed.router, 2);
    assert!(
        counter(&node, "multipath_joins_over_budget") > 0,
        "no flood"
    );
    drop((first, second));
    kernel_counter(&bed.client, "TcpExt", "TCPSynRetrans") == 0
}
