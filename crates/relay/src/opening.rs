// SPDX-License-Identifier: Apache-2.0
//! How a flow comes to be a relay: two handshakes that meet.
//!
//! # Theory of operation
//!
//! Two things happen in any order: the client proves itself (its handshake
//! with this node completes, seen as `accept()`), and the server answers.
//!
//! ```text
//! client: Held --admitted--> Unproven --accept--> Proven
//! server: Connecting --SYN-ACK--> Answered --let in--> Connected | Failed
//! ```
//!
//! The server's SYN-ACK is let in only when the client is proven, so a spoofed
//! SYN never completes a handshake at the server. In strict mode the client
//! starts as `Held`: its SYN has reached no listener, and the server's SYN-ACK
//! is what admits it. In early mode it starts as `Unproven`, in late mode as
//! `Proven`, before the server was asked.
//!
//! A SYN can also stay in this host, because a neighbour (the server itself or
//! the next router) does not answer ARP or neighbour discovery. The kernel then
//! drops it and sends an ICMP error to its source: that is the client's
//! address, so the upstream socket never hears of it. The worker looks now and
//! then, and a server whose SYN stays is given up.
//!
//! No I/O, no clock: each `on_*` says what the worker must do.

use crate::frame::Frame;
use crate::outcome::Outcome;

/// Looks that find the SYN of a held flow in this host before it is given up,
/// which costs no more than this connection's relaying: its SYN is forwarded. The
/// kernel asks a neighbour three times, a second apart, and answers the client
/// after the third; the client's SYN is to wait with the rest by then.
const UNSENT_HELD_MAX: u8 = 2;
/// The same for a flow whose client will be reset: more than the kernel's three.
const UNSENT_MAX: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Held,
    Unproven,
    Proven,
}

#[derive(Debug)]
enum Server {
    /// The SYN is under way, or its answer has been let in.
    Connecting,
    /// The SYN-ACK waits here.
    Answered(Frame),
    Connected,
    Failed(Outcome),
}

/// What to do about a SYN-ACK.
#[derive(Debug, PartialEq, Eq)]
pub enum OnSynAck {
    /// Nothing: it is kept.
    Keep,
    /// It is kept; let the client's SYN in.
    Admit,
    /// Let it in: the client is proven.
    LetIn(Frame),
}

/// What to do when both may have met.
#[derive(Debug, PartialEq, Eq)]
pub enum OnMeeting {
    /// Wait for the server; first let its SYN-ACK in, if it is here.
    Wait(Option<Frame>),
    /// Wait for the client.
    WaitForClient,
    /// Let the client's SYN in, and wait for it.
    Admit,
    /// Join the two into a relay.
    Join,
    /// Reset the client: the server failed.
    Refuse(Outcome),
}

/// What to do when the server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// Nothing yet: the client's handshake is under way and is reset when done.
    Remember,
    /// Reset the accepted client.
    Refuse,
    /// Answer the held SYN as the network would have.
    PassOn,
}

/// What to do when the request for a heralded flow comes from a node whose client
/// is not proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnAsked {
    /// Nothing yet: the server has not answered.
    Wait,
    /// Tell the node that the server has answered.
    Answer,
    /// Tell the node that it failed.
    Refuse(Outcome),
}

/// One flow until it is a relay.
#[derive(Debug)]
pub struct Opening {
    client: Client,
    server: Server,
    /// Looks that found the SYN in this host.
    unsent: u8,
}

impl Opening {
    /// A flow whose SYN went to the listener.
    pub fn early() -> Self {
        Self::new(Client::Unproven)
    }

    /// A flow whose SYN is held.
    pub fn strict() -> Self {
        Self::new(Client::Held)
    }

    /// A flow that an option heralded. Who sent that waits for nothing until its
    /// request comes.
    pub fn heralded() -> Self {
        Self::new(Client::Unproven)
    }

    /// A flow whose client is proven.
    pub fn late() -> Self {
        Self::new(Client::Proven)
    }

    fn new(client: Client) -> Self {
        Self {
            client,
            server: Server::Connecting,
            unsent: 0,
        }
    }

    /// The server's SYN-ACK arrived and was held.
    pub fn on_syn_ack(&mut self, frame: Frame) -> OnSynAck {
        match (self.client, &self.server) {
            (Client::Proven, _) => OnSynAck::LetIn(frame),
            (_, Server::Connected | Server::Failed(_)) => OnSynAck::Keep,
            (client, server) => {
                let first = matches!(server, Server::Connecting);
                self.server = Server::Answered(frame);
                if client == Client::Held && first {
                    self.client = Client::Unproven;
                    return OnSynAck::Admit;
                }
                OnSynAck::Keep
            }
        }
    }

