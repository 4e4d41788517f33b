// SPDX-License-Identifier: Apache-2.0
//! Clients that do what few do: hurry, start over, send urgent data, use TCP's rarer extensions.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::network::{Family, Network};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::capture::Capture;
use crate::support::{
    MODES_BY_PORT, PORT, Pair, SOON, accept, close, counter, deliver, dial, dial_from, dial_with,
    each_mode, expect_end, firewall, line, listen, network, remove_firewall, reset, start_relaying,
    target, tcp_socket, until, until_counter, until_ended,
};

/// The client is near and the server far, so the client can act before the server has answered.
fn far_server() -> Network {
    network([Link::Veth, Link::delay(Duration::from_millis(50))])
}

// promise: T16
#[test]
fn early_bytes_arrive() {
    let network = far_server();
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            let mut client = dial(network.client(), to).expect("it connects");
            client.write_all(&[5; 20_000]).expect("it is sent");
            client.shutdown(Shutdown::Write).expect("it is open");
            let (mut server, _) = accept(&listener);
            let mut received = Vec::new();
            server.read_to_end(&mut received).expect("it arrives");
            assert!(
                received == [5; 20_000],
                "{mode} {family}: {} bytes",
                received.len()
            );
            deliver(&mut server, &mut client, b"an answer");
            drop(server);
            expect_end(&mut client);
        }
    }
    until_ended(&node, "finished", 6);
}

// promise: T16
#[test]
fn early_close_leaves_nothing() {
    let network = far_server();
    let config = format!("[half_open]\nexpiry = \"1s\"\n{}", each_mode());
    let node = start_relaying(&network, &config);
    for (mode, port) in [("early", 1080), ("late", 3080)] {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            reset(dial(network.client(), to).expect("it connects"));
            let mut client = dial(network.client(), to).expect("it connects");
            client.write_all(b"a question").expect("it is sent");
            reset(client);
        }
        until_counter(&node, "relays", 0);
        assert_eq!(counter(&node, "half_open"), 0);
        // The server has seen a connection and its reset, or none.
        listener.set_nonblocking(true).expect("an option");
        while let Ok((mut server, _)) = listener.accept() {
            server.set_nonblocking(false).expect("an option");
            server.set_read_timeout(Some(SOON)).expect("an option");
            let end = server.read_to_end(&mut Vec::new());
            let end = end.expect_err("a reset").kind();
            assert_eq!(end, io::ErrorKind::ConnectionReset, "{mode}");
        }
    }
}

/// Gives up a connection attempt without an answer, then retries from the same port.
// promise: T16
#[test]
fn same_port_new_attempt() {
    let network = line();
    let node = start_relaying(&network, &each_mode());
    for (_, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            let from = SocketAddr::new(network.client_address(family), 4001);
            let deaf = "tcp flags & (syn | ack) == syn | ack drop";
            firewall(network.client(), "deaf", &[("input", deaf)]);
            let before = counter(&node, "syns_redirected");
            let attempt = || -> io::Result<Socket> {
                let socket = tcp_socket(to)?;
                socket.set_reuse_address(true)?;
                socket.bind(&from.into())?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            };
            let given_up = network.client().run_in(attempt).expect("a socket");
            assert!(given_up.connect(&to.into()).is_err(), "it does not wait");
            until("SYN at the node", || {
                counter(&node, "syns_redirected") > before
            });
            drop(given_up);
            remove_firewall(network.client(), "deaf");
            let dialled = dial_from(network.client(), from, to);
            let mut pair = Pair::of(dialled, &listener);
            pair.check();
            pair.close_client_first();
        }
    }
    until_ended(&node, "finished", 6);
    until_counter(&node, "relays", 0);
    assert_eq!(counter(&node, "half_open"), 0);
}

/// Urgent bytes arrive like any others, though without their urgency.
// promise: I7
#[test]
fn urgent_bytes_survive() {
    let network = line();
    let listener = listen(network.server(), PORT);
    let node = start_relaying(&network, "");
    for family in Family::ALL {
        // Copied by the node, and spliced.
        for bytes in [1000, 1_000_000] {
            let Pair { client, server } = Pair::open(&network, family, &listener);
            for (from, to) in [(&client, &server), (&server, &client)] {
                send_with_urgent_bytes(from, to, bytes);
            }
            close(client, server);
        }
    }
    until_ended(&node, "finished", 4);
}

