/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Whether a sender with BBR fills the queue: rival.rs of crates/congestion. */
#pragma once
#include "control_state.h"

static __always_inline bool rival_is_there(const struct rival *rival)
{
	return rival->dips >= RIVAL_DIPS;
}

/* The queue empties by what the sender itself does. */
static __always_inline void rival_on_drain(struct rival *rival)
{
	rival->rounds = RIVAL_EMPTIES;
	rival->is_empty = false;
}

/* The queue is full again after it was empty, for no longer than BBR lets it. */
static __always_inline void rival_on_dip(struct rival *rival, __u16 now, __u16 passed)
{
	bool is_early = rival->dips > 0 && passed < RIVAL_LEAST_MS;

	rival->dips = is_early ? 0 : min32(RIVAL_DIPS, rival->dips + 1);
	rival->dip_ms = now;
}

/* A round has ended, with its least round trip. */
static __always_inline void rival_on_round(struct rival *rival, __u32 now_ms, __u32 us,
					   __u32 least_us)
{
	__u16 now = now_ms;
	__u16 passed = now - rival->dip_ms;

	if (rival->dips > 0 && passed > RIVAL_GONE_MS)
		rival->dips = 0;
	if (us * UNIT > least_us * RIVAL_FULL) {
		__u32 longest = RIVAL_DIP_MS + RIVAL_DIP_ROUNDS * (least_us / 1000);
		__u16 lasted = now - rival->empty_ms;

		if (rival->is_empty && lasted <= longest)
			rival_on_dip(rival, now, passed);
		rival->is_empty = false;
		rival->rounds = 0;
		return;
	}
	rival->rounds = one_more(rival->rounds);
	if (us <= least_us + (least_us >> NO_QUEUE_SHIFT) + NO_QUEUE_US && !rival->is_empty &&
	    rival->rounds <= RIVAL_EMPTIES) {
		rival->is_empty = true;
		rival->empty_ms = now;
	}
}
