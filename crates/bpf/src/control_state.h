/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The state of a connection's congestion control, and what is computed from it. With the other
 * control*.h this is crates/congestion in C: the same names in the same order, and the same bits.
 * What the numbers mean is explained there. It runs in the kernel and, for a test, on a host.
 *
 * Units: bytes, microseconds of round trips, milliseconds of the clock (both clocks may wrap),
 * rates in bytes per millisecond, gains in 1/256.
 */
#pragma once
#include <stdbool.h>
#include <linux/types.h>
#include <linux/stddef.h>
#include "control_constants.h"

#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

/* What an acknowledgement shows. */
struct control_ack {
	__u32 now_ms, now_us;
	__u32 acked, lost, marked;
	__u32 former_in_flight;
	/* 0 if unknown. */
	__u32 rtt_us;
	__u32 delivered, prior_delivered;
	__u32 is_app_limited;
};

/* What is known of a path before a connection begins. */
struct control_known {
	__u32 rate;
	__u32 rtt_us;
	__u32 loss;
};

enum control_phase {
	PHASE_STARTUP,
	PHASE_STEADY,
	PHASE_DRAIN,
	PHASE_REFILL,
};

struct count {
	__u16 sent, lost;
};

struct losses {
	struct count low, high;
	bool are_random;
};

struct rival {
	__u16 empty_ms, dip_ms;
	__u8 dips, rounds;
	bool is_empty;
};

/* As Linux gives a control. */
#define CONTROL_BYTES 104

struct control {
	__u32 window, former;
	__u32 largest, carried, k_ms, epoch_ms, reno;
	__u32 congested_ms;
	__u32 least_us, since_us, round_us, last_us;
	__u32 round_ends, round_at_us;
	__u32 acked, lost;
	__u32 rate_before, rate;
	__u32 drain_ms;
	struct losses losses;
	struct rival rival;
	__u16 mss;
	__u8 phase, contended, free, queued, tried, flat, flags;
	/* The program's that keeps the state: no part of it. */
	__u8 beside;
};

_Static_assert(sizeof(struct control) == CONTROL_BYTES, "Linux gives no more");

#define LIMITED 1
#define RECOVERING 2
#define EPOCH 4
#define CONGESTED 8
#define SCHEDULED 16
#define MAY_TRY 32
#define EARLIER 64
#define OVERSHOOT 128

static __always_inline __u32 narrow(__u64 number)
{
	return number > 0xffffffff ? 0xffffffff : number;
}

static __always_inline __u64 min64(__u64 one, __u64 other)
{
	return one < other ? one : other;
}

static __always_inline __u64 max64(__u64 one, __u64 other)
{
	return one > other ? one : other;
}

static __always_inline __u32 min32(__u32 one, __u32 other)
{
	return one < other ? one : other;
}

static __always_inline __u32 max32(__u32 one, __u32 other)
{
	return one > other ? one : other;
}

/* One more, or one less, of a small number. */
static __always_inline __u8 one_more(__u8 number)
{
	return number == 0xff ? number : number + 1;
}

static __always_inline __u8 one_less(__u8 number)
{
	return number == 0 ? number : number - 1;
}

/* The lesser, of which 0 is unknown. */
static __always_inline __u32 least(__u32 known, __u32 us)
{
	return known == 0 ? us : min32(known, us);
}

/* Of numbers that wrap. */
static __always_inline bool is_before(__u32 one, __u32 other)
{
	return other - one - 1 < 0xffffffff / 2;
}

static __always_inline __u64 scale(__u32 bytes, __u64 gain)
{
	return bytes * gain / UNIT;
}

static __always_inline __u32 bounded(__u64 bytes)
{
	return min64(bytes, WINDOW_MAX);
}

static __always_inline bool sees_queue(const struct control *control, __u32 us)
{
	return us > control->least_us + (control->least_us >> QUEUE_SHIFT) + QUEUE_US;
}

/* Bytes per millisecond acknowledged in this round. */
static __always_inline __u32 rate_of_round(const struct control *control,
					   const struct control_ack *ack)
{
	__u32 us = max32(ack->now_us - control->round_at_us, 1);

	return narrow((__u64)control->acked * 1000 / us);
}

/* Bytes that the path holds at the rate at which it delivered. */
static __always_inline __u64 held(const struct control *control)
{
	return (__u64)max32(control->rate, control->rate_before) * control->least_us / 1000;
}

/* The most in flight where losses are no bound. */
static __always_inline __u64 most(const struct control *control)
{
	return held(control) * HELD_MOST / UNIT + 4 * (__u64)control->mss;
}

/* The part of bytes in flight that is not in a queue, if a round trip takes so long. */
static __always_inline __u64 without_queue(const struct control *control, __u32 bytes, __u32 us)
{
	return (__u64)bytes * control->least_us / max32(max32(us, control->least_us), 1);
}

/* A segment has bytes: the programs' divisions by zero yield zero, a host's do not. */
static __always_inline __u64 packets(const struct control *control, __u32 bytes)
{
	return bytes / (control->mss ? control->mss : 1);
}

static __always_inline void begin_round(struct control *control, const struct control_ack *ack)
{
	if (control->round_us > 0)
		control->last_us = control->round_us;
	control->round_us = 0;
	control->round_ends = ack->delivered;
	control->round_at_us = ack->now_us;
	control->acked = 0;
	control->lost = 0;
	control->flags &= ~LIMITED;
}

/*
 * The next multiple of the interval, for all hosts with this clock. Beside another sender's queue
 * the window falls far, so drains are fewer.
 */
static __always_inline __u32 next_drain(const struct control *control, __u32 now_ms)
{
	__u32 interval = control->contended > 0 ? CONTENDED_INTERVAL_MS : DRAIN_INTERVAL_MS;

	return now_ms + (interval - now_ms % interval);
}

/* Leaves what the path holds without the queue. */
static __always_inline void settle(struct control *control, __u32 us)
{
	__u64 bytes = without_queue(control, control->window, us);

	control->window = bounded(max64(bytes, FIRST_SEGMENTS / 2 * control->mss));
	control->phase = PHASE_STEADY;
	control->free = 0;
}
