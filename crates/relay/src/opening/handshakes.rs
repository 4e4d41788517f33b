// SPDX-License-Identifier: Apache-2.0
//! The two handshakes of a flow, in any order: the client is validated (its handshake with this
//! node completes, seen as `accept()`), and the server answers.
//!
//! ```text
//! client: Held --admitted--> Unvalidated --accept--> Validated
//! server: Connecting --SYN-ACK--> Answered --let in--> Connected | Failed
//! ```
//!
//! The worker injects the server's SYN-ACK only when the client is validated, so a spoofed SYN
//! never completes a handshake at the server. In strict mode the client starts as `Held`: its SYN
//! has reached no listener, and the server's SYN-ACK admits it. In early mode it starts as
//! `Unvalidated`; in late mode as `Validated`, before the upstream SYN is sent.
//!
//! A SYN can also stay in this host, because a neighbour (the server itself or the next router)
//! does not answer ARP or neighbour discovery. The kernel then drops it and sends an ICMP error to
//! its source. That is the client's address, so the upstream socket gets no error. The worker polls
//! the socket instead, and gives up a server whose SYN does not leave.

use crate::frame::Frame;
use crate::outcome::Outcome;

use super::Action;

/// Polls that find the SYN of a held flow in this host before the server is given up. That costs
/// only the relaying of this connection: its SYN is forwarded. The kernel sends three neighbour
/// requests, one second apart, and reports the failure to the client after the third; the client's
/// SYN must be queued with the others by then.
const UNSENT_HELD_MAX: u8 = 2;
/// The same for a flow whose client will be reset: more than the three requests of the kernel.
const UNSENT_MAX: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Held,
    Unvalidated,
    Validated,
}

#[derive(Debug)]
enum Server {
    /// The SYN is in flight, or its SYN-ACK has been injected.
    Connecting,
    /// The SYN-ACK is held here.
    Answered(Frame),
    Connected,
    Failed(Outcome),
}

/// Both handshakes of a flow that is not a relay yet.
#[derive(Debug)]
pub(crate) struct Handshakes {
    client: Client,
    server: Server,
    /// Polls that found the SYN in this host.
    unsent: u8,
}

impl Handshakes {
    /// A flow whose client has yet to complete its handshake: its SYN went to the listener, or
    /// carried a SYN option. The sender of such a SYN waits for nothing until its request arrives.
    pub(crate) fn unvalidated() -> Self {
        Self::new(Client::Unvalidated)
    }

    /// A flow whose SYN is held.
    pub(crate) fn held() -> Self {
        Self::new(Client::Held)
    }

    /// A flow whose client is validated.
    pub(crate) fn validated() -> Self {
        Self::new(Client::Validated)
    }

    fn new(client: Client) -> Self {
        Self {
            client,
            server: Server::Connecting,
            unsent: 0,
        }
    }

    /// The server's SYN-ACK arrived and was held. It is kept, and admits a held client, or is
    /// injected.
    pub(crate) fn on_syn_ack(&mut self, frame: Frame) -> Option<Action> {
        match (self.client, &self.server) {
            // Its half-open entry was released at the validation: it was captured before that.
            (Client::Validated, _) => Some(Action::LetIn(frame)),
            // The kernel has no use for it: its socket is connected or closed.
            (_, Server::Connected | Server::Failed(_)) => None,
            _ => {
                self.server = Server::Answered(frame);
                self.admit()
            }
        }
    }

    /// The server has answered: a held client may continue, once.
    fn admit(&mut self) -> Option<Action> {
        let held = self.is_held();
        if held {
            self.client = Client::Unvalidated;
        }
        held.then_some(Action::Admit)
    }

    /// The client's handshake is complete. Without an action, the server has not answered.
    pub(crate) fn on_accept(&mut self) -> Option<Action> {
        self.client = Client::Validated;
        match std::mem::replace(&mut self.server, Server::Connecting) {
            Server::Connecting => None,
            Server::Answered(frame) => Some(Action::LetIn(frame)),
            Server::Connected => Some(Action::Join),
            Server::Failed(outcome) => Some(Action::Refuse(outcome, None)),
        }
    }

    /// The request arrived for a flow that a SYN option announced and whose client is not
    /// validated. From now on the server's answer is passed on at once.
    pub(crate) fn on_request(&mut self) -> Option<Action> {
        match self.server {
            Server::Connecting => {
                self.client = Client::Held;
                None
            }
            Server::Answered(_) | Server::Connected => Some(Action::Answer),
            Server::Failed(outcome) => Some(Action::Refuse(outcome, None)),
        }
    }

