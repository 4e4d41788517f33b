// SPDX-License-Identifier: Apache-2.0
//! Prints why the node does not carry a connection. The worker reports the failure; a separate
//! thread determines the cause.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use posthaste_relay::chain::Peer;
use posthaste_relay::control::{Denied, Ended, Journal};
use posthaste_relay::outcome::Outcome;
use posthaste_wire::Progress;
use posthaste_wire::convert::{Answer, AnswerReader, ConvertError, Request};

use super::via::Via;

/// Bound on queued failures.
const WAITING_MAX: usize = 16;
/// How long the node may take to connect, and to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// The worker's end of the queue.
#[derive(Debug)]
pub(super) struct Report(SyncSender<SocketAddr>);

impl Journal for Report {
    fn record(&mut self, ended: &mut Vec<Ended>) -> u64 {
        for relay in ended.drain(..) {
            if relay.outcome == Outcome::HopFailed {
                // Failures during a diagnosis have the same cause.
                let _ = self.0.try_send(relay.flow.server());
            }
        }
        0
    }

    fn deny(&mut self, _denied: &Denied) {
        // There are no explicit listeners, so no requests.
    }
}

/// The thread that prints.
#[derive(Debug)]
pub(super) struct Complaints(JoinHandle<()>);

impl Complaints {
    /// Waits until everything is printed. The worker has ended.
    pub(super) fn finish(self) {
        let _ = self.0.join();
    }
}

/// Starts the thread.
pub(super) fn start(via: Via) -> (Report, Complaints) {
    let (sender, failures) = sync_channel(WAITING_MAX);
    let thread = thread::spawn(move || complain(via.peer(), &failures));
    (Report(sender), Complaints(thread))
}

/// Prints each text once until it changes.
fn complain(node: &Peer, failures: &Receiver<SocketAddr>) {
    let mut last = String::new();
    while let Ok(destination) = failures.recv() {
        let why = diagnose(node);
        if why != last {
            eprintln!("posthaste: a connection to {destination} was reset: {why}");
            last = why;
        }
        // The queued failures have the same cause.
        while failures.try_recv().is_ok() {}
    }
}

/// The problem with the node.
fn diagnose(node: &Peer) -> String {
    let (name, address) = (&node.name, node.address);
    let connection = match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(connection) => connection,
        Err(error) => return format!("the node {name} cannot be reached at {address}: {error}"),
    };
    // Without an authentication tag the node would refuse the query below for another reason.
    if node.key.is_some() {
        return format!(
            "the node {name} is there, but does not take requests with this key, does not allow \
             the destination, or found no way to it"
        );
    }
    match query(connection) {
        None => format!("{address} does not answer as a node's explicit listener does (RFC 8803)"),
        Some(answer) => match answer.error {
            Some(ConvertError::NotAuthorized) => {
                format!("the node {address} does not know this host: `[access] clients` there")
            }
            Some(ConvertError::MissingCookie(_)) => format!(
                "the node {address} wants a cookie (`[access] cookies`): share a key with it, and \
                 name it with -c FILE --via NAME"
            ),
            Some(error) => format!("the node {address} answers with error {}", error.code()),
            None => format!(
                "the node {address} does not allow the destination (`[access] destinations` \
                 there), or found no way to it"
            ),
        },
    }
}

/// Requests the capabilities of a converter, which it sends to every authorized client.
fn query(mut connection: TcpStream) -> Option<Answer> {
    connection.set_read_timeout(Some(PATIENCE)).ok()?;
    let request = Request {
        wants_extensions: true,
        ..Request::default()
    };
    connection.write_all(&request.encode(None).ok()?).ok()?;
    let mut reader = AnswerReader::default();
    let (mut byte, mut read) = ([0], 0);
    loop {
        match reader.feed(&byte[..read]).ok()? {
            Progress::Done { value, .. } => return Some(value),
            Progress::NeedMore(_) => read = connection.read(&mut byte).ok()?,
        }
        if read == 0 {
            return None;
        }
    }
}
