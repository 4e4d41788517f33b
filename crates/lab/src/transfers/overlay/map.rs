// SPDX-License-Identifier: Apache-2.0
//! A map of the overlay: its places, and the chains of the largest transfers.

use super::topology::Topology;
use crate::chart::svg::{Anchor, Svg};
use crate::chart::{GRID, LABEL, NOTE, PALETTE, SUBTITLE, TICK, TITLE};

/// The page size, and the position of the map.
const WIDTH: f64 = 800.0;
const TOP: f64 = 110.0;
/// Pixels per degree, of longitude and of latitude.
const PER_DEGREE: f64 = 2.1;
/// The north-western corner of the map, in degrees.
const WEST: f64 = -170.0;
const NORTH: f64 = 68.0;
const SOUTH: f64 = -48.0;

/// Draws the map as SVG text. `chains` holds the places of each, from client to server.
pub(super) fn draw(topology: &Topology, chains: &[Vec<usize>], kilobytes: u64) -> String {
    let mut svg = Svg::new(WIDTH);
    svg.text(
        (20.0, 30.0),
        Anchor::Start,
        TITLE,
        "Chains that the controller chose",
    );
    let subtitle = format!("transfers of {kilobytes} KB over warm hops; dashed: the direct path");
    svg.text((20.0, 50.0), Anchor::Start, SUBTITLE, &subtitle);
    let spots: Vec<_> = topology.spots.iter().map(|spot| at(*spot)).collect();
    for (order, chain) in chains.iter().enumerate() {
        let (ends, colour) = ([chain[0], chain[chain.len() - 1]], PALETTE[order + 1]);
        let dashed = " stroke-dasharray=\"5 4\"";
        svg.polyline(&ends.map(|place| spots[place]), colour, 1.2, dashed);
        let hops: Vec<_> = chain.iter().map(|place| spots[*place]).collect();
        svg.polyline(&hops, colour, 2.4, "");
        let y = 74.0 + 18.0 * order as f64;
        svg.line((20.0, y - 4.0), (44.0, y - 4.0), colour, 2.4, "");
        svg.text((50.0, y), Anchor::Start, LABEL, &topology.chain_name(chain));
    }
    for (place, spot) in spots.iter().enumerate() {
        svg.circle(*spot, 4.0, "#ffffff", PALETTE[0]);
        let label = (spot.0 + 7.0, spot.1 - 5.0);
        svg.text(label, Anchor::Start, TICK, topology.name(place));
    }
    let (_, bottom) = at((WEST, SOUTH));
    svg.line((20.0, bottom), (WIDTH - 20.0, bottom), GRID, 1.0, "");
    let note = "Places stand at their longitude and latitude; the links are emulated.";
    svg.text((20.0, bottom + 24.0), Anchor::Start, NOTE, note);
    svg.finish(bottom + 36.0)
}

fn at((longitude, latitude): (f64, f64)) -> (f64, f64) {
    let x = 30.0 + (longitude - WEST) * PER_DEGREE;
    (x, TOP + (NORTH - latitude) * PER_DEGREE * 1.2)
}
