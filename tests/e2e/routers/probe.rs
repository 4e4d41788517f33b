// SPDX-License-Identifier: Apache-2.0
//! Connections from one address to another, and what becomes of them.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use posthaste_lab::network::Family;
use socket2::Socket;

use super::server::answer;
use super::testbed::{Testbed, address};
use super::way::Way;
use crate::payload::uninterrupted;
use crate::support::tcp_socket;

/// After so long without an answer a client has got none: a SYN and a repeated one were not answered.
const SILENCE: Duration = Duration::from_millis(1500);
/// The same among connections of which some are answered: a busy machine may take so long for those. The others
/// are not answered while those are open.
const SILENCE_IN_FLOOD: Duration = Duration::from_secs(5);
/// By so much a node may delay connections before it counts as harm: less than what a client waits before it
/// repeats a SYN, and far more than a node needs on a busy machine.
const DELAY: Duration = Duration::from_millis(900);
/// After so long a client repeats its SYN.
const REPEAT: Duration = Duration::from_secs(1);
/// How long whatever should be answered may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Bytes that a client sends.
const REQUEST_BYTES: usize = 9000;
/// Connections opened at once by a flood.
pub(super) const FLOOD: usize = 8;

/// What became of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// Everything arrived, and so did the end.
    Answered {
        /// The client's address as the server sees it.
        peer: IpAddr,
        /// Where the server was reached, with the port by which the row names it.
        server: SocketAddr,
    },
    /// A reset in place of a handshake.
    Refused,
    /// An ICMP error in place of a handshake; the number of the client's error.
    Unreachable(i32),
    /// No handshake.
    Silent,
    /// A handshake, and then something went wrong.
    Broken(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answered { peer, server } => write!(f, "answered by {server} to {peer}"),
            Self::Refused => f.write_str("refused"),
            Self::Unreachable(errno) => write!(f, "unreachable (errno {errno})"),
            Self::Silent => f.write_str("silent"),
            Self::Broken(how) => write!(f, "accepted, then {how}"),
        }
    }
}

/// What became of a connection, and how long its client waited for an answer: a handshake, and then the first
/// bytes.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}

/// An open connection, or what became of it, and how long that took.
#[derive(Debug)]
pub(super) struct Connected {
    result: Result<TcpStream, Outcome>,
    took: Duration,
}

/// The expected behaviour of the router without a node, which is measured too: see
/// [`Probe::fits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Answered,
    Refused,
    Unreachable,
    Silent,
    /// So many of each [`FLOOD`] that connects at once are answered, the others are not.
    Floods(&'static [usize]),
}

/// Where a probe connects: in which network, in which family, at which ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) testbed: &'a Testbed,
    pub(super) family: Family,
    pub(super) way: Way,
}

/// Connections of one kind.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    host: &'static str,
    from: &'static str,
    to: &'static str,
    port: u16,
    expected: Expected,
    brief: bool,
}

