// SPDX-License-Identifier: Apache-2.0
//! Checks of the documents, as tests: promises and the tests that check them, links, words.
//!
//! `cargo test -p posthaste-documents` runs them. With `UPDATE=1` in the environment it writes
//! `docs/promises.md` anew.

mod links;
mod promises;
mod tree;
mod words;
