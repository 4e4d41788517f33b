// SPDX-License-Identifier: Apache-2.0
//! Connections one after the other between the same addresses and ports, and servers that stop
//! granting what they granted.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::Socket;

use super::forged::v4;
use super::*;
use crate::ends::{ORDERLY, exchange};
use crate::support::{close, deliver};
use crate::syn_options::raw::send_segment;

/// Ports of the client that its connections use again and again.
const PORTS: u16 = 40;
const ROUNDS: usize = 30;

/// Connects with a socket that was prepared, as soon as the client's former connection from this port allows it
/// (TIME-WAIT).
fn dial_again(
    network: &Network,
    [source, to]: [SocketAddr; 2],
    prepare: impl Fn(&Socket) -> io::Result<()> + Sync,
) -> io::Result<TcpStream> {
    let mut last = None;
    until("a free port", || {
        let dialled = dial_with(network.client(), to, |socket| {
            prepare(socket)?;
            socket.set_reuse_address(true)?;
            socket.bind(&source.into())
        });
        let waits = errno(&dialled) == Some(libc::EADDRNOTAVAIL);
        last = Some(dialled);
        !waits
    });
    last.expect("it dialled")
}

fn open_from(
    network: &Network,
    source: SocketAddr,
    to: SocketAddr,
    listener: &TcpListener,
) -> Pair {
    Pair::of(dial_again(network, [source, to], |_| Ok(())), listener)
}

// promise: PK2
/// An entry of a connection that has ended must not carry the next one.
#[test]
fn ports_are_used_again() {
    let network = line();
    for host in [network.client(), network.server()] {
        host.sysctl("net.ipv4.tcp_tw_reuse", "1")
            .expect("a setting");
    }
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let taken = redirect(&node, "packet_taken");
        let source = network.client_address(family);
        let to = target(&network, family, &listener);
        for round in 0..ROUNDS {
            for port in (20_000..).take(PORTS.into()) {
                let mut pair = open_from(&network, (source, port).into(), to, &listener);
                pair.check();
                match round % 3 {
                    0 => pair.close_client_first(),
                    1 => pair.close_server_first(),
                    // Both ends in TIME-WAIT or none: the reset ends both at once.
                    _ => {
                        let mut server = pair.server;
                        reset(pair.client);
                        expect_reset(&mut server);
                    }
                }
            }
        }
        let all = u64::from(PORTS) * u64::try_from(ROUNDS).expect("a small number");
        let now = redirect(&node, "packet_taken");
        assert!(now > taken + all / 2, "{family}: {} of {all}", now - taken);
    }
}

// promise: PK2
/// The server stops granting an option behind the node's back: connections of every kind that were
/// promised it are exact, and the node promises it no more.
#[test]
fn stale_promises_lose_no_byte() {
    let network = line();
    let (node, _listener) = ready(&network);
    for (option, first) in [
        ("sack", 1000),
        ("timestamps", 2000),
        ("window_scaling", 3000),
    ] {
        let ports = (first..).take(ORDERLY);
        let listeners: Vec<_> = ports.map(|port| listen(network.server(), port)).collect();
        let before = redirect(&node, "packet_mismatches");
        for listener in &listeners {
            for family in Family::ALL {
                learn(&network, &node, family, listener);
            }
        }
        let set = |value: &str| {
            let set = network
                .server()
                .sysctl(&format!("net.ipv4.tcp_{option}"), value);
            set.expect("a setting");
        };
        set("0");
        for family in Family::ALL {
            for (kind, listener) in listeners.iter().enumerate() {
                exchange(kind, kind, Pair::open(&network, family, listener));
                let pair = Pair::open(&network, family, listener);
                pair.close_client_first();
            }
        }
        let mismatches = redirect(&node, "packet_mismatches") - before;
        assert_eq!(mismatches, 2 * ORDERLY as u64, "{option}");
        set("1");
    }
}

/// Initial sequence numbers of a client's connections from a port: for a server in TIME-WAIT, the later one's SYN is
/// an old segment.
const ISNS: [u32; 2] = [1 << 30, 1 << 29];
/// `TCP_SEND_QUEUE`
const SEND_QUEUE: i32 = 2;
/// `TCP_REPAIR_OFF_NO_WP`
const OFF_WITHOUT_PROBE: i32 = -1;

/// A network whose client sends no timestamps, by which a server in TIME-WAIT would know a new connection.
fn without_timestamps() -> Network {
    let network = line();
    let client = network.client();
    client
        .sysctl("net.ipv4.tcp_timestamps", "0")
        .expect("a setting");
    network
}

/// Connects with an initial sequence number, as soon as the former connection allows it.
fn dial_at(network: &Network, ends: [SocketAddr; 2], isn: u32) -> io::Result<TcpStream> {
    dial_again(network, ends, |socket| {
        let repairs = [
            (libc::TCP_REPAIR, 1),
            (libc::TCP_REPAIR_QUEUE, SEND_QUEUE),
            (libc::TCP_QUEUE_SEQ, isn.cast_signed()),
            (libc::TCP_REPAIR, OFF_WITHOUT_PROBE),
        ];
        let mut set = repairs.iter();
        set.try_for_each(|(name, value)| set_tcp_option(socket, *name, *value))
    })
}

