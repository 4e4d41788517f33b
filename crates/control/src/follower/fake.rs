// SPDX-License-Identifier: Apache-2.0
//! Plans to try followers with.

use crate::message::{Hello, Member, PlanVersion, RouteUpdate, Routes};
use crate::route_table::checksum_of;

/// The node that follows.
pub(super) const ME: u64 = 1;

pub(super) fn hello() -> Hello {
    Hello {
        version: crate::message::VERSION,
        number: ME,
        software: "posthaste test".into(),
        exchange: [1; 32],
        listeners: vec!["192.0.2.1:4480".parse().unwrap()],
        reflectors: Vec::new(),
        holds: None,
    }
}

pub(super) fn member(number: u64, key: u8) -> Member {
    Member {
        number,
        name: format!("node-{number}"),
        exchange: [key; 32],
        listeners: vec!["192.0.2.2:4480".parse().unwrap()],
        reflectors: Vec::new(),
    }
}

/// All rows of a plan; what is in them depends on its version.
pub(super) fn whole(plan_version: PlanVersion) -> RouteUpdate {
    let v = plan_version.version;
    let egresses = (2..3 + v % 4).filter(|egress| *egress != 2 + v % 3);
    let routes = egresses.map(|egress| Routes {
        egress,
        chains: vec![vec![], vec![6 + v % 4]],
        choices: vec![vec![0], vec![1, 0]],
        classes: vec![0, 1],
    });
    let mut update = RouteUpdate {
        plan_version,
        base: None,
        sizes: vec![15_000, 45_000],
        access_us: vec![0],
        routes: routes.collect(),
        routes_removed: Vec::new(),
        checksum: 0,
    };
    update.checksum = checksum_of(&update);
    update
}

/// What makes `to` of `from`.
pub(super) fn difference(from: &RouteUpdate, to: &RouteUpdate) -> RouteUpdate {
    let mut update = to.clone();
    update.base = Some(from.plan_version);
    update.routes.retain(|routes| !from.routes.contains(routes));
    let egresses: Vec<u64> = to.routes.iter().map(|routes| routes.egress).collect();
    let removed = from.routes.iter().map(|routes| routes.egress);
    update.routes_removed = removed
        .filter(|egress| !egresses.contains(egress))
        .collect();
    update
}
