// SPDX-License-Identifier: Apache-2.0
//! The virtual network: connections between hosts, and the far ends that are no nodes.

use std::collections::VecDeque;

use posthaste_wire::hop::Reply;

use super::{Event, Health, Server, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Client,
    Node(usize),
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// A request for the rest of a path, by a node whose client may be unvalidated.
    Request {
        path: crate::chain::Path,
        validated: bool,
    },
    Validated,
    Working,
    Reply(Reply),
    /// A byte of the client, or of the server, by its number.
    Byte(u32),
    Fin,
    Reset,
}

/// A connection from one host to the next.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) hosts: [Host; 2],
    /// The flows at both ends, where those are nodes.
    pub(super) flows: [Option<usize>; 2],
    /// The tuple as the dialing host has it.
    pub(super) tuple: Option<crate::flow::Flow>,
    pub(super) is_open: bool,
    pub(super) is_closed: bool,
    pub(super) has_option: bool,
    /// The path that is requested over it; that of the option is the same.
    pub(super) path: Option<crate::chain::Path>,
    /// The flow that the option of its SYN has begun.
    pub(super) announced: Option<usize>,
    syn_acks: u32,
    pub(super) let_in: Vec<u32>,
    /// When the last message of each direction arrives.
    last_ms: [u64; 2],
    /// What has arrived and is not read, by direction: up first.
    pub(super) inbox: [VecDeque<Message>; 2],
    /// Whether its dialer has an acknowledgement of the request.
    pub(super) acked: bool,
    /// Whether bytes of the flow have left its dialer.
    pub(super) has_bytes: bool,
    /// What was under way to the accepting host when the dialer closed it is lost.
    loses_the_rest: bool,
    /// Next byte that the server expects.
    expected: u32,
}

impl World {
    pub(super) fn add_conn(&mut self, from: Host, to: Host, at: Option<usize>) -> usize {
        let is_client = from == Host::Client;
        self.conns.push(Conn {
            hosts: [from, to],
            flows: if is_client { [None, at] } else { [at, None] },
            tuple: None,
            is_open: false,
            is_closed: false,
            has_option: false,
            path: None,
            announced: None,
            syn_acks: 0,
            let_in: Vec::new(),
            last_ms: [0; 2],
            inbox: [VecDeque::new(), VecDeque::new()],
            acked: false,
            has_bytes: false,
            loses_the_rest: false,
            expected: 0,
        });
        self.conns.len() - 1
    }

    fn is_mute(&self, host: Host) -> bool {
        matches!(host, Host::Node(node) if self.health[node] == Health::IsDead)
    }

    /// The link of a connection to a node: until when it is silent, if it is.
    fn silent_until(&self, conn: usize) -> Option<u64> {
        let Host::Node(node) = self.conns[conn].hosts[1] else {
            return None;
        };
        let silences = self.plan.silences[node].iter();
        let mut ends = silences.filter(|silence| silence.contains(&self.now_ms));
        ends.next().map(|silence| silence.end)
    }

    /// How long a packet takes from now, with what it is sent again.
    fn way(&mut self, conn: usize) -> u64 {
        let delay = self.delay();
        match self.silent_until(conn) {
            // Hosts retransmit less and less often.
            Some(end) => {
                let left = u32::try_from(end - self.now_ms).expect("short");
                u64::from(left) + self.rng.below(u64::from(left) + 200) + delay
            }
            None => delay,
        }
    }

    /// Sends the SYN of a connection, and retransmits it twice.
    pub(super) fn dial(&mut self, conn: usize) {
        for pause in [0, 1000, 3000] {
            let delay = pause + self.delay();
            self.after(delay, Event::Syn(conn));
        }
    }

