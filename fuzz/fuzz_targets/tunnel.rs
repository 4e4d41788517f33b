// SPDX-License-Identifier: Apache-2.0
//! What anyone may send to the UDP port of a node with tunnels: no sender is authenticated, so no
//! connection opens and no stream does. The messages on streams are those of `wire_hop`.
#![no_main]

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use posthaste_tunnel::{Credentials, Endpoint, Event};

/// Bytes of the datagrams that an input is cut into: the least of a first one (RFC 9000 §14.1).
const DATAGRAM_BYTES: usize = 1200;
const NOW: Duration = Duration::from_secs(1);

thread_local! {
    static ENDPOINT: RefCell<Endpoint> = RefCell::new(endpoint());
}

fn endpoint() -> Endpoint {
    let mut endpoint = Endpoint::new(NOW, (&[7; 32], 0), Arc::default(), NOW);
    let peer = Credentials {
        peer: 1,
        key_id: 1,
        addresses: vec![Ipv4Addr::new(192, 0, 2, 1).into()],
        name: "node-1-key-1.posthaste.invalid".to_owned(),
        mine: [1; 32],
        theirs: [2; 32],
    };
    endpoint.accept_from(&[peer]).expect("the keys are valid");
    endpoint
}

fuzz_target!(|bytes: &[u8]| ENDPOINT.with_borrow_mut(|endpoint| {
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 4480));
    let mut buffer = Vec::new();
    for datagram in bytes.chunks(DATAGRAM_BYTES) {
        let _answer = endpoint.on_datagram((from, None, 0), None, datagram, &mut buffer, NOW);
        while endpoint.poll_transmit(1, &mut buffer, NOW).is_some() {}
    }
    while let Some(event) = endpoint.poll_event() {
        assert!(
            matches!(event, Event::Lost { was_up: false, .. }),
            "{event:?}"
        );
    }
}));
