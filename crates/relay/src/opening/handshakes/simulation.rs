// SPDX-License-Identifier: Apache-2.0
//! Handshakes under many random orders of events.
//!
//! A small world surrounds one pair of [`Handshakes`]: a client that may be spoofed, a server that may be
//! silent or refuse, a network that repeats and loses SYN-ACKs, the half-open entry, the ring of
//! events, and a worker that follows the returned steps. The world checks that nothing reaches the
//! server's handshake before the client is validated, and that every flow ends exactly once, with
//! the right outcome.

use std::collections::{HashMap, VecDeque};

use super::{Action, Handshakes};
use crate::accept_mode::AcceptMode;
use crate::frame::Frame;
use crate::outcome::Outcome;
use posthaste_testkit::{Rng, simulate};

const SCHEDULES: u64 = 100_000;
/// Polls that find a SYN in this host until all give the server up.
const LOOKS_MAX: u32 = 4;
/// Events that the ring holds; more are lost.
const RING_MAX: usize = 3;

/// What a server does with a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    Answers,
    Refuses,
    /// Answers, and resets while the SYN-ACK is held.
    Wavers,
    IsSilent,
    /// Is behind a neighbour that does not answer: no SYN leaves this host.
    IsBeyond,
}

/// The upstream socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Socket {
    SynSent,
    Open,
    Failed(Outcome),
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Joined,
    With(Outcome),
}

struct Simulation {
    rng: Rng,
    /// `None` after the expiry.
    handshakes: Option<Handshakes>,
    mode: AcceptMode,
    /// Whether its client answers SYN-ACKs.
    genuine: bool,
    server: Server,
    /// Whether some SYN-ACKs arrive at a device that is not attached.
    unwatched: bool,
    /// Whether SYN-ACKs are held.
    half_open: bool,
    ring: VecDeque<u32>,
    socket: Socket,
    /// The upstream socket has an event.
    socket_event: bool,
    /// The client's SYN has reached the listener.
    listened: bool,
    accepted: bool,
    /// SYN-ACKs sent, the last one reported to the worker, those injected.
    sent: u32,
    kept: Option<u32>,
    let_in: Vec<u32>,
    admitted: u32,
    /// Polls that found the SYN in this host.
    unsent: u32,
    /// The failure reported to the worker.
    failure: Option<Outcome>,
    end: Option<End>,
}

impl Simulation {
    fn new(mut rng: Rng) -> Self {
        let modes: Vec<_> = AcceptMode::all().collect();
        let mode = rng.pick(&modes);
        let servers = [
            Server::Answers,
            Server::Answers,
            Server::Refuses,
            Server::Wavers,
            Server::IsSilent,
            Server::IsBeyond,
        ];
        Self {
            handshakes: Some(mode.open()),
            mode,
            genuine: !mode.connects_at_syn() || !rng.once_in(4),
            server: rng.pick(&servers),
            unwatched: rng.once_in(8),
            half_open: mode.connects_at_syn(),
            ring: VecDeque::new(),
            socket: Socket::SynSent,
            socket_event: false,
            listened: mode.answers_before_server(),
            accepted: !mode.connects_at_syn(),
            sent: 0,
            kept: None,
            let_in: Vec::new(),
            admitted: 0,
            unsent: 0,
            failure: None,
            end: None,
            rng,
        }
    }

    fn run(mut self) -> (AcceptMode, End) {
        for _ in 0..self.rng.below(16) {
            self.step();
            self.check();
        }
        self.come_to_an_end();
        (self.mode, self.end.expect("every flow ends"))
    }

    fn step(&mut self) {
        match self.rng.below(14) {
            0..=2 => self.server_speaks(),
            3..=5 => self.take_event(),
            6..=7 => self.accept(),
            8..=9 => self.look_at_socket(),
            10 => self.network_speaks(),
            11..=12 => self.look_for_syn(),
            _ if self.rng.once_in(4) => self.expire(),
            _ => {}
        }
    }

    /// Nothing is lost any more, and the server's answers arrive.
    fn come_to_an_end(&mut self) {
        for _ in 0..2 * RING_MAX + 2 {
            self.server_speaks();
            self.take_event();
            self.accept();
            self.look_at_socket();
            if self.server == Server::IsBeyond {
                self.look_for_syn();
            }
            self.check();
        }
        assert!(
            self.end.is_some() || self.failure.is_some() || self.server != Server::IsBeyond,
            "the missing route is not reported"
        );
        let fine = self.genuine && self.server == Server::Answers;
        assert!(self.end.is_some() || !fine, "they do not meet");
        self.expire();
        self.check();
    }

