// SPDX-License-Identifier: Apache-2.0
//! Relays that leave their flows in the middle of a transfer: the bytes, and the ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use posthaste_lab::link::Link;
use posthaste_lab::netns::Namespace;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::process::wait_until;
use posthaste_lab::rng::Rng;
use socket2::SockRef;

use crate::observing::redirect;
use crate::packet_path::lifetime::{pins, run_program};
use crate::payload::uninterrupted;
use crate::support::{
    PORT, Pair, counter, ended, firewall, firewall_script, kernel_counter, line, listen, network,
    remove_firewall, start_relaying_in, until, until_ended,
};
use crate::syn_options::raw::send_segments;
use crate::watch::sockets;

mod operators;

const CONFIG: &str = "[defaults]\nbypass = \"always\"\n";
const AUTO: &str = "[defaults]\nbypass = \"auto\"\n";
const CHUNK: usize = 1 << 16;
/// How long a relay may take until it leaves: on a busy machine links lose segments, and then it stays.
const PATIENCE: Duration = Duration::from_mins(2);

/// Bytes after which a stream repeats itself: a prime, so that nothing that is lost or doubled is so long.
const PERIOD: u64 = 1_048_583;

/// The bytes of a stream from number `at` on, at most a chunk.
fn bytes_at(at: u64, length: usize) -> &'static [u8] {
    static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Rng::new(7);
        let words = (0..PERIOD.div_ceil(8)).map(|_| random.below(u64::MAX).to_le_bytes());
        let mut stream: Vec<u8> = words.flatten().collect();
        stream.truncate(usize::try_from(PERIOD).expect("a short period"));
        stream.extend_from_within(..CHUNK);
        stream
    });
    let first = usize::try_from(at % PERIOD).expect("a short period");
    &STREAM[first..first + length]
}

/// What the threads of a transfer have in common with it.
#[derive(Debug, Default)]
struct Control {
    stop: AtomicBool,
    /// Which end does not write.
    pause: [AtomicBool; 2],
    /// Bytes written by each end, and those read that the other end wrote.
    written: [AtomicU64; 2],
    read: [AtomicU64; 2],
}

/// Writes until `stop`, closes that direction, and returns the number of bytes.
fn write(end: usize, mut stream: TcpStream, control: Arc<Control>) -> JoinHandle<io::Result<u64>> {
    thread::spawn(move || {
        let mut at = 0;
        while !control.stop.load(Ordering::Relaxed) {
            if control.pause[end].load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                continue;
            }
            stream.write_all(bytes_at(at, CHUNK))?;
            at += CHUNK as u64;
            control.written[end].store(at, Ordering::Relaxed);
        }
        stream.shutdown(Shutdown::Write)?;
        Ok(at)
    })
}

/// Reads to the end, checks each byte, and returns their number.
fn check(end: usize, mut stream: TcpStream, control: Arc<Control>) -> JoinHandle<io::Result<u64>> {
    thread::spawn(move || {
        let (mut at, mut buffer) = (0_u64, vec![0; CHUNK]);
        loop {
            let read = uninterrupted(|| stream.read(&mut buffer))?;
            if read == 0 {
                return Ok(at);
            }
            let right = bytes_at(at, read);
            if buffer[..read] != *right {
                let same = buffer.iter().zip(right).take_while(|(a, b)| a == b);
                panic!("byte {} is wrong", at + same.count() as u64);
            }
            at += read as u64;
            control.read[end].store(at, Ordering::Relaxed);
        }
    })
}

fn values(of: &[AtomicU64; 2]) -> [u64; 2] {
    of.each_ref().map(|value| value.load(Ordering::Relaxed))
}

/// A transfer in both directions at once.
pub(crate) struct Transfer {
    control: Arc<Control>,
    ends: [TcpStream; 2],
    writers: [JoinHandle<io::Result<u64>>; 2],
    readers: [JoinHandle<io::Result<u64>>; 2],
}

