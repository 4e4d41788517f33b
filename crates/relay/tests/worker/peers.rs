// SPDX-License-Identifier: Apache-2.0
//! Requests of a peer that the test plays, and in its name: the node's answer, its counter and its
//! report, and that no state remains.

mod hops;
mod requests;
mod transit;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_wire::auth::{AuthTag, Key, NONCE_BYTES, Nonce};
use posthaste_wire::convert::{Connect, Request};
use posthaste_wire::header::{ChainHeader, Endpoint, LoopGuard, NodeId};
use posthaste_wire::hop::{Acceptor, Reply};
use posthaste_wire::segments::SegmentList;

use crate::host::Family;
use crate::node::{KEY_ID, Setup, id, key};
use crate::streams::Received;

/// The node that receives requests, and the peer that the tests play.
const ME: u8 = 0;
const PEER: u8 = 1;

/// A node with the peer, and two workers.
fn setup() -> Setup {
    let mut setup = Setup::of(ME).peer(PEER, Family::V4);
    setup.workers = 2;
    setup
}

/// The reply to a peer, or to a sender in its name.
fn reply(reply: Reply) -> Received {
    Received::and_closed(&Acceptor::reply(reply))
}

pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// A nonce that no other request of this process has.
pub(crate) fn nonce() -> Nonce {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; NONCE_BYTES];
    bytes[..8].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    Nonce(bytes)
}

/// A request with an authentication tag, that of the peer unless a test changes it.
pub(crate) struct Draft {
    pub(crate) connect: Connect,
    key: Key,
    key_id: u32,
    receiver: NodeId,
    made_ms: u64,
}

impl Draft {
    pub(crate) fn to(destination: SocketAddr) -> Self {
        let mut header = ChainHeader::to(Endpoint::new(destination).unwrap());
        header.guard = Some(LoopGuard::new(id(PEER)));
        Self {
            connect: Connect::new(header),
            key: key(),
            key_id: KEY_ID,
            receiver: id(ME),
            made_ms: unix_ms(),
        }
    }

    pub(crate) fn to_server(family: Family) -> Self {
        Self::to(family.server())
    }

    /// The route continues over these nodes.
    fn over(mut self, nodes: &[NodeId]) -> Self {
        self.connect.header.segments = SegmentList::of(nodes.iter().copied()).unwrap();
        self
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let request = Request {
            connect: Some(self.connect.clone()),
            ..Request::default()
        };
        let auth = AuthTag {
            key: &self.key,
            key_id: self.key_id,
            receiver: self.receiver,
            now_ms: self.made_ms,
            nonce: nonce(),
        };
        request.encode(Some(&auth)).unwrap()
    }
}
