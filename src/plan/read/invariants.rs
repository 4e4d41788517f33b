// SPDX-License-Identifier: Apache-2.0
//! Invariants of every text: for tests and for fuzzing.

use super::{Format, read};

/// Reads the text in every format. Must not panic, and a parsed network must be consistent.
pub(crate) fn check(text: &str) {
    for (_, format) in Format::ALL {
        match read(text, format) {
            Ok(network) => {
                assert_eq!(network.names.len(), network.matrix.nodes());
                for (number, name) in network.names.iter().enumerate() {
                    assert_eq!(network.node(name), Some(number));
                }
            }
            Err(problem) => {
                let lines = text.lines().count();
                assert!(problem.line.is_none_or(|line| line <= lines.max(1) + 1));
                assert!(!problem.what.is_empty());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: G7
    #[test]
    fn they_hold_for_odd_texts() {
        let texts = [
            "",
            "\n",
            "1",
            "2\n0 1\n",
            "{}",
            "from,to,rtt_ms\n,,\n",
            "from,to,rtt_ms\na,b,1e300\n",
            "from,to,rtt_ms\na,a,1\n",
            "from,to,rtt_ms\na,b,nan\n",
            "from,to,rtt_ms\na,b,1e9\n",
            "{\"links\": [{\"from\": \"a\", \"to\": \"a\", \"rtt_ms\": 1}]}",
        ];
        texts.iter().for_each(|text| check(text));
    }
}
