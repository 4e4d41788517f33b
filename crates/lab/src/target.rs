// SPDX-License-Identifier: Apache-2.0
//! Bounds on measured figures, and the verdict on them. Pure.

use std::fmt;

/// The bound on a figure, in the figure's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    /// The verdict on a figure; noise may hide it.
    pub(crate) fn verdict(self, figure: Option<f64>) -> &'static str {
        let holds = figure.map(|figure| match self {
            Self::AtMost(bound) => figure <= bound,
            Self::AtLeast(bound) => figure >= bound,
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
        let most = Bound::AtMost(2.0);
        let verdicts = [Some(2.0), Some(2.1), None].map(|figure| most.verdict(figure));
        assert_eq!(verdicts, ["met", "MISSED", "UNCLEAR"]);
        assert_eq!(Bound::AtLeast(2.0).verdict(Some(1.9)), "MISSED");
        assert_eq!(Bound::AtLeast(2.0).verdict(Some(f64::NAN)), "MISSED");
        assert_eq!(most.to_string(), "<= 2");
    }
}
