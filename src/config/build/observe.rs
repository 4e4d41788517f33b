// SPDX-License-Identifier: Apache-2.0
//! `[observe]`

use std::ops::RangeInclusive;
use std::time::Duration;

use super::super::file;
use super::super::observe::Observe;
use super::super::value;
use super::{MONTH, Reader, SECOND};

/// The kernel keeps about 150 bytes for each, also for those that are not used.
const PROFILES: RangeInclusive<u32> = 64..=1 << 20;

impl Reader {
    pub(super) fn observe(&mut self, section: &file::Observe) -> Observe {
        let default = Observe::default();
        let profiles_max = self.get(
            "observe.profiles_max",
            &section.profiles_max,
            default.profiles_max,
            |v| value::number(v, PROFILES),
        );
        let mut get = |key, field, default, bounds| {
            self.get(key, field, default, |v| value::duration(v, bounds))
        };
        Observe {
            profiles_max,
            ttl: get("observe.ttl", &section.ttl, default.ttl, SECOND..=MONTH),
            bypass_for: get(
                "observe.bypass_for",
                &section.bypass_for,
                default.bypass_for,
                SECOND..=MONTH,
            ),
            gain_min: get(
                "observe.gain_min",
                &section.gain_min,
                default.gain_min,
                Duration::ZERO..=SECOND * 10,
            ),
        }
    }
}
