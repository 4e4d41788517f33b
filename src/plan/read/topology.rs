// SPDX-License-Identifier: Apache-2.0
//! Maps of networks: which routers are joined by lines, and how long these are.
//!
//! A map tells no round-trip times between all nodes. They are taken to be those of the shortest
//! ways along its lines, there and back. Nodes that no way joins have no link.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use posthaste_plan::{Link, Matrix};

use super::{Names, Network, Problem, lines, micros};

/// Of the earth, and of light in fibre in a millisecond.
const RADIUS_KM: f64 = 6371.0;
const KM_PER_MS: f64 = 200.0;

/// By node, the nodes at the other ends of its lines, and their round-trip times in microseconds.
type Lines = Vec<Vec<(usize, u32)>>;

/// `END END MS`, one way, in the direction of the line.
pub(super) fn read_rocketfuel(text: &str) -> Result<Network, Problem> {
    let mut names = Names::default();
    let mut along = Lines::new();
    for (line, text) in lines(text) {
        let at = |what: String| Problem::at(line, what);
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [from, to, delay] = fields[..] else {
            return Err(at("expected two ends and milliseconds one way".into()));
        };
        let delay: f64 = delay
            .parse()
            .map_err(|_| at(format!("{delay:?} is not a number of milliseconds")))?;
        let ends = [from, to].map(|name| names.number(name));
        let [from, to] = ends;
        let (from, to) = (from.map_err(at)?, to.map_err(at)?);
        along.resize_with(names.names.len(), Vec::new);
        along[from].push((to, micros(2.0 * delay).map_err(at)?));
    }
    mesh(names.names, &along)
}

/// `NODES n`, a heading, `label longitude latitude`; `EDGES n`, a heading, `label from to ...`.
pub(super) fn read_repetita(text: &str) -> Result<Network, Problem> {
    let mut lines = lines(text);
    let nodes = section(&mut lines, "NODES")?;
    let mut names = Names::default();
    let mut places = Vec::new();
    for (line, text) in nodes {
        let at = |what: String| Problem::at(line, what);
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [name, longitude, latitude] = fields[..] else {
            return Err(at("expected a label, a longitude and a latitude".into()));
        };
        if names.number(name).map_err(at)? != places.len() {
            return Err(at(format!("there is another node {name}")));
        }
        let degrees = |field: &str| {
            let number = field
                .parse()
                .ok()
                .filter(|degrees: &f64| degrees.abs() <= 180.0);
            number.ok_or_else(|| at(format!("{field:?} is not a number of degrees")))
        };
        places.push((degrees(longitude)?, degrees(latitude)?));
    }
    let mut along: Lines = vec![Vec::new(); places.len()];
    for (line, text) in section(&mut lines, "EDGES")? {
        let at = |what: String| Problem::at(line, what);
        let mut fields = text.split_whitespace().skip(1);
        let mut end = || {
            let number = fields.next().and_then(|field| field.parse::<usize>().ok());
            let number = number.filter(|number| *number < places.len());
            number.ok_or_else(|| at("expected a label and the numbers of two nodes".into()))
        };
        let (from, to) = (end()?, end()?);
        let rtt_ms = 2.0 * great_circle_km(places[from], places[to]) / KM_PER_MS;
        along[from].push((to, micros(rtt_ms).map_err(at)?));
    }
    mesh(names.names, &along)
}

/// The lines of a section, of which its first tells the number, and the second is a heading.
fn section<'a>(
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
    name: &str,
) -> Result<Vec<(usize, &'a str)>, Problem> {
    let form = format!("expected {name} and their number");
    let (line, title) = lines.next().ok_or_else(|| Problem::whole(form.clone()))?;
    let count = title.strip_prefix(name).map(str::trim);
    let count: usize = count
        .and_then(|count| count.parse().ok())
        .ok_or_else(|| Problem::at(line, form))?;
    let rows: Vec<(usize, &str)> = lines.by_ref().skip(1).take(count).collect();
    if rows.len() < count {
        let what = format!("{} {name}, where {count} were said to follow", rows.len());
        return Err(Problem::at(line, what));
    }
    Ok(rows)
}

/// Places are longitude and latitude in degrees.
fn great_circle_km(one: (f64, f64), other: (f64, f64)) -> f64 {
    let half_sine = |degrees: f64| (degrees.to_radians() / 2.0).sin();
    let flat = half_sine(other.1 - one.1).powi(2)
        + one.1.to_radians().cos()
            * other.1.to_radians().cos()
            * half_sine(other.0 - one.0).powi(2);
    2.0 * RADIUS_KM * flat.sqrt().min(1.0).asin()
}

/// Links between all nodes that a way along the lines joins, as long as the shortest.
fn mesh(names: Vec<String>, along: &Lines) -> Result<Network, Problem> {
    let mut matrix = Matrix::new(names.len()).map_err(|error| Problem::whole(error.to_string()))?;
    for from in 0..names.len() {
        for (to, rtt_us) in distances(along, from).into_iter().enumerate() {
            let Some(rtt_us) = rtt_us.filter(|_| to != from) else {
                continue;
            };
            let set = matrix.set(from, to, Some(Link::of_rtt(rtt_us)));
            set.map_err(|error| {
                Problem::whole(format!("{} to {}: {error}", names[from], names[to]))
            })?;
        }
    }
    Ok(Network::without_costs(names, matrix))
}

/// Round-trip times from a node along the lines, in microseconds (Dijkstra's algorithm).
fn distances(along: &Lines, from: usize) -> Vec<Option<u32>> {
    let mut known = vec![None; along.len()];
    let mut open = BinaryHeap::from([Reverse((0u32, from))]);
    while let Some(Reverse((far, node))) = open.pop() {
        if known[node].is_some() {
            continue;
        }
        known[node] = Some(far);
        for &(next, rtt_us) in &along[node] {
            if known[next].is_none() {
                open.push(Reverse((far.saturating_add(rtt_us), next)));
            }
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_paths_are_links() {
        let text = "a b 2\nb a 2\nb c 3\na c 9\n";
        let network = read_rocketfuel(text).unwrap();
        assert_eq!(network.names, ["a", "b", "c"]);
        assert_eq!(network.matrix.link(0, 2), Some(&Link::of_rtt(10_000)));
        assert_eq!(network.matrix.link(2, 0), None);
    }

    #[test]
    fn distances_at_fibre_speed() {
        let text = "NODES 3\nlabel x y\nA 0 0\nB 90 0\nC 0 90\n\n\
                    EDGES 4\nlabel src dest weight bw delay\n\
                    e0 0 1 1 1 7\ne1 1 0 1 1 7\ne2 1 2 1 1 7\ne3 2 1 1 1 7\n";
        let network = read_repetita(text).unwrap();
        // A quarter of the way around the earth is 10008 km, and 100.08 ms there and back.
        let quarter = network.matrix.link(0, 1).unwrap().rtt_us;
        assert_eq!(quarter, 100_075);
        assert_eq!(network.matrix.link(0, 2).unwrap().rtt_us, 2 * quarter);
        assert_eq!(network.names, ["A", "B", "C"]);
    }
}
