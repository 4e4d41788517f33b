/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the round trips and windows of a path show: whether the queue at the bottleneck is empty,
 * full, or another sender's, and which losses are the path's.
 */
#pragma once
#include "congestion.h"

static __always_inline bool is_queued(struct path *path, __u64 us)
{
	return us > path->rtt_min_us + path->rtt_min_us / 4 + 2000;
}

static __always_inline void on_round_trip(struct path *path, __u64 us, bool is_limited, __u64 now)
{
	if (path->rtt_min_us == 0 || us < path->rtt_min_us)
		path->rtt_min_us = us;
	if (path->rtt_since_us == 0 || us < path->rtt_since_us)
		path->rtt_since_us = us;
	if (path->window_rtt_us == 0 || us < path->window_rtt_us)
		path->window_rtt_us = us;
	if (us > path->window_most_us)
		path->window_most_us = us;
	if (path->phase == DRAIN && now + us * NSEC_PER_USEC > path->drain_ns &&
	    (path->drain_rtt_us == 0 || us < path->drain_rtt_us))
		path->drain_rtt_us = us;
	if (is_queued(path, us))
		path->queued += is_limited;
	else
		path->queued = 0;
	if (path->phase == STARTUP && path->queued >= QUEUED_ACKS)
		path->phase = HOLD;
}

/* What the last interval has shown of the round-trip time is all that counts from now on. */
static __always_inline void end_drain(struct path *path, __u64 now)
{
	__u64 least = path->rtt_min_us;

	path->contended = path->drain_rtt_us > least + least / 8 + 2000;
	if (path->rtt_since_us)
		path->rtt_min_us = path->rtt_since_us;
	path->rtt_since_us = 0;
	if (path->samples >= SAMPLES_LEAST) {
		path->random_loss = path->loss_since;
		path->samples = 0;
		path->loss_since = 0;
	}
	path->settled_ns = now + 2 * window_length(path);
	path->free = 0;
	if (path->contended && path->scale < SCALE_CONTENDED)
		path->scale = SCALE_CONTENDED;
	path->phase = STEADY;
}

/* The path was idle as a drain was due: it has no queue of ours. */
static __always_inline void rest(struct path *path, __u64 now)
{
	path->drain_ns = next_drain(now);
	path->contended = 0;
	if (path->phase == DRAIN)
		path->phase = STEADY;
}

/* Begins a drain that is due, or ends it. */
static __always_inline void turn_drain(struct path *path, __u64 now)
{
	bool begins = path->phase == STEADY;
	__u64 due = path->drain_ns;
	__u64 next = begins ? now + window_length(path) * 3 / 2 + DRAIN_NS : next_drain(now);

	/* Another CPU may do so as well. */
	if (__sync_val_compare_and_swap(&path->drain_ns, due, next) != due)
		return;
	path->drain_rtt_us = begins ? 0 : path->drain_rtt_us;
	if (begins)
		path->phase = DRAIN;
	else
		end_drain(path, now);
}

/* The estimate after a window in which the queue was never empty. */
static __always_inline void on_busy_window(struct path *path, __u64 rate, __u64 now)
{
	__u64 least = path->rate * FALL_MOST / 100;
	__u64 most = rate > path->last ? rate : path->last;
	__u64 scale;

	most = most > path->before ? most : path->before;
	path->before = path->last;
	path->last = rate;
	path->free = 0;
	if (path->phase == STEADY) {
		path->rate = most > least ? most : least;
	} else {
		path->rate = rate;
		path->drain_ns = path->random_loss ? next_drain(now) :
						 now + FIRST_WINDOWS * window_length(path);
		/* Until then the losses of slow start are found. */
		path->settled_ns = now + 2 * window_length(path);
		path->phase = STEADY;
	}
	scale = path->scale * path->rtt_min_us * least_scale(path) / path->window_rtt_us / 100;
	if (scale < path->scale)
		path->scale = scale > least_scale(path) ? scale : least_scale(path);
}

