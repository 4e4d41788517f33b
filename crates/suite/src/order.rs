// SPDX-License-Identifier: Apache-2.0
//! The order of tests: a slow one that begins last would run alone at the end.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::catalogue::Test;
use crate::report::TIMES;

/// Slow tests, for a checkout in which they did not run yet: the beginning of a former [`TIMES`].
const SLOW: &str = include_str!("../slow.tsv");

/// Sorts tests by how long they took last time; what is not known is quick.
pub(crate) fn slowest_first(mut tests: Vec<Test>, directory: &Path) -> Vec<Test> {
    let mut times = times(SLOW);
    let former = fs::read_to_string(directory.join(TIMES)).unwrap_or_default();
    times.extend(self::times(&former));
    tests.sort_by_key(|test| {
        let time = times.get(&test.full_name()).copied().unwrap_or(0);
        std::cmp::Reverse(time)
    });
    tests
}

/// Milliseconds by full name.
fn times(text: &str) -> HashMap<String, u64> {
    let rows = text.lines().filter_map(|line| {
        let mut columns = line.split('\t');
        let milliseconds = columns.next()?.parse().ok()?;
        Some((columns.nth(1)?.to_owned(), milliseconds))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_file() {
        let read = times(
            "ms\tcpu_ms\ttest\n1200\t30\tposthaste-lab/e2e a::b\n7\t7\tposthaste-lab/e2e c\n",
        );
        assert_eq!(read.len(), 2);
        assert_eq!(read["posthaste-lab/e2e a::b"], 1200);
    }
}