impl Transfer {
    pub(crate) fn start(pair: &Pair) -> Self {
        Self::controlled(pair, Control::default())
    }

    /// The client only reads.
    fn download(pair: &Pair) -> Self {
        let control = Control::default();
        control.pause[0].store(true, Ordering::Relaxed);
        Self::controlled(pair, control)
    }

    fn controlled(pair: &Pair, control: Control) -> Self {
        let control = Arc::new(control);
        let ends = [&pair.client, &pair.server];
        let copy = |end: usize| ends[end].try_clone().expect("a descriptor is free");
        Self {
            writers: [0, 1].map(|end| write(end, copy(end), Arc::clone(&control))),
            readers: [0, 1].map(|end| check(end, copy(end), Arc::clone(&control))),
            ends: [0, 1].map(copy),
            control,
        }
    }

    /// Ends it in order. Every byte that was sent has arrived.
    pub(crate) fn finish(self) {
        self.control.stop.store(true, Ordering::Relaxed);
        let done = |thread: JoinHandle<io::Result<u64>>| {
            thread.join().expect("no panic").expect("an orderly end")
        };
        let sent = self.writers.map(done);
        let [client, server] = self.readers.map(done);
        assert_eq!([server, client], sent);
    }

    /// Resets it at the client. The server gets that, or nothing that is not right.
    fn reset(self) {
        let linger = SockRef::from(&self.ends[0]).set_linger(Some(Duration::ZERO));
        linger.expect("an open connection");
        // With `shutdown` the threads' copies of the descriptor would keep it open.
        disconnect(&self.ends[0]);
        self.expect_broken();
    }

    /// Stops writing.
    fn pause(&self) {
        for pause in &self.control.pause {
            pause.store(true, Ordering::Relaxed);
        }
    }

    /// Goes on.
    fn resume(&self) {
        for pause in &self.control.pause {
            pause.store(false, Ordering::Relaxed);
        }
    }

    fn has_ended(&self) -> bool {
        self.readers.iter().all(JoinHandle::is_finished)
    }

    /// Waits until both ends were reset, for as long as that may take after the death of a node.
    fn await_resets(&self) {
        // Those that go on are not.
        let _ = wait_until("both ends are reset", DEAD, || self.has_ended());
    }

    /// Waits until both ends read on, or both were reset.
    fn expect_settled(&self) {
        let before = values(&self.control.read);
        until("the connection goes on or is reset", || {
            let now = values(&self.control.read);
            now[0] > before[0] && now[1] > before[1] || self.has_ended()
        });
    }

    /// Waits until both ends have read more than now.
    fn expect_progress(&self, moment: u64) {
        let before = values(&self.control.read);
        let goes_on = wait_until("bytes both ways", PATIENCE, || {
            let now = values(&self.control.read);
            now[0] > before[0] && now[1] > before[1]
        });
        assert!(
            goes_on.is_ok(),
            "after {moment} ms it stalls: {:?}",
            self.control
        );
    }

    /// Both ends have read everything, or both were reset.
    fn expect_whole_or_reset(&self) {
        let [client, server] = values(&self.control.written);
        let is_whole = values(&self.control.read) == [server, client];
        assert!(is_whole || self.has_ended(), "{:?}", self.control);
    }

    /// Ends it at both ends, in whatever state it is; what arrived until then was right.
    fn abandon(self) {
        self.control.stop.store(true, Ordering::Relaxed);
        for end in &self.ends {
            // An end that was reset has no connection left.
            let _ = end.shutdown(Shutdown::Both);
        }
        for writer in self.writers {
            let _ = writer.join().expect("no panic");
        }
        for reader in self.readers {
            let _ = reader.join().expect("no wrong byte");
        }
    }

    /// Both ends are reset; what arrived until then was right.
    pub(crate) fn expect_broken(self) {
        for writer in self.writers {
            let error = writer.join().expect("no panic").expect_err("a reset");
            // The kernel reports a reset once: to the writer, or to the reader of the same socket.
            let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
            assert!(kinds.contains(&error.kind()), "{error}");
        }
        for reader in self.readers {
            let _ = reader.join().expect("no wrong byte");
        }
    }
}

