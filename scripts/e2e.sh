#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the end-to-end tests and those of the eBPF programs. They share the processors, with each other
# and with what else the machine does: a node that is not scheduled for seconds is late, and fails
# open. So the few tests that fail run once more, alone. Those that fail again have failed; the others
# are named, since a defect may be behind that too.
#
#   scripts/e2e.sh
set -euo pipefail
readonly SUITES=(--workspace --no-fail-fast --test e2e --test programs)
# A busy machine disturbs a few tests. With more, the product is broken.
readonly AGAIN_MAX=5

main() {
    local log failed=()
    log=$(mktemp)
    # shellcheck disable=SC2064 # the name is known now
    trap "rm -f '$log'" EXIT
    # Most of these tests wait for links and timers.
    if suites $((2 * $(nproc))) 2>&1 | tee "$log"; then
        return
    fi
    mapfile -t failed < <(failures "$log")
    ((${#failed[@]} == $(failure_count "$log"))) || die "a suite did not run to its end"
    ((${#failed[@]} <= AGAIN_MAX)) || die "${#failed[@]} tests failed"
    say "once more, alone: ${failed[*]}"
    suites 1 --exact "${failed[@]}" || die "failed twice, the second time alone (see above)"
    say "passed only alone, see above for their first run: ${failed[*]}"
}

# The names in the lists at the ends of suites.
failures() {
    sed -n 's/^    \([a-z0-9_:]*\)$/\1/p' "$1"
}

# What suites count; no number that names could have if one has no result.
failure_count() {
    awk '/^ +Running / { running++ }
        /^test result: / { running--; for (i = 2; i <= NF; i++) if ($i ~ /^failed/) count += $(i - 1) }
        END { print running || !count ? -1 : count }' "$1"
}

say() { printf 'e2e: %s\n' "$*"; }
die() {
    printf 'e2e: %s\n' "$*" >&2
    exit 1
}

# suites THREADS [ARGUMENT...], the latter for the tests
suites() {
    RUST_TEST_THREADS=$1 cargo --locked test "${SUITES[@]}" -- "${@:2}"
}

main "$@"