    fn handshakes(&mut self) -> &mut Handshakes {
        self.handshakes.as_mut().expect("it has not ended")
    }

    fn server_speaks(&mut self) {
        if self.socket != Socket::SynSent {
            return;
        }
        match self.server {
            Server::IsSilent | Server::IsBeyond => {}
            Server::Refuses => self.fail(Outcome::UpstreamRefused),
            Server::Wavers if self.sent > 0 && self.rng.once_in(2) => {
                self.fail(Outcome::UpstreamRefused);
            }
            Server::Answers | Server::Wavers => {
                self.sent += 1;
                self.arrive(self.sent);
            }
        }
    }

    /// An ICMP error, or the upstream socket gives up.
    fn network_speaks(&mut self) {
        if self.socket == Socket::SynSent && self.server == Server::IsSilent {
            let outcomes = [Outcome::UpstreamUnreachable, Outcome::ConnectTimeout];
            let outcome = self.rng.pick(&outcomes);
            self.fail(outcome);
        }
    }

    fn fail(&mut self, outcome: Outcome) {
        self.socket = Socket::Failed(outcome);
        self.socket_event = true;
    }

    /// A SYN-ACK arrives at this host.
    fn arrive(&mut self, number: u32) {
        if self.socket != Socket::SynSent {
            return;
        }
        let seen = !self.unwatched || self.rng.once_in(2);
        if self.half_open && seen {
            if self.ring.len() < RING_MAX {
                self.ring.push_back(number);
            }
            return;
        }
        self.socket = Socket::Open;
        self.socket_event = true;
    }

    /// The worker injects a held SYN-ACK.
    fn let_in(&mut self, frame: &Frame) {
        let number = frame.ifindex;
        assert!(self.accepted, "let in before the validation");
        assert!(!self.half_open, "it would come round again");
        assert!(number > 0 && number <= self.sent, "it was not sent");
        assert!(!self.let_in.contains(&number), "let in twice");
        self.let_in.push(number);
        self.arrive(number);
    }

    fn take_event(&mut self) {
        if self.end.is_some() {
            return;
        }
        let Some(number) = self.ring.pop_front() else {
            return;
        };
        let step = self
            .handshakes()
            .on_syn_ack(Frame::captured(number, 14, &[]));
        match step {
            None => {
                assert!(self.listened, "its client is left waiting");
                self.kept = Some(number);
            }
            Some(Action::Admit) => {
                self.kept = Some(number);
                self.admit();
            }
            Some(Action::LetIn(frame)) => {
                assert_eq!(frame.ifindex, number);
                self.let_in(&frame);
            }
            step => panic!("{step:?} on a SYN-ACK"),
        }
    }

    fn admit(&mut self) {
        assert!(self.mode.holds_syn(), "its SYN was not held");
        assert!(self.failure.is_none(), "admitted to a failed server");
        self.admitted += 1;
        self.listened = true;
    }

    fn accept(&mut self) {
        if self.end.is_some() || self.accepted || !self.listened || !self.genuine {
            return;
        }
        self.accepted = true;
        let step = self.handshakes().on_accept();
        self.half_open = false;
        match step {
            None => assert_eq!(self.kept, None, "the answer is lost"),
            Some(Action::LetIn(frame)) => {
                assert_eq!(Some(frame.ifindex), self.kept, "not the last one");
                self.let_in(&frame);
            }
            Some(Action::Join) => self.join(),
            Some(Action::Refuse(outcome, None)) => self.refuse(outcome),
            step => panic!("{step:?} although the client is here"),
        }
    }

    fn look_at_socket(&mut self) {
        // Data from the server is an event too.
        let talks = self.socket == Socket::Open && self.rng.once_in(3);
        if self.end.is_some() || !(std::mem::take(&mut self.socket_event) || talks) {
            return;
        }
        match self.socket {
            Socket::SynSent | Socket::Closed => {}
            Socket::Open => match self.handshakes().on_connected() {
                Some(Action::Join) => self.join(),
                None => assert!(self.listened && !self.accepted),
                Some(Action::Admit) => {
                    assert!(self.unwatched, "held, and yet connected");
                    self.admit();
                }
                step => panic!("{step:?} although the server is here"),
            },
            Socket::Failed(outcome) => self.learn_of_failure(outcome),
        }
    }

