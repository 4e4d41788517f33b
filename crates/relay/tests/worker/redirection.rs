// SPDX-License-Identifier: Apache-2.0
//! The redirection of a node on the path of its clients, played: a client announces its SYN, waits
//! for the verdict of the worker if the SYN is held, and connects to the worker's listener, which
//! learns the destination from here. No packet is held, so the client's side is the only one that is
//! as in a network.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use posthaste_relay::accept_mode::AcceptMode;
use posthaste_relay::flow::Flow;
use posthaste_relay::frame::{ETHERNET_BYTES, Frame};
use posthaste_relay::intercept::{Direction, Event, EventKind, HalfOpen, Intercept};
use posthaste_relay::sys::{self, SocketSettings};
use socket2::Socket;

use crate::host::{Family, until};
use crate::streams::{bound, connected};

/// What a held SYN led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Admitted,
    Refused,
}

/// What the clients and the worker share, by client.
#[derive(Default)]
struct Shared {
    destinations: HashMap<SocketAddr, SocketAddr>,
    verdicts: HashMap<SocketAddr, Verdict>,
}

/// The clients' side.
pub(crate) struct Transit {
    listeners: [SocketAddr; 2],
    events: Sender<Event>,
    bell: Arc<EventFd>,
    shared: Arc<Mutex<Shared>>,
}

impl Transit {
    /// With the worker's side, and its listeners.
    pub(crate) fn new(settings: SocketSettings) -> (Self, Redirection, Vec<Socket>) {
        let listeners = [false, true];
        let listeners = listeners.map(|ipv6| sys::transparent_listener(ipv6, settings).unwrap());
        let at = |listener: &Socket| listener.local_addr().unwrap().as_socket().unwrap();
        let (events, announced) = mpsc::channel();
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC);
        let bell = Arc::new(bell.unwrap());
        let shared = Arc::default();
        let redirection = Redirection {
            events: announced,
            bell: Arc::clone(&bell),
            shared: Arc::clone(&shared),
        };
        let transit = Self {
            listeners: listeners.each_ref().map(at),
            events,
            bell,
            shared,
        };
        (transit, redirection, listeners.into())
    }

    /// Connects the client to a server behind the node.
    ///
    /// # Errors
    /// The server has refused, in a mode that waits for it.
    pub(crate) fn dial(&self, accept: AcceptMode, server: SocketAddr) -> io::Result<TcpStream> {
        let family = Family::of(server);
        let socket = bound(SocketAddr::new(family.client(), 0));
        let client = socket.local_addr().unwrap().as_socket().unwrap();
        let mut shared = self.shared.lock().unwrap();
        shared.destinations.insert(client, server);
        shared.verdicts.remove(&client);
        drop(shared);
        if accept != AcceptMode::LATE {
            self.announce(client, server, accept == AcceptMode::STRICT);
        }
        if accept == AcceptMode::STRICT && self.verdict(client) == Verdict::Refused {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let listener = self.listeners[usize::from(family == Family::V6)];
        Ok(connected(socket, listener))
    }

    fn announce(&self, client: SocketAddr, server: SocketAddr, held: bool) {
        let event = Event {
            kind: EventKind::Syn { held },
            flow: Flow::new(client, server),
            frame: Frame::captured(1, 0, &syn(client, server)),
            half_open: HalfOpen::default(),
            rule: 0,
            generation: 0,
            trial: false,
            path: None,
        };
        self.events.send(event).unwrap();
        self.bell.write(1).unwrap();
    }

    fn verdict(&self, client: SocketAddr) -> Verdict {
        let mut verdict = None;
        until("a verdict", || {
            verdict = self.shared.lock().unwrap().verdicts.get(&client).copied();
            verdict.is_some()
        });
        verdict.unwrap()
    }
}

/// A SYN of a client.
fn syn(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let mut packet = match (client.ip(), server.ip()) {
        (IpAddr::V4(client), IpAddr::V4(server)) => {
            let head = [0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
            [&head[..], &client.octets(), &server.octets()].concat()
        }
        (IpAddr::V6(client), IpAddr::V6(server)) => {
            let head = [0x60, 0, 0, 0, 0, 20, 6, 64];
            [&head[..], &client.octets(), &server.octets()].concat()
        }
        _ => panic!("two families"),
    };
    packet.extend(client.port().to_be_bytes());
    packet.extend(server.port().to_be_bytes());
    packet.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    packet
}

/// To whom a segment is addressed.
fn receiver(segment: &Frame) -> SocketAddr {
    let packet = &segment.as_bytes()[ETHERNET_BYTES..];
    let (ip, tcp): (IpAddr, usize) = if packet[0] >> 4 == 4 {
        (<[u8; 4]>::try_from(&packet[16..20]).unwrap().into(), 20)
    } else {
        (<[u8; 16]>::try_from(&packet[24..40]).unwrap().into(), 40)
    };
    let port = u16::from_be_bytes([packet[tcp + 2], packet[tcp + 3]]);
    SocketAddr::new(ip, port)
}

/// The worker's side.
pub(crate) struct Redirection {
    events: Receiver<Event>,
    bell: Arc<EventFd>,
    shared: Arc<Mutex<Shared>>,
}

impl Redirection {
    fn judge(&self, client: SocketAddr, verdict: Verdict) {
        self.shared.lock().unwrap().verdicts.insert(client, verdict);
    }
}

impl Intercept for Redirection {
    fn event_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn next_event(&mut self) -> Option<Event> {
        // First: one that is announced meanwhile rings again.
        let _ = self.bell.read();
        self.events.try_recv().ok()
    }

    fn has_events(&self) -> bool {
        // They are complete when they are announced, so `next_event` has returned all.
        false
    }

    fn set_accepting(&mut self, _listening: bool) -> io::Result<()> {
        Ok(())
    }

    fn original(&mut self, client: SocketAddr) -> Option<SocketAddr> {
        self.shared.lock().unwrap().destinations.remove(&client)
    }

    fn lag(&self) -> Duration {
        Duration::ZERO
    }

    fn reserve_half_open(&mut self, _flow: &Flow) -> io::Result<HalfOpen> {
        Ok(HalfOpen::default())
    }

    fn admit(&mut self, flow: &Flow, _half_open: HalfOpen) -> io::Result<()> {
        self.judge(flow.client(), Verdict::Admitted);
        Ok(())
    }

    fn inject(&mut self, frame: &Frame, direction: Direction) -> io::Result<()> {
        if direction == Direction::Out {
            self.judge(receiver(frame), Verdict::Refused);
        }
        Ok(())
    }
}
