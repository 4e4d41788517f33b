// SPDX-License-Identifier: Apache-2.0
//! More connections than a node keeps of those that have not asked for anything.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use posthaste_lab::network::Family;

use crate::asking::{Asked, hear, listener, read, say_to, scene};
use crate::support::{PORT, Pair, SOON, accept, dial_many, listen, until, until_ended};

use super::{Draft, config};

/// How many a worker keeps.
const SILENT_MAX: usize = 4096;

#[test]
fn silent_connections_are_bounded_and_time_out() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let network = scene();
    let config = config(&network).replace("workers = 2", "workers = 1");
    let asked = Asked::start(&network, &config);
    let node = listener(&network, 0, Family::V6);
    let mut silent = VecDeque::new();
    let deadline = Instant::now() + 2 * SOON;
    // A slow machine lets some time out on the way, so there may have to be more.
    while asked.denied(&network, "overload") == 0 {
        assert!(Instant::now() < deadline, "none is turned away");
        for dialled in dial_many(network.client(), node, 512) {
            match dialled {
                Ok(stream) => silent.push_back(stream),
                // Turned away before it looked.
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
        while silent.len() > 2 * SILENT_MAX {
            silent.pop_front();
        }
    }
    assert!(silent.len() > SILENT_MAX, "{} were enough", silent.len());
    // The last ones were turned away at once; the first have their time and then go, too.
    for stream in [&mut silent.pop_back().unwrap(), &mut silent[0]] {
        let heard = hear(stream);
        assert!(heard.bytes.is_empty() && heard.reset, "{heard:?}");
    }
    let slow = || asked.denied(&network, "slow") + asked.denied(&network, "overload");
    let opened = || crate::support::counter(&asked.node, "explicit_connections");
    until("end of all silent connections", || slow() == opened());
    drop(silent);
    let servers = listen(network.server(), PORT);
    for (count, family) in (1..).zip(Family::ALL) {
        let request = Draft::to_server(&network, family).encode();
        let mut client = say_to(&network, listener(&network, 0, family), &request);
        let (server, _) = accept(&servers);
        assert_eq!(read(&mut client, 24)[..5], [4, 0, 0, 20, 0]);
        let mut pair = Pair { client, server };
        pair.check();
        pair.close_client_first();
        until_ended(&asked.node, "finished", count);
    }
    assert_eq!(asked.settle(), 2);
}
