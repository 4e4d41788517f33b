// SPDX-License-Identifier: Apache-2.0
//! A node that starts and ends while clients connect without a pause: all succeed, except
//! connections that were open at a kill, or opening when the node attached.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use posthaste_lab::network::{Family, Network};
use posthaste_lab::node::Node;
use posthaste_lab::transfer::{Request, fetch_here};

use crate::support::{
    MODES_BY_PORT, SOON, counter, each_mode, line, serve_at, start_relaying, until,
};

/// Clients that connect at the same time, of each family and accept mode.
const CLIENTS: usize = 2;
/// Transactions between two events.
const ENOUGH: u64 = 300;
/// Between two transactions of a client: without it they take all CPU time from the nodes that start and end.
const PAUSE: Duration = Duration::from_millis(10);
/// Nodes that start and end, one after the other.
const TURNS: u32 = 4;
/// More than any client needs, even if it has to repeat a SYN or two.
const PATIENCE: Duration = Duration::from_secs(30);

/// A transaction that failed.
#[derive(Clone, Debug)]
struct Failure {
    began: Instant,
    /// Printed with the others.
    #[expect(dead_code, reason = "printed by the assertion")]
    error: String,
}

/// Clients at work, one transaction after the other.
#[derive(Debug, Default)]
struct Storm {
    done: AtomicBool,
    transactions: AtomicU64,
    failures: Mutex<Vec<Failure>>,
}

impl Storm {
    /// Plays a client until the storm is over.
    fn rage(&self, network: &Network, family: Family, port: u16) {
        let mut request = Request::new(network.server_address(family), port, 20_000);
        request.deadline = PATIENCE;
        network.client().run_in(|| {
            while !self.done.load(Ordering::Relaxed) {
                let began = Instant::now();
                if let Err(error) = fetch_here(&request) {
                    let error = format!("{family}, port {port}: {error:#}");
                    self.failures.lock().unwrap().push(Failure { began, error });
                }
                self.transactions.fetch_add(1, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        });
    }

    /// Lets some time pass, counted in transactions.
    fn wait(&self) {
        let before = self.transactions.load(Ordering::Relaxed);
        until("transactions", || {
            self.transactions.load(Ordering::Relaxed) >= before + ENOUGH
        });
    }

    /// Ends it even when the test fails.
    fn end(&self) -> Ended<'_> {
        Ended(self)
    }

    /// Failures of the transactions that began at one of these times.
    fn failures(&self, began: impl Fn(Instant) -> bool) -> Vec<Failure> {
        let mut failures = self.failures.lock().unwrap().clone();
        failures.retain(|failure| began(failure.began));
        failures
    }
}

struct Ended<'a>(&'a Storm);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.done.store(true, Ordering::Relaxed);
    }
}

/// Runs `events` while clients connect without a pause.
fn in_a_storm(network: &Network, storm: &Storm, events: impl FnOnce()) {
    let _servers = MODES_BY_PORT.map(|(_, port)| serve_at(network, port));
    thread::scope(|scope| {
        for (_, port) in MODES_BY_PORT {
            for family in [Family::ALL; CLIENTS].concat() {
                scope.spawn(move || storm.rage(network, family, port));
            }
        }
        let _end = storm.end();
        storm.wait();
        events();
    });
}

/// At its start a node adds queueing disciplines; while the kernel installs or removes them, it
/// drops outgoing packets of the interface. A client that loses its SYN-ACK then repeats its SYN,
/// and the repetition looks like a new flow to the node.
// promise: F12
#[test]
fn storm_of_reloads_and_drains() {
    let network = line();
    let storm = Storm::default();
    let mut starts = vec![];
    in_a_storm(&network, &storm, || {
        for _ in 0..TURNS {
            let starting = Instant::now();
            let mut node = start_relaying(&network, &each_mode());
            starts.push(starting..Instant::now());
            relay_for_a_while(&storm, &node);
            node.process().signal(Signal::SIGHUP).unwrap();
            relay_for_a_while(&storm, &node);
            assert_eq!(node.stop(SOON).unwrap().code(), Some(0));
            storm.wait();
        }
    });
    let failures = storm.failures(|began| !starts.iter().any(|start| start.contains(&began)));
    assert!(failures.is_empty(), "{failures:#?}");
}

fn relay_for_a_while(storm: &Storm, node: &Node) {
    let before = counter(node, "relays_opened");
    storm.wait();
    assert!(counter(node, "relays_opened") > before);
}

// promise: F12
#[test]
fn clients_after_kill() {
    let network = line();
    let storm = Storm::default();
    in_a_storm(&network, &storm, || {
        for _ in 0..TURNS {
            let mut node = start_relaying(&network, &each_mode());
            relay_for_a_while(&storm, &node);
            node.kill().unwrap();
            let killed = Instant::now();
            storm.wait();
            let failures = storm.failures(|began| began > killed);
            assert!(failures.is_empty(), "{failures:#?}");
        }
    });
}
