/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which losses the load causes: losses.rs of crates/congestion. */
#pragma once
#include "control_state.h"

static __always_inline void count_add(struct count *count, __u64 sent, __u64 lost)
{
	/* Halved first, so that the newest counts most. Of 16 bits, few halvings are too many. */
	for (int i = 0; i < 6 && count->sent > LOSS_PACKETS; i++) {
		count->sent /= 2;
		count->lost /= 2;
	}
	if (sent > LOSS_PACKETS) {
		lost = (lost * LOSS_PACKETS + sent - 1) / sent;
		sent = LOSS_PACKETS;
	}
	count->sent += sent;
	count->lost += lost;
}

/* Packets of a round, sent and lost. */
static __always_inline void losses_on_round(struct losses *losses, __u64 sent, __u64 lost,
					    bool is_low)
{
	__u64 least = losses->are_random ? RANDOM_STILL : RANDOM;
	__u64 low_sent, low_lost, high_sent, high_lost;

	if (is_low)
		count_add(&losses->low, sent, lost);
	else
		count_add(&losses->high, sent, lost);
	low_sent = losses->low.sent;
	low_lost = losses->low.lost;
	high_sent = losses->high.sent;
	high_lost = losses->high.lost;
	losses->are_random = low_lost >= LOSSES_LEAST &&
			     low_lost * UNIT <= low_sent * RANDOM_MOST &&
			     low_lost * high_sent * UNIT >= high_lost * low_sent * least;
}

/* What a path is known to lose, of 65,536 packets. */
static __always_inline void losses_known(struct losses *losses, __u32 share)
{
	__u64 sent = LOSS_PACKETS / 2;

	losses_on_round(losses, sent, share * sent >> 16, true);
}

/* The random share of 65,536 packets; 0 if losses are not random. */
static __always_inline __u32 losses_share(const struct losses *losses)
{
	__u32 share;

	if (!losses->are_random)
		return 0;
	share = ((__u32)losses->low.lost << 16) / max32(losses->low.sent, 1);
	return min32(share, 0xffff);
}

/* Whether so many lost packets in a round show congestion. */
static __always_inline bool show_congestion(const struct losses *losses, __u64 sent, __u64 lost)
{
	__u64 random;

	if (lost == 0 || !losses->are_random)
		return lost > 0;
	random = losses->low.lost * sent / max32(losses->low.sent, 1);
	return lost > random * 3 / 2 + EXCESS_PACKETS + sent * EXCESS / UNIT;
}