    pub(super) fn on_syn(&mut self, conn: usize) {
        let (to, is_over) = (
            self.conns[conn].hosts[1],
            self.conns[conn].is_closed || self.conns[conn].is_open,
        );
        if is_over || self.is_mute(to) || self.silent_until(conn).is_some() {
            return;
        }
        let delay = self.delay();
        match to {
            Host::Node(node) if self.health[node] == Health::HasQuit => {
                self.after(delay, Event::Rejected(conn));
            }
            Host::Node(_) if self.conns[conn].has_option && self.plan.options_rejected => {
                self.after(delay, Event::Rejected(conn));
            }
            Host::Node(node) => {
                if self.conns[conn].has_option && self.health[node] == Health::Fine {
                    self.on_announcement(conn, node);
                }
                self.after(delay, Event::Opened(conn));
            }
            Host::Server => match self.plan.server {
                Server::Refuses | Server::IsUnreachable => {
                    self.after(delay, Event::Rejected(conn));
                }
                Server::IsSilent | Server::IsBeyond => {}
                Server::Answers => {
                    self.conns[conn].syn_acks += 1;
                    let number = self.conns[conn].syn_acks;
                    self.after(delay, Event::SynAck { conn, number });
                }
            },
            Host::Client => unreachable!("no host connects to a client"),
        }
    }

    /// A message arrives behind those that were sent before.
    pub(super) fn send(&mut self, conn: usize, up: bool, message: Message) {
        let delay = self.way(conn);
        self.conns[conn].has_bytes |= up && matches!(message, Message::Byte(_) | Message::Fin);
        let last = &mut self.conns[conn].last_ms[usize::from(!up)];
        let at = (self.now_ms + delay).max(*last);
        *last = at;
        let event = Event::Arrive { conn, up, message };
        self.after(at - self.now_ms, event);
    }

    /// Both ends are gone for `who`: what it has sent still arrives, what is under way to it does
    /// not. Segments that were lost are not retransmitted.
    pub(super) fn close(&mut self, conn: usize, by_dialer: bool, reset: bool) {
        if self.conns[conn].is_closed {
            return;
        }
        self.conns[conn].is_closed = true;
        self.conns[conn].loses_the_rest = self.rng.once_in(2);
        if !self.conns[conn].is_open {
            return;
        }
        let message = if reset { Message::Reset } else { Message::Fin };
        let host = self.conns[conn].hosts[usize::from(!by_dialer)];
        if !self.is_mute(host) {
            self.send(conn, by_dialer, message);
        }
    }

    pub(super) fn on_arrival(&mut self, conn: usize, up: bool, message: Message) {
        let to = self.conns[conn].hosts[usize::from(up)];
        let from = self.conns[conn].hosts[usize::from(!up)];
        // What a host that has died had sent may have been lost with it.
        if self.is_mute(to) || self.is_mute(from) {
            return;
        }
        let is_last = matches!(message, Message::Fin | Message::Reset | Message::Reply(_));
        if self.conns[conn].loses_the_rest && !is_last && up && to != Host::Server {
            return;
        }
        if up && matches!(message, Message::Request { .. }) {
            let way = self.way(conn);
            self.after(way, Event::Acked(conn));
        }
        match to {
            Host::Server => self.on_server(conn, message),
            Host::Client => self.on_client(message),
            Host::Node(node) => {
                if self.health[node] == Health::Hangs {
                    return;
                }
                self.conns[conn].inbox[usize::from(!up)].push_back(message);
                match self.conns[conn].flows[usize::from(up)] {
                    Some(flow) => self.pump(flow),
                    None if up => self.on_first_message(conn, node),
                    None => {}
                }
            }
        }
    }

    fn on_server(&mut self, conn: usize, message: Message) {
        assert!(self.conns[conn].is_open, "bytes without a handshake");
        if let Message::Byte(number) = message {
            assert_eq!(number, self.conns[conn].expected, "out of order");
            self.conns[conn].expected += 1;
            *self.executed.entry(number).or_insert(0) += 1;
            if self.conns[conn].expected == self.plan.request {
                for number in 0..self.plan.response {
                    self.send(conn, false, Message::Byte(number));
                }
                self.send(conn, false, Message::Fin);
            }
        }
    }

    fn on_client(&mut self, message: Message) {
        match message {
            Message::Byte(number) => {
                assert_eq!(number, self.received, "the answer is out of order");
                assert!(!self.has_ended, "bytes behind the end");
                self.received += 1;
            }
            Message::Fin => {
                self.has_ended = true;
                if !self.plan.closes_early {
                    self.send(0, true, Message::Fin);
                }
            }
            Message::Reset => self.has_ended = true,
            message => panic!("a client gets {message:?}"),
        }
    }
}
