#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Fuzzes, one after the other, whatever reads what others wrote: captured
# frames, records of the event ring, messages of nodes, configuration files, files
# of links. The pinned toolchain does it: what cargo-fuzz asks of a nightly one is
# switched on here.
#
#   scripts/fuzz.sh SECONDS [TARGET...]
#
# SECONDS are for each target; without TARGET all of them. An input that fails
# is left in fuzz/artifacts/TARGET; give it to the program that is named then.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"

readonly ARTIFACTS=$PWD/artifacts CORPUS=$PWD/corpus SEEDS=$PWD/seeds
readonly BUILT=${CARGO_TARGET_DIR:-$PWD/../target}/fuzz
# Longer than any real input: a captured frame has 128 bytes, a record 80 more.
readonly INPUT_BYTES_MAX=4096
# An input that takes this long is a finding; a slow machine is given time.
readonly INPUT_SECONDS_MAX=60

main() {
    (($# >= 1)) || die "usage: $0 SECONDS [TARGET...]"
    local seconds=$1 targets=("${@:2}") target
    ((${#targets[@]} > 0)) || mapfile -t targets < <(all_targets)
    build
    for target in "${targets[@]}"; do
        fuzz "$target" "$seconds"
    done
    say "nothing found"
}

say() { printf 'fuzz: %s\n' "$*"; }
die() {
    printf 'fuzz: %s\n' "$*" >&2
    exit 1
}

all_targets() {
    find fuzz_targets -name '*.rs' -printf '%f\n' | sed 's/\.rs$//' | sort
}

# Coverage for libFuzzer, checks of memory and of arithmetic. These flags take
# the place of the main workspace's, which link statically: a sanitizer cannot.
build() {
    local flags=(
        -C codegen-units=1 -C debug-assertions -C overflow-checks
        -C passes=sancov-module
        -C llvm-args=-sanitizer-coverage-level=4
        -C llvm-args=-sanitizer-coverage-inline-8bit-counters
        -C llvm-args=-sanitizer-coverage-pc-table
        -C llvm-args=-sanitizer-coverage-trace-compares
        -Z sanitizer=address
    )
    # The sanitizer is the only thing here that a stable compiler does not offer.
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=${flags[*]} CARGO_TARGET_DIR=$BUILT \
        cargo build --locked --release --bins
}

# fuzz TARGET SECONDS
fuzz() {
    local program
    program=$BUILT/$(rustc --print host-tuple)/release/$1
    [[ -x $program ]] || die "there is no target $1"
    mkdir -p "$CORPUS/$1" "$ARTIFACTS/$1"
    local inputs=("$CORPUS/$1")
    [[ ! -d $SEEDS/$1 ]] || inputs+=("$SEEDS/$1")
    say "$1 for $2 s"
    "$program" -max_total_time="$2" -max_len=$INPUT_BYTES_MAX -timeout=$INPUT_SECONDS_MAX \
        -print_final_stats=1 -verbosity=0 -artifact_prefix="$ARTIFACTS/$1/" \
        "${inputs[@]}" || die "$1 failed: run $program with the input named above"
}

main "$@"
