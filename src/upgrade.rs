// SPDX-License-Identifier: Apache-2.0
//! One process takes a node's place from another without a pause: the new one starts beside the
//! old one, the old one keeps its relays until they end (docs/design/0019-upgrade.md).
//!
//! [`give`] is the part of the old process, [`take`] that of the new one, [`wire`] what they say
//! to each other, [`verb`] what starts it all. [`predecessors`] are the processes that a node has
//! replaced and that still carry relays.

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

/// How long a new process may take from its first word until it is ready to take over.
const START_TIME_MAX: Duration = Duration::from_secs(120);
/// How long each side waits for the other in the hand-over itself.
const STEP_TIME_MAX: Duration = Duration::from_secs(20);
