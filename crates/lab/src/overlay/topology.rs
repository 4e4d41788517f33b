// SPDX-License-Identifier: Apache-2.0
//! The places, how far they are from each other, and who fetches from whom. What the model says of
//! it. Pure, but for reading the matrix.

use std::collections::BTreeSet;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use posthaste_plan::Model;

use super::Args;
use super::testbed::Hops;
use crate::link::{Emulation, Link};
use crate::planning::data::read_cloud;

/// The regions of the matrix, in the order of its rows: the file names none, but they are as far from
/// each other as these, in the order of their codes.
const REGIONS: [&str; 21] = [
    "Cape Town",
    "Hong Kong",
    "Tokyo",
    "Seoul",
    "Osaka",
    "Mumbai",
    "Singapore",
    "Sydney",
    "Montreal",
    "Frankfurt",
    "Stockholm",
    "Milan",
    "Ireland",
    "London",
    "Paris",
    "Bahrain",
    "São Paulo",
    "Virginia",
    "Ohio",
    "California",
    "Oregon",
];

/// Who fetches from whom, by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) client: usize,
    pub(super) server: usize,
}

/// The places and the pairs.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    names: Vec<String>,
    rtts_ms: Vec<Vec<f64>>,
    pub(super) pairs: Vec<Pair>,
}

impl Topology {
    /// What the arguments say, of the matrix.
    pub(super) fn read(args: &Args) -> Result<Self> {
        let all = read_cloud(&args.data)?.rtts_ms;
        Self::new(&all, args)
    }

    fn new(all: &[Vec<f64>], args: &Args) -> Result<Self> {
        ensure!(
            args.places.iter().all(|row| *row < all.len()),
            "the matrix has {} rows",
            all.len()
        );
        let rtt = |one: usize, other: usize| all[one][other].min(all[other][one]);
        let row = |one: &usize| args.places.iter().map(|other| rtt(*one, *other)).collect();
        let name = |row: &usize| {
            REGIONS
                .get(*row)
                .map_or_else(|| row.to_string(), |name| (*name).to_owned())
        };
        let place = |text: &str| {
            let row: usize = text.parse().with_context(|| format!("row {text:?}"))?;
            let place = args.places.iter().position(|one| *one == row);
            place.with_context(|| format!("row {row} is not among --places"))
        };
        let pair = |text: &String| {
            let (client, server) = text
                .split_once('-')
                .with_context(|| format!("pair {text:?}"))?;
            let (client, server) = (place(client)?, place(server)?);
            ensure!(client != server, "pair {text:?} is one place");
            Ok(Pair { client, server })
        };
        Ok(Self {
            names: args.places.iter().map(name).collect(),
            rtts_ms: args.places.iter().map(row).collect(),
            pairs: args.pairs.iter().map(pair).collect::<Result<_>>()?,
        })
    }

    pub(super) fn places(&self) -> usize {
        self.names.len()
    }

    pub(super) fn name(&self, place: usize) -> &str {
        &self.names[place]
    }

    /// The places by name, from one to the next.
    pub(super) fn chain_name(&self, chain: &[usize]) -> String {
        let names: Vec<&str> = chain.iter().map(|place| self.name(*place)).collect();
        names.join(" > ")
    }

    pub(super) fn rtt_ms(&self, one: usize, other: usize) -> f64 {
        self.rtts_ms[one][other]
    }

    pub(super) fn clients(&self) -> BTreeSet<usize> {
        self.pairs.iter().map(|pair| pair.client).collect()
    }

    pub(super) fn servers(&self) -> BTreeSet<usize> {
        self.pairs.iter().map(|pair| pair.server).collect()
    }

    /// The place from which the farthest other is nearest.
    pub(super) fn center(&self) -> usize {
        let farthest = |place: &usize| self.rtts_ms[*place].iter().copied().fold(0.0, f64::max);
        let places = 0..self.places();
        let center = places.min_by(|a, b| farthest(a).total_cmp(&farthest(b)));
        center.unwrap_or(0)
    }

    /// The link between two places, so many times as long as the matrix says.
    pub(super) fn link(&self, args: &Args, one: usize, other: usize, times: f64) -> Emulation {
        let delay = Duration::from_secs_f64(self.rtt_ms(one, other) * times / 2e3);
        // A queue that never drops: slow start must not end before the transfer does.
        let link = Link::delay(delay)
            .rate(args.rate * 1_000_000)
            .queue(10_000_000);
        match link {
            Link::Emulated(emulation) => emulation,
            Link::Veth => unreachable!("it has a delay"),
        }
    }

    /// How long a transfer takes by the model, in milliseconds, over the nodes of a chain; without nodes
    /// it goes from client to server.
    pub(super) fn model_ms(
        &self,
        args: &Args,
        pair: Pair,
        chain: Option<(&[usize], Hops)>,
        size: u64,
    ) -> f64 {
        let header_bytes = args.family.header_bytes();
        let model = Model {
            segment_bytes: u32::from(crate::link::MTU) - header_bytes,
            header_bytes,
            ..Model::default()
        };
        let rate = NonZeroU64::new(args.rate * 1_000_000);
        let us = |ms: f64| {
            u32::try_from(Duration::from_secs_f64(ms / 1e3).as_micros()).unwrap_or(u32::MAX)
        };
        let unauthorized = |ms: f64| posthaste_plan::Link {
            rate,
            ..posthaste_plan::Link::of_rtt(us(ms))
        };
        let hops: Vec<posthaste_plan::Link> = match chain {
            None => {
                let rtt_ms = self.rtt_ms(pair.client, pair.server) + 2.0 * args.access;
                vec![unauthorized(rtt_ms)]
            }
            Some((chain, hops)) => {
                let between = chain.windows(2).map(|ends| posthaste_plan::Link {
                    rate,
                    window: (hops == Hops::Warm).then_some(NonZeroU32::MIN),
                    ..posthaste_plan::Link::of_nodes(us(self.rtt_ms(ends[0], ends[1])))
                });
                let access = std::iter::once(unauthorized(args.access));
                access.clone().chain(between).chain(access).collect()
            }
        };
        // nginx sends what comes before an object in a packet of its own: one more of the window.
        let bytes = size * super::KB + u64::from(model.segment_bytes);
        model.transfer_us(hops.iter(), 0, bytes) as f64 / 1e3
    }
}
