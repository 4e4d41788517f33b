// SPDX-License-Identifier: Apache-2.0
//! Runs of the program that end by themselves, and their output.

#![allow(clippy::unwrap_used, reason = "a test ends where it finds a failure")]

use std::ffi::OsStr;
use std::process::{Command, Output};

use crate::support::binary;

/// Runs the program to its end.
pub(crate) fn posthaste<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Output {
    Command::new(binary()).args(words).output().unwrap()
}

/// What a run that succeeded printed.
pub(crate) fn printed(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The message of a run that failed with that exit code.
pub(crate) fn failure_text(output: &Output, code: i32) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    stderr
}

/// Asserts that a message has all of `words`.
pub(crate) fn assert_reports(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "no {word:?} in: {message}");
    }
}
