// SPDX-License-Identifier: Apache-2.0

use super::*;

/// Rows of node 1 among four, whole.
fn update(version: u64) -> RouteUpdate {
    let chain = |number, nodes: &[u64]| NumberedChain {
        number,
        nodes: nodes.to_vec(),
    };
    let mut update = RouteUpdate {
        plan_version: PlanVersion { epoch: 1, version },
        base: None,
        sizes: vec![15_000, 450_000],
        access_us: vec![0, 20_000],
        chains: vec![chain(70_000, &[1, 2, 3]), chain(70_001, &[2, 1, 4])],
        chains_removed: vec![],
        routes: vec![
            Routes {
                egress: 2,
                classes: vec![0; 4],
                choices: vec![vec![DIRECT]],
            },
            Routes {
                egress: 3,
                classes: vec![0, 0, 1, 0],
                choices: vec![vec![DIRECT], vec![70_000, DIRECT]],
            },
        ],
        routes_removed: vec![],
        checksum: 0,
    };
    auth(&mut update);
    update
}

/// Writes the checksum of whole rows.
fn auth(update: &mut RouteUpdate) {
    let chains = update.chains.iter().map(checksum::numbered);
    let parts = chains.chain(update.routes.iter().map(checksum::routes));
    let parts = parts.fold(0, u64::wrapping_add);
    update.checksum = checksum::whole(update.plan_version, &update.sizes, &update.access_us, parts);
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
    assert_eq!(held.size(), (2, 2));
    let routes = |bytes, access_us| held.routes(3, held.class(bytes, access_us).unwrap());
    assert_eq!(routes(15_000, 0), [DIRECT]);
    assert_eq!(routes(15_001, 19_999), [70_000, DIRECT]);
    assert_eq!(routes(u64::MAX, 20_000), [DIRECT]);
    assert_eq!(held.chain(70_000), Some(&[1, 2, 3][..]));
    assert_eq!(held.routes(4, 0), []);
    assert_eq!(held.routes(3, 4), []);
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
    after.chains.remove(1);
    after.routes.remove(0);
    auth(&mut after);
    let changes = RouteUpdate {
        base: Some(update(5).plan_version),
        chains: vec![],
        chains_removed: vec![60_000, 70_001],
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

#[test]
fn number_means_one_chain() {
    let mut held = RouteTable::new(1);
    held.apply(&update(5)).unwrap();
    let mut changes = update(6);
    changes.base = Some(update(5).plan_version);
    held.apply(&changes).unwrap();
    assert_eq!(held.whole().unwrap().chains, update(5).chains);
    let mut other = update(7);
    other.base = Some(update(6).plan_version);
    other.chains[0].nodes = vec![1, 4, 3];
    assert!(nack(&mut held, &other).contains("another one"));
}

/// Spoils rows, and says what is to be complained of.
type Spoil = (fn(&mut RouteUpdate), &'static str);

// promise: V1
#[test]
fn nonsense_update_refused() {
    let spoilt: [Spoil; 18] = [
        (|r| r.sizes.reverse(), "ascend"),
        (|r| r.access_us.clear(), "0 classes"),
        (|r| r.chains.reverse(), "order"),
        (|r| r.routes.reverse(), "order"),
        (|r| r.chains_removed.push(1), "from nothing"),
        (|r| r.chains[0].number = 0, "number"),
        (|r| r.chains[1].number = (1 << 24) - 1, "number"),
        (|r| r.chains[0].nodes = vec![1, 3], "few"),
        (|r| r.chains[0].nodes = (1..=256).collect(), "many"),
        (|r| r.chains[1].nodes = vec![2, 3, 4], "pass here"),
        (|r| r.chains[1].nodes = vec![2, 1, 2], "twice"),
        (|r| r.routes[0].egress = 1, "nowhere"),
        (|r| r.routes[0].classes.push(0), "other classes"),
        (|r| r.routes[0].choices[0] = vec![0; 4], "too many"),
        (|r| r.routes[0].classes[0] = 1, "no class"),
        (|r| r.routes[0].choices[0] = vec![70_002], "not known"),
        (|r| r.routes[0].choices[0] = vec![70_000], "does not lead"),
        (|r| r.checksum ^= 1, "checksum"),
    ];
    for (number, (spoil, what)) in spoilt.into_iter().enumerate() {
        let mut update = update(1);
        spoil(&mut update);
        if number != 17 {
            auth(&mut update);
        }
        let why = nack(&mut RouteTable::new(1), &update);
        assert!(why.contains(what), "{what}: {why}");
    }
}
