// SPDX-License-Identifier: Apache-2.0
//! Plans to try followers with.

use crate::checksum;
use crate::message::{Hello, Member, NumberedChain, Rows, Stamp, Ways};

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
pub(super) fn whole(stamp: Stamp) -> Rows {
    let v = stamp.version;
    let chain = |egress: u64| NumberedChain {
        number: u32::try_from(v % 5 * 10 + egress).unwrap(),
        nodes: vec![ME, 9, egress],
    };
    let egresses = (2..3 + v % 4).filter(|egress| *egress != 2 + v % 3);
    let chains: Vec<NumberedChain> = egresses.map(chain).collect();
    let ways = chains.iter().map(|chain| Ways {
        egress: chain.nodes[2],
        classes: vec![0, 1],
        choices: vec![vec![0], vec![chain.number, 0]],
    });
    sealed(Rows {
        stamp,
        base: None,
        sizes: vec![15_000, 45_000],
        access_us: vec![0],
        ways: ways.collect(),
        chains,
        chains_gone: Vec::new(),
        ways_gone: Vec::new(),
        checksum: 0,
    })
}

/// What makes `to` of `from`.
pub(super) fn difference(from: &Rows, to: &Rows) -> Rows {
    let mut rows = to.clone();
    rows.base = Some(from.stamp);
    rows.chains.retain(|chain| !from.chains.contains(chain));
    let gone = from
        .chains
        .iter()
        .filter(|chain| !to.chains.contains(chain));
    rows.chains_gone = gone.map(|chain| chain.number).collect();
    rows.ways.retain(|ways| !from.ways.contains(ways));
    let egresses: Vec<u64> = to.ways.iter().map(|ways| ways.egress).collect();
    let gone = from.ways.iter().map(|ways| ways.egress);
    rows.ways_gone = gone.filter(|egress| !egresses.contains(egress)).collect();
    rows
}

fn sealed(mut rows: Rows) -> Rows {
    let chains = rows.chains.iter().map(checksum::numbered);
    let parts = chains.chain(rows.ways.iter().map(checksum::ways));
    let parts = parts.fold(0, u64::wrapping_add);
    rows.checksum = checksum::whole(rows.stamp, &rows.sizes, &rows.access_us, parts);
    rows
}
