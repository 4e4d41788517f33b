// SPDX-License-Identifier: Apache-2.0
//! A controller in a namespace of its own, and nodes as it sees them.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use nix::sys::signal::Signal;
use posthaste_control::identity::{Identity, PublicKey};
use posthaste_control::message::{
    Hello, Link, LinkState, NodeNumber, RouteUpdate, ToController, ToNode, VERSION,
};
use posthaste_control::route_table::RouteTable;
use posthaste_control::stream::Stream;
use posthaste_control::tls;
use posthaste_lab::netns::Namespace;
use posthaste_lab::process::{Process, wait_until};
use posthaste_lab::scratch::Scratch;
use serde_json::Value;

use crate::clock::WrongClock;
use crate::support::{SOON, binary, until};
use crate::verbs::posthaste;

/// Where nodes come to, and the API.
pub(crate) const STREAMS: u16 = 4490;
const API: u16 = 9465;

/// Both addresses of a host's own.
pub(crate) const FAMILIES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// A controller and what it is run with.
pub(crate) struct Testbed {
    pub(crate) host: Namespace,
    directory: Scratch,
    process: Option<Process>,
    /// Nodes of the configuration: their numbers, from which all else follows.
    pub(crate) nodes: Vec<NodeNumber>,
    /// Keepalive interval. Nodes of a test without interest in it send nothing for a long time.
    pub(crate) keepalive_s: u32,
    /// What the configuration has besides.
    pub(crate) more: String,
    /// The clock that it goes by, from the next start on.
    pub(crate) clock: Option<WrongClock>,
}

impl Testbed {
    /// A controller with nodes of these ids.
    pub(crate) fn new(nodes: &[NodeNumber]) -> Self {
        Self::hurried(nodes, 60)
    }

