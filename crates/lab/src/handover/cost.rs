// SPDX-License-Identifier: Apache-2.0
//! CPU time of a connection that its relay has left, beside one that this host forwards: over
//! virtual cables, by the threads of both ends, in whose context Linux carries the segments. Both
//! are on one CPU, so that neither moves in the middle of a measurement.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::{CONFIG, left};
use crate::link::Link;
use crate::network::{Family, Network};
use crate::node::{Binary, Node};
use crate::process::wait_until;
use crate::record::Record;
use crate::socket;
use crate::stats::Spread;
use crate::target::{Bound, Target};
use crate::threads::join;

const PORT: u16 = 8003;
const CHUNK: usize = 64 * 1024;
/// Bytes of a question, and of its answer.
const QUESTION: usize = 1300;
/// How long one measurement takes.
const WINDOW: Duration = Duration::from_secs(2);
/// How long a relay may take until it leaves.
const PATIENCE: Duration = Duration::from_secs(120);
const GOAL: f64 = 1.05;
const SUBJECTS: [&str; 2] = ["forwarding", "bypass"];
const QUANTITY: &str = "CPU time";
const LOADS: [(&str, &str); 2] = [("bulk", "s/GB"), ("1300-byte ping-pong", "us/round trip")];

/// One connection over a network of its own.
struct Bed {
    client: TcpStream,
    server: TcpStream,
    _node: Option<Node>,
    _network: Network,
}

impl Bed {
    fn build(binary: Option<&Binary>) -> Result<Self> {
        let network = Network::line([Link::Veth, Link::Veth]).build()?;
        let node = binary.map(|binary| {
            Node::builder(network.node(0), binary.find()?)
                .relaying()
                .config(CONFIG)
                .start()
        });
        let node = node.transpose()?;
        let listener: TcpListener = network
            .server()
            .run_in(|| socket::listen(PORT, |_| Ok(())))?
            .into();
        let target = SocketAddr::new(network.server_address(Family::V4), PORT);
        let client = network.client().run_in(|| TcpStream::connect(target))?;
        let (server, _) = listener.accept()?;
        for end in [&client, &server] {
            end.set_nodelay(true)?;
        }
        let bed = Self {
            client,
            server,
            _node: None,
            _network: network,
        };
        if let Some(node) = &node {
            wait_until("relay that leaves", PATIENCE, || {
                bed.bulk().is_ok() && left(node).is_ok_and(|left| left > 0)
            })?;
        }
        Ok(Self { _node: node, ..bed })
    }

    fn measure(&self, load: usize) -> Result<f64> {
        if load == 0 {
            self.bulk()
        } else {
            self.ping_pong()
        }
    }

    /// CPU seconds for a gigabyte from the server to the client.
    fn bulk(&self) -> Result<f64> {
        let done = AtomicBool::new(false);
        let (sent, received) = thread::scope(|scope| {
            let sender = scope.spawn(|| -> Result<_> {
                stay()?;
                let (until, mut bytes) = (Instant::now() + WINDOW, 0_u64);
                while Instant::now() < until {
                    (&self.server).write_all(&[1; CHUNK])?;
                    bytes += CHUNK as u64;
                }
                done.store(true, Ordering::Relaxed);
                // The last one: after it the receiver stops.
                (&self.server).write_all(&[0])?;
                Ok((bytes, cpu()?))
            });
            let receiver = scope.spawn(|| -> Result<_> {
                stay()?;
                let mut buffer = vec![0; CHUNK];
                loop {
                    let part = (&self.client).read(&mut buffer)?;
                    if part == 0 || buffer[part - 1] == 0 {
                        return cpu();
                    }
                }
            });
            (join(sender), join(receiver))
        });
        let ((bytes, sending), receiving) = (sent?, received?);
        Ok((sending + receiving) / (bytes as f64 / 1e9))
    }

    /// CPU microseconds for a question and its answer.
    fn ping_pong(&self) -> Result<f64> {
        let (client, server) = thread::scope(|scope| {
            let client = scope.spawn(|| -> Result<_> {
                stay()?;
                let (until, mut rounds) = (Instant::now() + WINDOW, 0_u64);
                let mut answer = [0; QUESTION];
                while Instant::now() < until {
                    (&self.client).write_all(&[1; QUESTION])?;
                    (&self.client).read_exact(&mut answer)?;
                    rounds += 1;
                }
                (&self.client).write_all(&[0; QUESTION])?;
                (&self.client).read_exact(&mut answer)?;
                Ok((rounds + 1, cpu()?))
            });
            let server = scope.spawn(|| -> Result<_> {
                stay()?;
                let mut question = [1; QUESTION];
                while question[0] != 0 {
                    (&self.server).read_exact(&mut question)?;
                    (&self.server).write_all(&question)?;
                }
                cpu()
            });
            (join(client), join(server))
        });
        let ((rounds, requesting), answering) = (client?, server?);
        Ok((requesting + answering) * 1e6 / rounds as f64)
    }
}

/// Keeps this thread on the last CPU that it may use: the first usually has the most other work.
fn stay() -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("read the CPU affinity")?;
    let usable = |cpu: &usize| allowed.is_set(*cpu).unwrap_or(false);
    let last = (0..CpuSet::count()).rev().find(usable).context("no CPU")?;
    let mut only = CpuSet::new();
    only.set(last)?;
    sched_setaffinity(Pid::from_raw(0), &only).context("stay on a CPU")
}

/// CPU seconds of this thread.
fn cpu() -> Result<f64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("read the clock")?;
    Ok(Duration::from(time).as_secs_f64())
}

/// Measures both subjects in turn.
pub(super) fn measure(record: &mut Record, binary: &Binary, rounds: u32) -> Result<()> {
    let beds = [Bed::build(None)?, Bed::build(Some(binary))?];
    let mut values = [[(); 2]; 2].map(|subjects| subjects.map(|()| Vec::new()));
    for round in 0..rounds as usize {
        for (load, values) in values.iter_mut().enumerate() {
            for turn in 0..2 {
                // The first in a round would always find other caches.
                let subject = (turn + round) % 2;
                values[subject].push(beds[subject].measure(load)?);
            }
        }
    }
    for ((load, unit), [forwarding, bypass]) in LOADS.into_iter().zip(values) {
        record.targets.push(Target {
            what: format!("CPU time, {load}, bypass beside forwarding"),
            measured: Spread::of_ratio(&bypass, &forwarding),
            bound: Bound::AtMost(GOAL),
            unit: String::new(),
        });
        for (subject, values) in SUBJECTS.into_iter().zip([forwarding, bypass]) {
            let labels = [("load", load), ("subject", subject)];
            record.sample(QUANTITY, unit, &labels, values);
        }
        record.table(
            &format!("CPU time of both ends, {load}"),
            |one| one.unit == unit,
            &["subject"],
            &[QUANTITY],
        );
    }
    Ok(())
}
