// SPDX-License-Identifier: Apache-2.0
//! One process takes over a node's place from another without a pause: the new one starts beside
//! the old one, which keeps its relays until they end (docs/design/0019-upgrade.md).
//!
//! [`give`] is the old process's part, [`take`] the new one's, [`wire`] their messages, [`verb`]
//! the command that starts it. [`predecessors`] are the processes that a node has replaced and that
//! still carry relays.

pub(crate) mod give;
pub(crate) mod predecessors;
pub(crate) mod take;
mod verb;
mod wire;

pub(crate) use give::Offered;
pub(crate) use predecessors::Predecessors;
pub(crate) use take::Succession;
pub(crate) use verb::{UpgradeArgs, Word, binary_identity, run};
pub(crate) use wire::{Descriptor, Kind};

use std::time::Duration;

/// How long a new process may take from its first message until it is ready to take over.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// How long each side waits for the other during the hand-over itself.
const STEP_TIME_MAX: Duration = Duration::from_secs(20);
