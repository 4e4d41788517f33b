// SPDX-License-Identifier: Apache-2.0
//! Requests that come with the SYN (TCP Fast Open without a cookie, RFC 7413 and RFC 8803 §5).

use std::net::{SocketAddr, TcpStream};
use std::thread;

use posthaste_lab::netns::Namespace;
use posthaste_lab::network::Family;

use crate::capture::Capture;
use crate::requests::{ExplicitNode, fixture, listener, read};
use crate::support::{
    PORT, Pair, SOON, accept, counter, firewall, kernel_counter, listen, remove_firewall,
    tcp_socket, until, until_ended,
};

use super::{CONNECTED, connect, converter, message, server};

/// Sends `bytes` with a SYN, which waits for its answer.
fn send_with_syn(host: &Namespace, to: SocketAddr, bytes: &[u8]) -> TcpStream {
    host.run_in(|| {
        let socket = tcp_socket(to).unwrap();
        let sent = socket.send_to_with_flags(bytes, &to.into(), libc::MSG_FASTOPEN);
        assert_eq!(sent.expect("it is sent"), bytes.len());
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.set_write_timeout(Some(SOON)).unwrap();
        stream
    })
}

fn fast_open(host: &Namespace, bits: u8) {
    host.sysctl("net.ipv4.tcp_fastopen", &bits.to_string())
        .expect("a namespace has its own Fast Open");
}

/// With bit 2 on at the node its kernel takes what the SYN carries, else the client sends it again.
// promise: Q1
#[test]
fn request_in_syn() {
    for (bits, taken) in [(3, 1), (1, 0)] {
        let network = fixture();
        // The client wants no cookie.
        fast_open(network.client(), 5);
        fast_open(network.node(0), bits);
        let explicit = ExplicitNode::start(&network, &converter(&network));
        let servers = listen(network.server(), PORT);
        for (count, family) in (1..).zip(Family::ALL) {
            let capture = Capture::start(network.client());
            let mut request = message(&[&connect(server(&network, family), &[])]);
            request.extend_from_slice(b"sent early");
            let node = listener(&network, 0, family);
            let mut client = send_with_syn(network.client(), node, &request);
            let (mut server, _) = accept(&servers);
            assert_eq!(read(&mut server, 10), b"sent early");
            assert_eq!(read(&mut client, 4), CONNECTED);
            let syns = capture.syns_to(node.port());
            assert_eq!(syns[0].bytes, request.len(), "{family}");
            let passive = kernel_counter(network.node(0), "TcpExt", "TCPFastOpenPassive");
            assert_eq!(passive, taken * count, "{family}, tcp_fastopen = {bits}");
            let mut pair = Pair { client, server };
            pair.check();
            pair.close_client_first();
            until_ended(&explicit.node, "finished", count);
        }
        assert_eq!(explicit.settle(), 2);
    }
}

/// A SYN validates no address: its source may be forged.
// promise: Q2
#[test]
fn request_in_syn_waits() {
    let network = fixture();
    fast_open(network.client(), 5);
    fast_open(network.node(0), 3);
    let explicit = ExplicitNode::start(&network, &converter(&network));
    let servers = listen(network.server(), PORT);
    for family in Family::ALL {
        let node = listener(&network, 0, family);
        let request = message(&[&connect(server(&network, family), &[])]);
        let at_server = Capture::start(network.server());
        let at_client = Capture::start(network.client());
        let deaf = "tcp flags & (syn | ack) == syn | ack drop";
        firewall(network.client(), "deaf", &[("input", deaf)]);
        let before = counter(&explicit.node, "explicit_connections");
        thread::scope(|scope| {
            let client = scope.spawn(|| send_with_syn(network.client(), node, &request));
            until("accepted SYN", || {
                counter(&explicit.node, "explicit_connections") > before
            });
            // The node repeats its SYN-ACK, and the client does not receive it.
            until("another answer", || {
                let segments = at_client.segments().into_iter();
                segments.filter(|segment| segment.from == node).count() > 1
            });
            assert_eq!(at_server.syns_to(PORT), [], "{family}");
            remove_firewall(network.client(), "deaf");
            let mut client = client.join().expect("no panic");
            let (server, _) = accept(&servers);
            assert_eq!(read(&mut client, 4), CONNECTED);
            let mut pair = Pair { client, server };
            pair.check();
            pair.close_client_first();
        });
    }
    until_ended(&explicit.node, "finished", 2);
    assert_eq!(explicit.settle(), 2);
}
