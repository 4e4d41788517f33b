// SPDX-License-Identifier: Apache-2.0
//! A node as its operator sees it: how it starts, reloads, drains, dies and is monitored.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use posthaste_lab::scratch::Scratch;

use crate::support::binary;

mod admin;
pub(crate) mod affinity;
mod death;
mod drain;
mod footprint;
mod group;
pub(crate) mod interfaces;
mod limits;
mod observation;
mod reload;
mod service;
mod storm;
mod teardown;
mod tuning;

/// Where nodes serve their metrics; each has a loopback address of its own.
const METRICS: u16 = 9464;

/// A program `posthaste` that runs the real one by way of `words`.
pub(crate) fn wrapper(words: &str) -> Scratch {
    let directory = Scratch::new().unwrap();
    let file = directory.path().join("posthaste");
    let text = format!("#!/bin/sh\nexec {words} {} \"$@\"\n", binary().display());
    fs::write(&file, text).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    directory
}
