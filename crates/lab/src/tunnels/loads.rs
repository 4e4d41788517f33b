// SPDX-License-Identifier: Apache-2.0
//! The loads, and the least time that a link takes for each. Pure.

use anyhow::Result;

use super::Path;
use super::bed::RTT;
use crate::link::MTU;
use crate::names;
use crate::network::Family;

/// Transfers that begin at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) flows: u32,
    /// Of each.
    pub(super) bytes: u64,
    /// What runs meanwhile and is not timed.
    pub(super) beside: Option<&'static Self>,
}

/// What came of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// The mean of its flows.
    pub(super) seconds: f64,
    /// Bytes that the link was given per byte of content.
    pub(super) wire: f64,
    /// Packets dropped by a full queue.
    pub(super) drops: f64,
    /// CPU seconds of both nodes per gigabyte of content.
    pub(super) cpu: f64,
}

const MB: u64 = 1_000_000;
/// They are ended with what they are beside. 40 MB of each would last that long at 100 Mbit/s only.
const OTHERS: Load = load("8 x 400 MB", 8, 400 * MB);

pub(super) const LOADS: [Load; 8] = [
    load("100 KB", 1, 100_000),
    load("5 MB", 1, 5 * MB),
    load("16 x 5 MB", 16, 5 * MB),
    load("1 MB", 1, MB),
    load("4 x 1 MB", 4, MB),
    load("16 x 1 MB", 16, MB),
    load("64 x 1 MB", 64, MB),
    Load {
        name: "100 KB beside 8 x 40 MB",
        beside: Some(&OTHERS),
        ..load("", 1, 100_000)
    },
];

const fn load(name: &'static str, flows: u32, bytes: u64) -> Load {
    Load {
        name,
        flows,
        bytes,
        beside: None,
    }
}

/// The loads of these names; all if there are none.
pub(super) fn named(names: &[String]) -> Result<Vec<Load>> {
    names::chosen(&LOADS, |load| load.name, names, "load")
}

impl Load {
    /// The least mean time: a round trip, the content with headers over the link, and what is lost
    /// once more. `None` beside others.
    pub(super) fn ideal(self, path: Path) -> Option<f64> {
        if self.beside.is_some() {
            return None;
        }
        let segment = f64::from(MTU) - f64::from(Family::V4.header_bytes());
        let overhead = f64::from(MTU) / segment / (1.0 - path.loss / 100.0);
        let bits = self.bytes as f64 * f64::from(self.flows) * 8.0 * overhead;
        Some(RTT.as_secs_f64() + bits / (f64::from(path.rate) * 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ideal_of_a_load() {
        let path = Path {
            rate: 100,
            loss: 0.0,
        };
        let ideal = named(&["5 MB".to_owned()]).unwrap()[0].ideal(path).unwrap();
        // 0.4 s for the content alone.
        assert!((ideal - 0.514).abs() < 0.002, "{ideal}");
        assert!(named(&["5 GB".to_owned()]).is_err());
    }
}