    /// The client's handshake is complete.
    pub fn on_accept(&mut self) -> OnMeeting {
        self.client = Client::Proven;
        match std::mem::replace(&mut self.server, Server::Connecting) {
            Server::Connecting => OnMeeting::Wait(None),
            Server::Answered(frame) => OnMeeting::Wait(Some(frame)),
            Server::Connected => OnMeeting::Join,
            Server::Failed(outcome) => OnMeeting::Refuse(outcome),
        }
    }

    /// The request has come for a heralded flow whose client is not proven. What the
    /// server answers from now on is passed on at once.
    pub fn on_asked(&mut self) -> OnAsked {
        match self.server {
            Server::Connecting => {
                self.client = Client::Held;
                OnAsked::Wait
            }
            Server::Answered(_) | Server::Connected => OnAsked::Answer,
            Server::Failed(outcome) => OnAsked::Refuse(outcome),
        }
    }

    /// The upstream handshake is complete.
    pub fn on_connected(&mut self) -> OnMeeting {
        if self.client == Client::Proven {
            return OnMeeting::Join;
        }
        // Its SYN-ACK met no gate: it came in at a device that is not watched.
        self.server = Server::Connected;
        if self.client == Client::Held {
            self.client = Client::Unproven;
            return OnMeeting::Admit;
        }
        OnMeeting::WaitForClient
    }

    /// A look found the upstream SYN still in this host. Whether the server is
    /// to be given up as unreachable.
    pub fn on_unsent(&mut self) -> bool {
        if !self.asks() {
            return false;
        }
        self.unsent = self.unsent.saturating_add(1);
        let most = if self.held() {
            UNSENT_HELD_MAX
        } else {
            UNSENT_MAX
        };
        self.unsent >= most
    }

    /// The upstream connection was given up because the client is not proved. Returns
    /// the SYN-ACK to answer with a reset; the server is asked again at the proof.
    pub fn on_withdrawn(&mut self) -> Option<Frame> {
        match std::mem::replace(&mut self.server, Server::Connecting) {
            Server::Answered(frame) => Some(frame),
            _ => None,
        }
    }

    /// The upstream connection failed.
    pub fn on_failed(&mut self, outcome: Outcome) -> OnFailure {
        match self.client {
            Client::Proven => OnFailure::Refuse,
            Client::Held => OnFailure::PassOn,
            Client::Unproven => {
                self.server = Server::Failed(outcome);
                OnFailure::Remember
            }
        }
    }

    /// The time for the client's handshake is over. The frame is the SYN-ACK
    /// to answer with a reset, so that the server forgets the client too.
    pub fn on_expiry(self) -> (Outcome, Option<Frame>) {
        match self.server {
            Server::Answered(frame) => (Outcome::ClientAbsent, Some(frame)),
            Server::Failed(outcome) => (outcome, None),
            _ if self.client == Client::Held => (Outcome::ConnectTimeout, None),
            _ => (Outcome::ClientAbsent, None),
        }
    }

    /// Whether the client's handshake is complete.
    pub fn proven(&self) -> bool {
        self.client == Client::Proven
    }

    /// Whether the client's SYN is held.
    pub fn held(&self) -> bool {
        self.client == Client::Held
    }

    /// Whether nothing is known of the server yet.
    pub fn asks(&self) -> bool {
        matches!(self.server, Server::Connecting)
    }

