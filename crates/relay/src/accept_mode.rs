// SPDX-License-Identifier: Apache-2.0
//! When a node answers a client, relative to the server's answer.
//!
//! A mode is a row of [`MODES`]. No other code matches on modes: it calls the predicates of
//! [`AcceptMode`], so a new mode is a new row.

use std::fmt;

use crate::opening::Handshakes;

/// The properties of a mode.
struct Row {
    name: &'static str,
    connects_at_syn: bool,
    holds_syn: bool,
    becomes_strict: bool,
}

const MODES: &[Row] = &[
    Row {
        name: "early",
        connects_at_syn: true,
        holds_syn: false,
        becomes_strict: true,
    },
    Row {
        name: "strict",
        connects_at_syn: true,
        holds_syn: true,
        becomes_strict: false,
    },
    Row {
        name: "late",
        connects_at_syn: false,
        holds_syn: false,
        becomes_strict: false,
    },
    #[cfg(test)]
    Row {
        name: "stubborn",
        connects_at_syn: true,
        holds_syn: false,
        becomes_strict: false,
    },
];

/// When the node answers a client, relative to the server's answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AcceptMode(u8);

impl AcceptMode {
    /// Answers the client at once, and sends the upstream SYN at the client's SYN (Early SYN
    /// Forwarding).
    pub const EARLY: Self = Self(0);
    /// Answers the client after the server has answered, with the same result.
    pub const STRICT: Self = Self(1);
    /// Sends the upstream SYN after the client's handshake.
    pub const LATE: Self = Self(2);

    /// The names of all modes in a configuration.
    pub const NAMES: [&'static str; MODES.len()] = {
        let mut names = [""; MODES.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = MODES[index].name;
            index += 1;
        }
        names
    };

    /// Every mode.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..).take(MODES.len()).map(Self)
    }

    /// The mode with this name in a configuration.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|mode| mode.name() == name)
    }

    /// Its name in a configuration.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Its place in a table by mode.
    pub(crate) fn index(self) -> usize {
        self.0.into()
    }

    /// Whether the upstream SYN leaves at the client's SYN rather than after the client's
    /// handshake.
    pub fn connects_at_syn(self) -> bool {
        self.row().connects_at_syn
    }

    /// Whether the client's SYN waits until the server has answered.
    pub fn holds_syn(self) -> bool {
        self.row().holds_syn
    }

    /// Whether the node answers the client before the server has answered.
    pub fn answers_before_server(self) -> bool {
        !self.holds_syn()
    }

    /// Whether both handshakes run at the same time.
    pub fn overlaps_handshakes(self) -> bool {
        self.connects_at_syn() && self.answers_before_server()
    }

    /// Whether later flows to a server that did not answer open as in [`Self::STRICT`].
    pub fn becomes_strict(self) -> bool {
        self.row().becomes_strict
    }

    /// The mode of a flow whose SYN the redirect program held or let through. The program decides
    /// that, and may hold a SYN in any mode.
    pub(crate) fn at_syn(self, held: bool) -> Self {
        if held && !self.holds_syn() {
            Self::STRICT
        } else if !held && !self.overlaps_handshakes() {
            // The rules have changed since the program read the SYN.
            Self::EARLY
        } else {
            self
        }
    }

    /// The initial state of the handshakes of a flow of this mode.
    pub(crate) fn open(self) -> Handshakes {
        if self.holds_syn() {
            Handshakes::held()
        } else if self.connects_at_syn() {
            Handshakes::unvalidated()
        } else {
            Handshakes::validated()
        }
    }

    fn row(self) -> &'static Row {
        &MODES[self.index()]
    }
}

impl fmt::Debug for AcceptMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Early mode, regardless of earlier failures.
    fn stubborn() -> AcceptMode {
        AcceptMode::named("stubborn").expect("tests have this mode")
    }

    #[test]
    fn names_and_constants() {
        for (mode, name) in [
            (AcceptMode::EARLY, "early"),
            (AcceptMode::STRICT, "strict"),
            (AcceptMode::LATE, "late"),
        ] {
            assert_eq!(mode.name(), name);
            assert_eq!(AcceptMode::named(name), Some(mode));
        }
        assert_eq!(AcceptMode::named("Early"), None);
    }

    #[test]
    fn each_mode_differs() {
        let does = |mode: AcceptMode| {
            (
                mode.connects_at_syn(),
                mode.holds_syn(),
                mode.becomes_strict(),
            )
        };
        let modes: std::collections::HashSet<_> = AcceptMode::all().map(does).collect();
        assert_eq!(modes.len(), AcceptMode::all().count());
    }

    #[test]
    fn redirect_program_decides() {
        let (early, strict, late) = (AcceptMode::EARLY, AcceptMode::STRICT, AcceptMode::LATE);
        for (mode, held, let_through) in [
            (early, strict, early),
            (strict, strict, early),
            (late, strict, early),
            (stubborn(), strict, stubborn()),
        ] {
            assert_eq!((mode.at_syn(true), mode.at_syn(false)), (held, let_through));
        }
    }

    #[test]
    fn new_mode_is_a_row() {
        let mode = stubborn();
        assert!(mode.overlaps_handshakes() && !mode.becomes_strict());
        assert!(!mode.open().is_validated() && !mode.open().is_held());
    }
}