/// Aborts a connection although other threads use it: connects to no address (`tcp_disconnect`).
fn disconnect(stream: &TcpStream) {
    let address = libc::sockaddr {
        sa_family: libc::sa_family_t::try_from(libc::AF_UNSPEC).expect("it is 0"),
        sa_data: [0; 14],
    };
    let size = libc::socklen_t::try_from(size_of_val(&address)).expect("it is short");
    // SAFETY: the address lives through the call, which reads `size` bytes of it.
    let done = unsafe { libc::connect(stream.as_raw_fd(), &raw const address, size) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// Waits until so many relays have begun to leave.
fn until_leaving(node: &Node, number: u64) {
    let begun = || counter(node, "bypasses_begun") == number;
    wait_until("a relay leaves", PATIENCE, begun).expect("in time");
}

/// Opens transfers until the relay of one has left: an attempt that is given up, as may happen on a
/// busy machine, is not repeated.
fn hand_over(node: &Node, open: &impl Fn() -> Pair, meanwhile: &impl Fn()) -> Transfer {
    let outcomes = || [ended(node, "bypassed"), counter(node, "bypasses_given_up")];
    for _ in 0..5 {
        let begun = counter(node, "bypasses_begun");
        let before = outcomes();
        let transfer = Transfer::start(&open());
        until_leaving(node, begun + 1);
        meanwhile();
        let is_over = wait_until("the relay leaves or stays", PATIENCE, || {
            outcomes() != before
        });
        is_over.expect("in time");
        if outcomes()[0] > before[0] {
            return transfer;
        }
        transfer.finish();
        until("no relay is left", || counter(node, "relays") == 0);
    }
    panic!("all relays stay");
}

/// How a connection is opened for a hand-over.
type Open = fn(&Network, Family, &TcpListener) -> Pair;

fn hands_over(
    network: &Network,
    config: &str,
    (families, open): (&[Family], Open),
    meanwhile: impl Fn(),
) {
    let node = start_relaying_in(network.node(0), config);
    let listener = listen(network.server(), PORT);
    let resets = kernel_counter(network.node(0), "Tcp", "OutRsts");
    for family in families {
        let open = || open(network, *family, &listener);
        let transfer = hand_over(&node, &open, &meanwhile);
        assert_eq!(sockets(network.node(0), "established"), [""; 0]);
        thread::sleep(Duration::from_millis(500));
        transfer.finish();
    }
    let now = kernel_counter(network.node(0), "Tcp", "OutRsts");
    assert_eq!(now, resets, "resets of the node");
}

/// A connection whose ends send few MB/s: the queues on the way do not overflow, so that its relay leaves
/// soon, and the machine is not busy with bytes.
pub(crate) fn open_limited(network: &Network, family: Family, listener: &TcpListener) -> Pair {
    let pair = open_short(network, family, listener);
    for end in [&pair.client, &pair.server] {
        limit_rate(end, 2_500_000);
    }
    pair
}

/// A connection whose ends have little in flight.
fn open_short(network: &Network, family: Family, listener: &TcpListener) -> Pair {
    let pair = Pair::open(network, family, listener);
    for end in [&pair.client, &pair.server] {
        let limited = SockRef::from(end).set_send_buffer_size(CHUNK);
        limited.expect("an open connection");
    }
    pair
}

fn limit_rate(stream: &TcpStream, bytes_per_second: u32) {
    let option = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
    set_number(stream, option, bytes_per_second);
}

fn set_number(stream: &TcpStream, (level, option): (i32, i32), number: u32) {
    let size = libc::socklen_t::try_from(size_of_val(&number)).expect("it is short");
    let value = (&raw const number).cast();
    // SAFETY: the kernel reads `size` bytes of the number, which outlives the call.
    let set = unsafe { libc::setsockopt(stream.as_raw_fd(), level, option, value, size) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

/// A round trip of 60 ms, of which each half has its own connection before.
fn path(loss: f64) -> [Link; 2] {
    legs([10, 20], loss)
}

/// Legs of so many milliseconds, one way.
fn legs(milliseconds: [u64; 2], loss: f64) -> [Link; 2] {
    milliseconds.map(|milliseconds| {
        let link = Link::delay(Duration::from_millis(milliseconds)).rate(30_000_000);
        link.queue(300 << 10).loss(loss)
    })
}

// promise: T23
#[test]
fn relays_leave_bulk_transfers() {
    let families = Family::ALL.repeat(2);
    hands_over(&line(), AUTO, (&families, Pair::open), || ());
}

#[test]
fn relays_leave_over_long_paths() {
    let network = network(path(0.0));
    hands_over(&network, CONFIG, (&Family::ALL, Pair::open), || ());
}

/// Over links without link layer addresses, whose queues never overflow: what is sent while the relay
/// leaves arrives, and is not repeated. The timers of the ends do not expire on a slow machine, and five relays leave,
/// for those of the relay may.
#[test]
fn relays_leave_without_loss() {
    let network = network(path(0.0));
    for end in [network.client(), network.server()] {
        for (name, value) in [
            ("tcp_rto_min_us", "5000000"),
            ("tcp_early_retrans", "0"),
            ("tcp_reordering", "300"),
            ("tcp_recovery", "0"),
        ] {
            end.sysctl(&format!("net.ipv4.{name}"), value).unwrap();
        }
    }
    let node = start_relaying_in(network.node(0), CONFIG);
    let listener = listen(network.server(), PORT);
    let resent = || {
        [network.client(), network.server()].map(|end| kernel_counter(end, "Tcp", "RetransSegs"))
    };
    for family in Family::ALL {
        let open = || open_short(&network, family, &listener);
        let is_whole = |_| {
            let before = resent();
            let transfer = hand_over(&node, &open, &|| ());
            transfer.expect_progress(0);
            transfer.finish();
            resent() == before
        };
        assert!((0..5).any(is_whole), "{family:?}: the ends repeat segments");
    }
}

/// Ends that never have room for more than the flow needs, as those of slow flows.
#[test]
fn relays_leave_ends_with_small_windows() {
    let network = network(path(0.0));
    let open = |network: &Network, family, listener: &TcpListener| {
        let pair = open_short(network, family, listener);
        for end in [&pair.client, &pair.server] {
            // 60 kB are in flight at this rate.
            limit_rate(end, 1_000_000);
            set_number(end, (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP), 120_000);
        }
        pair
    };
    hands_over(&network, CONFIG, (&Family::ALL, open), || ());
}

/// Loss begins when a relay has begun to leave: before, it would stay.
#[test]
fn relays_leave_over_lossy_paths() {
    let network = network(path(0.0));
    hands_over(&network, CONFIG, (&[Family::V4], open_limited), || {
        for (index, link) in path(0.01).into_iter().enumerate() {
            network.change(index, link).expect("a link can be changed");
        }
    });
}

/// The ends would repair the losses over the whole path.
// promise: T25
#[test]
fn relays_of_lossy_paths_stay() {
    stays(legs([15, 15], 0.005), 10_000_000);
}

/// The client, which sends as well, would see four times its round trip: BBR takes that for a queue.
// promise: T25
#[test]
fn relays_of_senders_with_short_round_trips_stay() {
    stays(legs([5, 15], 0.0), 20_000_000);
}

/// Transfers so many bytes each way, and the relay does not begin to leave.
fn stays(legs: [Link; 2], bytes: u64) {
    let network = network(legs);
    let node = start_relaying_in(network.node(0), AUTO);
    let listener = listen(network.server(), PORT);
    let pair = Pair::open(&network, Family::V4, &listener);
    let transfer = Transfer::start(&pair);
    let moved = || values(&transfer.control.read).iter().min() > Some(&bytes);
    wait_until("bytes both ways", PATIENCE, moved).expect("in time");
    assert_eq!(counter(&node, "bypasses_begun"), 0);
    transfer.finish();
}

/// Without loss, between legs of which none is shorter.
#[test]
fn relays_leave_equal_legs() {
    let network = network(legs([10, 10], 0.0));
    hands_over(&network, AUTO, (&[Family::V4], open_limited), || ());
}

/// Without the key no relay leaves.
#[test]
fn relays_stay_by_default() {
    let network = line();
    let node = start_relaying_in(network.node(0), "");
    let listener = listen(network.server(), PORT);
    let pair = Pair::open(&network, Family::V4, &listener);
    let transfer = Transfer::start(&pair);
    thread::sleep(Duration::from_secs(3));
    transfer.finish();
    until_ended(&node, "finished", 1);
    assert_eq!(counter(&node, "bypasses_begun"), 0);
}

/// Opens a transfer over a long path, and waits until its relay begins to leave and `milliseconds`
/// longer.
fn leaving(network: &Network, node: &Node, listener: &TcpListener, milliseconds: u64) -> Transfer {
    let begun = counter(node, "bypasses_begun");
    let pair = open_limited(network, Family::V4, listener);
    let transfer = Transfer::start(&pair);
    until_leaving(node, begun + 1);
    thread::sleep(Duration::from_millis(milliseconds));
    transfer
}

/// How long after the beginning of a hand-over something else happens: the clamp takes some 100 to
/// 300 ms on this path, the overlap as long.
const MOMENTS: [u64; 8] = [0, 60, 120, 180, 240, 320, 400, 500];

/// A flow that ends in whatever phase of a hand-over loses no byte.
#[test]
fn flows_end_while_relays_leave() {
    let network = network(path(0.002));
    let node = start_relaying_in(network.node(0), CONFIG);
    let listener = listen(network.server(), PORT);
    for moment in MOMENTS {
        leaving(&network, &node, &listener, moment).finish();
    }
    until("no relay is left", || counter(&node, "relays") == 0);
    let outcomes = ended(&node, "finished") + ended(&node, "bypassed");
    assert_eq!(outcomes, MOMENTS.len() as u64);
}

/// An end that resets is heard by the other, in whatever phase.
#[test]
fn resets_pass_while_relays_leave() {
    let network = network(path(0.0));
    let node = start_relaying_in(network.node(0), CONFIG);
    let listener = listen(network.server(), PORT);
    for moment in MOMENTS {
        leaving(&network, &node, &listener, moment).reset();
    }
    until("no relay is left", || counter(&node, "relays") == 0);
}

/// The address of IPv4 that a socket of both families has.
fn v4(address: SocketAddr) -> SocketAddrV4 {
    let IpAddr::V4(ip) = address.ip().to_canonical() else {
        panic!("{address} is none");
    };
    SocketAddrV4::new(ip, address.port())
}

/// Segments of one who sees none of the flow, in the name of each end: they move no number of a
/// hand-over, and end no connection. On a machine that is too slow a relay gives up to leave, and another one does.
#[test]
fn blind_segments_do_not_break_a_hand_over() {
    let network = network(path(0.0));
    let node = start_relaying_in(network.node(0), CONFIG);
    let listener = listen(network.server(), PORT);
    let left = |_| leaves_among_blind_segments(&network, &node, &listener);
    assert!((0..10).any(left), "no relay leaves");
}

/// Whether a relay leaves, rather than give that up; in either case its bytes arrive.
fn leaves_among_blind_segments(network: &Network, node: &Node, listener: &TcpListener) -> bool {
    let pair = open_limited(network, Family::V4, listener);
    let address = |stream: &TcpStream| v4(stream.local_addr().expect("an open socket"));
    let [client, server] = [address(&pair.client), address(&pair.server)];
    let given_up = || counter(node, "bypasses_given_up");
    let (before, has_left) = (given_up(), || ended(node, "bypassed") == 1);
    let transfer = Transfer::start(&pair);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for (host, ends, seed) in [
            (network.client(), [client, server], 1),
            (network.server(), [server, client], 2),
        ] {
            let segments = blind(seed).take_while(|_| !is_over.load(Ordering::Relaxed));
            scope.spawn(move || send_segments(host, ends, segments));
        }
        let tried = wait_until("the relay leaves", PATIENCE, || {
            has_left() || given_up() > before
        });
        is_over.store(true, Ordering::Relaxed);
        tried.expect("in time");
    });
    thread::sleep(Duration::from_millis(500));
    transfer.finish();
    has_left()
}

/// Numbers and flags of guessed segments.
fn blind(seed: u64) -> impl Iterator<Item = ([u32; 2], u8)> {
    /// FIN and ACK, or ACK alone. A RST that happens to be in the window would end the attempt.
    const FLAGS: [u8; 2] = [0x11, 0x10];
    let mut random = Rng::new(seed);
    FLAGS.into_iter().cycle().map(move |flags| {
        // Half of all numbers are ahead of the right ones.
        let mut number = || u32::try_from(random.below(1 << 32)).expect("32 bits");
        ([number(), number()], flags)
    })
}

/// Kills the node so many milliseconds after a relay begins to leave; what it was about to hand over
/// goes on or is reset.
fn kill_while_leaving(milliseconds: u64, loss: f64) {
    let network = network(path(0.0));
    let mut node = start_relaying_in(network.node(0), CONFIG);
    let listener = listen(network.server(), PORT);
    let transfer = leaving(&network, &node, &listener, milliseconds);
    let change = |loss| {
        for (index, link) in path(loss).into_iter().enumerate() {
            network.change(index, link).expect("a link can be changed");
        }
    };
    if loss > 0.0 {
        change(loss);
    }
    node.kill().expect("it runs");
    if loss > 0.0 {
        thread::sleep(DEAD / 5);
        change(0.0);
    }
    transfer.await_resets();
    transfer.expect_settled();
    transfer.abandon();
}

/// Within this time the connections that a dead node was about to leave go on or are reset.
const DEAD: Duration = Duration::from_secs(10);

// promise: T24
/// The node is killed in whatever phase: no end reads a wrong byte afterwards, or waits for ever.
#[test]
fn killed_node_corrupts_nothing() {
    for moment in [0, 60, 240] {
        kill_while_leaving(moment, 0.0);
    }
}

// promise: T24
/// At other moments.
#[test]
fn killed_node_corrupts_nothing_either() {
    for moment in [30, 120, 500] {
        kill_while_leaving(moment, 0.0);
    }
}

// promise: T24
/// The resets of its sockets get lost, or overtake what is lost, and so are refused.
#[test]
fn killed_node_ends_connections_despite_loss() {
    for moment in [0, 60] {
        kill_while_leaving(moment, 0.4);
    }
}

// promise: T24
/// At other moments.
#[test]
fn killed_node_ends_connections_despite_loss_either() {
    for moment in [30, 120] {
        kill_while_leaving(moment, 0.4);
    }
}

// promise: T24
/// Ends that only wait send nothing that the programs could answer.
#[test]
fn killed_node_ends_connections_that_wait() {
    for moment in [0, 30, 60, 120] {
        let network = network(path(0.0));
        let mut node = start_relaying_in(network.node(0), CONFIG);
        let listener = listen(network.server(), PORT);
        let transfer = leaving(&network, &node, &listener, moment);
        transfer.pause();
        node.kill().expect("it runs");
        transfer.await_resets();
        transfer.expect_whole_or_reset();
        transfer.abandon();
    }
}

/// Drops what a host sends to another from the first segment on that a relay did not send, which shows
/// by its hop limit.
fn drop_from_first_direct_segment(host: &Namespace) {
    let rules = "table inet direct {
        set senders { type ipv4_addr; flags dynamic; }
        chain on_input { type filter hook input priority 0; ip ttl 64 add @senders { ip saddr }; }
        chain on_output { type filter hook output priority 0; ip daddr @senders drop; }
    }";
    firewall_script(host, rules);
}

// promise: T24
/// The client only reads, and its link fails when the node dies in the overlap. It has read newer
/// segments than the node's, and its last acknowledgements were lost: it is reset once the link is back.
/// Where these arrived in time, the relay has left, and nothing resets the client.
#[test]
fn killed_node_ends_connections_behind_a_dead_link() {
    let is_reset = |_| {
        let network = network(path(0.0));
        let [client, host] = [network.client(), network.node(0)];
        host.sysctl("net.ipv4.ip_default_ttl", "60")
            .expect("a setting");
        let mut node = start_relaying_in(host, CONFIG);
        let listener = listen(network.server(), PORT);
        let pair = Pair::open(&network, Family::V4, &listener);
        drop_from_first_direct_segment(client);
        let transfer = Transfer::download(&pair);
        let cut = || counter(&node, "bypasses_cut") == 1;
        wait_until("a relay has chosen its cuts", PATIENCE, cut).expect("in time");
        thread::sleep(Duration::from_millis(500));
        if ended(&node, "bypassed") == 1 {
            transfer.abandon();
            return false;
        }
        firewall(client, "in", &[("input", "drop")]);
        node.kill().expect("it runs");
        thread::sleep(Duration::from_secs(2));
        assert!(!transfer.readers[0].is_finished(), "nothing arrives");
        remove_firewall(client, "in");
        remove_firewall(client, "direct");
        until("the client is reset", || transfer.readers[0].is_finished());
        transfer.abandon();
        true
    };
    assert!((0..10).any(is_reset), "all relays leave at once");
}

/// Once handed over, a flow outlives its node.
#[test]
fn flows_outlive_a_killed_node() {
    let network = line();
    let mut node = start_relaying_in(network.node(0), CONFIG);
    let listener = listen(network.server(), PORT);
    for family in Family::ALL {
        let open = || open_limited(&network, family, &listener);
        let transfer = hand_over(&node, &open, &|| ());
        if family == Family::V6 {
            node.kill().expect("it runs");
        }
        thread::sleep(Duration::from_secs(1));
        transfer.finish();
    }
    until("the guard has removed the pins", || {
        pins(network.node(0)).is_empty()
    });
}

// promise: PK12, PK9
/// Flows that their relays have left are probed like others while they are quiet, continue, and `teardown` resets
/// both ends, those that wait as well as those that send.
#[test]
fn left_flows_are_probed_and_reset() {
    let network = line();
    let config = format!("[packet]\nidle = \"1s\"\n{CONFIG}");
    let mut node = start_relaying_in(network.node(0), &config);
    let listener = listen(network.server(), PORT);
    let open = || open_limited(&network, Family::V4, &listener);
    let [quiet, busy] = [(); 2].map(|()| hand_over(&node, &open, &|| ()));
    let open = || open_limited(&network, Family::V6, &listener);
    let other = hand_over(&node, &open, &|| ());
    for transfer in [&quiet, &other] {
        transfer.pause();
    }
    let probed = redirect(&node, "packet_probed");
    until("the ends are probed", || {
        redirect(&node, "packet_probed") >= probed + 12
    });
    assert_eq!(redirect(&node, "packet_dead"), 0);
    for transfer in [&quiet, &other] {
        transfer.resume();
        transfer.expect_progress(0);
        transfer.pause();
    }
    node.kill().expect("it runs");
    let done = run_program(network.node(0), "teardown");
    assert!(done.contains("reset 3 open flows"), "{done}");
    busy.expect_broken();
    for transfer in [quiet, other] {
        until("both ends are reset", || transfer.has_ended());
        transfer.abandon();
    }
}
