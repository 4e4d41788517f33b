// SPDX-License-Identifier: Apache-2.0
//! SYNs on the node's path that it does not touch, whatever its rules are: the host would not
//! forward them, or they carry options that only the two ends can use.

use std::io::{self, Read, Write};
use std::mem::{size_of, zeroed};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_lab::flood::{Flood, Plan};
use posthaste_lab::network::{CLIENT_SIDE, Family, Network, SERVER_SIDE, TO_CLIENT};
use posthaste_lab::node::Node;
use socket2::{Domain, Protocol, Socket, Type};

use crate::capture::Capture;
use crate::support::{
    MODES_BY_PORT, PORT, Pair, SOON, add_address, counter, dial_with, each_mode, kernel_counter,
    line, listen, start_relaying, target, until,
};

/// SYNs of each flood.
const COUNT: u32 = 50;
/// Of the next flood: no two have a SYN in common.
static SEEDS: AtomicU64 = AtomicU64::new(3);

/// Sends SYNs from the client's host under the addresses of a prefix, and a connection after them:
/// when that is open, they have been seen.
fn forge(network: &Network, family: Family, sources: &str, listener: &TcpListener) {
    let plan = Plan {
        sources: sources.parse().expect("a prefix"),
        target: target(network, family, listener),
        rate: 1000,
        duration: Duration::from_millis(u64::from(COUNT)),
        seed: SEEDS.fetch_add(1, Ordering::Relaxed),
    };
    let start = || Flood::start(plan);
    let flood = network.client().run_in(start).expect("the flood starts");
    assert_eq!(flood.finish().expect("all are sent"), u64::from(COUNT));
    Pair::open(network, family, listener).close_client_first();
}

/// How many SYNs a host has seen from a prefix.
fn syns_from(capture: &Capture, sources: &str, port: u16) -> usize {
    let sources: posthaste_lab::flood::IpNet = sources.parse().expect("a prefix");
    let syns = capture.syns_to(port).into_iter();
    syns.filter(|syn| sources.contains(&syn.from.ip())).count()
}

/// Flows that began with a SYN of a client that need not exist.
fn begun(node: &Node) -> u64 {
    counter(node, "early") + counter(node, "strict")
}

// promise: T21
#[test]
fn forged_own_addresses() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let own = network.node_address(0, family);
            let own = format!("{own}/{}", if own.is_ipv4() { 32 } else { 128 });
            let capture = Capture::start(network.server());
            let before = counter(&node, "relays_opened");
            forge(&network, family, &own, &listener);
            assert_eq!(counter(&node, "relays_opened"), before + 1, "{mode}");
            // What IP forwarding does: of IPv4 it drops them.
            let forwarded = [0, COUNT as usize][usize::from(family == Family::V6)];
            assert_eq!(
                syns_from(&capture, &own, port),
                forwarded,
                "{mode} {family}"
            );
        }
    }
}

/// What the server's side is routed to does not come from the client's.
// promise: T21
#[test]
fn strict_reverse_path_sources() {
    let forged = SERVER_SIDE[0];
    let network = line();
    let strict = network.node(0).sysctl("net.ipv4.conf.all.rp_filter", "1");
    strict.expect("a node has its own filter");
    let node = start_relaying(&network, &each_mode());
    let capture = Capture::start(network.server());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        let before = begun(&node);
        forge(&network, Family::V4, forged, &listener);
        assert_eq!(syns_from(&capture, forged, port), 0, "{mode}");
        assert_eq!(begun(&node) - before, u64::from(mode != "late"), "{mode}");
    }
}

// promise: T21
#[test]
fn reverse_path_set_later() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    let filter = format!("net.ipv4.conf.{TO_CLIENT}.rp_filter");
    let forged = SERVER_SIDE[0];
    for (value, taken) in [("0", true), ("1", false), ("2", true), ("1", false)] {
        network.node(0).sysctl(&filter, value).expect("a setting");
        // The node receives that change a moment later.
        until("the filter's word at the node", || {
            let before = begun(&node);
            forge(&network, Family::V4, forged, &listener);
            let begun = begun(&node) - before;
            (begun == 1 && !taken) || (begun > 1 && taken)
        });
    }
}

/// `struct tcp_md5sig` (linux/tcp.h).
#[repr(C)]
struct Md5Signature {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix: u8,
    key_bytes: u16,
    interface: i32,
    key: [u8; 80],
}

