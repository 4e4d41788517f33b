// SPDX-License-Identifier: Apache-2.0
//! Runs the same function many times on several threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, scope};

/// The results of `work` for the numbers below `count`, in order. Uses fewer threads if the system
/// has no more; the result does not depend on their number.
pub(crate) fn map<T: Send>(
    count: usize,
    threads: usize,
    work: impl Fn(usize) -> T + Sync,
) -> Vec<T> {
    if threads.min(count) <= 1 {
        return (0..count).map(work).collect();
    }
    // Taken one by one, since nodes differ much in their number of chains.
    let next = AtomicUsize::new(0);
    let some = || {
        // Relaxed: each number is taken once in any order, and joining the threads publishes the
        // results.
        let place = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|place| *place < count);
        let places = std::iter::from_fn(place);
        places.map(|place| (place, work(place))).collect::<Vec<_>>()
    };
    let mut all = scope(|scope| {
        let others = (1..threads.min(count)).map(|_| Builder::new().spawn_scoped(scope, some));
        let others: Vec<_> = others.filter_map(Result::ok).collect();
        // This thread works as well: without any other it does everything.
        let mut all = some();
        for other in others {
            all.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        all
    });
    // The order in which threads finish must not show in the plan.
    all.sort_unstable_by_key(|(place, _)| *place);
    all.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn each_done_once_in_order() {
        for threads in [0, 1, 2, 7, 200] {
            for count in [0, 1, 2, 100] {
                let squares: Vec<usize> = (0..count).map(|number| number * number).collect();
                assert_eq!(map(count, threads, |number| number * number), squares);
            }
        }
    }

    #[test]
    #[should_panic(expected = "the last is wrong")]
    fn panic_on_thread_propagates() {
        map(100, 4, |number| assert!(number < 99, "the last is wrong"));
    }
}
