// SPDX-License-Identifier: Apache-2.0
//! Plans to try followers with.

use crate::checksum;
use crate::message::{Hello, Member, NumberedChain, PlanVersion, RouteUpdate, Routes};

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
    let chain = |egress: u64| NumberedChain {
        number: u32::try_from(v % 5 * 10 + egress).unwrap(),
        nodes: vec![ME, 9, egress],
    };
    let egresses = (2..3 + v % 4).filter(|egress| *egress != 2 + v % 3);
    let chains: Vec<NumberedChain> = egresses.map(chain).collect();
    let routes = chains.iter().map(|chain| Routes {
        egress: chain.nodes[2],
        classes: vec![0, 1],
        choices: vec![vec![0], vec![chain.number, 0]],
    });
    authenticated(RouteUpdate {
        plan_version,
        base: None,
        sizes: vec![15_000, 45_000],
        access_us: vec![0],
        routes: routes.collect(),
        chains,
        chains_removed: Vec::new(),
        routes_removed: Vec::new(),
        checksum: 0,
    })
}

/// What makes `to` of `from`.
pub(super) fn difference(from: &RouteUpdate, to: &RouteUpdate) -> RouteUpdate {
    let mut update = to.clone();
    update.base = Some(from.plan_version);
    update.chains.retain(|chain| !from.chains.contains(chain));
    let removed = from
        .chains
        .iter()
        .filter(|chain| !to.chains.contains(chain));
    update.chains_removed = removed.map(|chain| chain.number).collect();
    update.routes.retain(|routes| !from.routes.contains(routes));
    let egresses: Vec<u64> = to.routes.iter().map(|routes| routes.egress).collect();
    let removed = from.routes.iter().map(|routes| routes.egress);
    update.routes_removed = removed
        .filter(|egress| !egresses.contains(egress))
        .collect();
    update
}

fn authenticated(mut update: RouteUpdate) -> RouteUpdate {
    let chains = update.chains.iter().map(checksum::numbered);
    let parts = chains.chain(update.routes.iter().map(checksum::routes));
    let parts = parts.fold(0, u64::wrapping_add);
    update.checksum = checksum::whole(update.plan_version, &update.sizes, &update.access_us, parts);
    update
}