/* And after another one. */
static __always_inline void on_free_window(struct path *path, __u64 rate)
{
	__u64 most = least_scale(path) * sharers(path);
	bool is_short = path->window_ns < path->short_until_ns;

	if (path->phase == HOLD || (!is_short && rate * 100 > path->rate * RISING)) {
		path->phase = STARTUP;
		path->queued = 0;
	}
	if (rate > path->rate)
		path->rate = rate;
	if (is_short)
		return;
	/* Connections that need less than their share leave it to the others. */
	if (path->limited && ++path->free % FREE_WINDOWS == 0)
		path->scale += path->scale / 4;
	if (path->scale > most)
		path->scale = most;
}

/* The share of losses in per mille, and one; 0 if there are too few bytes to show it. */
static __always_inline __u64 sample_loss(struct path *path, __u64 delivered, __u64 lost)
{
	__u64 share;

	delivered += path->sample_delivered;
	lost += path->sample_lost;
	if (delivered + lost < LOSS_BYTES) {
		path->sample_delivered = delivered;
		path->sample_lost = lost;
		return 0;
	}
	path->sample_delivered = 0;
	path->sample_lost = 0;
	share = lost * 1000 / (delivered + lost) + 1;
	path->samples++;
	if (path->loss_since == 0 || share < path->loss_since)
		path->loss_since = share;
	return share;
}

/*
 * A short queue is full: its losses show that, and no delay. If less than the path holds is in
 * flight and as much is lost, they are the path's.
 */
static __always_inline void on_overflow(struct path *path, __u64 loss, __u64 now)
{
	__u64 cut = CUT_SHARED, least = SCALE_SHARED;

	if (path->random_loss < RANDOM_LOSS && path->scale <= SCALE_SHARED)
		path->random_loss = loss;
	if (path->random_loss >= RANDOM_LOSS) {
		cut = CUT_RANDOM;
		least = SCALE_RANDOM;
	}
	cut = path->scale * cut / 100;
	path->scale = cut > least ? cut : least;
	path->settled_ns = now + 2 * window_length(path);
	path->short_until_ns = now + SHORT_NS;
	path->free = 0;
}

/* After a cut, a percent in two windows. */
static __always_inline void recover(struct path *path)
{
	if (path->scale < least_scale(path))
		path->scale += path->recovering++ & 1;
}

/* What a window shows that no drain has made. */
static __always_inline void judge_window(struct path *path, __u64 rate, __u64 loss, __u64 now)
{
	__u64 least = path->rtt_min_us;
	bool is_queued = path->window_rtt_us > least + least / 16 + 1000;
	bool overflows = path->limited && path->window_most_us < least + least / 2 + 2000 &&
			 loss > 2 * path->random_loss + OVERFLOW_LOSS;

	if (path->phase == STARTUP && overflows && rate * 100 < path->rate * 125)
		path->phase = HOLD;
	else if (path->phase != STARTUP && path->limited &&
		 (is_queued || (overflows && path->phase == HOLD)))
		on_busy_window(path, rate, now);
	else if (!overflows)
		on_free_window(path, rate);
	else if (rate > path->rate)
		path->rate = rate;
	if (path->phase == STEADY && overflows && path->random_loss)
		on_overflow(path, loss, now);
	else
		recover(path);
}

static __always_inline void close_window(struct path *path, __u64 now)
{
	__u64 began = path->window_ns, delivered = path->delivered, lost = path->lost;
	__u64 us = (now - began) / NSEC_PER_USEC;
	__u64 loss;

	/* Another CPU may close it as well. */
	if (us == 0 || __sync_val_compare_and_swap(&path->window_ns, began, now) != began)
		return;
	loss = began < path->sampled_ns ? 0 : sample_loss(path, delivered, lost);
	if (path->phase != DRAIN && began >= path->settled_ns)
		judge_window(path, delivered * USEC_PER_SEC / us, loss, now);
	if (loss > LOSS_MOST && path->phase == STEADY && began >= path->settled_ns)
		path->rate = path->rate * LOSS_FACTOR / 100;
	open_window(path, now);
}
