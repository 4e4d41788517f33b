// SPDX-License-Identifier: Apache-2.0
//! A client with two paths, a node, a server.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use socket2::{Domain, Protocol, Socket, Type};

use crate::support::{PORT, SOON, binary, deliver, kernel_counter, until};

/// Bytes of a transfer, more than any socket of the path holds.
pub(super) const TRANSFER: usize = 6 << 20;

/// `client p1,p2 -- c1,c2 router s -- eth0 server`. The client's second address is one of
/// Multipath TCP, with routes of its own over `p2`.
#[derive(Debug)]
pub(super) struct TwoPaths {
    pub(super) client: Namespace,
    pub(super) router: Namespace,
    pub(super) server: Namespace,
}

/// The address of a host (1 is the router) in one of the three networks.
pub(super) fn address(family: Family, net: u8, host: u8) -> IpAddr {
    let text = match family {
        Family::V4 => format!("10.31.{net}.{host}"),
        Family::V6 => format!("fd31:{net}::{host}"),
    };
    text.parse().expect("an address")
}

/// The server, at a port.
pub(super) fn server(family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(address(family, 3, 2), port)
}

fn batch(host: &Namespace, lines: &str) {
    let lines: Vec<String> = lines.lines().map(|line| line.trim().to_owned()).collect();
    host.ip_batch(&lines).expect("addresses and routes");
}

impl TwoPaths {
    pub(super) fn new() -> Self {
        let make = || Namespace::new().expect("root makes namespaces");
        let bed = Self {
            client: make(),
            router: make(),
            server: make(),
        };
        let router = bed.router.name();
        for [near, far] in [["p1", "c1"], ["p2", "c2"]] {
            let cable = format!("link add {near} type veth peer name {far} netns {router}");
            bed.client.ip(&cable).expect("a cable");
        }
        let cable = format!("link add eth0 type veth peer name s netns {router}");
        bed.server.ip(&cable).expect("a cable");
        bed.configure();
        bed
    }

    fn configure(&self) {
        batch(
            &self.client,
            "link set p1 up
            link set p2 up
            address add 10.31.1.2/24 dev p1
            address add 10.31.2.2/24 dev p2
            address add fd31:1::2/64 dev p1 nodad
            address add fd31:2::2/64 dev p2 nodad
            route add default via 10.31.1.1
            route add default via fd31:1::1
            route add default via 10.31.2.1 dev p2 table 102
            route add default via fd31:2::1 dev p2 table 102
            rule add from 10.31.2.2 lookup 102",
        );
        // ip takes a rule for one of IPv4 unless it is started otherwise.
        let mut ip = self.client.command("ip").expect("the namespace is open");
        let rule = "-6 rule add from fd31:2::2 lookup 102".split(' ');
        assert!(ip.args(rule).status().expect("ip runs").success());
        batch(
            &self.router,
            "link set c1 up
            link set c2 up
            link set s up
            address add 10.31.1.1/24 dev c1
            address add 10.31.2.1/24 dev c2
            address add 10.31.3.1/24 dev s
            address add fd31:1::1/64 dev c1 nodad
            address add fd31:2::1/64 dev c2 nodad
            address add fd31:3::1/64 dev s nodad",
        );
        batch(
            &self.server,
            "link set eth0 up
            address add 10.31.3.2/24 dev eth0
            address add fd31:3::2/64 dev eth0 nodad
            route add default via 10.31.3.1
            route add default via fd31:3::1",
        );
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            self.router.sysctl(key, "1").expect("a router");
        }
        for host in [&self.client, &self.router, &self.server] {
            host.ip("mptcp limits set subflows 4 add_addr_accepted 4")
                .expect("limits");
        }
        for family in Family::ALL {
            let second = address(family, 2, 2);
            let endpoint = format!("mptcp endpoint add {second} dev p2 subflow");
            self.client.ip(&endpoint).expect("an endpoint");
        }
    }

    /// Starts a node on the router. Its rules convert unless `config` says otherwise.
    pub(super) fn node(&self, config: &str) -> Node {
        let node = Node::builder(&self.router, binary())
            .relaying()
            .config(config)
            .start();
        node.expect("the node becomes ready")
    }

    /// A port to listen on at the server, at all its addresses of a family.
    pub(super) fn listen(&self, family: Family, protocol: Protocol) -> TcpListener {
        self.listen_at(PORT, family, protocol)
    }

    /// The same for a port of one's choice.
    pub(super) fn listen_at(&self, port: u16, family: Family, protocol: Protocol) -> TcpListener {
        let any = match family {
            Family::V4 => IpAddr::from([0; 4]),
            Family::V6 => IpAddr::from([0; 16]),
        };
        let at = SocketAddr::new(any, port);
        let make = || -> io::Result<TcpListener> {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(protocol))?;
            if at.is_ipv6() {
                socket.set_only_v6(true)?;
            }
            socket.set_reuse_address(true)?;
            socket.bind(&at.into())?;
            socket.listen(1024)?;
            Ok(socket.into())
        };
        self.server.run_in(make).expect("a listener")
    }

    /// A client of Multipath TCP.
    pub(super) fn dial(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.client.run_in(|| {
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::MPTCP))?;
            socket.connect(&to.into())?;
            let stream = TcpStream::from(socket);
            stream.set_read_timeout(Some(SOON))?;
            stream.set_write_timeout(Some(SOON))?;
            Ok(stream)
        })
    }

    /// Both ends of a connection of a client with Multipath TCP. It has sent a byte: until the other
    /// end acknowledges one, a client opens no further path (RFC 8684 section 3.1).
    pub(super) fn connect(&self, family: Family, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let port = listener.local_addr().expect("a bound socket").port();
        let client = self.dial(server(family, port));
        let mut client = client.expect("the client connects");
        let (mut server, _) = listener.accept().expect("it arrives");
        server.set_read_timeout(Some(SOON)).expect("a bound");
        deliver(&mut client, &mut server, b"!");
        (client, server)
    }
}

/// A counter of Multipath TCP of a host.
pub(super) fn multipath(host: &Namespace, name: &str) -> u64 {
    kernel_counter(host, "MPTcpExt", name)
}

/// Waits until a host has joined so many further paths.
pub(super) fn until_joined(host: &Namespace, count: u64) {
    until("a further path joins", || {
        multipath(host, "MPJoinAckRx") >= count
    });
    assert_eq!(multipath(host, "MPJoinAckRx"), count);
}

/// Content that shows where a byte is missing or moved.
pub(super) fn content(bytes: usize) -> Vec<u8> {
    let word = |at: usize| {
        (at as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_be_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(word).take(bytes).collect()
}

/// Sends content from one end, ends the stream, and checks what the other end receives.
pub(super) fn transfer(from: TcpStream, to: &mut TcpStream, bytes: usize) -> TcpStream {
    let sent = content(bytes);
    let sender = thread::spawn(move || {
        let mut from = from;
        from.write_all(&content(bytes)).expect("it is sent");
        from.shutdown(std::net::Shutdown::Write)
            .expect("an open connection");
        from
    });
    let mut received = Vec::with_capacity(bytes);
    to.read_to_end(&mut received).expect("an orderly end");
    assert_eq!(received.len(), sent.len());
    assert!(received == sent, "the content differs");
    sender.join().expect("the sender ends")
}
