// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Rows of node 1 among four, whole.
fn rows(version: u64) -> Rows {
    let chain = |number, nodes: &[u64]| NumberedChain {
        number,
        nodes: nodes.to_vec(),
    };
    let mut rows = Rows {
        stamp: Stamp { epoch: 1, version },
        base: None,
        sizes: vec![15_000, 450_000],
        access_us: vec![0, 20_000],
        chains: vec![chain(70_000, &[1, 2, 3]), chain(70_001, &[2, 1, 4])],
        chains_gone: vec![],
        ways: vec![
            Ways {
                egress: 2,
                classes: vec![0; 4],
                choices: vec![vec![DIRECT]],
            },
            Ways {
                egress: 3,
                classes: vec![0, 0, 1, 0],
                choices: vec![vec![DIRECT], vec![70_000, DIRECT]],
            },
        ],
        ways_gone: vec![],
        checksum: 0,
    };
    seal(&mut rows);
    rows
}

/// Writes the checksum of whole rows.
fn seal(rows: &mut Rows) {
    let chains = rows.chains.iter().map(checksum::numbered);
    let parts = chains.chain(rows.ways.iter().map(checksum::ways));
    let parts = parts.fold(0, u64::wrapping_add);
    rows.checksum = checksum::whole(rows.stamp, &rows.sizes, &rows.access_us, parts);
}

fn misfit(held: &mut Held, rows: &Rows) -> String {
    let before = held.whole();
    let refusal = held.apply(rows).unwrap_err();
    assert_eq!(held.whole(), before);
    match refusal {
        Refusal::Misfit(why) => why,
        Refusal::Older { .. } => panic!("{refusal}"),
    }
}

#[test]
fn whole_rows_are_held_and_looked_up() {
    let mut held = Held::new(1);
    assert_eq!((held.class(1, 0), held.whole()), (None, None));
    held.apply(&rows(5)).unwrap();
    assert_eq!(held.whole(), Some(rows(5)));
    assert_eq!(held.size(), (2, 2));
    let ways = |bytes, access_us| held.ways(3, held.class(bytes, access_us).unwrap());
    assert_eq!(ways(15_000, 0), [DIRECT]);
    assert_eq!(ways(15_001, 19_999), [70_000, DIRECT]);
    assert_eq!(ways(u64::MAX, 20_000), [DIRECT]);
    assert_eq!(held.chain(70_000), Some(&[1, 2, 3][..]));
    assert_eq!(held.ways(4, 0), []);
    assert_eq!(held.ways(3, 4), []);
}

#[test]
fn classes_are_counted_as_tables_count_them() {
    let mut held = Held::new(1);
    held.apply(&rows(1)).unwrap();
    let classes = posthaste_plan::table::Classes::new(&[15_000, 450_000], &[0, 20_000]).unwrap();
    let all = [0, 1, 15_000, 15_001, 450_000, 450_001];
    let mut seen = Vec::new();
    for (bytes, access) in all
        .iter()
        .flat_map(|b| [0, 19_999, 20_000, 1 << 30].map(|a| (*b, a)))
    {
        seen.push((
            held.class(bytes, access).unwrap(),
            classes.of(bytes, access),
        ));
    }
    for (one, class) in &seen {
        assert!(
            seen.iter()
                .all(|(other, same)| (one == other) == (class == same))
        );
    }
}

#[test]
fn changes_are_made_to_their_base() {
    let mut held = Held::new(1);
    held.apply(&rows(5)).unwrap();
    let mut after = rows(6);
    after.chains.remove(1);
    after.ways.remove(0);
    seal(&mut after);
    let changes = Rows {
        base: Some(rows(5).stamp),
        chains: vec![],
        chains_gone: vec![60_000, 70_001],
        ways: vec![],
        ways_gone: vec![2, 9],
        ..after.clone()
    };
    assert!(misfit(&mut Held::new(1), &changes).contains("not held"));
    held.apply(&changes).unwrap();
    assert_eq!(held.whole(), Some(after));
    let older = held.apply(&rows(6)).unwrap_err();
    assert!(matches!(older, Refusal::Older { .. }), "{older}");
    assert!(matches!(held.apply(&changes), Err(Refusal::Older { .. })));
    let other = Rows {
        base: Some(rows(5).stamp),
        ..rows(7)
    };
    assert!(misfit(&mut held, &other).contains("not held"));
}

#[test]
fn a_number_stands_for_one_chain() {
    let mut held = Held::new(1);
    held.apply(&rows(5)).unwrap();
    let mut changes = rows(6);
    changes.base = Some(rows(5).stamp);
    held.apply(&changes).unwrap();
    assert_eq!(held.whole().unwrap().chains, rows(5).chains);
    let mut other = rows(7);
    other.base = Some(rows(6).stamp);
    other.chains[0].nodes = vec![1, 4, 3];
    assert!(misfit(&mut held, &other).contains("another one"));
}

/// Spoils rows, and says what is to be complained of.
type Spoil = (fn(&mut Rows), &'static str);

#[test]
fn what_makes_no_sense_is_refused_and_named() {
    let spoilt: [Spoil; 18] = [
        (|r| r.sizes.reverse(), "ascend"),
        (|r| r.access_us.clear(), "0 classes"),
        (|r| r.chains.reverse(), "order"),
        (|r| r.ways.reverse(), "order"),
        (|r| r.chains_gone.push(1), "from nothing"),
        (|r| r.chains[0].number = 0, "number"),
        (|r| r.chains[1].number = (1 << 24) - 1, "number"),
        (|r| r.chains[0].nodes = vec![1, 3], "few"),
        (|r| r.chains[0].nodes = (1..=256).collect(), "many"),
        (|r| r.chains[1].nodes = vec![2, 3, 4], "pass here"),
        (|r| r.chains[1].nodes = vec![2, 1, 2], "twice"),
        (|r| r.ways[0].egress = 1, "nowhere"),
        (|r| r.ways[0].classes.push(0), "other classes"),
        (|r| r.ways[0].choices[0] = vec![0; 4], "too many"),
        (|r| r.ways[0].classes[0] = 1, "no class"),
        (|r| r.ways[0].choices[0] = vec![70_002], "not known"),
        (|r| r.ways[0].choices[0] = vec![70_000], "does not lead"),
        (|r| r.checksum ^= 1, "checksum"),
    ];
    for (number, (spoil, what)) in spoilt.into_iter().enumerate() {
        let mut rows = rows(1);
        spoil(&mut rows);
        if number != 17 {
            seal(&mut rows);
        }
        let why = misfit(&mut Held::new(1), &rows);
        assert!(why.contains(what), "{what}: {why}");
    }
}
