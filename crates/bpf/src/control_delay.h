/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What round trips show: an own queue, another sender, a longer path. And the drains that show
 * which. control/delay.rs of crates/congestion.
 */
#pragma once
#include "control_state.h"
#include "control_congestion.h"

static __always_inline bool is_same(__u32 us, __u32 before)
{
	__u32 apart = us > before ? us - before : before - us;

	return apart <= (before >> SAME_SHIFT) + 1000;
}

/* The first round still shows the former window. */
static __always_inline __u32 drain_time(__u32 us)
{
	return us / 1000 * 5 / 2 + DRAIN_MS;
}

/*
 * The same round trip whatever is in flight, at a change of the path or during a drain and
 * afterwards, is that of a longer path.
 */
static __always_inline void consider_trial(struct control *control, __u32 us)
{
	if (!is_same(us, control->last_us)) {
		control->flat = 0;
		if (control->contended > 0)
			control->flags &= ~MAY_TRY;
		return;
	}
	control->flat = one_more(control->flat);
	if (control->flat < FLAT_ROUNDS || !(control->flags & MAY_TRY))
		return;
	control->flags &= ~MAY_TRY;
	control->flat = 0;
	control->former = control->window;
	control->window = bounded(scale(control->window, TRY));
	control->tried = 1;
}

/*
 * The window was raised while the round trip was longer than explained. If that stays the same, the
 * path has become longer, and has room. Else there is a queue, which is another sender's.
 */
static __always_inline void judge_trial(struct control *control, __u32 us)
{
	/* The first round after a change still shows the former window. */
	control->tried++;
	if (control->tried <= TRIED_ROUNDS)
		return;
	control->tried = 0;
	if (is_same(us, control->last_us)) {
		control->least_us = us;
		control->since_us = us;
		control->contended = 0;
		control->window = bounded(max64(held(control), control->window));
	} else {
		control->window = control->former;
		control->contended = max32(control->contended, 1);
	}
}

/* What the round trips of a round show. */
static __always_inline void judge_delay(struct control *control, __u32 now_ms)
{
	__u32 us = control->round_us;
	__u64 rate, explained, longest;

	if (control->tried > 0) {
		judge_trial(control, us);
		return;
	}
	if (!sees_queue(control, us)) {
		control->free = one_more(control->free);
		return;
	}
	if (grows_fast(control, now_ms))
		control->flags |= OVERSHOOT;
	control->free = 0;
	rate = max32(max32(control->rate, control->rate_before), 1);
	explained = (__u64)control->window * 1000 / rate;
	if (us * UNIT > explained * FOREIGN && us * UNIT > control->least_us * FOREIGN) {
		consider_trial(control, us);
		return;
	}
	longest = control->least_us * (UNIT + DELAY) / UNIT + QUEUE_US;
	if (control->contended == 0 && us > longest) {
		control->largest = control->window;
		control->flags &= ~EPOCH;
		settle(control, us);
	}
}

static __always_inline void begin_drain(struct control *control, const struct control_ack *ack)
{
	__u32 us = max32(control->last_us, control->least_us);
	__u64 left;

	count_losses(control);
	control->former = control->window;
	left = min64(without_queue(control, control->window, us), held(control)) * DRAIN / UNIT;
	control->window = bounded(max64(left, LEAST_SEGMENTS * control->mss));
	control->phase = PHASE_DRAIN;
	rival_on_drain(&control->rival);
	control->drain_ms = ack->now_ms + drain_time(us);
	begin_round(control, ack);
	/* What was sent before is found lost in this round. */
	control->flags |= EARLIER;
}

/* Whether another sender's queue is left at the end of a drain. */
static __always_inline void judge_left(struct control *control, __u32 left)
{
	__u32 longest = control->least_us + (control->least_us >> CONTENDED_SHIFT) + QUEUE_US;

	if (left > longest) {
		if (control->contended == 0 && !(control->flags & CONGESTED)) {
			/* What was left to the other sender, for a queue of the own, returns. */
			control->window = max32(control->window, control->largest);
		}
		control->contended = CONTENDED_DRAINS;
		return;
	}
	control->contended = one_less(control->contended);
	/* Else the least may be the other sender's queue. */
	if (control->since_us > 0)
		control->least_us = control->since_us;
}

static __always_inline void end_drain(struct control *control, __u32 now_ms)
{
	__u32 left = control->round_us > 0 ? control->round_us : control->last_us;

	control->phase = PHASE_STEADY;
	control->window = control->former;
	judge_left(control, left);
	control->since_us = 0;
	control->flat = 0;
	control->last_us = left;
	if (!(control->flags & CONGESTED) || now_ms - control->congested_ms >= DRAIN_INTERVAL_MS)
		control->flags |= MAY_TRY;
	control->rate_before = control->rate;
	control->rate = 0;
	control->drain_ms = next_drain(control, now_ms);
	control->free = 0;
	if (control->contended == 0)
		control->phase = PHASE_REFILL;
}

/* Begins a drain that is due, or ends it. */
static __always_inline void turn_drain(struct control *control, const struct control_ack *ack)
{
	if (control->phase == PHASE_DRAIN) {
		if (ack->rtt_us / 2 <= control->last_us) {
			end_drain(control, ack->now_ms);
			if (control->phase == PHASE_REFILL)
				begin_round(control, ack);
			return;
		}
		/* The path has become longer meanwhile. */
		control->last_us = ack->rtt_us;
		control->round_us = ack->rtt_us;
		control->drain_ms = ack->now_ms + drain_time(ack->rtt_us);
		return;
	}
	if (control->tried == 0 && !(control->flags & RECOVERING))
		begin_drain(control, ack);
}
