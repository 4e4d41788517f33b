/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The congestion control of a connection: control.rs of crates/congestion. */
#pragma once
#include "control_state.h"
#include "control_delay.h"

/* For segments of `mss` bytes, over a path of which nothing is known if `known` is null. */
static __always_inline void control_begin(struct control *control, __u16 mss,
					  const struct control_known *known)
{
	__u64 first = FIRST_SEGMENTS * mss;

	__builtin_memset(control, 0, sizeof(*control));
	control->mss = mss;
	control->window = bounded(first);
	control->phase = PHASE_STARTUP;
	if (!known)
		return;
	control->least_us = min32(known->rtt_us, RTT_MAX_US);
	control->last_us = control->least_us;
	control->rate = known->rate;
	losses_known(&control->losses, known->loss);
	control->window = bounded(max64(held(control), first));
	control->phase = PHASE_STEADY;
}

/* Bytes per millisecond at which they may leave; 0 until there is a round trip. */
static __always_inline __u32 control_pacing_rate(const struct control *control)
{
	__u64 gain = UNIT, rate;

	if (control->last_us == 0)
		return 0;
	if (control->phase == PHASE_STARTUP)
		gain = PACING_STARTUP;
	else if (control->phase == PHASE_STEADY)
		gain = PACING;
	else if (control->phase == PHASE_REFILL)
		gain = PACING_REFILL;
	rate = scale(control->window, gain) * 1000 / control->last_us;
	return max32(narrow(rate), 1);
}

/* What the connection has learned, for others over the path: nothing before it has filled that. */
static __always_inline bool control_known(const struct control *control,
					  struct control_known *known)
{
	known->rate = max32(control->rate, control->rate_before);
	known->rtt_us = control->least_us;
	known->loss = losses_share(&control->losses);
	return control->phase != PHASE_STARTUP;
}

static __always_inline void on_round_trip(struct control *control, __u32 us)
{
	if (us == 0)
		return;
	control->least_us = least(control->least_us, us);
	control->since_us = least(control->since_us, us);
	control->round_us = least(control->round_us, us);
	if (control->last_us == 0)
		control->last_us = us;
	control->queued = sees_queue(control, us) ? one_more(control->queued) : 0;
}

/* The window counts as full with two segments to go, which bursts leave, and in startup by half. */
static __always_inline void see_limit(struct control *control, __u32 former_in_flight)
{
	__u64 used = former_in_flight;

	used += control->phase == PHASE_STARTUP ? used : 2 * (__u64)control->mss;
	if (used >= control->window)
		control->flags |= LIMITED;
}

static __always_inline void on_round(struct control *control, const struct control_ack *ack)
{
	__u32 rate = rate_of_round(control, ack);

	if (control->phase == PHASE_STARTUP)
		count_startup(control, (__u64)rate * 2 > (__u64)control->rate * 3);
	else if (!(control->flags & OVERSHOOT))
		count_losses(control);
	if (!ack->is_app_limited || rate > control->rate)
		control->rate = max32(control->rate, rate);
	control->flags &= ~(RECOVERING | EARLIER | OVERSHOOT);
	if (control->phase == PHASE_STEADY && control->round_us > 0) {
		rival_on_round(&control->rival, ack->now_ms, control->round_us, control->least_us);
		if (control->flags & LIMITED)
			judge_delay(control, ack->now_ms);
	}
	if (control->phase == PHASE_REFILL)
		control->phase = PHASE_STEADY;
	begin_round(control, ack);
}

/* The window falls, or grows, by what this ACK shows. */
static __always_inline void change_window(struct control *control, const struct control_ack *ack)
{
	bool is_marked = ack->marked > 0;
	__u64 beta = is_marked || !control->losses.are_random ? BETA : BETA_RANDOM;

	if (control->flags & RECOVERING)
		return;
	if (is_marked || (ack->lost > 0 && is_congested(control)))
		on_congestion(control, ack, beta);
	else
		grow(control, ack);
}

/* An acknowledgement came. */
static __always_inline void control_on_ack(struct control *control, struct control_ack *ack)
{
	ack->rtt_us = min32(ack->rtt_us, RTT_MAX_US);
	if (!(control->flags & SCHEDULED)) {
		control->flags |= SCHEDULED;
		control->drain_ms = next_drain(control, ack->now_ms);
		begin_round(control, ack);
	}
	control->acked = narrow((__u64)control->acked + ack->acked);
	control->lost = narrow((__u64)control->lost + ack->lost);
	on_round_trip(control, ack->rtt_us);
	see_limit(control, ack->former_in_flight);
	change_window(control, ack);
	if (!is_before(ack->prior_delivered, control->round_ends))
		on_round(control, ack);
	if (control->phase != PHASE_STARTUP && !is_before(ack->now_ms, control->drain_ms))
		turn_drain(control, ack);
}

/* Nothing was acknowledged for long; all that was in flight is lost. */
static __always_inline void control_on_timeout(struct control *control, __u32 now_ms)
{
	if (control->phase == PHASE_DRAIN) {
		control->phase = PHASE_STEADY;
		control->window = control->former;
	}
	lower(control, now_ms, BETA);
	control->flags &= ~RECOVERING;
}
