/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Which losses are congestion, and what it leaves of the window: control/congestion.rs of
 * crates/congestion.
 */
#pragma once
#include "control_state.h"
#include "control_growth.h"
#include "control_losses.h"

/* Packets of this round: sent, and of these lost. */
static __always_inline __u64 packets_lost(const struct control *control)
{
	return packets(control, control->lost);
}

static __always_inline __u64 packets_sent(const struct control *control)
{
	return packets(control, control->acked) + packets_lost(control);
}

/* Whether the losses of this round are the load's. */
static __always_inline bool is_congested(const struct control *control)
{
	__u64 sent = packets_sent(control), lost = packets_lost(control);

	if (control->phase == PHASE_STARTUP && control->queued < QUEUED_ACKS)
		return lost > STARTUP_LOSSES && lost * UNIT > sent * STARTUP_LOSS;
	if (rival_is_there(&control->rival))
		return lost * UNIT > sent * RIVAL_LOSS;
	return show_congestion(&control->losses, sent, lost);
}

/* Whether there was neither a queue nor a window at which there was congestion. */
static __always_inline bool is_load_low(const struct control *control)
{
	__u32 longest = control->least_us + (control->least_us >> NO_QUEUE_SHIFT) + NO_QUEUE_US;

	/* What is found lost in these rounds was sent before the window was lowered. */
	if (control->flags & (RECOVERING | EARLIER))
		return false;
	if (control->phase == PHASE_STARTUP || control->phase == PHASE_REFILL)
		return false;
	if (control->phase == PHASE_STEADY &&
	    control->window > scale(control->carried, LOW_LOAD) &&
	    packets(control, control->window) > TINY_SEGMENTS)
		return false;
	return control->round_us > 0 && control->round_us <= longest;
}

/*
 * Counts the losses of this round. Those of the load itself, in a recovery, show nothing of others.
 */
static __always_inline void count_losses(struct control *control)
{
	bool were_random = control->losses.are_random;

	if (were_random && control->flags & RECOVERING)
		return;
	losses_on_round(&control->losses, packets_sent(control), packets_lost(control),
			is_load_low(control));
	if (control->losses.are_random && !were_random && control->phase == PHASE_STEADY) {
		/* What was lowered for them returns. */
		__u64 former = held(control) * BETA_RANDOM / UNIT;

		control->window = bounded(max64(former, control->window));
	}
}

/* The round before had a low load if this one delivers much faster. */
static __always_inline void count_startup(struct control *control, bool grows)
{
	if (grows) {
		__u64 lost = packets(control, control->carried);
		__u64 sent = packets(control, control->former) + lost;

		losses_on_round(&control->losses, sent, lost, true);
	}
	control->former = control->acked;
	control->carried = control->lost;
}

/* What the path carried at this congestion, or at former ones. */
static __always_inline __u32 carried(const struct control *control)
{
	__u64 bytes = held(control);
	__u32 now = bytes > 0 ? bounded(min64(bytes, control->window)) : control->window;

	if (control->phase == PHASE_STARTUP)
		return now;
	return max32(now, narrow(scale(control->carried, CARRIED)));
}

static __always_inline void lower(struct control *control, __u32 now_ms, __u64 beta)
{
	control->carried = carried(control);
	/* RFC 9438 section 4.7, fast convergence. */
	if (control->window < control->largest)
		control->largest = narrow(scale(control->window, (UNIT + beta) / 2));
	else
		control->largest = control->window;
	control->window =
		bounded(max64(scale(control->window, beta), LEAST_SEGMENTS * control->mss));
	control->phase = PHASE_STEADY;
	control->congested_ms = now_ms;
	control->flags = (control->flags | CONGESTED) & ~(EPOCH | MAY_TRY | EARLIER);
	control->free = 0;
	control->tried = 0;
}

/* The window grew fast into a free path: what that has delivered shows how much was too much. */
static __always_inline void settle_for_held(struct control *control, __u32 former)
{
	__u64 lowest = control->window / 2;
	__u64 left = held(control) * OVERSHOT / UNIT;

	left = min64(max64(left, lowest), scale(former, OVERSHOT));
	control->window = bounded(left);
	control->largest = bounded(left * UNIT / BETA);
	control->carried = bounded(held(control));
}

static __always_inline void on_congestion(struct control *control, const struct control_ack *ack,
					  __u64 beta)
{
	bool grew = control->phase == PHASE_STARTUP || control->flags & OVERSHOOT ||
		    grows_fast(control, ack->now_ms);
	bool were_random = control->losses.are_random;
	__u32 former;

	if (!grew)
		count_losses(control);
	if (ack->marked == 0 && control->losses.are_random && !were_random) {
		begin_round(control, ack);
		return;
	}
	if (control->phase == PHASE_DRAIN) {
		control->window = control->former;
		control->drain_ms = next_drain(control, ack->now_ms);
	}
	former = control->window;
	lower(control, ack->now_ms, beta);
	if (grew && held(control) > 0)
		settle_for_held(control, former);
	/* What was sent before is found lost in this round. */
	begin_round(control, ack);
	control->flags |= grew ? RECOVERING | OVERSHOOT : RECOVERING;
}
