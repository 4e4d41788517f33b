/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * CUBIC's law (RFC 9438) in integers: cubic.rs of crates/congestion. The window in 1/256 of
 * segments, the time in milliseconds.
 */
#pragma once
#include "control_state.h"

/*
 * The cube root of less than 2^63, rounded down: bit by bit, and without branches, of which the
 * verifier would follow all ways.
 */
static __always_inline __u64 root(__u64 of)
{
	__u64 root = 0;

	for (int bit = 20; bit >= 0; bit--) {
		__u64 next = root | 1ull << bit;
		__u64 is_more = (of - next * next * next) >> 63;

		root = next - (is_more << bit);
	}
	return root;
}

/* The time in which the window grows by `missing` to where it was at the last congestion. */
static __always_inline __u64 time_to_grow(__u64 missing)
{
	__u64 most = ~0ull / C_DENOMINATOR;

	missing = missing > most ? ~0ull : missing * C_DENOMINATOR;
	return min64(root(missing / C_NUMERATOR), TIME_MAX);
}

/* The window at a time since the start of an epoch whose inflection is `largest` at `k`. */
static __always_inline __u64 cubic_window(__u64 largest, __u64 k, __u64 since)
{
	__u64 off = min64(since < k ? k - since : since - k, TIME_MAX);
	__u64 cube = off * off * off;
	__u64 grown = cube / C_DENOMINATOR * C_NUMERATOR +
		      cube % C_DENOMINATOR * C_NUMERATOR / C_DENOMINATOR;

	if (since < k)
		return largest > grown ? largest - grown : 0;
	return largest + grown;
}
