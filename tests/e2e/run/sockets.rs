// SPDX-License-Identifier: Apache-2.0
//! Every way to make a connection, by a static program: this one.

use std::env;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;

use nix::net::if_::{Interface, if_nameindex};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use posthaste_lab::network::Family;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Mirror, is_address_of, line_of, start_open, through};
use crate::payload::{receive_all, send};
use crate::support::{PORT, SOON, accept, listen, plain, until_ended};

/// Makes this program the client; contains the address to connect to, and the method.
const CLIENT: &str = "POSTHASTE_TEST_CLIENT";
const WAYS: [&str; 6] = ["plain", "mapped", "waiting", "multipath", "fast", "bound"];
/// `IPPROTO_MPTCP`
const MULTIPATH: i32 = 262;
/// Bytes that are under way when a command ends.
const LAST_WORDS: u64 = 3_000_000;

// promise: P2, P3
#[test]
fn socket_kinds_redirected() {
    if let Ok(order) = env::var(CLIENT) {
        return be_client(&order);
    }
    assert!(!has_interpreter(), "this program is not static");
    let network = line_of(1);
    let (_node, via) = start_open(&network, Family::V4);
    let mirror = Mirror::start(network.server());
    for family in Family::ALL {
        let server = SocketAddr::new(network.server_address(family), mirror.port);
        for way in WAYS {
            if way == "mapped" && family == Family::V6 {
                continue;
            }
            let name = "run::sockets::socket_kinds_redirected";
            let own = env::current_exe().unwrap();
            let words = [own.to_str().unwrap(), "--exact", name, "--nocapture"];
            let mut command = through(&network, via, &[], words);
            command.env(CLIENT, format!("{way} {server}"));
            let output = command.output().unwrap();
            let message = String::from_utf8_lossy(&output.stdout).into_owned();
            let reported = |what: &str| {
                let lines = message.lines();
                let found = lines.filter_map(|line| line.strip_prefix(what)).next_back();
                found
                    .unwrap_or_else(|| panic!("{way} {family}: {output:?}"))
                    .to_owned()
            };
            let sees: SocketAddr = reported("sees ").parse().unwrap();
            assert_eq!(sees.is_ipv6(), server.is_ipv6() || way == "mapped");
            assert_eq!(plain(sees), server, "{way}");
            let seen: IpAddr = reported("seen as ").parse().unwrap();
            let direct = way == "bound";
            assert_eq!(
                is_address_of(network.node(0), seen),
                !direct,
                "{way}: {seen}"
            );
        }
    }
}

/// Connects in one of the [`WAYS`] and returns what both ends see.
fn be_client(order: &str) {
    let (way, server) = order.split_once(' ').unwrap();
    let server: SocketAddr = server.parse().unwrap();
    let request = b"GET / HTTP/1.0\r\n\r\n";
    let mut stream: TcpStream = match way {
        "waiting" => connect_waiting(server).unwrap(),
        "fast" => connect_with_request(server, request).unwrap(),
        _ => connect(server, way).unwrap(),
    }
    .into();
    println!("\nsees {}", stream.peer_addr().unwrap());
    if way != "fast" {
        stream.write_all(request).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    println!("seen as {}", answer.lines().last().unwrap());
}

fn connect(server: SocketAddr, way: &str) -> io::Result<Socket> {
    let target = match server.ip() {
        IpAddr::V4(v4) if way == "mapped" => (v4.to_ipv6_mapped(), server.port()).into(),
        _ => server,
    };
    let protocol = if way == "multipath" {
        Protocol::from(MULTIPATH)
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(protocol))?;
    if way == "bound" {
        // The client has one interface besides the loopback one, where it would not arrive.
        let all = if_nameindex()?;
        let mut names = all.iter().map(Interface::name);
        let name = names.find(|name| *name != c"lo").expect("an interface");
        socket.bind_device(Some(name.to_bytes()))?;
    }
    socket.connect(&target.into())?;
    Ok(socket)
}

/// As event loops connect.
fn connect_waiting(server: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(server), kind, Some(Protocol::TCP))?;
    let begun = socket.connect(&server.into()).unwrap_err();
    assert_eq!(begun.raw_os_error(), Some(libc::EINPROGRESS));
    let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    assert_eq!(poll(&mut waiting, PollTimeout::from(30_000_u16))?, 1);
    if let Some(error) = socket.take_error()? {
        return Err(error);
    }
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// With the request in the call that connects (TCP Fast Open).
fn connect_with_request(server: SocketAddr, request: &[u8]) -> io::Result<Socket> {
    let domain = Domain::for_address(server);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    let sent = socket.send_to_with_flags(request, &server.into(), libc::MSG_FASTOPEN)?;
    assert_eq!(sent, request.len());
    Ok(socket)
}

/// Whether the kernel starts this program by way of a dynamic linker: the file has a `PT_INTERP`
/// header.
fn has_interpreter() -> bool {
    let file = fs::read("/proc/self/exe").unwrap();
    let number = |at: usize, bytes: usize| {
        let field = file[at..at + bytes].iter().rev();
        field.fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let (first, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|index| number(first + index * size, 4) == 3)
}

// promise: P6
#[test]
fn last_bytes_arrive() {
    const NAME: &str = "run::sockets::last_bytes_arrive";
    if let Ok(order) = env::var(CLIENT) {
        let server: SocketAddr = order.parse().unwrap();
        let mut stream = TcpStream::connect(server).unwrap();
        send(&mut stream, 5, LAST_WORDS).unwrap();
        return;
    }
    let network = line_of(1);
    let (node, via) = start_open(&network, Family::V4);
    for (count, family) in (1..).zip(Family::ALL) {
        let listener = listen(network.server(), PORT);
        let own = env::current_exe().unwrap();
        let words = [own.to_str().unwrap(), "--exact", NAME, "--nocapture"];
        let server = SocketAddr::new(network.server_address(family), PORT);
        let mut command = through(&network, via, &[], words);
        command.env(CLIENT, server.to_string());
        let reader = std::thread::spawn(move || {
            let (mut stream, _) = accept(&listener);
            stream.set_read_timeout(Some(SOON)).unwrap();
            let count = receive_all(&mut stream, 5).unwrap();
            stream.shutdown(Shutdown::Both).unwrap();
            count
        });
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(reader.join().unwrap(), LAST_WORDS);
        until_ended(&node, "finished", count);
    }
}

// promise: P3
#[test]
fn other_namespaces_untouched() {
    let network = line_of(1);
    let (_node, via) = start_open(&network, Family::V4);
    let server = network.server();
    let mirror = Mirror::start(server);
    let ip = network.server_address(Family::V4);
    // The command enters the server's namespace, where the listeners of `run` are not.
    let script = format!(
        "ip netns exec {} curl -sS {}",
        server.name(),
        mirror.url(ip)
    );
    let message = super::printed(&mut through(&network, via, &[], ["sh", "-c", &script]));
    assert_eq!(message.trim().parse::<IpAddr>().unwrap(), ip);
    assert_ne!(ip, IpAddr::V6(Ipv6Addr::LOCALHOST));
}
