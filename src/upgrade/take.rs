// SPDX-License-Identifier: Apache-2.0
//! The part of the process that replaces another.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex};

use anyhow::{Context, bail, ensure};
use nix::unistd::{dup2_stderr, dup2_stdout};

use super::wire::{self, Channel, Descriptor, Kind, Message, Offer, Routing};
use super::{Predecessors, STEP_TIME_MAX};
use crate::host::{self, REPLACED_MAX};
use posthaste_config::Config;
use posthaste_daemon::thread::lock;

/// A take-over in progress.
#[derive(Debug)]
pub(crate) struct Succession {
    channel: Channel,
    pub(crate) predecessors: Predecessors,
    pub(crate) sockets: Sockets,
}

impl Succession {
    /// Requests the place of the running node of this network namespace, and continues with its
    /// standard output and error.
    ///
    /// # Errors
    /// There is no node, it refuses, or its routing settings differ.
    pub(crate) fn begin(config: &Config) -> anyhow::Result<Self> {
        let path = host::handover_socket()?;
        let socket = wire::socket()?;
        socket
            .connect(&wire::address(&path)?)
            .context("no node runs in this network namespace that could be replaced")?;
        let channel = Channel::new(socket);
        let request = Message::TakeOver {
            version: wire::VERSION,
        };
        let sent = channel.send(&request);
        let answer = sent.and_then(|()| channel.receive(STEP_TIME_MAX));
        let (message, output) = answer
            .context("the running node hands nothing over; another upgrade may be under way")?;
        let offer = match message {
            Message::Offer(offer) => offer,
            Message::Refused { reason } => bail!("{reason}"),
            other => bail!("the running node sent {other:?}"),
        };
        // Before anything is taken over: until here the running node is as it was.
        check(&offer, config)?;
        let sockets = Sockets::receive(&channel)?;
        let [stdout, stderr] = output.as_slice() else {
            bail!("the running node gives no standard output");
        };
        // So that the log continues where the predecessor wrote it.
        dup2_stdout(stdout).context("take over standard output")?;
        dup2_stderr(stderr).context("take over standard error")?;
        Ok(Self {
            channel,
            predecessors: Predecessors::of(offer.nodes),
            sockets,
        })
    }

    /// Ends the oldest replaced nodes, if there is no room for one more. Returns their number.
    pub(crate) fn make_room(&mut self) -> anyhow::Result<usize> {
        self.predecessors.make_room(REPLACED_MAX)
    }

    /// The programs are attached: the predecessor must leave them what is not its own.
    pub(crate) fn follow(&self) -> anyhow::Result<()> {
        self.channel.send(&Message::Attached)?;
        self.channel.expect(&Message::Followed, STEP_TIME_MAX)
    }

    /// This process takes flows: the predecessor takes none any more.
    pub(crate) fn take(&self) -> anyhow::Result<()> {
        self.channel.send(&Message::Taking)?;
        self.channel.expect(&Message::Replaced, STEP_TIME_MAX)
    }
}

/// With different settings neither node would recognise the other's packets.
fn check(offer: &Offer, config: &Config) -> anyhow::Result<()> {
    let differing = offer.routing.differing(Routing::of(&config.transparent));
    ensure!(
        differing.is_empty(),
        "{} changed: the running node and its successor need the same; restart the node instead",
        differing.join(", ")
    );
    Ok(())
}

/// Sockets of a predecessor, with everything queued in them.
#[derive(Debug, Default)]
pub(crate) struct Sockets(HashMap<Descriptor, Vec<OwnedFd>>);

impl Sockets {
    fn receive(channel: &Channel) -> anyhow::Result<Self> {
        let mut all: HashMap<Descriptor, Vec<OwnedFd>> = HashMap::new();
        loop {
            let (message, received) = channel.receive(STEP_TIME_MAX)?;
            match message {
                Message::Descriptor(descriptor) => {
                    all.entry(descriptor).or_default().extend(received);
                }
                Message::Offered => return Ok(Self(all)),
                other => bail!("the running node sent {other:?}"),
            }
        }
    }

    /// The socket of this kind and address, if there is one.
    pub(crate) fn take(&mut self, kind: Kind, address: SocketAddr) -> Option<OwnedFd> {
        self.0.get_mut(&Descriptor { kind, address })?.pop()
    }

    /// The sockets of a listener, distributed over the workers. None may be left over: connections
    /// are queued in each.
    pub(crate) fn divide(
        &mut self,
        kind: Kind,
        address: SocketAddr,
        workers: usize,
    ) -> Vec<Vec<OwnedFd>> {
        let all = self.0.remove(&Descriptor { kind, address });
        let mut shares: Vec<Vec<OwnedFd>> = (0..workers).map(|_| Vec::new()).collect();
        for (number, socket) in all.unwrap_or_default().into_iter().enumerate() {
            shares[number % workers].push(socket);
        }
        shares
    }
}

/// Holds workers back until everything else is ready for flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Barrier(Arc<(Mutex<bool>, Condvar)>);

impl Barrier {
    /// Releases them.
    pub(crate) fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open.
    pub(crate) fn pass(&self) {
        let open = lock(&self.0.0);
        let passed = self.0.1.wait_while(open, |open| !*open);
        drop(passed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn every_listener_has_its_worker() {
        let address = ([192, 0, 2, 1], 80).into();
        let descriptor = Descriptor {
            kind: Kind::Fixed,
            address,
        };
        let counts = |sockets: usize, workers| -> Vec<usize> {
            let all = (0..sockets).map(|_| null()).collect();
            let mut sockets = Sockets([(descriptor, all)].into());
            let shares = sockets.divide(Kind::Fixed, address, workers);
            assert!(sockets.take(Kind::Fixed, address).is_none());
            shares.iter().map(Vec::len).collect()
        };
        assert_eq!(counts(2, 2), [1, 1]);
        assert_eq!(counts(5, 2), [3, 2]);
        assert_eq!(counts(1, 3), [1, 0, 0]);
        assert_eq!(counts(0, 1), [0]);
    }

    #[test]
    fn barrier_holds_until_open() {
        let barrier = Barrier::default();
        let waiting = std::thread::spawn({
            let barrier = barrier.clone();
            move || barrier.pass()
        });
        barrier.open();
        waiting.join().unwrap();
        barrier.pass();
    }
}