    /// The same, with this keepalive interval.
    pub(crate) fn hurried(nodes: &[NodeNumber], keepalive_s: u32) -> Self {
        let host = Namespace::new().unwrap();
        let mut testbed = Self {
            host,
            directory: Scratch::new().unwrap(),
            process: None,
            nodes: nodes.to_vec(),
            keepalive_s,
            more: String::new(),
            clock: None,
        };
        let secret = testbed.path("controller.key");
        let made = posthaste(["keys", "identity", "--output", secret.to_str().unwrap()]);
        assert!(made.status.success(), "{made:?}");
        testbed.write_config();
        testbed.start();
        testbed
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration as it is to be from the next start or reload on.
    pub(crate) fn write_config(&self) {
        let mut text = format!(
            "version = 1\n[server]\nlisten = [\"0.0.0.0:{STREAMS}\", \"[::]:{STREAMS}\"]\n\
             identity_file = {:?}\nstore = {:?}\nkeepalive = \"{}s\"\n{}\n",
            self.path("controller.key"),
            self.path("store.redb"),
            self.keepalive_s,
            self.more
        );
        for number in &self.nodes {
            let key = identity(*number).public();
            let _ = writeln!(
                text,
                "[[node]]\nname = \"n{number}\"\nid = {number}\nkey = \"{key}\""
            );
        }
        fs::write(self.path("controller.toml"), text).unwrap();
    }

    /// Starts the controller, and waits until it is ready.
    pub(crate) fn start(&mut self) {
        let mut command = self.host.command(binary()).unwrap();
        let file = self.path("controller.toml");
        command.args(["controller", "-c"]).arg(file);
        let name = "the controller";
        let process = match &self.clock {
            Some(clock) => clock.spawn(name, command),
            None => Process::spawn(name, command),
        };
        let mut process = process.unwrap();
        until("the controller is ready", || {
            let ended = process.ended().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", process.stderr());
            process.stdout().contains("is ready\"")
        });
        self.process = Some(process);
    }

    /// Ends the controller by a signal, and waits for its end.
    pub(crate) fn end(&mut self, signal: Signal) {
        let mut process = self.process.take().unwrap();
        process.signal(signal).unwrap();
        let status = process.wait(SOON).unwrap();
        assert_eq!(status.success(), signal == Signal::SIGTERM, "{status}");
    }

    /// Has the controller read its configuration again.
    pub(crate) fn reload(&self) {
        self.write_config();
        let process = self.process.as_ref().unwrap();
        let before = process.stdout().matches("was reloaded\"").count();
        process.signal(Signal::SIGHUP).unwrap();
        until("a reload", || {
            process.stdout().matches("was reloaded\"").count() > before
        });
    }

    /// Makes the controller reload its configuration, without waiting.
    pub(crate) fn signal_reload(&self) {
        let process = self.process.as_ref().unwrap();
        process.signal(Signal::SIGHUP).unwrap();
    }

    /// The log of the controller; empty while it does not run.
    pub(crate) fn log(&self) -> String {
        let process = self.process.as_ref();
        process.map(Process::stdout).unwrap_or_default()
    }

    /// Waits until the controller has logged this.
    pub(crate) fn until_logged(&self, words: &str) {
        let output_text = wait_until(words, SOON, || self.log().contains(words));
        assert!(output_text.is_ok(), "{words}: {}", self.log());
    }

    /// A connection to where nodes come to.
    pub(crate) fn connect(&self, at: IpAddr) -> TcpStream {
        let connect = || TcpStream::connect_timeout(&(at, STREAMS).into(), SOON);
        let stream = self.host.run_in(connect).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    /// The controller's public key.
    pub(crate) fn key(&self) -> PublicKey {
        let text = fs::read_to_string(self.path("controller.key")).unwrap();
        Identity::from_hex(text.trim()).unwrap().public()
    }

    /// A stream of any key, which may be no node's.
    pub(crate) fn stream(&self, who: &Identity, at: IpAddr) -> std::io::Result<Stream> {
        let config = Arc::new(tls::client(who, self.key()));
        let address = SocketAddr::new(at, STREAMS);
        self.host.run_in(|| Stream::connect(address, config, SOON))
    }

    /// A node that comes, and is welcome.
    pub(crate) fn node(&self, number: NodeNumber, at: IpAddr) -> Node {
        Node::come(self, number, at, RouteTable::new(number))
    }

    /// Code and body of an answer of the API.
    pub(crate) fn query(&self, request: &str, token: Option<&str>, body: &str) -> (u16, String) {
        let address = (Ipv4Addr::LOCALHOST, API).into();
        let connect = || TcpStream::connect_timeout(&address, SOON);
        let mut stream = self.host.run_in(connect).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let token = token.map(|word| format!("Authorization: Bearer {word}\r\n"));
        let token = token.unwrap_or_default();
        let length = body.len();
        let question = format!(
            "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{token}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(question.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        (code, body.to_owned())
    }

    /// A document of the API, requested again while the controller plans.
    pub(crate) fn document(&self, target: &str) -> Value {
        let (mut code, mut body) = (0, String::new());
        until("a document", || {
            (code, body) = self.query(&format!("GET {target}"), None, "");
            code != 503
        });
        assert_eq!(code, 200, "{target}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// Waits until a metric has a value of at least so much.
    pub(crate) fn until_metric(&self, name: &str, least: f64) {
        let mut page = String::new();
        until(name, || {
            page = self.query("GET /metrics", None, "").1;
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|value| value.trim().parse::<f64>().ok());
            value.is_some_and(|value| value >= least)
        });
    }
}

/// The secret of a node of this number, in hexadecimal digits.
pub(crate) fn secret(number: NodeNumber) -> String {
    format!("{number:016x}{}", "07".repeat(24))
}

/// Who a node of this number is.
pub(crate) fn identity(number: NodeNumber) -> Identity {
    Identity::from_hex(&secret(number)).unwrap()
}

/// The first message of a node of this id.
pub(crate) fn hello(number: NodeNumber) -> Hello {
    Hello {
        version: VERSION,
        number,
        software: "a test".into(),
        exchange: identity(number).exchange_public(),
        listeners: vec![([192, 0, 2, u8::try_from(number).unwrap()], 4480).into()],
        reflectors: Vec::new(),
        holds: None,
    }
}

/// A link that is there.
pub(crate) fn up(to: NodeNumber, rtt_ms: u32) -> Link {
    let state = LinkState::Up {
        rtt_us: rtt_ms * 1000,
        loss_ppm: None,
        rate: None,
    };
    Link { to, state }
}

/// A node that a test plays.
pub(crate) struct Node {
    pub(crate) stream: Stream,
    pub(crate) held: RouteTable,
    /// The messages that it received, except for route updates and welcomes.
    pub(crate) sent: Vec<ToNode>,
}

impl Node {
    /// Comes with what it holds already.
    pub(crate) fn come(
        testbed: &Testbed,
        number: NodeNumber,
        at: IpAddr,
        held: RouteTable,
    ) -> Self {
        let mut stream = testbed.stream(&identity(number), at).unwrap();
        let mut hello = hello(number);
        hello.holds = held.plan_version();
        stream.send(&ToController::Hello(hello)).unwrap();
        let first = stream.receive(SOON).unwrap();
        let Some(ToNode::Welcome(welcome)) = first else {
            panic!("{first:?} instead of a welcome");
        };
        assert_eq!(
            (welcome.version, welcome.keepalive_s),
            (VERSION, testbed.keepalive_s)
        );
        Self {
            stream,
            held,
            sent: Vec::new(),
        }
    }

    pub(crate) fn report_links(&mut self, links: &[Link]) {
        self.stream
            .send(&ToController::Links(links.to_vec()))
            .unwrap();
    }

    /// Receives messages of the controller, as a node does, until one matches.
    pub(crate) fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let deadline = Instant::now() + SOON;
        while !is_so(self) {
            assert!(
                Instant::now() < deadline,
                "not {what}: {:?}",
                self.sent.last()
            );
            self.receive_all();
        }
    }

    fn receive_all(&mut self) {
        match self.stream.receive(SOON).unwrap() {
            Some(ToNode::RouteUpdate(update)) => self.follow(&update),
            Some(other) => self.sent.push(other),
            None => panic!("no message arrives: {:?}", self.sent.last()),
        }
    }

    fn follow(&mut self, update: &RouteUpdate) {
        self.held.apply(update).unwrap();
        let plan_version = self.held.plan_version().unwrap();
        self.stream
            .send(&ToController::Holds(plan_version))
            .unwrap();
    }

    /// The nodes of the best chain to an egress for large transfers; nothing without rows or ways.
    pub(crate) fn best(&self, egress: NodeNumber) -> Option<Vec<NodeNumber>> {
        let class = self.held.class(1 << 20, 0)?;
        let between = self.held.routes(egress, class).next()?;
        Some([&[self.held.node()], between, &[egress]].concat())
    }

    /// Waits for GoAway and the end, and returns the reason.
    pub(crate) fn go_away(&mut self) -> String {
        let deadline = Instant::now() + SOON;
        let mut reason = None;
        loop {
            assert!(Instant::now() < deadline, "no end");
            match self.stream.receive(SOON) {
                Ok(Some(ToNode::GoAway(why))) => reason = Some(why),
                Ok(_) => {}
                Err(_) => return reason.expect("GoAway before the end"),
            }
        }
    }
}
