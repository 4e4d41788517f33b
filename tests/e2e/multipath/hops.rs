// SPDX-License-Identifier: Apache-2.0
//! Hops over Multipath TCP, of a node with two uplinks.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;

use posthaste_lab::network::Family;
use posthaste_lab::node::Node;
use socket2::Protocol;

use super::testbed::{
    TRANSFER, TwoPaths, address, content, multipath, server, transfer, until_joined,
};
use crate::requests::{ALLOWED, KEY, LISTENER_PORT};
use crate::support::{PORT, SOON, binary, counter, deliver, dial, firewall, until, until_ended};

/// The port of the near node's listener, on its loopback address.
const OWN: u16 = 8080;

/// The near node on the client's host, with two paths to the far one on the router.
struct TwoNodes {
    bed: TwoPaths,
    near: Node,
    far: Node,
    family: Family,
}

impl TwoNodes {
    /// `of_listener` is of the far node, `of_peer` of the near one.
    fn new(family: Family, of_listener: &str, of_peer: &str) -> Self {
        let bed = TwoPaths::new();
        let at = |host| SocketAddr::new(address(family, 1, host), LISTENER_PORT);
        let head = |id| {
            format!(
                "[node]\nid = {id}\n{ALLOWED}[transparent]\nenabled = false\n[measure]\nenabled = false\n"
            )
        };
        let peer = |id, host| {
            let address = at(host);
            format!(
                "[[peer]]\nname = \"other\"\nid = {id}\naddress = \"{address}\"\nkey = \"{KEY}\"\n"
            )
        };
        let far = format!(
            "{}[[listener]]\naddress = \"{}\"\n{of_listener}{}",
            head(2),
            at(1),
            peer(1, 2)
        );
        let near = format!(
            "{}[[listener]]\nmode = \"fixed\"\naddress = \"{}\"\ndestination = \"{}\"\n{}{of_peer}\
             [[chain]]\nname = \"far\"\nnodes = [\"other\"]\n\
             [[route]]\nchains = [\"far\"]\ndirect = false\n",
            head(1),
            own(family),
            server(family, PORT),
            peer(2, 1)
        );
        let far = bed.node(&far);
        let near = Node::builder(&bed.client, binary())
            .relaying()
            .config(&near)
            .start();
        let near = near.expect("the near node becomes ready");
        Self {
            bed,
            near,
            far,
            family,
        }
    }

    /// Both ends of a connection over both nodes, which has carried a byte each way.
    fn connect(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = dial(&self.bed.client, own(self.family));
        let mut client = client.expect("the near node accepts");
        let (mut server, _) = listener.accept().expect("it arrives");
        server.set_read_timeout(Some(SOON)).expect("a bound");
        deliver(&mut client, &mut server, b"?");
        deliver(&mut server, &mut client, b"!");
        (client, server)
    }

    /// Transfers both ways and ends the connection, the `count`th of both nodes.
    fn finish(&self, client: TcpStream, mut server: TcpStream, count: u64) {
        let mut client = transfer(client, &mut server, TRANSFER);
        transfer(server, &mut client, TRANSFER);
        for node in [&self.near, &self.far] {
            until_ended(node, "finished", count);
        }
    }
}

fn own(family: Family) -> SocketAddr {
    let ip = match family {
        Family::V4 => IpAddr::from([127, 0, 0, 1]),
        Family::V6 => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1_u16]),
    };
    SocketAddr::new(ip, OWN)
}

// promise: MP12
#[test]
fn hops_use_both_uplinks() {
    for family in Family::ALL {
        for pool in ["pool_max = 0\n", "pool_min = 1\npool_max = 1\n"] {
            let of_peer = format!("transport = \"mptcp\"\n{pool}");
            let nodes = TwoNodes::new(family, "multipath = true\n", &of_peer);
            let listener = nodes.bed.listen(family, Protocol::TCP);
            let (client, server) = nodes.connect(&listener);
            // Warm hops have further paths too, at any time.
            until("a further path joins", || {
                multipath(&nodes.bed.router, "MPJoinAckRx") >= 1
            });
            nodes.finish(client, server, 1);
            assert_eq!(counter(&nodes.near, "multipath_fell_back_server"), 0);
            assert_eq!(multipath(&nodes.bed.server, "MPCapableSYNRX"), 0);
        }
    }
}

