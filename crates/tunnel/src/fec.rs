// SPDX-License-Identifier: Apache-2.0
//! Forward erasure correction of streams (RFC 6363's words): what a stream sends is cut into source
//! blocks, and repair symbols follow each, from which the receiver computes lost bytes a round trip
//! before they are sent again. Pure: bytes and times go in, symbols and bytes come out.
//!
//! The code works on columns. Symbol *i* of a block has byte *j* in column *j*; a repair symbol has in
//! each column a combination of that column's bytes alone. Packets do not start where symbols do, but
//! one that is lost takes at most one byte of most columns, so it costs one repair symbol and not two.
//!
//! docs/protocol.md has the format, docs/design/0027-fec.md the reasons.

mod assembly;
mod backlog;
mod block;
mod field;
#[cfg(feature = "invariants")]
mod fuzzing;
mod loss;
mod source;
mod symbol;

pub(crate) use assembly::Assembly;
pub(crate) use backlog::Backlog;
#[cfg(feature = "invariants")]
pub use fuzzing::drive_assembly;
pub(crate) use loss::Loss;
pub(crate) use source::SourceBlock;
pub(crate) use symbol::Repair;