impl Probe {
    /// Connections from `HOST@ADDRESS` to an address and a port.
    fn new(expected: Expected, from: &'static str, to: (&'static str, u16)) -> Self {
        let (host, from) = from.split_once('@').expect("HOST@ADDRESS");
        Self {
            host,
            from,
            to: to.0,
            port: to.1,
            expected,
            brief: false,
        }
    }

    /// Fewer connections, where each takes long.
    pub(super) fn briefly(mut self) -> Self {
        self.brief = true;
        self
    }

    /// Whether one has to wait for its end although nothing happens.
    pub(super) fn is_silent(&self) -> bool {
        self.expected == Expected::Silent
    }

    /// Whether each of its connections is answered.
    pub(super) fn is_answered(&self) -> bool {
        self.expected == Expected::Answered
    }

    /// The first connection of a client: only one, where the test waits for silence.
    pub(super) fn first(&self, site: Site<'_>) -> Vec<Ended> {
        self.at_once(site, 1)
    }

    /// All connections after the first: some in sequence, then many at once. Ends with the first
    /// that differs from the row's expectation.
    pub(super) fn others(&self, site: Site<'_>) -> Vec<Ended> {
        let waves: &[usize] = match self.expected {
            Expected::Silent => &[4],
            _ if self.brief => &[3],
            _ => &[1, 1, 1, 1, FLOOD],
        };
        let mut ended = Vec::new();
        for &wave in waves {
            ended.extend(self.at_once(site, wave));
            if !self.fits(&ended) {
                break;
            }
        }
        ended
    }

    /// Every connection, in the order of a client that has time.
    pub(super) fn all(&self, site: Site<'_>) -> Vec<Ended> {
        if let Expected::Floods(floods) = self.expected {
            let flood = |_: &usize| self.at_once(site, FLOOD);
            return floods.iter().flat_map(flood).collect();
        }
        let mut ended = self.first(site);
        if self.fits(&ended) {
            ended.extend(self.others(site));
        }
        ended
    }

    /// Whether the connections meet the row's expectation.
    pub(super) fn fits(&self, ended: &[Ended]) -> bool {
        let fits = |ended: &Ended| match ended.outcome {
            Outcome::Answered { .. } => self.expected == Expected::Answered,
            Outcome::Refused => self.expected == Expected::Refused,
            Outcome::Unreachable(_) => self.expected == Expected::Unreachable,
            Outcome::Silent => self.expected == Expected::Silent,
            Outcome::Broken(_) => false,
        };
        let Expected::Floods(floods) = self.expected else {
            return ended.iter().all(fits);
        };
        let of_flood = |(flood, answered): (&[Ended], &usize)| {
            let is = |ended: &&Ended| matches!(ended.outcome, Outcome::Answered { .. });
            flood.iter().filter(is).count() == *answered
        };
        ended.chunks(FLOOD).zip(floods).all(of_flood)
    }

    /// Connections at once; each continues when all were answered or failed. Returns their
    /// results.
    fn at_once(&self, site: Site<'_>, count: usize) -> Vec<Ended> {
        let connect = || self.connect(site);
        let connected = together(std::iter::repeat_n(connect, count));
        let exchange = |connected| move || self.exchange(connected, site.way);
        let mut ended = together(connected.into_iter().map(exchange));
        ended.sort_by(|one, other| one.outcome.cmp(&other.outcome));
        ended
    }

    /// By how much a node may delay its connections.
    pub(super) fn tolerance(&self) -> Duration {
        match self.expected {
            // An ICMP error that arrives before connect() has released the socket ends the connection at
            // the next one only (`tcp_v4_err`): with a node or without, by chance.
            Expected::Unreachable => REPEAT + DELAY,
            _ => DELAY,
        }
    }

    fn patience(&self) -> Duration {
        match self.expected {
            Expected::Silent => SILENCE,
            Expected::Floods(_) => SILENCE_IN_FLOOD,
            _ => PATIENCE,
        }
    }

    /// Opens a connection.
    pub(super) fn connect(&self, site: Site<'_>) -> Connected {
        let from = SocketAddr::new(address(self.from, site.family), 0);
        let to = SocketAddr::new(address(self.to, site.family), site.way.port(self.port));
        let bound = || -> io::Result<Socket> {
            let socket = tcp_socket(to)?;
            socket.bind(&from.into())?;
            Ok(socket)
        };
        let socket = site.testbed.host(self.host).run_in(bound);
        let socket = socket.expect("a row names addresses of its hosts");
        let begin = Instant::now();
        let connected = socket.connect_timeout(&to.into(), self.patience());
        Connected {
            result: connected
                .map(|()| socket.into())
                .map_err(|error| failed(&error)),
            took: begin.elapsed(),
        }
    }

    /// Makes the server report its client's address and return the bytes it receives.
    pub(super) fn exchange(&self, connected: Connected, way: Way) -> Ended {
        let Connected { result, mut took } = connected;
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => Outcome::Broken("silence".to_owned()),
            _ => Outcome::Broken(error.to_string()),
        };
        let mut use_it = |stream: TcpStream| {
            let begin = Instant::now();
            let line = banner(&stream, self.patience())?;
            took += begin.elapsed();
            exchange(&stream, &line)
        };
        let mut outcome = match result {
            Ok(stream) => use_it(stream).unwrap_or_else(broken),
            Err(outcome) => outcome,
        };
        if let Outcome::Answered { server, .. } = &mut outcome {
            server.set_port(way.named(server.port()));
        }
        Ended { outcome, took }
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, from, to, .. } = self;
        write!(f, "{host} {from} to {to} port {}", self.port)
    }
}

/// Connections that are answered without a node.
pub(super) fn answered(from: &'static str, to: (&'static str, u16)) -> Probe {
    Probe::new(Expected::Answered, from, to)
}

/// Connections that meet a reset without a node.
pub(super) fn refused(from: &'static str, to: (&'static str, u16)) -> Probe {
    Probe::new(Expected::Refused, from, to)
}

/// Connections that meet an ICMP error without a node.
pub(super) fn unreachable(from: &'static str, to: (&'static str, u16)) -> Probe {
    Probe::new(Expected::Unreachable, from, to)
}

/// Connections that are not answered without a node.
pub(super) fn silent(from: &'static str, to: (&'static str, u16)) -> Probe {
    Probe::new(Expected::Silent, from, to)
}

/// Crowds, one after the other, each with how many of its connections are answered without a node.
pub(super) fn floods(
    answered: &'static [usize],
    from: &'static str,
    to: (&'static str, u16),
) -> Probe {
    Probe::new(Expected::Floods(answered), from, to)
}

/// What all of them return, each run by a thread of its own.
pub(super) fn together<T: Send>(works: impl Iterator<Item = impl FnOnce() -> T + Send>) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = works.map(|work| scope.spawn(work)).collect();
        let results = threads.into_iter().map(thread::ScopedJoinHandle::join);
        results
            .map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn failed(error: &io::Error) -> Outcome {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED) => Outcome::Refused,
        // A handshake of which the client learned the end at once.
        Some(libc::ECONNRESET) => Outcome::Broken(error.to_string()),
        Some(libc::ETIMEDOUT) => Outcome::Silent,
        Some(errno) => Outcome::Unreachable(errno),
        // The error that socket2 makes when the time is up is not the kernel's.
        None => Outcome::Silent,
    }
}

/// The first line of a server.
fn banner(mut stream: &TcpStream, patience: Duration) -> io::Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut line = Vec::new();
    let mut byte = [0];
    while uninterrupted(|| stream.read(&mut byte))? == 1 && byte != *b"\n" {
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

fn exchange(mut stream: &TcpStream, line: &str) -> io::Result<Outcome> {
    let request: Vec<u8> = (0..=250).cycle().take(REQUEST_BYTES).collect();
    stream.write_all(&request)?;
    stream.shutdown(Shutdown::Write)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    let named = line.split_once(' ');
    let named = named.and_then(|(peer, server)| Some((peer.parse().ok()?, server.parse().ok()?)));
    Ok(match named {
        Some((peer, server)) if reply == answer(&request) => Outcome::Answered { peer, server },
        Some(_) => Outcome::Broken(format!("{} bytes returned", reply.len())),
        None => Outcome::Broken("no whole line of the server".to_owned()),
    })
}
