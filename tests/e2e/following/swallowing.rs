// SPDX-License-Identifier: Apache-2.0
//! A node with short, working links that accepts flows, reports them as connected, and returns no
//! bytes.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use posthaste_lab::network::Family;

use super::fixture::{CHAIN, Fixture, Settings};
use crate::requests::LISTENER_PORT;
use crate::support::{PORT, Pair, SOON, firewall, listen};

/// A client gives a flow up after so long.
const PATIENCE: Duration = Duration::from_secs(8);
/// Flows that may be lost before others go elsewhere: three, and those that a slow machine has begin meanwhile.
const LOST_MAX: u32 = 6;

/// Lets node two send all messages between nodes, and none of the bytes of flows.
fn swallow(fixture: &Fixture) {
    let rule = format!("tcp sport {LISTENER_PORT} meta length > 300 drop\n");
    firewall(fixture.host(2), "cut", &[("output", &rule)]);
}

/// Sends the server a request, and waits for the answer.
fn query(fixture: &Fixture, family: Family, server: &TcpListener) -> io::Result<()> {
    let Pair {
        mut client,
        server: mut serving,
    } = Pair::open(&fixture.network, family, server);
    client.write_all(&[1; 100])?;
    serving.set_read_timeout(Some(SOON))?;
    serving.read_exact(&mut [0; 100])?;
    serving.write_all(&[2; 5000])?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.read_exact(&mut [0; 5000])
}

// promise: S16
#[test]
fn swallowing_node_avoided() {
    for hops in Family::ALL {
        let fixture = Fixture::start(&Settings::of(hops));
        let server = listen(fixture.network.server(), PORT + 1);
        swallow(&fixture);
        let (mut lost, begin) = (0, Instant::now());
        while query(&fixture, Family::V4, &server).is_err() {
            lost += 1;
            assert!(lost <= LOST_MAX, "{lost} in {:?}", begin.elapsed());
        }
        // The chain is left alone for all, and not only where it was found out.
        query(&fixture, Family::V6, &server).unwrap();
        assert!(lost > 0, "two swallows");
        let silent = fixture.metric(1, "posthaste_chains_silent_total");
        assert!(silent >= Some(1.0), "{silent:?}");
        // Others still plan with it, because nodes accept no reports about other nodes.
        let explained = fixture
            .testbed
            .document("/v1/explain?from=n1&to=n3&bytes=65536");
        let nodes = explained["routes"][0]["nodes"].as_array().unwrap();
        assert!(nodes.len() > 2, "{explained:#}");
        fixture.restore(2);
        fixture.until_carried(&CHAIN);
    }
}
