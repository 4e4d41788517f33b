// SPDX-License-Identifier: Apache-2.0
//! Passes samples of finished relays from the workers to the learner: without blocking, and within
//! bounds.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use posthaste_control::message::Prefix;
use posthaste_relay::control::{Denied, Ended, Journal, Saved};
use posthaste_relay::outcome::Outcome;

use super::prefix_of;
use crate::saved;
use posthaste_daemon::log::Log;

/// Bound on queued samples: several seconds of the busiest node.
const WAITING_MAX: usize = 1 << 16;

/// The sample of one relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Its destination.
    pub(crate) prefix: Prefix,
    /// Its client: a /24, or a /48.
    pub(crate) client: u64,
    /// The bytes in the larger direction, if it began here and finished.
    pub(crate) bytes: Option<u64>,
    /// Duration of the handshake with the server, if this node made it, in microseconds.
    pub(crate) handshake_us: Option<u32>,
}

impl Sample {
    /// `None` if there is nothing to learn.
    pub(crate) fn of(ended: &Ended) -> Option<Self> {
        let bytes = ended.bytes_up.max(ended.bytes_down);
        // The node at which a flow begins chooses its route, so that node learns from it.
        let is_whole = ended.outcome == Outcome::Finished && ended.by.is_none() && bytes > 0;
        let handshake_us = ended.handshake_us;
        (is_whole || handshake_us.is_some()).then(|| Self {
            prefix: prefix_of(ended.flow.server().ip()),
            client: neighbourhood(ended.flow.client().ip()),
            bytes: is_whole.then_some(bytes),
            handshake_us,
        })
    }
}

/// The neighbourhood of a client.
fn neighbourhood(client: IpAddr) -> u64 {
    let octets = prefix_of(client).address;
    // One half is 0: the first of IPv4, the one behind the prefix of IPv6.
    let [high, low] = [0, 8].map(|at| {
        let half = octets[at..].first_chunk().copied().unwrap_or_default();
        u64::from_be_bytes(half)
    });
    high | low
}

#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicUsize,
    dropped: AtomicU64,
}

/// The workers' end of the queue.
#[derive(Clone, Debug)]
pub(crate) struct Feed {
    queue: Sender<Vec<Sample>>,
    shared: Arc<Shared>,
}

/// The learner's end of the queue.
#[derive(Debug)]
pub(crate) struct Samples {
    queue: Receiver<Vec<Sample>>,
    shared: Arc<Shared>,
}

impl Feed {
    pub(crate) fn new() -> (Self, Samples) {
        let (queue, samples) = channel();
        let shared = Arc::new(Shared::default());
        let feed = Self {
            queue,
            shared: Arc::clone(&shared),
        };
        let samples = Samples {
            queue: samples,
            shared,
        };
        (feed, samples)
    }

    fn push(&self, samples: Vec<Sample>) {
        let count = samples.len();
        // Added before sending, so that all workers together stay within the bound.
        let waiting = self.shared.waiting.fetch_add(count, Ordering::Relaxed);
        if waiting + count > WAITING_MAX || self.queue.send(samples).is_err() {
            self.shared.waiting.fetch_sub(count, Ordering::Relaxed);
            self.shared
                .dropped
                .fetch_add(count as u64, Ordering::Relaxed);
        }
    }
}

impl Samples {
    /// The queued samples.
    pub(crate) fn take(&self) -> impl Iterator<Item = Sample> {
        let batches = self.queue.try_iter().inspect(|samples| {
            self.shared
                .waiting
                .fetch_sub(samples.len(), Ordering::Relaxed);
        });
        batches.flatten()
    }

