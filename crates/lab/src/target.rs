// SPDX-License-Identifier: Apache-2.0
//! Targets: bounds on measured figures, and the verdict on them. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::stats::Spread;

/// A bound on a measured figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The figure.
    pub what: String,
    /// Its values; `None` when there are none, or when noise hides them. The median counts.
    pub measured: Option<Spread>,
    /// The bound, in the unit of the figure.
    pub bound: Bound,
    /// The unit; empty for a ratio.
    pub unit: String,
}

/// The bound on a figure, in the figure's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The largest value that meets the target.
    AtMost(f64),
    /// The smallest value that meets it.
    AtLeast(f64),
}

impl Target {
    /// A target for a figure that was measured once.
    pub(crate) fn once(
        what: impl Into<String>,
        measured: Option<f64>,
        bound: Bound,
        unit: &str,
    ) -> Self {
        Self {
            what: what.into(),
            measured: measured.and_then(|value| Spread::of(&[value])),
            bound,
            unit: unit.to_owned(),
        }
    }

    /// Whether the median of the figure is within its bound. Unclear figures are not.
    pub(crate) fn is_met(&self) -> bool {
        self.verdict() == "met"
    }

    /// The verdict in tables.
    pub(crate) fn verdict(&self) -> &'static str {
        // The median, so that one disturbed round decides nothing.
        let holds = self.measured.map(|measured| match self.bound {
            Bound::AtMost(bound) => measured.median <= bound,
            Bound::AtLeast(bound) => measured.median >= bound,
        });
        match holds {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "UNCLEAR",
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "<= {bound}"),
            Self::AtLeast(bound) => write!(f, ">= {bound}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_include_themselves() {
        let verdict = |value, bound| Target::once("figure", value, bound, "ms").verdict();
        let most = Bound::AtMost(2.0);
        let verdicts = [Some(2.0), Some(2.1), None].map(|figure| verdict(figure, most));
        assert_eq!(verdicts, ["met", "MISSED", "UNCLEAR"]);
        assert_eq!(verdict(Some(1.9), Bound::AtLeast(2.0)), "MISSED");
        assert_eq!(verdict(Some(f64::NAN), most), "UNCLEAR");
        assert_eq!(most.to_string(), "<= 2");
    }
}