    /// The upstream handshake is complete.
    pub(crate) fn on_connected(&mut self) -> Option<Action> {
        if self.is_validated() {
            return Some(Action::Join);
        }
        // The SYN-ACK met no half-open entry: it arrived at a device that is not attached.
        self.server = Server::Connected;
        self.admit()
    }

    /// A poll found the upstream SYN still in this host. Returns whether to give the server up as
    /// unreachable.
    pub(crate) fn on_unsent(&mut self) -> bool {
        if !self.awaits_server() {
            return false;
        }
        self.unsent = self.unsent.saturating_add(1);
        let most = if self.is_held() {
            UNSENT_HELD_MAX
        } else {
            UNSENT_MAX
        };
        self.unsent >= most
    }

    /// The upstream connection was closed because the client is not validated. Returns the SYN-ACK
    /// to answer with a reset; the worker connects again after the validation.
    pub(crate) fn on_unvalidated_close(&mut self) -> Option<Frame> {
        match std::mem::replace(&mut self.server, Server::Connecting) {
            Server::Answered(frame) => Some(frame),
            _ => None,
        }
    }

    /// The upstream connection failed. Kept for a client whose handshake is under way, which is
    /// reset when that is done.
    pub(crate) fn on_failed(&mut self, outcome: Outcome) {
        if self.client == Client::Unvalidated {
            self.server = Server::Failed(outcome);
        }
    }

    /// The client's handshake timed out. The frame is the SYN-ACK to answer with a reset, so that
    /// the server drops its half-open connection too.
    pub(crate) fn on_expiry(&mut self) -> (Outcome, Option<Frame>) {
        match std::mem::replace(&mut self.server, Server::Connecting) {
            Server::Answered(frame) => (Outcome::ClientAbsent, Some(frame)),
            Server::Failed(outcome) => (outcome, None),
            _ if self.client == Client::Held => (Outcome::ConnectTimeout, None),
            _ => (Outcome::ClientAbsent, None),
        }
    }

    /// Whether the client's handshake is complete.
    pub(crate) fn is_validated(&self) -> bool {
        self.client == Client::Validated
    }

    /// Whether the client's SYN is held.
    pub(crate) fn is_held(&self) -> bool {
        self.client == Client::Held
    }

    /// Whether the server has neither answered nor failed.
    pub(crate) fn awaits_server(&self) -> bool {
        matches!(self.server, Server::Connecting)
    }

