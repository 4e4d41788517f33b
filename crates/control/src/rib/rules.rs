// SPDX-License-Identifier: Apache-2.0
//! When one chain is worth another's place. Pure.

/// When chains give way, in parts of a hundred and in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A chain must be so much faster than the hop without nodes between.
    pub margin_percent: u32,
    /// What is in use gives way to what is so much faster,
    pub switch_gain_percent: u32,
    /// and by so much,
    pub better_us: u32,
    /// or when it has become slower than it promised by more than that.
    pub switch_loss_percent: u32,
    /// What one class uses another uses as well, unless its best is so much faster,
    pub apart_percent: u32,
    /// and by so much.
    pub apart_us: u32,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            margin_percent: 10,
            switch_gain_percent: 5,
            better_us: 2000,
            switch_loss_percent: 10,
            apart_percent: 2,
            apart_us: 1000,
        }
    }
}

impl Rules {
    /// Whether a chain is worth its nodes.
    pub(super) fn beats_direct(&self, time_us: u64, direct_us: u64) -> bool {
        is_faster((time_us, direct_us), self.margin_percent, 0)
    }

    /// Whether what is in use is to give way.
    pub(super) fn gives_way(&self, in_use_us: u64, other_us: u64) -> bool {
        is_faster(
            (other_us, in_use_us),
            self.switch_gain_percent,
            self.better_us,
        )
    }

    /// Whether a class is worth a chain of its own, rather than that of another.
    pub(super) fn is_apart(&self, shared_us: u64, own_us: u64) -> bool {
        is_faster((own_us, shared_us), self.apart_percent, self.apart_us)
    }

    /// Whether a promise is broken.
    pub(super) fn is_broken(&self, promise_us: u64, time_us: u64) -> bool {
        time_us * 100 > promise_us * (100 + u64::from(self.switch_loss_percent))
    }
}

/// Whether the first of two times is shorter by a share, in per cent, and by microseconds.
fn is_faster((time_us, than_us): (u64, u64), percent: u32, least_us: u32) -> bool {
    let keep = 100 - u64::from(percent.min(100));
    time_us * 100 <= than_us * keep && time_us + u64::from(least_us) <= than_us
}

/// What a chain was chosen for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) class: u8,
    pub(crate) time_us: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_gain_no_change() {
        let rules = Rules::default();
        assert!(rules.gives_way(100_000, 95_000));
        assert!(!rules.gives_way(100_000, 95_001));
        assert!(!rules.gives_way(10_000, 8_001) && rules.gives_way(10_000, 8_000));
        assert!(rules.is_broken(100, 111) && !rules.is_broken(100, 110));
    }

    // promise: V13
    #[test]
    fn class_with_own_chain() {
        let rules = Rules::default();
        assert!(rules.is_apart(100_000, 98_000) && !rules.is_apart(100_000, 98_001));
        assert!(rules.is_apart(10_000, 9000) && !rules.is_apart(10_000, 9001));
    }
}
