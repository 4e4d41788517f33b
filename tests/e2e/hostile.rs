// SPDX-License-Identifier: Apache-2.0
//! Forbidden requests to a node: its answer, its counter and log line, and that no state remains.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod flood;
mod hops;
mod requests;
mod transit;

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::rng::Rng;
use posthaste_wire::auth::{AuthTag, Key, Nonce};
use posthaste_wire::convert::{Connect, Request};
use posthaste_wire::header::{ChainHeader, Endpoint, LoopGuard, NodeId};
use posthaste_wire::segments::SegmentList;

use crate::requests::{
    ALLOWED, ExplicitNode, KEY, Received, explicit, listener, receive_all, send_to,
};
use crate::support::{PORT, until};

/// The node that receives requests, and the peer that the tests play.
const ME: u64 = 1;
const PEER: u64 = 2;
const KEY_ID: u32 = 7;
fn config(network: &Network) -> String {
    format!(
        "[node]\nid = {ME}\nworkers = 2\n{ALLOWED}\
         [[peer]]\nname = \"two\"\nid = {PEER}\naddress = \"192.0.2.2:4480\"\n\
         key = \"{KEY}\"\nkey_id = {KEY_ID}\npool_max = 0\n{}",
        explicit(network, 0)
    )
}

fn id(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// The key of [`KEY`].
fn key() -> Key {
    Key::new(std::array::from_fn(|at| u8::try_from(at).unwrap()))
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// A nonce used by no other request of these tests.
fn nonce() -> Nonce {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut random = Rng::new(NEXT.fetch_add(1, Ordering::Relaxed) ^ unix_ms() << 20);
    let mut bytes = [0; 16];
    for half in bytes.chunks_mut(8) {
        half.copy_from_slice(&random.next().to_be_bytes());
    }
    Nonce(bytes)
}

/// A request with an authentication tag, that of the peer unless a test changes it.
struct Draft {
    connect: Connect,
    key: Key,
    key_id: u32,
    receiver: u64,
    made_ms: u64,
}

impl Draft {
    fn to(destination: SocketAddr) -> Self {
        let mut header = ChainHeader::to(Endpoint::new(destination).unwrap());
        header.guard = Some(LoopGuard::new(id(PEER)));
        Self {
            connect: Connect::new(header),
            key: key(),
            key_id: KEY_ID,
            receiver: ME,
            made_ms: unix_ms(),
        }
    }

    fn to_server(network: &Network, family: Family) -> Self {
        Self::to(SocketAddr::new(network.server_address(family), PORT))
    }

    /// The route continues over these nodes.
    fn over(mut self, nodes: &[u64]) -> Self {
        let segments = SegmentList::of(nodes.iter().map(|node| id(*node)));
        self.connect.header.segments = segments.expect("few nodes");
        self
    }

    fn encode(&self) -> Vec<u8> {
        let request = Request {
            connect: Some(self.connect.clone()),
            ..Request::default()
        };
        let auth = AuthTag {
            key: &self.key,
            key_id: self.key_id,
            receiver: id(self.receiver),
            now_ms: self.made_ms,
            nonce: nonce(),
        };
        request.encode(Some(&auth)).unwrap()
    }
}

/// Sends bytes to a node over each family and reads its answer: the node begins no flow, counts
/// the refusal under its reason, logs it with the sender's address, and keeps no state.
fn expect(network: &Network, reason: &str, answer: &Received, hostile: impl Fn(Family) -> Vec<u8>) {
    let listening = ExplicitNode::start(network, &config(network));
    for (count, family) in (1..).zip(Family::ALL) {
        let mut stream = send_to(network, listener(network, 0, family), &hostile(family));
        let from = stream.local_addr().unwrap();
        assert_eq!(receive_all(&mut stream), *answer, "{family}");
        listening.until_denied(network, reason, count);
        until_logged(&listening, from, reason);
    }
    assert_eq!(listening.settle(), 0, "no flow was begun");
}

/// Waits for the log line of a denial.
fn until_logged(listening: &ExplicitNode, from: SocketAddr, reason: &str) {
    until("line of the log", || {
        let lines = listening.node.log();
        let mut lines = lines.iter().map(|line| crate::watch::fields(line));
        lines.any(|fields| {
            let is = |key: &str, value: &str| fields.get(key).is_some_and(|text| text == value);
            is("msg", "request denied") && is("from", &from.to_string()) && is("reason", reason)
        })
    });
}
