// SPDX-License-Identifier: Apache-2.0
//! Checks of the documents, as tests: promises and the tests that check them, links, words; and
//! of the order of the modules.
//!
//! `cargo test -p posthaste-documents` runs them. With `UPDATE=1` in the environment it writes
//! `docs/promises.md` anew.

mod layers;
mod links;
mod maps;
mod promises;
mod tree;
mod words;