    /// Samples dropped because the queue was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

/// A worker's reports of ended relays: to the log, and to the learner, if there is one.
#[derive(Debug)]
pub(crate) struct Ends {
    log: Log,
    feed: Option<Feed>,
}

impl Ends {
    pub(crate) fn new(log: Log, feed: Option<Feed>) -> Self {
        Self { log, feed }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }
}

impl Journal for Ends {
    fn record(&mut self, ended: &mut Vec<Ended>) -> u64 {
        if let Some(feed) = &self.feed {
            let samples: Vec<Sample> = ended.iter().filter_map(Sample::of).collect();
            if !samples.is_empty() {
                feed.push(samples);
            }
        }
        self.log.record(ended)
    }

    fn deny(&mut self, denied: &Denied) {
        self.log.deny(denied);
    }

    fn saved(&self, ended: &Ended) -> Option<Saved> {
        saved::of(ended)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use posthaste_relay::accept_mode::AcceptMode;
    use posthaste_relay::control::RelayId;
    use posthaste_relay::flow::Flow;
    use posthaste_wire::header::NodeId;

    use super::*;

    fn ended(client: &str, server: &str) -> Ended {
        Ended {
            id: RelayId(1),
            flow: Flow::new(client.parse().unwrap(), server.parse().unwrap()),
            rule: "web".into(),
            accept: AcceptMode::EARLY,
            outcome: Outcome::Finished,
            bytes_up: 700,
            bytes_down: 90_000,
            accept_us: None,
            connect_us: Some(9),
            first_byte_us: None,
            by: None,
            via: None,
            handshake_us: Some(20_000),
            total: Duration::from_secs(1),
            course: None,
        }
    }

    #[test]
    fn samples_by_relay_end() {
        let direct = ended("192.0.2.1:4000", "203.0.113.9:443");
        let sample = Sample::of(&direct).unwrap();
        assert_eq!(
            (sample.bytes, sample.handshake_us),
            (Some(90_000), Some(20_000))
        );
        let requested = Ended {
            by: NodeId::new(3),
            ..direct.clone()
        };
        let sample = Sample::of(&requested).unwrap();
        assert_eq!((sample.bytes, sample.handshake_us), (None, Some(20_000)));
        let sent_on = Ended {
            via: NodeId::new(3),
            handshake_us: None,
            ..direct.clone()
        };
        assert_eq!(Sample::of(&sent_on).unwrap().handshake_us, None);
        let upload = Ended {
            bytes_up: 1 << 40,
            ..direct.clone()
        };
        assert_eq!(Sample::of(&upload).unwrap().bytes, Some(1 << 40));
        let reset = Ended {
            outcome: Outcome::DownstreamReset,
            ..direct.clone()
        };
        assert_eq!(Sample::of(&reset).unwrap().bytes, None);
        let nothing = Ended {
            outcome: Outcome::UpstreamRefused,
            ..sent_on
        };
        assert_eq!(Sample::of(&nothing), None);
    }

    #[test]
    fn neighbours_are_one_client() {
        let client = |text| Sample::of(&ended(text, "203.0.113.9:443")).unwrap().client;
        assert_eq!(client("192.0.2.1:4000"), client("192.0.2.200:1"));
        assert_ne!(client("192.0.2.1:4000"), client("192.0.3.1:4000"));
        let client = |text| {
            Sample::of(&ended(text, "[2001:db8::1]:443"))
                .unwrap()
                .client
        };
        assert_eq!(client("[2001:db8:1::1]:1"), client("[2001:db8:1:9::7]:1"));
        assert_ne!(client("[2001:db8:1::1]:1"), client("[2001:db8:2::1]:1"));
    }

    #[test]
    fn excess_samples_dropped() {
        let (feed, samples) = Feed::new();
        let one = Sample::of(&ended("192.0.2.1:4000", "203.0.113.9:443")).unwrap();
        feed.push(vec![one; WAITING_MAX]);
        feed.push(vec![one; 2]);
        assert_eq!(
            (samples.take().count(), samples.dropped()),
            (WAITING_MAX, 2)
        );
        feed.push(vec![one]);
        assert_eq!((samples.take().count(), samples.dropped()), (1, 2));
    }
}
