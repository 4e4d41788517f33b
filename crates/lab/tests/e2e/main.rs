// SPDX-License-Identifier: Apache-2.0
//! The lab itself, without any product: are its networks as described, and do they go away?
//!
//! Needs root.

mod cleanup;
mod compare;
mod flood;
mod network;
mod probe;
