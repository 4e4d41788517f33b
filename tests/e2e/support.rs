// SPDX-License-Identifier: Apache-2.0
//! What the tests share: networks with a node, and both ends of connections through it.
//!
//! Sockets belong to the namespace in which they were made, so a test makes them there and then
//! uses them from its own thread, one step after the other.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;
use posthaste_lab::scratch::Scratch;
use posthaste_lab::transfer::Server;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::payload::uninterrupted;

/// How long anything may take that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// The port of servers, where it does not matter.
pub(crate) const PORT: u16 = 80;

/// The accept modes, as a configuration names them.
pub(crate) const MODES: [&str; 3] = ["early", "strict", "late"];

/// The accept modes, each with the port by which [`each_mode`] has it.
pub(crate) const MODES_BY_PORT: [(&str, u16); 3] =
    [("early", 1080), ("strict", 2080), ("late", 3080)];

/// The program under test.
pub(crate) fn binary() -> PathBuf {
    env!("CARGO_BIN_EXE_posthaste").into()
}

/// Copies a program. Another process writes the copy: one that this process had open for writing could not
/// be started while a program that another test starts still holds it (`ETXTBSY`).
pub(crate) fn install_program(from: &Path, to: &Path) {
    let mut command = Command::new("sh");
    let copied = command
        .args(["-c", "cp \"$0\" \"$1\" && chmod 755 \"$1\""])
        .args([from, to])
        .status();
    assert!(copied.expect("a shell can be run").success());
}

/// Client, one node and server, joined by plain cables.
pub(crate) fn line() -> Network {
    network([Link::Veth, Link::Veth])
}

/// The same with a client that is 2 ms away. Of one that is nearer, flows of early rules open late
/// after some handshakes.
pub(crate) fn line_of_far_client() -> Network {
    network([Link::delay(Duration::from_millis(1)), Link::Veth])
}

/// Hosts in a line, joined by `links`.
pub(crate) fn network(links: impl IntoIterator<Item = Link>) -> Network {
    Network::line(links)
        .build()
        .expect("root can build a network of namespaces")
}

/// Starts a node on the first host after the client, with nothing but this configuration.
pub(crate) fn start(network: &Network, config: &str) -> Node {
    start_in(network.node(0), config)
}

/// The same on a host of one's choice.
pub(crate) fn start_in(host: &Namespace, config: &str) -> Node {
    let node = Node::builder(host, binary()).config(config).start();
    node.expect("the node becomes ready")
}

/// Starts a node on the first host after the client that relays by sockets from the first
/// connection on, see [`posthaste_lab::node::Builder::relaying`].
pub(crate) fn start_relaying(network: &Network, config: &str) -> Node {
    start_relaying_in(network.node(0), config)
}

/// The same on a host of one's choice.
pub(crate) fn start_relaying_in(host: &Namespace, config: &str) -> Node {
    Node::builder(host, binary())
        .relaying()
        .config(config)
        .start()
        .expect("the node becomes ready")
}

/// The configuration of a node that relays everything in one accept mode.
pub(crate) fn accepting(mode: &str) -> String {
    format!("[defaults]\naccept = {mode:?}\n")
}

/// The rules of a node that relays in one accept mode or another, by the port: each has a thousand.
pub(crate) fn each_mode() -> String {
    let rule = |(mode, port): (&str, u16)| {
        let first = port / 1000 * 1000;
        let ports = format!("ports = [\"{first}-{}\"]", first + 999);
        format!("[[rule]]\nname = {mode:?}\naccept = {mode:?}\n{ports}\n")
    };
    MODES_BY_PORT.map(rule).concat()
}

/// Waits for something that should happen soon.
pub(crate) fn until(what: &str, condition: impl FnMut() -> bool) {
    wait_until(what, SOON, condition).expect("it happens soon");
}

/// Waits until a counter of the node has a value.
pub(crate) fn until_counter(node: &Node, name: &str, value: u64) {
    let mut last = 0;
    let reached = wait_until(name, SOON, || {
        last = counter(node, name);
        last == value
    });
    assert!(reached.is_ok(), "{name} is {last} and not {value}");
}