    /// Whether the upstream connection has failed.
    pub fn failed(&self) -> bool {
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
    fn early_lets_the_answer_in_at_the_proof() {
        let mut opening = Opening::early();
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Keep);
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Keep, "repeated");
        assert_eq!(opening.on_accept(), OnMeeting::Wait(Some(syn_ack())));
        assert_eq!(opening.on_connected(), OnMeeting::Join);
    }

    #[test]
    fn early_with_a_near_client_never_holds() {
        let mut opening = Opening::early();
        assert_eq!(opening.on_accept(), OnMeeting::Wait(None));
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::LetIn(syn_ack()));
        assert_eq!(opening.on_connected(), OnMeeting::Join);
    }

    #[test]
    fn early_refused_before_the_proof_resets_at_the_proof() {
        let mut opening = Opening::early();
        assert_eq!(
            opening.on_failed(Outcome::UpstreamRefused),
            OnFailure::Remember
        );
        assert_eq!(
            opening.on_accept(),
            OnMeeting::Refuse(Outcome::UpstreamRefused)
        );
    }

    #[test]
    fn strict_admits_the_client_once_and_lets_the_answer_in_at_the_proof() {
        let mut opening = Opening::strict();
        assert!(opening.held());
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Admit);
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Keep, "repeated");
        assert_eq!(opening.on_accept(), OnMeeting::Wait(Some(syn_ack())));
        assert_eq!(opening.on_connected(), OnMeeting::Join);
    }

    #[test]
    fn strict_admits_the_client_although_the_answer_came_another_way() {
        let mut opening = Opening::strict();
        assert_eq!(opening.on_connected(), OnMeeting::Admit);
        assert_eq!(opening.on_connected(), OnMeeting::WaitForClient, "repeated");
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Keep);
        assert_eq!(opening.on_accept(), OnMeeting::Join);
    }

    #[test]
    fn strict_passes_a_refusal_on() {
        let mut opening = Opening::strict();
        assert_eq!(
            opening.on_failed(Outcome::UpstreamRefused),
            OnFailure::PassOn
        );
    }

    #[test]
    fn a_heralded_flow_that_is_asked_for_before_the_server_answers_is_as_a_held_one() {
        let mut opening = Opening::heralded();
        assert_eq!(opening.on_asked(), OnAsked::Wait);
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Admit);
        assert_eq!(opening.on_accept(), OnMeeting::Wait(Some(syn_ack())));
        let mut opening = Opening::heralded();
        assert_eq!(opening.on_asked(), OnAsked::Wait);
        let refused = Outcome::UpstreamRefused;
        assert_eq!(opening.on_failed(refused), OnFailure::PassOn);
    }

    #[test]
    fn what_became_of_a_heralded_flow_is_kept_until_it_is_asked_for() {
        let mut opening = Opening::heralded();
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Keep);
        assert_eq!(opening.on_asked(), OnAsked::Answer);
        assert_eq!(opening.on_syn_ack(syn_ack()), OnSynAck::Keep, "repeated");
        assert_eq!(opening.on_accept(), OnMeeting::Wait(Some(syn_ack())));
        let mut opening = Opening::heralded();
        assert_eq!(opening.on_connected(), OnMeeting::WaitForClient);
        assert_eq!(opening.on_asked(), OnAsked::Answer);
        assert_eq!(opening.on_accept(), OnMeeting::Join);
        let mut opening = Opening::heralded();
        let refused = Outcome::UpstreamRefused;
        assert_eq!(opening.on_failed(refused), OnFailure::Remember);
        assert_eq!(opening.on_asked(), OnAsked::Refuse(refused));
    }

    #[test]
    fn a_heralded_flow_that_nobody_asks_for_is_reset_at_the_server() {
        let mut opening = Opening::heralded();
        opening.on_syn_ack(syn_ack());
        let absent = (Outcome::ClientAbsent, Some(syn_ack()));
        assert_eq!(opening.on_expiry(), absent);
    }

    #[test]
    fn a_held_flow_is_given_up_sooner_than_one_that_will_be_reset() {
        let mut held = Opening::strict();
        assert_eq!([(); 2].map(|()| held.on_unsent()), [false, true]);
        for mut opening in [Opening::early(), Opening::late()] {
            let looks = [(); 4].map(|()| opening.on_unsent());
            assert_eq!(looks, [false, false, false, true]);
        }
    }

    #[test]
    fn a_server_that_has_answered_is_not_given_up() {
        let mut opening = Opening::strict();
        assert!(!opening.on_unsent());
        opening.on_syn_ack(syn_ack());
        assert!(![(); 9].map(|()| opening.on_unsent()).contains(&true));
    }

    #[test]
    fn an_absent_client_leaves_the_server_a_reset() {
        let mut opening = Opening::early();
        opening.on_syn_ack(syn_ack());
        assert_eq!(
            opening.on_expiry(),
            (Outcome::ClientAbsent, Some(syn_ack()))
        );
        assert_eq!(
            Opening::strict().on_expiry(),
            (Outcome::ConnectTimeout, None)
        );
    }

    #[test]
    fn a_server_that_was_left_alone_is_asked_at_the_proof() {
        let mut opening = Opening::early();
        opening.on_syn_ack(syn_ack());
        assert_eq!(opening.on_withdrawn(), Some(syn_ack()));
        assert_eq!(opening.on_withdrawn(), None, "nothing is answered twice");
        assert_eq!(opening.on_accept(), OnMeeting::Wait(None));
        assert_eq!(opening.on_connected(), OnMeeting::Join);
        let mut absent = Opening::early();
        absent.on_syn_ack(syn_ack());
        absent.on_withdrawn();
        assert_eq!(absent.on_expiry(), (Outcome::ClientAbsent, None));
    }

    #[test]
    fn late_refuses_an_accepted_client() {
        let mut opening = Opening::late();
        assert_eq!(
            opening.on_failed(Outcome::ConnectTimeout),
            OnFailure::Refuse
        );
    }
}

#[cfg(test)]
mod simulation;
