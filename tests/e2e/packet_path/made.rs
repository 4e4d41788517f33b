// SPDX-License-Identifier: Apache-2.0
//! Segments that the node makes, and SYNs that it leaves alone, on networks that treat them apart.

use std::net::SocketAddr;

use super::*;
use crate::support::{SOON, deliver, kernel_counter, tcp_socket};

/// What comes from the server's side is marked, and what has the mark does not go there.
const MARKS: &str = "table inet marks {
chain on_prerouting { type filter hook prerouting priority -150;
iifname != \"c0\" meta mark set 5
}
chain on_forward { type filter hook forward priority 0;
iifname \"c0\" meta mark 5 counter drop
}
}
";

// promise: PK11
/// What the node sends to the server in place of a SYN-ACK does not take the way of that.
#[test]
fn made_segments_have_no_mark() {
    let network = network([
        Link::delay(Duration::from_millis(1)),
        Link::delay(Duration::from_millis(100)),
    ]);
    firewall_script(network.node(0), MARKS);
    let (node, listener) = ready(&network);
    for family in Family::ALL {
        let opened = redirect(&node, "packet_opened");
        let to = target(&network, family, &listener);
        // The server speaks first: it waits for an ACK that the node makes.
        let mut client = dial(network.client(), to).expect("the node answers");
        let (mut server, _) = accept(&listener);
        deliver(&mut server, &mut client, b"welcome");
        Pair { client, server }.close_client_first();
        // The client does, before the server has answered.
        let mut client = dial(network.client(), to).expect("the node answers");
        client.write_all(b"a question").expect("it is open");
        let (mut server, _) = accept(&listener);
        server.read_exact(&mut [0; 10]).expect("it arrives");
        Pair { client, server }.close_client_first();
        assert_eq!(redirect(&node, "packet_opened"), opened + 2, "{family}");
    }
    let marks = firewall_text(network.node(0), "marks");
    assert!(marks.contains("counter packets 0 "), "{marks}");
}

/// Connects with ten bytes in the SYN if there is a cookie, else behind the handshake.
fn ask_with_syn(host: &Namespace, to: SocketAddr) -> TcpStream {
    let socket = host.run_in(|| tcp_socket(to)).expect("a socket");
    let sent = socket.send_to_with_flags(b"a question", &to.into(), libc::MSG_FASTOPEN);
    assert_eq!(sent.expect("it is sent"), 10);
    let client = TcpStream::from(socket);
    client.set_read_timeout(Some(SOON)).expect("a limit");
    client
}

// promise: PK11
/// The server takes what its clients send with their SYNs (RFC 7413), and gives cookies for it.
#[test]
fn data_in_syns_reach_the_server() {
    let network = line();
    let fast_open = |host: &Namespace, bits| host.sysctl("net.ipv4.tcp_fastopen", bits);
    fast_open(network.client(), "1").expect("a namespace has its own");
    // Of each listener that is opened from now on.
    fast_open(network.server(), "0x403").expect("a namespace has its own");
    let listener = listen(network.server(), PORT);
    let node = start_relaying_in(network.node(0), AUTO);
    until_ready(&network, &node, &listener);
    let relays = counter(&node, "relays_opened");
    let taken = || kernel_counter(network.server(), "TcpExt", "TCPFastOpenPassive");
    for (count, family) in (1..).zip(Family::ALL) {
        let to = target(&network, family, &listener);
        // The first asks for a cookie.
        for _ in 0..2 {
            let client = ask_with_syn(network.client(), to);
            let (mut server, _) = accept(&listener);
            server.read_exact(&mut [0; 10]).expect("it arrives");
            let mut pair = Pair { client, server };
            pair.check();
            pair.close_client_first();
        }
        assert_eq!(taken(), count, "{family}");
    }
    assert_eq!(counter(&node, "relays_opened"), relays);
}