/// The uplink that the hop began on fails while bytes cross it.
// promise: MP12
#[test]
fn hop_survives_an_uplink() {
    let of_peer = "transport = \"mptcp\"\npool_max = 0\n";
    for family in Family::ALL {
        let nodes = TwoNodes::new(family, "multipath = true\n", of_peer);
        let listener = nodes.bed.listen(family, Protocol::TCP);
        let (mut client, mut server) = nodes.connect(&listener);
        until_joined(&nodes.bed.router, 1);
        let mut sender = client.try_clone().expect("a descriptor");
        let sender = thread::spawn(move || sender.write_all(&content(TRANSFER)));
        let mut received = vec![0; TRANSFER];
        let (first, rest) = received.split_at_mut(1 << 16);
        server.read_exact(first).expect("the first bytes arrive");
        // More than the sockets hold is on its way.
        nodes.bed.client.ip("link set p1 down").expect("a link");
        server.read_exact(rest).expect("the others arrive");
        sender.join().expect("no panic").expect("all is sent");
        assert!(received == content(TRANSFER), "{family}: other bytes");
        deliver(&mut server, &mut client, b".");
        nodes.finish(client, server, 1);
    }
}

/// One end has no Multipath TCP.
// promise: MP12
#[test]
fn hops_become_tcp() {
    let of_peer = "transport = \"mptcp\"\npool_max = 0\n";
    for family in Family::ALL {
        let nodes = TwoNodes::new(family, "", of_peer);
        let listener = nodes.bed.listen(family, Protocol::TCP);
        for ended in 1..=2 {
            let (client, server) = nodes.connect(&listener);
            nodes.finish(client, server, ended);
            // The second flow finds a host that has none itself.
            let off = nodes.bed.client.sysctl("net.mptcp.enabled", "0");
            off.expect("a sysctl");
        }
        assert_eq!(counter(&nodes.near, "multipath_fell_back_server"), 1);
    }
}

/// New hops take the other uplink, which has a way to the far node's address, after that of the routes is cut.
fn new_hops_leave_an_uplink(cut: impl Fn(&TwoNodes)) {
    for pool in ["pool_max = 0\n", "pool_min = 1\npool_max = 1\n"] {
        let of_peer = format!("transport = \"mptcp\"\n{pool}");
        let nodes = TwoNodes::new(Family::V4, "multipath = true\n", &of_peer);
        let listener = nodes.bed.listen(Family::V4, Protocol::TCP);
        let (client, server) = nodes.connect(&listener);
        nodes.finish(client, server, 1);
        cut(&nodes);
        for count in 2..4 {
            let (client, server) = nodes.connect(&listener);
            nodes.finish(client, server, count);
        }
        assert_eq!(counter(&nodes.near, "hops_failed"), 0, "{pool}");
    }
}

/// It lets nothing pass, with no sign of that.
// promise: MP12
#[test]
fn new_hops_leave_a_silent_uplink() {
    new_hops_leave_an_uplink(|nodes| {
        let silent = [
            ("prerouting", "iifname \"c1\" drop"),
            ("postrouting", "oifname \"c1\" drop"),
        ];
        firewall(&nodes.bed.router, "silent", &silent);
    });
}

/// Its link is down, so that this host has no route by it.
// promise: MP12
#[test]
fn new_hops_leave_an_uplink_without_a_route() {
    new_hops_leave_an_uplink(|nodes| {
        nodes.bed.client.ip("link set p1 down").expect("a link");
    });
}

/// The peer chooses Multipath TCP; this node's file does not know of it.
// promise: MP12
#[test]
fn accepted_hops_have_the_congestion_control_of_several_paths() {
    for pool in ["pool_max = 0\n", "pool_min = 1\npool_max = 1\n"] {
        let of_peer = format!("transport = \"mptcp\"\n{pool}");
        let nodes = TwoNodes::new(Family::V4, "multipath = true\n", &of_peer);
        let listener = nodes.bed.listen(Family::V4, Protocol::TCP);
        let (client, server) = nodes.connect(&listener);
        let mut ss = nodes
            .bed
            .router
            .command("ss")
            .expect("the namespace is open");
        ss.args(["-tinH", "state", "established", "sport", "= :4480"]);
        let paths = String::from_utf8(ss.output().expect("ss runs").stdout).expect("text");
        assert!(
            paths.contains("cubic") && !paths.contains("posthaste"),
            "{paths}"
        );
        nodes.finish(client, server, 1);
    }
}
