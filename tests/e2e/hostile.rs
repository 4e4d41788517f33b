// SPDX-License-Identifier: Apache-2.0
//! Forbidden requests to a node: its answer, its counter and log line, and that no state remains.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

mod flood;
mod hops;
mod requests;

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use posthaste_lab::network::{Family, Network};
use posthaste_lab::rng::Rng;
use posthaste_wire::auth::{AuthTag, Key, Nonce};
use posthaste_wire::convert::{Connect, Request};
use posthaste_wire::header::{ChainHeader, Endpoint, LoopGuard, NodeId};

use crate::requests::{ALLOWED, ExplicitNode, KEY, explicit};
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

/// A request of the peer.
struct Draft(Connect);

impl Draft {
    fn to_server(network: &Network, family: Family) -> Self {
        let destination = SocketAddr::new(network.server_address(family), PORT);
        let mut header = ChainHeader::to(Endpoint::new(destination).unwrap());
        header.guard = Some(LoopGuard::new(id(PEER)));
        Self(Connect::new(header))
    }

    fn encode(&self) -> Vec<u8> {
        let request = Request {
            connect: Some(self.0.clone()),
            ..Request::default()
        };
        let auth = AuthTag {
            key: &key(),
            key_id: KEY_ID,
            receiver: id(ME),
            now_ms: unix_ms(),
            nonce: nonce(),
        };
        request.encode(Some(&auth)).unwrap()
    }
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
