// SPDX-License-Identifier: Apache-2.0
//! The places, the round-trip times between them, and the pairs of client and server. Pure, except
//! for reading the matrix.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{ACCESS_MS, Args, RATE};
use crate::chart::map::TO;
use crate::link::Link;
use crate::model::{Hops, Path};
use crate::network::Family;
use crate::planning::data::read_cloud;

/// The regions of the matrix, in the order of its rows: the file has no names, but the distances
/// match these regions, in the order of their codes. Name, longitude and latitude in degrees.
const REGIONS: [(&str, f64, f64); 21] = [
    ("Cape Town", 18.4, -33.9),
    ("Hong Kong", 114.2, 22.3),
    ("Tokyo", 139.7, 35.7),
    ("Seoul", 127.0, 37.6),
    ("Osaka", 135.5, 34.7),
    ("Mumbai", 72.9, 19.1),
    ("Singapore", 103.8, 1.4),
    ("Sydney", 151.2, -33.9),
    ("Montreal", -73.6, 45.5),
    ("Frankfurt", 8.7, 50.1),
    ("Stockholm", 18.1, 59.3),
    ("Milan", 9.2, 45.5),
    ("Ireland", -6.3, 53.3),
    ("London", -0.1, 51.5),
    ("Paris", 2.4, 48.9),
    ("Bahrain", 50.6, 26.2),
    ("São Paulo", -46.6, -23.6),
    ("Virginia", -77.5, 39.0),
    ("Ohio", -83.0, 40.0),
    ("California", -121.9, 37.3),
    ("Oregon", -119.7, 45.8),
];

/// A client and its server, by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair {
    pub(super) client: usize,
    pub(super) server: usize,
}

/// The places and the pairs.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    names: Vec<String>,
    /// Longitude and latitude, in degrees.
    spots: Vec<(f64, f64)>,
    rtts_ms: Vec<Vec<f64>>,
    pub(super) pairs: Vec<Pair>,
}

impl Topology {
    /// The places and pairs of the arguments, with the times of the matrix.
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
        // A link of the lab has one length; the matrix lists both directions.
        let rtt = |one: usize, other: usize| all[one][other].min(all[other][one]);
        let row = |one: &usize| args.places.iter().map(|other| rtt(*one, *other)).collect();
        let name = |row: &usize| {
            REGIONS
                .get(*row)
                .map_or_else(|| row.to_string(), |(name, ..)| (*name).to_owned())
        };
        let spot = |row: &usize| {
            let region = REGIONS.get(*row);
            region.map_or((0.0, 0.0), |(_, longitude, latitude)| {
                (*longitude, *latitude)
            })
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
            spots: args.places.iter().map(spot).collect(),
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

    /// Longitude and latitude of the places by name, in degrees: for the map.
    pub(super) fn spots(&self) -> Value {
        let named = self.names.iter().zip(&self.spots);
        let named =
            named.map(|(name, (longitude, latitude))| (name.clone(), json!([longitude, latitude])));
        Value::Object(named.collect())
    }

    /// The names of the places, in order.
    pub(super) fn chain_name(&self, chain: &[usize]) -> String {
        let names: Vec<&str> = chain.iter().map(|place| self.name(*place)).collect();
        names.join(TO)
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

    /// The place with the smallest distance to its farthest other.
    pub(super) fn center(&self) -> usize {
        let farthest = |place: &usize| self.rtts_ms[*place].iter().copied().fold(0.0, f64::max);
        let places = 0..self.places();
        let center = places.min_by(|a, b| farthest(a).total_cmp(&farthest(b)));
        center.unwrap_or(0)
    }

    /// The link between two places, `times` times as long as in the matrix.
    pub(super) fn link(&self, one: usize, other: usize, times: f64) -> Link {
        let delay = Duration::from_secs_f64(self.rtt_ms(one, other) * times / 2e3);
        // A queue that never drops: slow start must not end before the transfer does.
        Link::delay(delay).rate(RATE).queue(10_000_000)
    }

    /// The path of a transfer in terms of the model, over the nodes of a chain; without nodes
    /// directly from client to server.
    pub(super) fn path(
        &self,
        family: Family,
        pair: Pair,
        chain: Option<&[usize]>,
        hops: Hops,
    ) -> Path {
        let one_way = |rtt_ms: f64| Duration::from_secs_f64(rtt_ms / 2e3);
        let delays = match chain {
            None => {
                let rtt_ms = self.rtt_ms(pair.client, pair.server);
                vec![one_way(rtt_ms + 2.0 * ACCESS_MS)]
            }
            Some(chain) => {
                let between = chain.windows(2).map(|ends| self.rtt_ms(ends[0], ends[1]));
                let hops = std::iter::once(ACCESS_MS).chain(between);
                hops.chain([ACCESS_MS]).map(one_way).collect()
            }
        };
        Path {
            between: hops,
            ..Path::new(delays, RATE, family)
        }
    }
}