/// A counter of the node's status.
pub(crate) fn counter(node: &Node, name: &str) -> u64 {
    node.counter(name).expect("the node answers")
}

/// How many relays ended with an outcome.
pub(crate) fn ended(node: &Node, outcome: &str) -> u64 {
    let status = node.status().expect("the node answers");
    status["ended"][outcome].as_u64().unwrap_or(0)
}

/// Waits until so many relays ended with an outcome.
pub(crate) fn until_ended(node: &Node, outcome: &str, count: u64) {
    until(outcome, || ended(node, outcome) == count);
}

/// The open relay of a client's address and port, if there is one.
pub(crate) fn relay_of(node: &Node, client: SocketAddr) -> Option<Value> {
    let relays = node.relays().expect("the node answers");
    let list = relays["relays"].as_array().expect("a list of relays");
    let named = |relay: &&Value| relay["client"].as_str() == Some(&client.to_string());
    list.iter().find(named).cloned()
}

/// The kernel's view of both connections of a relay.
pub(crate) fn detail(node: &Node, pair: &Pair) -> Value {
    let relay = relay_of(node, pair.client_address()).expect("it is relayed");
    let id = relay["id"].as_str().expect("an id");
    let detail = node.admin_json(&format!("relays show {id}"));
    detail.expect("the node answers")
}

/// A port to listen on, on all addresses of both families. Accepting gives up after [`SOON`].
pub(crate) fn listen(host: &Namespace, port: u16) -> TcpListener {
    listen_at(host, (Ipv6Addr::UNSPECIFIED, port).into())
}

/// An address and port to listen on.
pub(crate) fn listen_at(host: &Namespace, address: SocketAddr) -> TcpListener {
    let make = || -> io::Result<TcpListener> {
        let socket = tcp_socket(address)?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        socket.set_read_timeout(Some(SOON))?;
        Ok(socket.into())
    };
    once_free(|| Ok(host.run_in(make)?))
}

/// Tries again while a port is taken. A program that another test has just started holds copies of
/// closed sockets for a moment.
fn once_free<T>(mut take: impl FnMut() -> anyhow::Result<T>) -> T {
    let taken = |error: &anyhow::Error| {
        let cause = error.root_cause().downcast_ref::<io::Error>();
        cause.is_some_and(|cause| cause.kind() == io::ErrorKind::AddrInUse)
    };
    let mut free = None;
    until("free port", || match take() {
        Err(error) if taken(&error) => false,
        result => {
            free = Some(result.expect("the port can be listened on"));
            true
        }
    });
    free.expect("it was waited for")
}

/// Has the network's server serve transfers at [`PORT`].
pub(crate) fn serve(network: &Network) -> Server {
    serve_at(network, PORT)
}

/// The same at another port.
pub(crate) fn serve_at(network: &Network, port: u16) -> Server {
    once_free(|| Server::start(network.server(), port, network.congestion()))
}

/// A new socket of the address's family.
pub(crate) fn tcp_socket(address: SocketAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP))
}

/// Connects from a host; the kernel's own patience decides when it fails.
pub(crate) fn dial(host: &Namespace, target: SocketAddr) -> io::Result<TcpStream> {
    dial_with(host, target, |_| Ok(()))
}

/// Connects from one address and port of a host, even right after an earlier connection did.
pub(crate) fn dial_from(
    host: &Namespace,
    source: SocketAddr,
    target: SocketAddr,
) -> io::Result<TcpStream> {
    dial_with(host, target, |socket| {
        socket.set_reuse_address(true)?;
        socket.bind(&source.into())
    })
}

/// Connects from a host with a socket that was prepared.
pub(crate) fn dial_with(
    host: &Namespace,
    target: SocketAddr,
    prepare: impl FnOnce(&Socket) -> io::Result<()> + Send,
) -> io::Result<TcpStream> {
    host.run_in(|| dial_here(target, prepare))
}