    /// Whether the upstream connection has failed.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.server, Server::Failed(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn_ack() -> Frame {
        Frame::default()
    }

    #[test]
    fn early_releases_at_validation() {
        let mut handshakes = Handshakes::unvalidated();
        assert_eq!(handshakes.on_syn_ack(syn_ack()), None);
        assert_eq!(handshakes.on_syn_ack(syn_ack()), None, "repeated");
        assert_eq!(handshakes.on_accept(), Some(Action::LetIn(syn_ack())));
        assert_eq!(handshakes.on_connected(), Some(Action::Join));
    }

    #[test]
    fn early_near_client() {
        let mut handshakes = Handshakes::unvalidated();
        assert_eq!(handshakes.on_accept(), None);
        assert_eq!(
            handshakes.on_syn_ack(syn_ack()),
            Some(Action::LetIn(syn_ack()))
        );
        assert_eq!(handshakes.on_connected(), Some(Action::Join));
    }

    #[test]
    fn early_refused_before_validation() {
        let mut handshakes = Handshakes::unvalidated();
        handshakes.on_failed(Outcome::UpstreamRefused);
        assert!(handshakes.failed());
        assert_eq!(
            handshakes.on_accept(),
            Some(Action::Refuse(Outcome::UpstreamRefused, None))
        );
    }

    #[test]
    fn strict_admits_once() {
        let mut handshakes = Handshakes::held();
        assert!(handshakes.is_held());
        assert_eq!(handshakes.on_syn_ack(syn_ack()), Some(Action::Admit));
        assert_eq!(handshakes.on_syn_ack(syn_ack()), None, "repeated");
        assert_eq!(handshakes.on_accept(), Some(Action::LetIn(syn_ack())));
        assert_eq!(handshakes.on_connected(), Some(Action::Join));
    }

    #[test]
    fn strict_answer_elsewhere() {
        let mut handshakes = Handshakes::held();
        assert_eq!(handshakes.on_connected(), Some(Action::Admit));
        assert_eq!(handshakes.on_connected(), None, "repeated");
        assert_eq!(handshakes.on_syn_ack(syn_ack()), None);
        assert_eq!(handshakes.on_accept(), Some(Action::Join));
    }

    #[test]
    fn strict_passes_a_refusal_on() {
        let mut handshakes = Handshakes::held();
        handshakes.on_failed(Outcome::UpstreamRefused);
        assert!(handshakes.is_held() && !handshakes.failed());
    }

    #[test]
    fn requested_before_answer() {
        let mut handshakes = Handshakes::unvalidated();
        assert_eq!(handshakes.on_request(), None);
        assert_eq!(handshakes.on_syn_ack(syn_ack()), Some(Action::Admit));
        assert_eq!(handshakes.on_accept(), Some(Action::LetIn(syn_ack())));
        let mut handshakes = Handshakes::unvalidated();
        assert_eq!(handshakes.on_request(), None);
        handshakes.on_failed(Outcome::UpstreamRefused);
        assert!(handshakes.is_held() && !handshakes.failed());
    }

    #[test]
    fn failure_kept_for_request() {
        let mut handshakes = Handshakes::unvalidated();
        assert_eq!(handshakes.on_syn_ack(syn_ack()), None);
        assert_eq!(handshakes.on_request(), Some(Action::Answer));
        assert_eq!(handshakes.on_syn_ack(syn_ack()), None, "repeated");
        assert_eq!(handshakes.on_accept(), Some(Action::LetIn(syn_ack())));
        let mut handshakes = Handshakes::unvalidated();
        assert_eq!(handshakes.on_connected(), None);
        assert_eq!(handshakes.on_request(), Some(Action::Answer));
        assert_eq!(handshakes.on_accept(), Some(Action::Join));
        let mut handshakes = Handshakes::unvalidated();
        let refused = Outcome::UpstreamRefused;
        handshakes.on_failed(refused);
        assert!(handshakes.failed());
        assert_eq!(handshakes.on_request(), Some(Action::Refuse(refused, None)));
    }

    // promise: Q15
    #[test]
    fn unrequested_flow_reset() {
        let mut handshakes = Handshakes::unvalidated();
        handshakes.on_syn_ack(syn_ack());
        let absent = (Outcome::ClientAbsent, Some(syn_ack()));
        assert_eq!(handshakes.on_expiry(), absent);
    }

    #[test]
    fn held_flow_expires_sooner() {
        let mut held = Handshakes::held();
        assert_eq!([(); 2].map(|()| held.on_unsent()), [false, true]);
        for mut handshakes in [Handshakes::unvalidated(), Handshakes::validated()] {
            let looks = [(); 4].map(|()| handshakes.on_unsent());
            assert_eq!(looks, [false, false, false, true]);
        }
    }

    #[test]
    fn answered_server_kept() {
        let mut handshakes = Handshakes::held();
        assert!(!handshakes.on_unsent());
        handshakes.on_syn_ack(syn_ack());
        assert!(![(); 9].map(|()| handshakes.on_unsent()).contains(&true));
    }

    #[test]
    fn absent_client_resets_server() {
        let mut handshakes = Handshakes::unvalidated();
        handshakes.on_syn_ack(syn_ack());
        assert_eq!(
            handshakes.on_expiry(),
            (Outcome::ClientAbsent, Some(syn_ack()))
        );
        assert_eq!(
            Handshakes::held().on_expiry(),
            (Outcome::ConnectTimeout, None)
        );
    }

    // promise: D10
    #[test]
    fn late_connect_at_validation() {
        let mut handshakes = Handshakes::unvalidated();
        handshakes.on_syn_ack(syn_ack());
        assert_eq!(handshakes.on_unvalidated_close(), Some(syn_ack()));
        assert_eq!(
            handshakes.on_unvalidated_close(),
            None,
            "nothing is answered twice"
        );
        assert_eq!(handshakes.on_accept(), None);
        assert_eq!(handshakes.on_connected(), Some(Action::Join));
        let mut absent = Handshakes::unvalidated();
        absent.on_syn_ack(syn_ack());
        absent.on_unvalidated_close();
        assert_eq!(absent.on_expiry(), (Outcome::ClientAbsent, None));
    }

    #[test]
    fn late_refuses_an_accepted_client() {
        let mut handshakes = Handshakes::validated();
        handshakes.on_failed(Outcome::ConnectTimeout);
        assert!(handshakes.is_validated() && !handshakes.failed());
    }
}

#[cfg(test)]
mod simulation;
