// SPDX-License-Identifier: Apache-2.0
//! Where a line through points crosses a level. Pure.

use std::fmt;

/// Where a line through points crosses a level from below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Crossing {
    /// It is above from the first point on, which is this one.
    Before(f64),
    At(f64),
    /// It has not come there at the last point, which is this one.
    Beyond(f64),
}

/// Finds the crossing, linearly interpolated; points ascend in the first number.
pub(super) fn crossing(points: &[(f64, f64)], level: f64) -> Crossing {
    // Of two equal times neither is the longer one, whatever the last digit says.
    let above = |value: f64| value > level + 1e-6;
    let Some(index) = points.iter().position(|&(_, value)| above(value)) else {
        return Crossing::Beyond(points.last().map_or(0.0, |point| point.0));
    };
    let (x, value) = points[index];
    let Some((x_before, before)) = index.checked_sub(1).map(|last| points[last]) else {
        return Crossing::Before(x);
    };
    Crossing::At(x_before + (x - x_before) * (level - before) / (value - before))
}

impl fmt::Display for Crossing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Before(x) => write!(f, "less than {x:.1}"),
            Self::At(x) => write!(f, "{x:.1}"),
            Self::Beyond(x) => write!(f, "{x:.1} and more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crossings_are_between_points() {
        let points = [(25.0, 75.0), (30.0, 95.0), (35.0, 115.0)];
        assert_eq!(crossing(&points, 100.0), Crossing::At(31.25));
        assert_eq!(crossing(&points, 120.0), Crossing::Beyond(35.0));
        assert_eq!(crossing(&points, 60.0), Crossing::Before(25.0));
        assert_eq!(crossing(&points, 115.0), Crossing::Beyond(35.0));
    }
}
