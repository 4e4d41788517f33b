// SPDX-License-Identifier: Apache-2.0

use posthaste_plan::fronts::Limits;
use posthaste_plan::table::{Classes, Table};
use posthaste_plan::{Link, Matrix, Model, Planner};

use super::*;

const MS: u32 = 1000;

/// 0 and 2 are `direct_ms` apart, and 40 ms each from 1.
fn triangle(direct_ms: u32, half_ms: u32) -> Matrix {
    let mut matrix = Matrix::new(3).unwrap();
    for (one, other, ms) in [(0, 2, direct_ms), (0, 1, half_ms), (1, 2, half_ms)] {
        let link = (ms > 0).then_some(Link::of_rtt(ms * MS));
        matrix.set_both(one, other, link).unwrap();
    }
    matrix
}

fn classes() -> Classes {
    Classes::new(&[450_000], &[0]).unwrap()
}

fn table(matrix: &Matrix) -> Table {
    let planner = Planner::new(matrix, Model::default(), Limits::default());
    planner.tables(&classes()).swap_remove(0)
}

/// Chooses from 0 to 2 with a chain in use and its promise, in milliseconds; returns the nodes
/// between of the choices, and the new promise of the first.
fn choose(matrix: &Matrix, in_use: Option<(&[u16], Option<u32>)>) -> (Vec<Vec<u16>>, Option<u32>) {
    let (model, classes, table) = (Model::default(), classes(), table(matrix));
    let times = Times::new(matrix, &model, &classes);
    let mut chooser = Chooser::new(times, Rules::default());
    chooser.start((0, 2), table.egress(2).chains());
    let place = in_use.map(|(inner, promise_ms)| {
        let mut all = 0..chooser.candidates.len();
        let known = all.find(|place| chooser.inner(*place) == inner);
        let place = known.unwrap_or_else(|| chooser.add(inner.to_vec(), None));
        chooser.candidates[place].promise = promise_ms.map(|ms| Promise {
            class: 0,
            time_us: ms * MS,
        });
        place
    });
    let mut in_use = Choice::default();
    place.into_iter().for_each(|place| in_use.add(place));
    chooser.choose(|| table.egress(2).choices(), |_| in_use);
    assert_eq!(chooser.chosen.classes, [0]);
    let choices = chooser.chosen.choices[0].places().iter();
    let first = choices.clone().next();
    let promise = first.and_then(|&first| chooser.candidates[first].promise);
    let inner = choices.map(|&place| chooser.inner(place).to_vec());
    (inner.collect(), promise.map(|promise| promise.time_us / MS))
}

// promise: V6
#[test]
fn chain_worth_its_nodes() {
    // 450 kB take 7 round trips, that of the bytes included: 560 ms without a node.
    let (direct, by_one): (&[u16], &[u16]) = (&[], &[1]);
    let (chosen, _) = choose(&triangle(80, 40), None);
    assert_eq!(chosen, [by_one, direct]);
    let (chosen, _) = choose(&triangle(80, 68), None);
    assert_eq!(chosen[0], direct);
    let (chosen, _) = choose(&triangle(0, 68), None);
    assert_eq!(chosen, [by_one]);
    let (chosen, _) = choose(&triangle(80, 0), None);
    assert_eq!(chosen, [direct]);
    let mut nothing = triangle(0, 0);
    nothing.set(0, 1, Some(Link::of_rtt(1))).unwrap();
    assert_eq!(choose(&nothing, None).0, [] as [&[u16]; 0]);
}

// promise: V6
#[test]
fn nearly_as_good_stays() {
    let (direct, by_one): (&[u16], &[u16]) = (&[], &[1]);
    // Nearly as slow as without a node, where it would not be chosen.
    let nearly = triangle(80, 68);
    assert_eq!(choose(&nearly, Some((by_one, None))).0[0], by_one);
    assert_eq!(choose(&nearly, Some((by_one, Some(560)))).0[0], by_one);
    assert_eq!(choose(&nearly, Some((by_one, Some(400)))).0[0], direct);
    assert_eq!(choose(&triangle(80, 80), Some((by_one, None))).0[0], direct);
    // What is not measured any more gives way at once.
    assert_eq!(choose(&triangle(80, 0), Some((by_one, None))).0, [direct]);
}

// promise: V6
#[test]
fn useful_fallback_stays() {
    // Three ways around, of which the table keeps two to fall back on.
    let network = |rtts: [u32; 4]| {
        let mut matrix = Matrix::new(6).unwrap();
        for (node, half_ms) in (1..).zip(rtts) {
            let link = Some(Link::of_rtt(half_ms * MS));
            matrix.set_both(0, node, link).unwrap();
            matrix.set_both(node, 5, link).unwrap();
        }
        matrix
    };
    let (model, classes) = (Model::default(), classes());
    let choose = |matrix: &Matrix, in_use: &[u16]| {
        let planner = Planner::new(matrix, model, Limits::default());
        let table = planner.tables(&classes).swap_remove(0);
        let times = Times::new(matrix, &model, &classes);
        let mut chooser = Chooser::new(times, Rules::default());
        chooser.start((0, 5), table.egress(5).chains());
        let mut old = Choice::default();
        for &node in in_use {
            let mut all = 0..chooser.candidates.len();
            let known = all.find(|place| chooser.inner(*place) == [node]);
            old.add(known.unwrap_or_else(|| chooser.add([node], None)));
        }
        chooser.choose(|| table.egress(5).choices(), |_| old);
        let places = chooser.chosen.choices[0].places().iter();
        places
            .flat_map(|place| chooser.inner(*place).to_vec())
            .collect::<Vec<u16>>()
    };
    assert_eq!(choose(&network([40, 50, 60, 70]), &[]), [1]);
    assert_eq!(choose(&network([40, 50, 60, 70]), &[1, 3, 4]), [1, 3, 4]);
    assert_eq!(choose(&network([41, 40, 60, 70]), &[1, 3]), [1, 3]);
    assert_eq!(choose(&network([41, 40, 60, 70]), &[1]), [1, 2]);
    assert_eq!(choose(&network([60, 40, 60, 70]), &[1, 3]), [2]);
    let mut direct = network([40, 50, 60, 70]);
    direct.set_both(0, 5, Some(Link::of_rtt(70 * MS))).unwrap();
    assert_eq!(choose(&direct, &[1, 2, 4]), [1, 2]);
}

#[test]
fn promises_for_own_gain() {
    let by_one: &[u16] = &[1];
    let (_, promise) = choose(&triangle(80, 40), Some((by_one, Some(9))));
    assert_eq!(promise, Some(320));
    let (chosen, promise) = choose(&triangle(80, 68), Some((by_one, Some(560))));
    assert_eq!((chosen[0].as_slice(), promise), (by_one, Some(560)));
}
