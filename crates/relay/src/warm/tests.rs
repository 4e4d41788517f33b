// SPDX-License-Identifier: Apache-2.0
//! Over real sockets, against small acceptors.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollCreateFlags, EpollTimeout};
use posthaste_wire::Progress;
use posthaste_wire::auth::{Key, Nonce};
use posthaste_wire::convert::Connect;
use posthaste_wire::header::{ChainHeader, Endpoint};
use posthaste_wire::hop::{Accepting, Acceptor, FromAcceptor, FromDialer, HELLO_BYTES, Reply};
use socket2::{Domain, Socket, Type};

use super::*;
use crate::chain::{Encapsulation, PoolLimits, Transport};
use crate::policy::SideOptions;

/// Bound on everything on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time that a turn counts for.
const TURN_MAX: Duration = Duration::from_millis(100);
/// Bound on an answer, during which turns are not counted.
const ANSWER_MAX: Duration = Duration::from_secs(120);
const BASE: u64 = 1 << 56;

/// The behaviour of an acceptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// Correct: pongs, and one flow, which it echoes.
    Proper,
    /// Accepts and sends nothing.
    Silent,
    /// It does not have the key.
    Unauthorized,
    /// Sends more than the protocol allows.
    Talks,
    /// Accepts hops and sends nothing more.
    Mute,
}

/// A node that accepts hops, in its own threads. Dropping it resets all its connections.
struct Node {
    address: SocketAddr,
    listener: Socket,
    open: Arc<Mutex<Vec<TcpStream>>>,
    accepted: Arc<AtomicUsize>,
    /// Answered pings.
    pings: Arc<AtomicUsize>,
}

impl Node {
    fn at(address: SocketAddr, manner: Manner) -> Self {
        let listener = Socket::new(Domain::for_address(address), Type::STREAM, None).unwrap();
        listener.set_reuse_address(true).unwrap();
        listener.bind(&address.into()).unwrap();
        listener.listen(256).unwrap();
        let address = listener.local_addr().unwrap().as_socket().unwrap();
        let (open, accepted, pings) = (Arc::default(), Arc::default(), Arc::default());
        let node = Self {
            address,
            listener: listener.try_clone().unwrap(),
            open: Arc::clone(&open),
            accepted: Arc::clone(&accepted),
            pings: Arc::clone(&pings),
        };
        thread::spawn(move || {
            while let Ok((socket, _)) = listener.accept() {
                accepted.fetch_add(1, Ordering::Relaxed);
                socket.set_linger(Some(Duration::ZERO)).unwrap();
                let stream = TcpStream::from(socket);
                open.lock().unwrap().push(stream.try_clone().unwrap());
                let pings = Arc::clone(&pings);
                thread::spawn(move || serve(stream, manner, &pings));
            }
        });
        node
    }

    fn new(ipv6: bool, manner: Manner) -> Self {
        let address: SocketAddr = if ipv6 {
            (Ipv6Addr::LOCALHOST, 0).into()
        } else {
            (Ipv4Addr::LOCALHOST, 0).into()
        };
        Self::at(address, manner)
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Ends a blocked accept(), and refuses new connections.
        self.listener.shutdown(Shutdown::Both).unwrap();
        for stream in self.open.lock().unwrap().drain(..) {
            // Ends the thread's read(); the last to close it resets it.
            let _ = stream.shutdown(Shutdown::Read);
        }
    }
}

fn serve(mut stream: TcpStream, manner: Manner, pings: &AtomicUsize) {
    if manner != Manner::Silent {
        // Fails when the dialer closes, which is fine.
        let _ = converse(&mut stream, manner, pings);
    }
}

fn converse(stream: &mut TcpStream, manner: Manner, pings: &AtomicUsize) -> std::io::Result<()> {
    let mut accepting = Accepting::new(node(2), Nonce(sys::random()));
    let known = Key::new([if manner == Manner::Unauthorized { 9 } else { 7 }; 32]);
    let hello = receive::<HELLO_BYTES>(stream)?;
    let mut challenged = done(accepting.feed(&hello, |_, _| Some(known)).unwrap());
    stream.write_all(challenged.challenge())?;
    let response = receive::<16>(stream)?;
    let mut acceptor = Acceptor::new(done(challenged.feed(&response).unwrap()));
    if manner == Manner::Talks {
        stream.write_all(&Acceptor::reply(Reply::Connected))?;
    }
    loop {
        let byte = receive::<1>(stream)?;
        match acceptor.feed(&byte).unwrap() {
            Progress::NeedMore(_) => {}
            Progress::Done { value, .. } => match value {
                FromDialer::Ping(_) if manner == Manner::Mute => {}
                FromDialer::Ping(number) => {
                    pings.fetch_add(1, Ordering::Relaxed);
                    stream.write_all(&hop::pong(number))?;
                }
                FromDialer::Open(_) => break,
                FromDialer::Validated => panic!("no client is to be validated"),
            },
        }
    }
    stream.write_all(&Acceptor::reply(Reply::Connected))?;
    std::io::copy(&mut stream.try_clone()?, stream)?;
    stream.shutdown(Shutdown::Write)
}

