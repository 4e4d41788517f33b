// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Rows of node 1 among four, whole.
fn update(version: u64) -> RouteUpdate {
    let mut update = RouteUpdate {
        plan_version: PlanVersion { epoch: 1, version },
        base: None,
        sizes: vec![15_000, 450_000],
        access_us: vec![0, 20_000],
        routes: vec![
            Routes {
                egress: 2,
                chains: vec![vec![]],
                choices: vec![vec![0]],
                classes: vec![0; 4],
            },
            Routes {
                egress: 3,
                chains: vec![vec![], vec![2, 4]],
                choices: vec![vec![0], vec![1, 0]],
                classes: vec![0, 0, 1, 0],
            },
        ],
        routes_removed: vec![],
        checksum: 0,
    };
    update.checksum = checksum_of(&update);
    update
}

fn nack(held: &mut RouteTable, update: &RouteUpdate) -> String {
    let before = held.whole();
    let refusal = held.apply(update).unwrap_err();
    assert_eq!(held.whole(), before);
    match refusal {
        Refusal::Nack(why) => why,
        Refusal::Older { .. } => panic!("{refusal}"),
    }
}

#[test]
fn full_update_held() {
    let mut held = RouteTable::new(1);
    assert_eq!((held.class(1, 0), held.whole()), (None, None));
    held.apply(&update(5)).unwrap();
    assert_eq!(held.whole(), Some(update(5)));
    assert_eq!(held.len(), 2);
    let routes = |egress, class| held.routes(egress, class).collect::<Vec<_>>();
    let to_three = |bytes, access_us| routes(3, held.class(bytes, access_us).unwrap());
    let (direct, chain): (&[u64], &[u64]) = (&[], &[2, 4]);
    assert_eq!(to_three(15_000, 0), [direct]);
    assert_eq!(to_three(15_001, 19_999), [chain, direct]);
    assert_eq!(to_three(u64::MAX, 20_000), [direct]);
    assert!(routes(4, 0).is_empty() && routes(3, 4).is_empty());
    let mut all: Vec<_> = held.chains().collect();
    all.sort_unstable();
    assert_eq!(all, [(2, direct), (3, direct), (3, chain)]);
}

#[test]
fn classes_counted_alike() {
    let mut held = RouteTable::new(1);
    held.apply(&update(1)).unwrap();
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

// promise: V1
#[test]
fn changes_need_their_base() {
    let mut held = RouteTable::new(1);
    held.apply(&update(5)).unwrap();
    let mut after = update(6);
    after.routes.remove(0);
    after.checksum = checksum_of(&after);
    let changes = RouteUpdate {
        base: Some(update(5).plan_version),
        routes: vec![],
        routes_removed: vec![2, 9],
        ..after.clone()
    };
    assert!(nack(&mut RouteTable::new(1), &changes).contains("not held"));
    held.apply(&changes).unwrap();
    assert_eq!(held.whole(), Some(after));
    let older = held.apply(&update(6)).unwrap_err();
    assert!(matches!(older, Refusal::Older { .. }), "{older}");
    assert!(matches!(held.apply(&changes), Err(Refusal::Older { .. })));
    let other = RouteUpdate {
        base: Some(update(5).plan_version),
        ..update(7)
    };
    assert!(nack(&mut held, &other).contains("not held"));
}

/// Spoils rows; returns the expected complaint.
type Spoil = (fn(&mut RouteUpdate), &'static str);

// promise: V1
#[test]
fn nonsense_update_refused() {
    let spoilt: [Spoil; 19] = [
        (|r| r.sizes.reverse(), "ascend"),
        (|r| r.access_us.clear(), "0 classes"),
        (|r| r.routes.reverse(), "order"),
        (|r| r.routes_removed.push(4), "from nothing"),
        (|r| r.routes[0].egress = 1, "nowhere"),
        (|r| r.routes[1].egress = 65_535, "nowhere"),
        (|r| r.routes[0].classes.push(0), "other classes"),
        (|r| r.routes[1].chains[1] = vec![0], "passes"),
        (|r| r.routes[1].chains[1] = vec![70_000], "passes"),
        (|r| r.routes[1].chains[1] = vec![2, 1], "passes"),
        (|r| r.routes[1].chains[1] = vec![3], "passes"),
        (|r| r.routes[1].chains[1] = vec![4, 2, 4], "twice"),
        (|r| r.routes[1].chains[1] = (4..12).collect(), "too long"),
        (|r| r.routes[0].chains = vec![vec![]; 4], "more chains"),
        (|r| r.routes[0].choices[0] = vec![0; 4], "too many"),
        (|r| r.routes[0].choices[0] = vec![1], "unknown"),
        (|r| r.routes[0].choices = vec![vec![]; 5], "no class"),
        (|r| r.routes[0].classes[0] = 1, "none for one"),
        (|r| r.checksum ^= 1, "checksum"),
    ];
    for (number, (spoil, what)) in spoilt.into_iter().enumerate() {
        let mut update = update(1);
        spoil(&mut update);
        if number != 18 {
            update.checksum = checksum_of(&update);
        }
        let why = nack(&mut RouteTable::new(1), &update);
        assert!(why.contains(what), "{what}: {why}");
    }
    let mut changes = update(1);
    changes.routes_removed = vec![2];
    changes.base = Some(update(0).plan_version);
    assert!(nack(&mut RouteTable::new(1), &changes).contains("changed and removed"));
}
