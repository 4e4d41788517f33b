// SPDX-License-Identifier: Apache-2.0
//! Work on several threads at once.

use std::panic::resume_unwind;
use std::thread::{self, ScopedJoinHandle};

/// Waits for a thread and returns its result. A panic there is one here.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    // A panic of a test thread must fail the test, not hang its other threads.
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Runs `work` for the numbers below `count`, all at the same time.
pub(crate) fn at_once<T: Send>(count: u32, work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let start = |number| scope.spawn(move || work(number));
        let threads: Vec<_> = (0..count).map(start).collect();
        threads.into_iter().map(join).collect()
    })
}