fn dial_here(
    target: SocketAddr,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<TcpStream> {
    let socket = tcp_socket(target)?;
    prepare(&socket)?;
    socket.set_tcp_nodelay(true)?;
    socket.connect(&target.into())?;
    bounded(socket.into())
}

/// Has each read and write end within [`SOON`].
pub(crate) fn bounded(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Takes the next connection of a listener, and its peer's address.
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let (stream, peer) = listener.accept().expect("a connection arrives");
    let stream = bounded(stream).expect("a connection has options");
    (stream, plain(peer))
}

/// An address without the IPv6 form that dual-stack sockets give IPv4 addresses.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Both ends of one connection.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Pair {
    /// Connects the network's client to a listener on its server.
    pub(crate) fn open(network: &Network, family: Family, listener: &TcpListener) -> Self {
        let target = target(network, family, listener);
        Self::of(dial(network.client(), target), listener)
    }

    /// What became of an attempt to connect to `listener`.
    pub(crate) fn of(dialled: io::Result<TcpStream>, listener: &TcpListener) -> Self {
        let client = dialled.expect("the client connects");
        let (server, _) = accept(listener);
        Self { client, server }
    }

    /// Sends some bytes each way and checks that they arrive.
    pub(crate) fn check(&mut self) {
        deliver(&mut self.client, &mut self.server, b"a question");
        deliver(&mut self.server, &mut self.client, b"an answer");
    }

    /// Ends the connection in order, the client first.
    pub(crate) fn close_client_first(self) {
        close(self.client, self.server);
    }

    /// Ends the connection in order, the server first.
    pub(crate) fn close_server_first(self) {
        close(self.server, self.client);
    }

    /// The client's own address.
    pub(crate) fn client_address(&self) -> SocketAddr {
        self.client.local_addr().expect("a connected socket")
    }

    /// The client's address as the server sees it.
    pub(crate) fn seen_by_server(&self) -> SocketAddr {
        plain(self.server.peer_addr().expect("a connected socket"))
    }
}

/// Sends bytes from one end and waits for them at the other.
pub(crate) fn deliver(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).expect("the bytes are sent");
    let mut received = vec![0; bytes.len()];
    to.read_exact(&mut received).expect("the bytes arrive");
    assert_eq!(received, bytes);
}

/// Closes `first`, waits for that at `second`, then closes `second` and waits for that too.
pub(crate) fn close(first: TcpStream, mut second: TcpStream) {
    first.shutdown(Shutdown::Write).expect("an open connection");
    expect_end(&mut second);
    drop(second);
    let mut first = first;
    expect_end(&mut first);
}

/// The other end has closed: nothing more to read, and no error.
pub(crate) fn expect_end(stream: &mut TcpStream) {
    let read = uninterrupted(|| stream.read(&mut [0])).expect("an orderly end");
    assert_eq!(read, 0, "an end and no more bytes");
}

/// The other end, or a node on the path, has reset the connection.
pub(crate) fn expect_reset(stream: &mut TcpStream) {
    let error = uninterrupted(|| stream.read(&mut [0])).expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
}

/// Resets a connection.
pub(crate) fn reset(stream: TcpStream) {
    let socket = Socket::from(stream);
    socket
        .set_linger(Some(Duration::ZERO))
        .expect("a socket can be set to reset");
}

/// Stops listening. Closing the socket would not suffice: a program that another test has just
/// started holds a copy for a moment, and the kernel accepts connections until that is closed.
pub(crate) fn stop_listening(listener: TcpListener) {
    let stopped = Socket::from(listener).shutdown(Shutdown::Both);
    stopped.expect("a listening socket can be shut down");
}

/// The error number of an attempt to connect; none when it succeeded.
pub(crate) fn errno(dialled: &io::Result<TcpStream>) -> Option<i32> {
    dialled.as_ref().err().and_then(io::Error::raw_os_error)
}

/// The attempt was accepted and then reset, which a slow client learns while it connects.
pub(crate) fn expect_accepted_and_reset(dialled: io::Result<TcpStream>) {
    let answer = dialled.and_then(|mut stream| uninterrupted(|| stream.read(&mut [0])));
    assert_eq!(
        answer.expect_err("a reset").raw_os_error(),
        Some(libc::ECONNRESET)
    );
}

