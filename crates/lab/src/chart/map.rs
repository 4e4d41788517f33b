// SPDX-License-Identifier: Apache-2.0
//! A map of places, and ways between them.

use serde_json::Value;

use super::svg::{At, START, Svg};
use super::{Chart, GRID, LABEL, PALETTE, RIGHT, TICK, select};
use crate::record::Record;

/// Where the map begins on the page.
const TOP: f64 = 110.0;
/// Pixels per degree, of longitude and of latitude.
const PER_DEGREE: f64 = 2.1;
/// The north-western corner of the map, in degrees.
const WEST: f64 = -170.0;
const NORTH: f64 = 68.0;
const SOUTH: f64 = -48.0;

/// The text between two places of a way.
pub(crate) const TO: &str = " > ";

/// Draws the places of the record, and the first way of each curve, with a dashed line between its
/// ends. Returns where the map ends.
pub(super) fn draw(svg: &mut Svg, chart: &Chart, record: &Record) -> f64 {
    let spots = spots(&record.parameters["places"]);
    let spot = |name: &str| spots.iter().find(|(one, _)| one == name).map(|(_, at)| *at);
    for (order, curve) in chart.curves.iter().enumerate() {
        let own = select::of(curve, &record.samples);
        // Without a chain a pair goes directly, and has no way to draw.
        let Some(way) = own.iter().find_map(|one| one.labels.get("way")) else {
            continue;
        };
        let hops: Vec<_> = way.split(TO).filter_map(spot).collect();
        // Grey is for places.
        let colour = PALETTE[order + 1];
        let ends = [hops[0], hops[hops.len() - 1]];
        svg.dashed(&ends, colour);
        svg.line(&hops, colour, 2.4);
        let y = 74.0 + 18.0 * order as f64;
        svg.line(&[(20.0, y - 4.0), (44.0, y - 4.0)], colour, 2.4);
        svg.text((50.0, y), START, LABEL, way);
    }
    for (name, at) in &spots {
        svg.circle(*at, "#ffffff", PALETTE[0]);
        svg.text((at.0 + 7.0, at.1 - 5.0), START, TICK, name);
    }
    let (_, bottom) = on_page(WEST, SOUTH);
    svg.line(&[(20.0, bottom), (RIGHT, bottom)], GRID, 1.0);
    bottom
}

/// Names and positions on the page of places: names with longitude and latitude in degrees.
fn spots(places: &Value) -> Vec<(String, At)> {
    let degrees = |at: &Value, index: usize| at[index].as_f64().unwrap_or(0.0);
    let places = places.as_object().into_iter().flatten();
    let spot =
        |(name, at): (&String, &Value)| (name.clone(), on_page(degrees(at, 0), degrees(at, 1)));
    places.map(spot).collect()
}

fn on_page(longitude: f64, latitude: f64) -> At {
    let x = 30.0 + (longitude - WEST) * PER_DEGREE;
    // Stretched, so that shapes in the middle latitudes look as usual.
    (x, TOP + (NORTH - latitude) * PER_DEGREE * 1.2)
}