fn receive<const N: usize>(stream: &mut TcpStream) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn done<T>(progress: Progress<T>) -> T {
    match progress {
        Progress::Done { value, .. } => value,
        Progress::NeedMore(missing) => panic!("{missing} bytes are missing"),
    }
}

fn node(id: u64) -> NodeId {
    NodeId::new(id).unwrap()
}

fn peer(address: SocketAddr, min: u16, max: u16) -> Peer {
    Peer {
        name: "next".into(),
        id: node(2),
        address,
        key: Some(Key::new([7; 32])),
        key_id: 3,
        other_key: None,
        encapsulation: Encapsulation::Stream,
        transport: Transport::Tcp,
        rate_limit: None,
        source_addresses: Vec::new(),
        pool: PoolLimits { min, max },
        socket: SideOptions::default(),
    }
}

/// A worker with warm hops only.
struct Worker {
    epoll: Epoll,
    hops: WarmHops,
}

impl Worker {
    fn new(peers: &[Peer]) -> Self {
        let common = Common {
            me: node(1),
            mark: 0x7000_0000,
            token_base: BASE,
            seed: 1,
        };
        Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap(),
            hops: WarmHops::new(common, peers, sys::monotonic()),
        }
    }

    /// One turn of the loop, no longer than 20 ms.
    fn turn(&mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let now = sys::monotonic();
        let patience = self.hops.deadline().map_or(20, |deadline| {
            let left = deadline.saturating_sub(now).as_millis() + 1;
            u8::try_from(left).map_or(20, |left| left.min(20))
        });
        let wait = EpollTimeout::from(patience);
        let count = self.epoll.wait(&mut events, wait).unwrap();
        let now = sys::monotonic();
        for event in &events[..count] {
            self.hops.on_ready(event.data() - BASE, now);
        }
        self.hops.on_time(&self.epoll, now);
    }

    fn until(&mut self, what: &str, reached: impl Fn(State<'_>) -> bool) {
        self.until_all(what, |states| {
            states.into_iter().next().is_some_and(&reached)
        });
    }

    /// Waits for a state of the hops to every peer.
    fn until_all(&mut self, what: &str, reached: impl Fn(Vec<State<'_>>) -> bool) {
        // Turns count, not the time for which the whole process was stopped.
        let mut spent = Duration::ZERO;
        while !reached(self.hops.states(sys::monotonic()).collect()) {
            assert!(spent < PATIENCE, "{what} does not happen");
            let began = Instant::now();
            self.turn();
            spent += began.elapsed().min(TURN_MAX);
        }
    }

    /// A property of the hops to the first peer.
    fn state<T>(&self, of: impl Fn(State<'_>) -> T) -> T {
        of(self.hops.states(sys::monotonic()).next().unwrap())
    }

    fn until_waiting(&mut self, count: usize) {
        self.until("that so many wait", |state| {
            state.waiting == count && state.dialing == 0
        });
    }

    fn take(&mut self) -> Option<Warm> {
        self.hops.take(0, &self.epoll, sys::monotonic())
    }
}

/// Opens a flow over a hop and echoes bytes.
fn carry(mut warm: Warm) {
    let server = Endpoint::new("198.51.100.7:443".parse().unwrap()).unwrap();
    let connect = Connect::new(ChainHeader::to(server));
    let mut open = warm.dialer.open(&connect, 5, Nonce([1; 16])).unwrap();
    open.extend_from_slice(b"at once");
    let mut stream = stream(warm.socket);
    stream.write_all(&open).unwrap();
    let mut reply = [0; 24];
    stream.read_exact(&mut reply).unwrap();
    let reply = done(warm.dialer.feed(&reply).unwrap());
    assert_eq!(reply, FromAcceptor::Reply(Reply::Connected));
    stream.write_all(b", and later").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut echo = String::new();
    stream.read_to_string(&mut echo).unwrap();
    assert_eq!(echo, "at once, and later");
}

fn stream(socket: OwnedFd) -> TcpStream {
    let stream = TcpStream::from(socket);
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(ANSWER_MAX)).unwrap();
    stream
}

#[test]
fn ready_hop_carries_flow() {
    for ipv6 in [false, true] {
        let node = Node::new(ipv6, Manner::Proper);
        let mut worker = Worker::new(&[peer(node.address, 2, 8)]);
        assert!(worker.take().is_none(), "nothing is dialed yet");
        worker.until_waiting(2);
        let warm = worker.take().unwrap();
        carry(warm);
        worker.until_waiting(2);
        assert_eq!(node.accepted(), 3);
        let totals = worker.state(|state| state.totals);
        assert_eq!((totals.taken, totals.missed, totals.failed), (1, 1, 0));
        assert_eq!((totals.dialed, totals.lost), (3, 0));
        assert!(!worker.hops.down(0));
    }
}

// promise: B13
#[test]
fn second_burst_served_warm() {
    let node = Node::new(false, Manner::Proper);
    let mut worker = Worker::new(&[peer(node.address, 0, 100)]);
    let burst = |worker: &mut Worker| (0..50).filter_map(|_| worker.take()).count();
    assert_eq!(burst(&mut worker), 0);
    worker.until("the pool follows", |state| state.waiting >= 50);
    assert_eq!(burst(&mut worker), 50);
}

// promise: B13
#[test]
fn hops_within_limit() {
    let node = Node::new(false, Manner::Proper);
    let mut worker = Worker::new(&[peer(node.address, 1, 3)]);
    for _ in 0..20 {
        worker.take();
    }
    for taken in 1..10 {
        worker.until_waiting(3);
        assert_eq!(node.accepted(), 2 + taken);
        assert!(worker.take().is_some());
    }
}

// promise: B14
#[test]
fn impostor_rejected() {
    let mut other = peer((Ipv4Addr::LOCALHOST, 0).into(), 2, 8);
    for (manner, id) in [(Manner::Unauthorized, 2), (Manner::Proper, 4)] {
        let node_ = Node::new(false, manner);
        other.address = node_.address;
        other.id = node(id);
        let mut worker = Worker::new(std::slice::from_ref(&other));
        worker.until("failures", |state| state.totals.failed >= 3);
        assert!(worker.hops.down(0));
        worker.state(|state| {
            assert_eq!((state.waiting, state.totals.dialed), (0, 0));
            let failure = state.failure.unwrap();
            assert!(matches!(failure, DialError::Handshake(_)), "{failure}");
        });
    }
}

#[test]
fn unexpected_acceptor_dropped() {
    let node = Node::new(false, Manner::Talks);
    let mut worker = Worker::new(&[peer(node.address, 1, 8)]);
    worker.until("that it is noticed", |state| {
        state.totals.lost + state.totals.failed >= 2
    });
    worker.until("that it is down", |state| state.down);
}

#[test]
fn silent_acceptor_given_up() {
    let node = Node::new(false, Manner::Silent);
    let mut worker = Worker::new(&[peer(node.address, 1, 8)]);
    let began = Instant::now();
    worker.until("that it is given up", |state| state.totals.failed > 0);
    assert!(began.elapsed() >= Duration::from_secs(5));
    assert!(worker.hops.down(0));
    worker.state(|state| {
        let failure = state.failure.unwrap();
        assert!(matches!(failure, DialError::HelloTimeout), "{failure}");
    });
}

// promise: B15
#[test]
fn peer_down_and_back() {
    for ipv6 in [false, true] {
        let node = Node::new(ipv6, Manner::Proper);
        let address = node.address;
        let mut worker = Worker::new(&[peer(address, 4, 8)]);
        worker.until_waiting(4);
        drop(node);
        worker.until("that its death is known", |state| {
            state.down && state.waiting == 0
        });
        assert!(worker.take().is_none());
        worker.until("tries", |state| state.totals.failed >= 3);
        let _node = Node::at(address, Manner::Proper);
        worker.until("that it is back", |state| !state.down && state.waiting >= 4);
        carry(worker.take().unwrap());
    }
}

#[test]
fn hops_pinged_and_answer() {
    for ipv6 in [false, true] {
        let node = Node::new(ipv6, Manner::Proper);
        let mut worker = Worker::new(&[peer(node.address, 3, 8)]);
        worker.until_waiting(3);
        carry(worker.take().unwrap());
        worker.until("pings", |_| node.pings.load(Ordering::Relaxed) >= 3);
        worker.state(|state| assert_eq!((state.totals.lost, state.down), (0, false)));
        carry(worker.take().unwrap());
    }
}

#[test]
fn hung_peer_is_down() {
    let node = Node::new(false, Manner::Mute);
    let address = node.address;
    let mut worker = Worker::new(&[peer(address, 2, 2)]);
    worker.until_waiting(2);
    assert!(worker.take().is_some());
    worker.until("that it is noticed", |state| state.totals.lost > 0);
    // It still accepts hops, and they still die.
    worker.until("that it is down", |state| state.down);
    drop(node);
    let _node = Node::at(address, Manner::Proper);
    worker.until("that it is back", |state| !state.down && state.waiting == 2);
    carry(worker.take().unwrap());
}

// promise: B14
#[test]
fn dead_hop_not_taken() {
    let node = Node::new(false, Manner::Proper);
    let mut worker = Worker::new(&[peer(node.address, 3, 3)]);
    worker.until_waiting(3);
    drop(node);
    // The worker has had no turn to read the resets.
    while let Some(warm) = worker.take() {
        // The last packets may have been in flight; they arrive at this socket.
        assert!(!matches!(stream(warm.socket).read(&mut [0; 8]), Ok(1..)));
    }
    worker.until("that they are closed", |state| state.waiting == 0);
}

#[test]
fn reload_keeps_valid_hops() {
    let (first, second) = (
        Node::new(false, Manner::Proper),
        Node::new(true, Manner::Proper),
    );
    let one = peer(first.address, 2, 8);
    let mut two = peer(second.address, 2, 8);
    two.name = "other".into();
    let mut worker = Worker::new(&[one.clone(), two.clone()]);
    let all = |worker: &Worker| {
        let states = worker.hops.states(sys::monotonic());
        states.map(|state| state.waiting).collect::<Vec<_>>()
    };
    worker.until_all("that all wait", |states| {
        states.iter().all(|state| state.waiting == 2)
    });
    let mut renamed = one.clone();
    renamed.name = "as before".into();
    renamed.pool.min = 1;
    worker
        .hops
        .replace(&[two.clone(), renamed], sys::monotonic());
    assert_eq!(all(&worker), [2, 2]);
    two.key = Some(Key::new([8; 32]));
    worker.hops.replace(&[one, two], sys::monotonic());
    assert_eq!(all(&worker), [2, 0]);
    worker.turn();
    carry(worker.take().unwrap());
    worker.hops.replace(&[], sys::monotonic());
    assert_eq!(worker.hops.deadline(), None);
    assert!(worker.take().is_none());
}

// promise: B16
#[test]
fn flow_keeps_its_share() {
    let node = Node::new(false, Manner::Proper);
    let mut worker = Worker::new(&[peer(node.address, 2, 8)]);
    worker.until_waiting(2);
    let now = sys::monotonic();
    let warm = worker.take().unwrap();
    // Nothing has widened its window.
    assert!(!worker.hops.begin(0, &warm.socket, false, now));
    assert_eq!(sys::pacing(&warm.socket).unwrap(), u64::MAX);
    let (rate, round) = worker.hops.next_hop(0, now);
    assert_eq!(rate, path::INITIAL_BANDWIDTH);
    assert!(round.is_some());
    let alone = worker.hops.share(0, &warm.socket, now).unwrap();
    let pace = sys::pacing(&warm.socket).unwrap();
    assert!(pace > u64::from(rate), "{pace}");
    let shared = worker.hops.share(0, &warm.socket, now).unwrap();
    assert!(shared > alone);
    assert_eq!(sys::pacing(&warm.socket).unwrap(), pace / 2);
    worker.hops.unshare(0);
    worker.hops.unshare(0);
    let again = worker.hops.share(0, &warm.socket, now);
    assert_eq!(again, Some(alone));
    unpace(&warm.socket);
    assert_eq!(sys::pacing(&warm.socket).unwrap(), u64::MAX);
    carry(warm);
}

#[test]
fn ended_flow_teaches_rtt() {
    let peers = [peer((Ipv4Addr::LOCALHOST, 9).into(), 0, 0)];
    let mut worker = Worker::new(&peers);
    let now = sys::monotonic();
    assert_eq!(worker.hops.next_hop(0, now).1, None);
    let info = |min_rtt_us| TcpInfo {
        min_rtt_us,
        ..TcpInfo::default()
    };
    for measured in [50_000, 0] {
        worker.hops.learn(0, &info(measured), now);
        let round = worker.hops.next_hop(0, now).1;
        assert_eq!(round, Some(Duration::from_millis(50)), "{measured}");
    }
}