    fn learn_of_failure(&mut self, outcome: Outcome) {
        self.failure = Some(outcome);
        let handshakes = self.handshakes();
        handshakes.on_failed(outcome);
        match (handshakes.is_validated(), handshakes.is_held()) {
            (true, _) => {
                assert!(self.accepted, "no client to refuse");
                self.refuse(outcome);
            }
            (false, true) => {
                assert!(!self.listened, "the SYN is no longer held");
                self.end(End::With(outcome));
            }
            (false, false) => assert!(self.listened && !self.accepted),
        }
    }

    /// The worker polls whether the SYN has left this host. A retransmitted SYN may be queued for a
    /// moment although the server has answered.
    fn look_for_syn(&mut self) {
        if self.end.is_some() || self.socket != Socket::SynSent {
            return;
        }
        if self.server != Server::IsBeyond && !self.rng.once_in(4) {
            return;
        }
        let (held, knows) = (!self.listened, self.kept.is_some() && !self.accepted);
        self.unsent += 1;
        let given_up = self.handshakes().on_unsent();
        assert!(!given_up || !knows, "the server has answered");
        assert!(!given_up || held || self.unsent >= LOOKS_MAX, "too soon");
        assert!(
            given_up || knows || self.unsent < LOOKS_MAX,
            "given up at no time"
        );
        if given_up {
            self.learn_of_failure(Outcome::UpstreamUnreachable);
            self.socket = Socket::Closed;
        }
    }

    fn join(&mut self) {
        assert_eq!(self.socket, Socket::Open, "no server to join");
        assert!(self.accepted, "no client to join");
        assert_eq!(self.failure, None, "a failed server joins");
        self.end(End::Joined);
    }

    fn refuse(&mut self, outcome: Outcome) {
        assert_eq!(Some(outcome), self.failure, "another failure");
        self.end(End::With(outcome));
    }

    fn end(&mut self, end: End) {
        assert_eq!(self.end, None, "it ends twice");
        self.end = Some(end);
        if end != End::Joined {
            self.socket = Socket::Closed;
        }
        self.half_open = false;
    }

    /// The timeout of the current state expires.
    fn expire(&mut self) {
        if self.end.is_some() {
            return;
        }
        let handshakes = self.handshakes();
        if handshakes.is_validated() || handshakes.is_held() {
            return self.learn_of_failure(Outcome::ConnectTimeout);
        }
        let mut handshakes = self.handshakes.take().expect("it has not ended");
        let (outcome, syn_ack) = handshakes.on_expiry();
        let expected = self.failure.unwrap_or(Outcome::ClientAbsent);
        assert_eq!(outcome, expected);
        let connected = self.socket == Socket::Open;
        if self.failure.is_none() && !connected {
            let number = syn_ack.map(|frame| frame.ifindex);
            assert_eq!(number, self.kept, "the server gets no reset");
        }
        self.end(End::With(outcome));
    }

    fn check(&mut self) {
        let (accepted, listened) = (self.accepted, self.listened);
        if let (Some(handshakes), None) = (&self.handshakes, self.end) {
            assert_eq!(handshakes.is_validated(), accepted);
            assert_eq!(handshakes.is_held(), !listened);
            let remembered = self.failure.is_some() && !accepted;
            assert_eq!(handshakes.failed(), remembered);
        }
        let open = self.socket == Socket::Open;
        assert!(
            !open || accepted || self.unwatched,
            "connected before the validation"
        );
        assert!(self.admitted <= 1, "admitted twice");
        if self.mode.holds_syn() {
            assert_eq!(listened, self.admitted == 1);
        }
    }
}

// promise: A7, D1, D8
#[test]
fn random_event_orders() {
    let mut ends = HashMap::new();
    simulate(SCHEDULES, |rng| {
        let (mode, end) = Simulation::new(rng).run();
        *ends.entry((mode, end == End::Joined)).or_insert(0) += 1;
    });
    for end in AcceptMode::all().flat_map(|mode| [(mode, true), (mode, false)]) {
        assert!(ends[&end] > 1000, "{ends:?}");
    }
}