fn send_with_urgent_bytes(mut from: &TcpStream, mut to: &TcpStream, bytes: usize) {
    SockRef::from(to)
        .set_out_of_band_inline(true)
        .expect("a socket has options");
    let content: Vec<u8> = (0..=250).cycle().take(bytes).collect();
    thread::scope(|scope| {
        let sent = &content;
        scope.spawn(move || {
            for _ in 0..3 {
                from.write_all(sent).expect("it is sent");
                SockRef::from(from)
                    .send_out_of_band(b"!")
                    .expect("it is sent");
            }
            from.write_all(sent).expect("it is sent");
        });
        let mut received = vec![0; 4 * bytes + 3];
        to.read_exact(&mut received).expect("everything arrives");
        let expected = [&content[..]; 4].join(&b'!');
        assert!(received == expected, "other bytes than were sent");
    });
}

// promise: T16
#[test]
fn syn_with_data() {
    let network = line();
    // 1: client, 2: server, 4: send data without a cookie.
    network
        .client()
        .sysctl("net.ipv4.tcp_fastopen", "5")
        .unwrap();
    network
        .server()
        .sysctl("net.ipv4.tcp_fastopen", "0x203")
        .unwrap();
    let node = start_relaying(&network, &each_mode());
    let capture = Capture::start(network.client());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            let socket = network
                .client()
                .run_in(|| tcp_socket(to))
                .expect("a socket");
            let sent = socket.send_to_with_flags(b"in a hurry", &to.into(), libc::MSG_FASTOPEN);
            assert_eq!(sent.expect("it is sent"), 10);
            let client = TcpStream::from(socket);
            client.set_read_timeout(Some(SOON)).unwrap();
            let (server, _) = accept(&listener);
            let mut pair = Pair { client, server };
            let mut received = [0; 10];
            pair.server.read_exact(&mut received).expect("it arrives");
            assert_eq!(&received, b"in a hurry");
            pair.check();
            pair.close_client_first();
        }
        let syns = capture.syns_to(port);
        assert!(!syns.is_empty() && syns.iter().all(|syn| syn.bytes == 10));
        assert_eq!(counter(&node, mode), 2);
    }
    until_ended(&node, "finished", 6);
}

// promise: T16
#[test]
fn multipath_falls_back() {
    let network = line();
    let config = format!("[defaults]\nmultipath = \"off\"\n{}", each_mode());
    let node = start_relaying(&network, &config);
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            let connect = || -> io::Result<TcpStream> {
                let domain = Domain::for_address(to);
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))?;
                socket.connect(&to.into())?;
                socket.set_read_timeout(Some(SOON))?;
                Ok(socket.into())
            };
            let mut pair = Pair::of(network.client().run_in(connect), &listener);
            pair.check();
            pair.close_client_first();
        }
        assert_eq!(counter(&node, mode), 2);
    }
    until_ended(&node, "finished", 6);
}

// promise: T16
#[test]
fn ip_options_and_ecn() {
    let network = line();
    for host in [network.client(), network.server()] {
        host.sysctl("net.ipv4.tcp_ecn", "1").unwrap();
    }
    let node = start_relaying(&network, &each_mode());
    for (mode, port) in MODES_BY_PORT {
        let listener = listen(network.server(), port);
        for family in Family::ALL {
            let to = target(&network, family, &listener);
            let dialled = dial_with(network.client(), to, |socket| {
                if family == Family::V4 {
                    // Three times "no operation" and "end": a longer header.
                    set_ip_options(socket, &[1, 1, 1, 0])?;
                }
                Ok(())
            });
            let mut pair = Pair::of(dialled, &listener);
            pair.check();
            pair.close_client_first();
        }
        assert_eq!(counter(&node, mode), 2);
    }
    until_ended(&node, "finished", 6);
}

/// Has IPv4 packets of a socket carry options (`IP_OPTIONS`, RFC 791).
fn set_ip_options(socket: &Socket, options: &[u8; 4]) -> io::Result<()> {
    // SAFETY: the kernel reads four bytes of `options`, which live through the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_OPTIONS,
            options.as_ptr().cast(),
            4,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
