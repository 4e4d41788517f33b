/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * How the window grows: twofold in startup, by the law of CUBIC beside others, and fast into a path
 * that is free. control/growth.rs of crates/congestion.
 */
#pragma once
#include "control_state.h"
#include "control_cubic.h"
#include "control_rival.h"

/* Begins with what the path holds. ACKs come at its rate: the round trip lags behind the queue. */
static __always_inline void end_startup(struct control *control, const struct control_ack *ack)
{
	__u64 bytes;

	control->largest = control->window;
	control->carried = 0;
	control->rate = max32(control->rate, rate_of_round(control, ack));
	bytes = max64(held(control), FIRST_SEGMENTS * control->mss);
	settle(control, ack->rtt_us);
	control->window = min32(control->window, bounded(bytes));
	control->drain_ms = next_drain(control, ack->now_ms);
	control->flags &= ~EPOCH;
	begin_round(control, ack);
	control->flags |= RECOVERING | OVERSHOOT;
}

static __always_inline void start_up(struct control *control, const struct control_ack *ack)
{
	if (control->queued < QUEUED_ACKS)
		control->window = bounded((__u64)control->window + ack->acked);
	else
		end_startup(control, ack);
}

/* Another sender takes losses or a full queue for congestion, as CUBIC does. */
static __always_inline bool follows_cubic(const struct control *control, __u32 now_ms)
{
	__u32 longer = max32(CUBIC_MS, narrow((__u64)control->k_ms * CUBIC_KS));
	bool is_recent = control->flags & CONGESTED && now_ms - control->congested_ms < longer;

	return control->contended > 0 || (is_recent && !control->losses.are_random);
}

/* Whether the window grows fast, into a path that seems free. */
static __always_inline bool grows_fast(const struct control *control, __u32 now_ms)
{
	return control->free > FREE_ROUNDS && !follows_cubic(control, now_ms);
}

static __always_inline void begin_epoch(struct control *control, __u32 now_ms)
{
	__u64 missing;

	control->flags |= EPOCH;
	control->epoch_ms = now_ms;
	control->largest = max32(control->largest, control->window);
	missing = (control->largest - control->window) * UNIT / control->mss;
	control->k_ms = time_to_grow(missing);
	control->reno = control->window;
}

static __always_inline void grow_as_cubic(struct control *control, const struct control_ack *ack)
{
	__u64 mss = control->mss, window = control->window;
	__u64 since, largest, target, alpha, reno, grown;

	if (!(control->flags & EPOCH))
		begin_epoch(control, ack->now_ms);
	since = (__u64)(__u32)(ack->now_ms - control->epoch_ms) + control->last_us / 1000;
	largest = control->largest * UNIT / mss;
	target = cubic_window(largest, control->k_ms, since) * mss / UNIT;
	target = min64(max64(target, window), window * 3 / 2);
	alpha = control->reno < control->largest ? ALPHA : UNIT;
	reno = control->reno + alpha * mss * ack->acked / window / UNIT;
	control->reno = bounded(reno);
	grown = window + (target - window) * ack->acked / window;
	grown = max64(grown, reno);
	if (control->losses.are_random)
		grown = min64(grown, max64(most(control), window));
	control->window = bounded(grown);
}

/*
 * By as many bytes in a round for all senders with this round trip, so that their windows become
 * equal, and twice as many in each round without a queue.
 */
static __always_inline void grow_freely(struct control *control, const struct control_ack *ack)
{
	__u64 window = control->window;
	__u64 step = (__u64)control->mss * max32(control->least_us, STEP_LEAST_US) / STEP_US;
	__u32 doubled = control->free > FREE_ROUNDS ? control->free - FREE_ROUNDS : 0;
	__u64 grown;

	if (control->queued >= QUEUED_ACKS)
		doubled = 0;
	step = min64(step << min32(doubled, 20), window / 4);
	grown = window + max64(step * ack->acked / window, 1);
	control->window = bounded(min64(grown, max64(most(control), window)));
}

static __always_inline void grow(struct control *control, const struct control_ack *ack)
{
	if (ack->acked == 0 || !(control->flags & LIMITED))
		return;
	if (control->phase == PHASE_STARTUP) {
		start_up(control, ack);
		return;
	}
	if (control->phase != PHASE_STEADY || control->tried > 0)
		return;
	if (follows_cubic(control, ack->now_ms) && !rival_is_there(&control->rival))
		grow_as_cubic(control, ack);
	else
		grow_freely(control, ack);
}