fn set_tcp_option(socket: &Socket, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the kernel reads four bytes of `value`, which lives through the call.
    let result = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, value, 4)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A connection that leaves its server in TIME-WAIT, and its client's address and port.
fn leave_time_wait(
    network: &Network,
    family: Family,
    listener: &TcpListener,
    port: u16,
) -> [SocketAddr; 2] {
    let source = (network.client_address(family), port).into();
    let to = target(network, family, listener);
    let client = dial_at(network, [source, to], ISNS[0]);
    let mut pair = Pair::of(client, listener);
    pair.check();
    pair.close_server_first();
    [source, to]
}

/// A server in TIME-WAIT answers a SYN by an ACK if its number is old. The node resets what the server has, and
/// sends the SYN again at once, not when its timer expires, which may happen on a busy machine.
fn leaves_time_wait(network: &Network) {
    let (node, listener) = ready(network);
    let names = ["packet_taken", "packet_renewed", "packet_resent"];
    let counters = || names.map(|name| redirect(&node, name));
    let mut ports = 20_000..;
    for family in Family::ALL {
        let mut opens_at_once = |_| {
            let port = ports.next().expect("a port");
            let ends = leave_time_wait(network, family, &listener, port);
            let [taken, renewed, resent] = counters();
            let mut pair = Pair::of(dial_at(network, ends, ISNS[1]), &listener);
            pair.check();
            let after = counters();
            pair.close_client_first();
            assert_eq!(after[0], taken + 1, "on the packet path");
            after[1..] == [renewed + 1, resent]
        };
        assert!((0..5).any(&mut opens_at_once), "{family}");
    }
}

// promise: PK2
#[test]
fn servers_leave_time_wait_at_once() {
    leaves_time_wait(&without_timestamps());
}

// promise: PK2
#[test]
fn servers_leave_time_wait_behind_masquerading() {
    let network = without_timestamps();
    firewall_script(network.node(0), MASQUERADE);
    firewall_script(network.node(0), STRICT);
    leaves_time_wait(&network);
}

// promise: PK2
/// A segment of the older connection that comes behind its reset makes no other one, which would end the new
/// connection in the firewall's table.
#[test]
fn late_segments_of_older_connections_reset_nothing() {
    let network = network([Link::Veth, Link::delay(Duration::from_millis(200))]);
    firewall_script(network.node(0), MASQUERADE);
    firewall_script(network.node(0), STRICT);
    let listener = listen(network.server(), PORT);
    // Their client forgets them, and the server does not.
    let older = [20_000, 20_001].map(|port| {
        let source = (network.client_address(Family::V4), port).into();
        let to = target(&network, Family::V4, &listener);
        let pair = open_from(&network, source, to, &listener);
        firewall(
            network.client(),
            "gone",
            &[("output", "tcp flags rst drop")],
        );
        reset(pair.client);
        remove_firewall(network.client(), "gone");
        (source, to, pair.server)
    });
    let node = ready_on(&network, network.node(0), &listener);
    for (source, to, older) in older {
        let renewed = redirect(&node, "packet_renewed");
        let ends = [to, older.peer_addr().expect("its client")].map(v4);
        let mut client = dial_again(&network, [source, to], |_| Ok(())).expect("the node answers");
        until("the reset", || redirect(&node, "packet_renewed") > renewed);
        // It arrives before the answer to the new SYN.
        let [from, masqueraded] = ends;
        send_segment(network.server(), from, masqueraded, [1, 1 << 20], 0x10);
        let (mut server, _) = accept(&listener);
        deliver(&mut client, &mut server, b"a question");
        deliver(&mut server, &mut client, b"an answer");
        assert_eq!(redirect(&node, "packet_renewed"), renewed + 1, "{source}");
        close(client, server);
    }
}

/// A server that ignores resets in TIME-WAIT (RFC 1337) gets at most two SYNs for each that a silent one gets,
/// and the client is reset.
// promise: PK2
#[test]
fn servers_that_stay_in_time_wait_get_few_syns() {
    let network = without_timestamps();
    let server = network.server();
    server
        .sysctl("net.ipv4.tcp_rfc1337", "1")
        .expect("a setting");
    let listener = listen(network.server(), PORT);
    // The client's SYN, and those after 1, 2 and 3 s.
    let config = format!("{CONFIG}[defaults.timeouts]\nconnect = \"4s\"\n");
    let node = start_relaying_in(network.node(0), &config);
    until_ready(&network, &node, &listener);
    let ends = leave_time_wait(&network, Family::V4, &listener, 20_000);
    let syns = ("input", "tcp flags & (syn | ack) == syn counter");
    firewall(server, "syns", &[syns]);
    let mut client = dial_at(&network, ends, ISNS[1]).expect("the node answers");
    let error = uninterrupted(|| client.read(&mut [0])).expect_err("it is reset");
    assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET));
    // One behind the reset after each.
    let counted = firewall_text(server, "syns");
    let is_few = (2..=8).any(|number| counted.contains(&format!("packets {number} ")));
    assert!(is_few, "{counted}");
}