/// Has what a socket exchanges with an address be signed (RFC 2385).
fn sign(socket: &Socket, peer: SocketAddr) -> io::Result<()> {
    // SAFETY: numbers only, for which all zeros are a value.
    let mut signature: Md5Signature = unsafe { zeroed() };
    let peer = socket2::SockAddr::from(SocketAddr::new(peer.ip(), 0));
    // SAFETY: both are socket addresses, and `peer` has enough room for the bytes copied.
    unsafe {
        std::ptr::copy_nonoverlapping(
            peer.as_ptr().cast::<u8>(),
            (&raw mut signature.address).cast::<u8>(),
            peer.len() as usize,
        );
    }
    signature.key_bytes = 6;
    signature.key[..6].copy_from_slice(b"secret");
    // SAFETY: the kernel reads `signature`, which has the given length.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MD5SIG,
            (&raw const signature).cast(),
            libc::socklen_t::try_from(size_of::<Md5Signature>()).expect("a small number"),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// As between BGP routers.
// promise: T22
#[test]
fn signed_segments_forwarded() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        for family in Family::ALL {
            let client = SocketAddr::new(network.client_address(family), 0);
            let to = SocketAddr::new(network.server_address(family), port);
            let make = || -> io::Result<TcpListener> {
                let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
                sign(&socket, client)?;
                socket.bind(&to.into())?;
                socket.listen(1)?;
                socket.set_read_timeout(Some(SOON))?;
                Ok(socket.into())
            };
            let listener = network.server().run_in(make).expect("a signed listener");
            let dialled = dial_with(network.client(), to, |socket| sign(socket, to));
            let mut pair = Pair::of(dialled, &listener);
            pair.check();
            pair.close_client_first();
        }
        assert_eq!(counter(&node, "relays_opened"), 0, "{mode}");
    }
}

/// The client's second address in each family; the node relays its connections where it can.
fn second(family: Family) -> SocketAddr {
    let text = ["10.100.0.7", "fd00:100::7"][usize::from(family == Family::V6)];
    SocketAddr::new(text.parse().expect("an address"), 0)
}

// promise: T22
#[test]
fn mp_join_forwarded() {
    let network = line();
    let sources = CLIENT_SIDE.map(|prefix| format!("{prefix:?}")).join(", ");
    let of_second = format!("sources = [{sources}]\nports");
    let rules = each_mode().replace("ports", &of_second);
    let rest = "[[rule]]\nname = \"first\"\naction = \"forward\"\n";
    let node = start_relaying(&network, &format!("{rules}{rest}"));
    for host in [network.client(), network.server()] {
        host.ip("mptcp limits set subflows 4 add_addr_accepted 4")
            .expect("limits can be set");
    }
    let mut count = 0;
    for family in Family::ALL {
        add_address(network.client(), second(family).ip());
        let endpoint = format!("mptcp endpoint add {} subflow", second(family).ip());
        network.client().ip(&endpoint).expect("a path can be added");
        for (mode, port) in MODES_BY_PORT {
            count += 1;
            joins(&network, family, port, count);
            assert_eq!(counter(&node, "relays_opened"), 0, "{mode}");
        }
    }
}

/// Opens a connection of Multipath TCP, and waits for its second path.
fn joins(network: &Network, family: Family, port: u16, count: u64) {
    let to = SocketAddr::new(network.server_address(family), port);
    let socket = || Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::MPTCP));
    let listen = || -> io::Result<TcpListener> {
        let socket = socket()?;
        socket.set_reuse_address(true)?;
        socket.bind(&to.into())?;
        socket.listen(1)?;
        Ok(socket.into())
    };
    let connect = || -> io::Result<TcpStream> {
        let socket = socket()?;
        socket.connect(&to.into())?;
        Ok(socket.into())
    };
    let listener = network.server().run_in(listen).expect("a listener");
    let mut client = network.client().run_in(connect).expect("it connects");
    let (mut server, _) = listener.accept().expect("it arrives");
    client.write_all(b"first").expect("it is sent");
    server.read_exact(&mut [0; 5]).expect("it arrives");
    until("the second path", || {
        kernel_counter(network.server(), "MPTcpExt", "MPJoinAckRx") == count
    });
}
