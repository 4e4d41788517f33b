// SPDX-License-Identifier: Apache-2.0
//! Commands with connections through a node, without proxy settings: what they, the server and
//! other hosts see.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use socket2::SockRef;

use crate::support::{PORT, binary, listen, network, plain, start_relaying_in};

mod ends;
mod next_hops;
mod sockets;

/// The port of explicit listeners.
const LISTENER_PORT: u16 = 4480;
/// The networks of the tests, as clients and as destinations.
const OPEN: &str = "[access]\nclients = [\"10.0.0.0/8\", \"fd00::/8\"]\n\
                    destinations = [\"10.0.0.0/8\", \"fd00::/8\"]\n";

/// A client, nodes and a server in a line.
fn line_of(nodes: usize) -> Network {
    network((0..=nodes).map(|_| Link::Veth))
}

/// The explicit listener of a node.
fn listener_address(network: &Network, node: usize, family: Family) -> SocketAddr {
    SocketAddr::new(network.node_address(node, family), LISTENER_PORT)
}

/// The configuration of a node with explicit listeners and nothing else, and `more`.
fn explicit(network: &Network, node: usize, more: &str) -> String {
    let mut text = format!(
        "[node]\nid = {}\n{OPEN}[transparent]\nenabled = false\n",
        node + 1
    );
    for family in Family::ALL {
        let address = listener_address(network, node, family);
        text += &format!("[[listener]]\nmode = \"explicit\"\naddress = \"{address}\"\n");
    }
    text + more
}

fn start_explicit(network: &Network, node: usize, more: &str) -> Node {
    start_relaying_in(network.node(node), &explicit(network, node, more))
}

/// A command of the client, run through a node.
fn through<S: AsRef<OsStr>>(
    network: &Network,
    via: SocketAddr,
    options: &[&str],
    words: impl IntoIterator<Item = S>,
) -> Command {
    let mut command = network.client().command(binary()).unwrap();
    command.args(["run", "--via", &via.to_string()]);
    command.args(options).arg("--").args(words);
    command
}

/// The same command, run through a node.
pub(crate) fn led(network: &Network, via: SocketAddr, command: &Command) -> Command {
    let words = [command.get_program()].into_iter();
    through(network, via, &[], words.chain(command.get_args()))
}

/// A node that serves every client, and its listener.
pub(crate) fn start_open(network: &Network, family: Family) -> (Node, SocketAddr) {
    let node = start_explicit(network, 0, "");
    (node, listener_address(network, 0, family))
}

/// What a command that succeeded printed.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A web server that answers with the address that it sees.
struct Mirror {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Mirror {
    fn start(host: &Namespace) -> Self {
        Self::start_at(host, PORT)
    }

    fn start_at(host: &Namespace, port: u16) -> Self {
        let listener = listen(host, port);
        let look = Some(Duration::from_millis(100));
        SockRef::from(&listener).set_read_timeout(look).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || reflect(&listener, &stopped));
        Self {
            port,
            stop,
            thread: Some(thread),
        }
    }

    /// Its address for a client.
    fn url(&self, ip: IpAddr) -> String {
        format!("http://{}/", SocketAddr::new(ip, self.port))
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
    }
}

fn reflect(listener: &TcpListener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, peer)) = listener.accept() {
            // A client that goes away is the business of its test.
            let _ = answer(stream, plain(peer).ip());
        }
    }
}

fn answer(stream: TcpStream, peer: IpAddr) -> std::io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let body = format!("{peer}\n");
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    (&stream).write_all((head + &body).as_bytes())
}

/// The words of a curl that prints the address that the server sees, and after that the address
/// that it sees itself.
fn curl(url: &str) -> [String; 5] {
    let format = "%{remote_ip}\\n";
    ["curl", "-sS", "-w", format, url].map(str::to_owned)
}

// promise: P1
#[test]
fn command_through_node() {
    let network = line_of(1);
    let _node = start_explicit(&network, 0, "");
    let mirror = Mirror::start(network.server());
    for hop in Family::ALL {
        for family in Family::ALL {
            let via = listener_address(&network, 0, hop);
            let server = network.server_address(family);
            let mut command = through(&network, via, &[], curl(&mirror.url(server)));
            // The node's address on the server's side.
            let message = printed(&mut command);
            let (seen, sees) = message.trim().split_once('\n').unwrap();
            assert_eq!(sees, server.to_string());
            let seen: IpAddr = seen.parse().unwrap();
            assert_eq!(seen.is_ipv4(), family == Family::V4);
            assert!(is_address_of(network.node(0), seen), "{seen}");
        }
    }
}

// promise: P1
#[test]
fn children_take_same_next_hop() {
    let network = line_of(1);
    let (_node, via) = start_open(&network, Family::V4);
    let mirror = Mirror::start(network.server());
    for family in Family::ALL {
        let url = mirror.url(network.server_address(family));
        let script =
            format!("curl -sS {url}; (curl -sS {url} & wait); sh -c 'exec curl -sS {url}'");
        let message = printed(&mut through(&network, via, &[], ["sh", "-c", &script]));
        let seen: Vec<IpAddr> = message.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(seen.len(), 3, "{message}");
        assert!(seen.iter().all(|ip| is_address_of(network.node(0), *ip)));
    }
}

// promise: P3
#[test]
fn exempt_connections_go_direct() {
    let network = line_of(1);
    let (_node, via) = start_open(&network, Family::V4);
    let server = Mirror::start(network.server());
    let on_node = Mirror::start_at(network.node(0), 8080);
    let own = Mirror::start_at(network.client(), 8081);
    let client = |family| network.client_address(family).to_string();
    for family in Family::ALL {
        let ip = network.server_address(family);
        let url = server.url(ip);
        let prefix = ip.to_string();
        let direct = &["--direct", prefix.as_str()];
        let message = printed(&mut through(&network, via, direct, ["curl", "-sS", &url]));
        assert_eq!(message.trim(), client(family));

        let url = own.url(network.client_address(family));
        let message = printed(&mut through(&network, via, &[], ["curl", "-sS", &url]));
        assert_eq!(message.trim(), client(family), "the client itself");
    }
    let url = on_node.url(via.ip());
    let message = printed(&mut through(&network, via, &[], ["curl", "-sS", &url]));
    assert_eq!(message.trim(), client(Family::V4), "the node itself");
    for loopback in ["127.0.0.1", "::1"] {
        let url = own.url(loopback.parse().unwrap());
        let message = printed(&mut through(&network, via, &[], ["curl", "-sS", &url]));
        assert_eq!(message.trim(), loopback);
    }
}

/// Whether a host has an address.
fn is_address_of(host: &Namespace, ip: IpAddr) -> bool {
    let list = host.ip_output("-o address show").unwrap();
    list.split_whitespace()
        .filter_map(|word| word.split('/').next()?.parse::<IpAddr>().ok())
        .any(|address| address == ip)
}