/// The address of a listener on the network's server.
pub(crate) fn target(network: &Network, family: Family, listener: &TcpListener) -> SocketAddr {
    let port = listener.local_addr().expect("a bound socket").port();
    SocketAddr::new(network.server_address(family), port)
}

/// Routers that report every undeliverable packet, not only some per second.
pub(crate) fn talkative(hosts: &[Namespace]) {
    for host in hosts {
        for key in ["net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"] {
            host.sysctl(key, "0")
                .expect("a namespace has its own limit");
        }
        // Before Linux 6.11 all namespaces share this limit, and none but the first can raise it.
        for key in ["net.ipv4.icmp_msgs_per_sec", "net.ipv4.icmp_msgs_burst"] {
            let _ = host.sysctl(key, "1000000");
        }
    }
}

/// Installs packet filter rules on a host, for both families: rules by hook, in `nft` words.
pub(crate) fn firewall(host: &Namespace, table: &str, chains: &[(&str, &str)]) {
    let chains = chains.iter().map(|(hook, rules)| {
        format!("chain on_{hook} {{\ntype filter hook {hook} priority 0;\n{rules}\n}}\n")
    });
    let chains: String = chains.collect();
    firewall_script(host, &format!("table inet {table} {{\n{chains}}}\n"));
}

/// Has `nft` carry out a script on a host.
pub(crate) fn firewall_script(host: &Namespace, text: &str) {
    let directory = Scratch::new().expect("a directory for the rules");
    let file = directory.path().join("rules.nft");
    std::fs::write(&file, text).expect("the rules can be written");
    let mut command = host.command("nft").expect("the namespace is open");
    run(command.arg("-f").arg(file), text);
}

/// Removes what [`firewall`] installed.
pub(crate) fn remove_firewall(host: &Namespace, table: &str) {
    let mut command = host.command("nft").expect("the namespace is open");
    run(command.args(["delete", "table", "inet", table]), "");
}

/// What [`firewall`] installed, with its counters.
pub(crate) fn firewall_text(host: &Namespace, table: &str) -> String {
    let mut command = host.command("nft").expect("the namespace is open");
    run(command.args(["list", "table", "inet", table]), "")
}

/// Runs a command that succeeds, and returns what it prints.
pub(crate) fn run(command: &mut Command, input: &str) -> String {
    let output = command.output().expect("the program can be run");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}\n{input}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Gives a host another address that the rest of the network routes to it.
pub(crate) fn add_address(host: &Namespace, address: IpAddr) {
    // Without "nodad" an IPv6 address is not usable at once.
    let length = if address.is_ipv4() { "32" } else { "128" };
    let nodad = if address.is_ipv4() { "" } else { " nodad" };
    host.ip(&format!("address add {address}/{length} dev lo{nodad}"))
        .expect("an address can be added");
}

/// A counter of a host's kernel (`/proc/net/snmp`, `/proc/net/netstat`), such as `Tcp` and
/// `PassiveOpens`.
pub(crate) fn kernel_counter(host: &Namespace, group: &str, name: &str) -> u64 {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"));
    let text = host
        .run_in(|| Ok::<_, io::Error>(read("snmp")? + &read("netstat")?))
        .expect("the kernel shows its counters");
    let head = format!("{group}:");
    let mut lines = text.lines().filter(|line| line.starts_with(&head));
    let (names, values) = lines.next().zip(lines.next()).expect("names and values");
    let mut pairs = names.split(' ').zip(values.split(' '));
    let found = pairs.find(|(candidate, _)| *candidate == name);
    let (_, value) = found.unwrap_or_else(|| panic!("the kernel shows no {group} {name}"));
    value.parse().expect("a number")
}

/// The connection has ended, in order or not: nothing more can be read.
pub(crate) fn expect_gone(stream: &mut TcpStream) {
    match uninterrupted(|| stream.read(&mut [0])) {
        Ok(read) => assert_eq!(read, 0, "an end and no more bytes"),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}"),
    }
}
