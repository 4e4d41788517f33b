// SPDX-License-Identifier: Apache-2.0
//! `[observe]`

use std::time::Duration;

use super::super::file;
use super::super::observe::Observe;
use super::super::value;
use super::{MONTH, Reader, SECOND};

impl Reader {
    pub(super) fn observe(&mut self, section: &file::Observe) -> Observe {
        let default = Observe::default();
        let mut get = |key, field, default, bounds| {
            self.get(key, field, default, |v| value::duration(v, bounds))
        };
        Observe {
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
