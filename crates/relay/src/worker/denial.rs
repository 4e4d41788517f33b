// SPDX-License-Identifier: Apache-2.0
//! Requests that are denied: counted, reported, and answered with the reason.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use posthaste_wire::convert::{Answer, ConvertError};
use posthaste_wire::segments::Segment;

use crate::chain::Encapsulation;
use crate::control::{Denial, Denied};
use crate::flow::Flow;
use crate::intercept::Intercept;

use super::Worker;
use super::pending_request::PendingRequest;
use super::preface::Requester;

/// Why a request is denied, and of one that is for the time how far its clock seems to be ahead, in
/// milliseconds.
pub(super) struct Reason {
    pub(super) denial: Denial,
    pub(super) ahead_ms: Option<i64>,
    pub(super) segment: Option<Segment>,
}

impl From<Denial> for Reason {
    fn from(denial: Denial) -> Self {
        Self {
            denial,
            ahead_ms: None,
            segment: None,
        }
    }
}

impl<I: Intercept> Worker<I> {
    /// Denies a request, and sends the reason.
    pub(super) fn refuse(
        &mut self,
        key: u64,
        flow: Option<Flow>,
        requester: Requester,
        why: impl Into<Reason>,
    ) {
        let (why, Some(pending_request)) = (why.into(), self.dismiss(key)) else {
            return;
        };
        let reply = why.denial.reply();
        self.deny(pending_request.from, flow, why);
        self.let_go(pending_request, &requester.answer(reply, None));
    }

    pub(super) fn answer_request(&mut self, key: u64, answer: &[u8]) {
        if let Some(pending_request) = self.dismiss(key) {
            self.let_go(pending_request, answer);
        }
    }

    pub(super) fn let_go(&mut self, pending_request: PendingRequest, why: &[u8]) {
        // `part` adds it again, as a request with a new key.
        let _ = self.epoll.delete(&pending_request.socket);
        self.part(pending_request.socket, pending_request.from, why);
    }

    /// Sends the client of a connection the reason why it is closed, and closes it once the client
    /// has read that.
    pub(super) fn part(&mut self, socket: OwnedFd, from: SocketAddr, why: &[u8]) {
        let pending_request = PendingRequest::refused(socket, from, why, self.now);
        self.keep_request(pending_request);
    }

    pub(super) fn deny(&mut self, from: SocketAddr, flow: Option<Flow>, why: impl Into<Reason>) {
        self.note_denial(from, flow, Some(Encapsulation::Stream), why);
    }

    /// Counts and reports a denial.
    pub(super) fn note_denial(
        &mut self,
        from: SocketAddr,
        flow: Option<Flow>,
        encapsulation: Option<Encapsulation>,
        why: impl Into<Reason>,
    ) {
        let why = why.into();
        self.counters.denied[why.denial as usize].add(1);
        self.journal.deny(&Denied {
            from,
            flow,
            encapsulation,
            denial: why.denial,
            ahead_ms: why.ahead_ms,
            segment: why.segment,
        });
    }
}

pub(super) fn encoded(error: ConvertError) -> Vec<u8> {
    let fits = "an error is cut to what fits";
    Answer::failure(error).encode().expect(fits)
}
