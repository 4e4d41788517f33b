/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the connections with one address know of their path together, and how it is measured.
 *
 * A window lasts a round trip. If the queue at the bottleneck was never empty in it, the bytes
 * delivered in it are what the path delivers; else they are a lower bound.
 */
#pragma once
#include <stdbool.h>
#include <linux/types.h>
#include "helpers.h"

#define USEC_PER_SEC 1000000
#define NSEC_PER_USEC 1000

/* Segments of a share beyond the share itself, so that a small one has acknowledgements to clock it. */
#define WINDOW_SLACK 4
/* Segments of a first flight that nothing is known about (RFC 6928). */
#define WINDOW_FIRST 10
/* Segments: more than any path takes. */
#define WINDOW_MAX 200000
/*
 * Windows without a queue before more is in flight: it takes one until the first bytes of a flight
 * are acknowledged, and another until a larger one has filled the queue.
 */
#define FREE_WINDOWS 3
/*
 * A window without a queue that delivers so many percent of the estimate shows that the path has
 * become faster: slow start finds the new rate.
 */
#define RISING 115
/*
 * The window in percent of what the path holds: a quarter of it waits in the queue; three while
 * another sender keeps the queue filled; and so that the queue empties.
 */
#define SCALE 125
#define SCALE_CONTENDED 180
#define SCALE_DRAIN 75
/* Time from one drain to the next, and how long one lasts beyond one and a half round trips. */
#define DRAIN_INTERVAL_MS 5000
#define DRAIN_NS 100000000
/*
 * Likewise, with the first flights of further connections: those that were there first give theirs
 * up when their ACKs come, a round trip later.
 */
#define SCALE_MOST 160
/* Round trips that show a queue, in a row, before slow start ends. */
#define QUEUED_ACKS 32
/* The shortest window in microseconds: timers and bursts of ACKs are coarse. */
#define WINDOW_LEAST_US 10000
/* Losses of a window in percent from which on it is no random loss. */
#define LOSS_MOST 15
/* Bytes of a window from which on its losses count. */
#define LOSS_BYTES 65536
/* The estimate after such a window, in percent. */
#define LOSS_FACTOR 85
/* The least of the former estimate that a window leaves, in percent. */
#define FALL_MOST 60

#define NSEC_PER_MSEC 1000000
#define INET 2

/* Milliseconds to add to the clock of the programs for that of the host, modulo the interval. */
SETTING(setting_clock_ms);

SETTING(setting_private);
SETTING(setting_snd_cwnd);
SETTING(setting_snd_ssthresh);
SETTING(setting_mss_cache);
SETTING(setting_packets_out);
SETTING(setting_write_seq);
SETTING(setting_snd_nxt);
SETTING(setting_pacing_rate);
SETTING(setting_pacing_status);
SETTING(setting_family);
SETTING(setting_daddr);
SETTING(setting_v6_daddr);
SETTING(setting_acked_sacked);
SETTING(setting_rtt_us);
SETTING(setting_losses);
SETTING(setting_prior_in_flight);

/* A field of a kernel's structure. */
#define FIELD(of, type, name) (*(type *)((char *)(of) + SET(setting_##name)))

enum phase {
	/* Slow start. */
	STARTUP,
	/* A queue was seen: the next window measures. */
	HOLD,
	STEADY,
	/* Little is sent, so that the queue empties, unless it is another sender's. */
	DRAIN,
};

/* A path, by the address at its other end. */
struct path {
	/* When it was first seen, which distinguishes it from a former one. */
	__u64 born_ns;
	/* Bytes per second that it delivers. */
	__u64 rate;
	/* The least round trip: of the interval before the last drain and since, and since only. */
	__u64 rtt_min_us;
	__u64 rtt_since_us;
	/* When the next drain begins; during one, when it ends, and the least round trip at its end. */
	__u64 drain_ns;
	__u64 drain_rtt_us;
	/* Windows that began before are not judged: the drain has made them. */
	__u64 settled_ns;
	/* The current window: its start, bytes delivered and lost, and the least round trip. */
	__u64 window_ns;
	__u64 delivered;
	__u64 lost;
	__u64 window_rtt_us;
	/* Bytes per second of the last two windows with a queue. */
	__u64 last, before;
	/* Percent of what the path holds that all connections together have in flight. */
	__u64 scale;
	/* Windows without a queue in a row. */
	__u64 free;
	/* Connections with bytes in flight. */
	__s64 flows;
	/* Round trips in a row that showed a queue. */
	__u64 queued;
	/* Bytes that the connections with bytes in flight may have there, together. */
	__s64 granted;
	/* Whether a connection had its window full in this window. */
	__u32 limited;
	__u32 phase;
	/* Whether another sender's queue was left at the end of the last drain. */
	__u64 contended;
};

struct path_key {
	__u32 address[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct path_key);
	__type(value, struct path);
} paths SEC(".maps");

/* The path of a socket; a new one is in slow start. */
static __always_inline struct path *find_path(void *sk)
{
	struct path_key key = {};
	struct path *found;

	if (FIELD(sk, __u16, family) == INET) {
		key.address[2] = bpf_htonl(0xffff);
		key.address[3] = FIELD(sk, __u32, daddr);
	} else {
		/* The verifier takes the address for bytes, and a copy byte by byte is longer. */
		bpf_probe_read_kernel(key.address, sizeof(key.address),
				      (char *)sk + SET(setting_v6_daddr));
	}
	found = bpf_map_lookup_elem(&paths, &key);
	if (!found) {
		struct path path = { .born_ns = bpf_ktime_get_ns(), .scale = SCALE };

		bpf_map_update_elem(&paths, &key, &path, BPF_NOEXIST);
		found = bpf_map_lookup_elem(&paths, &key);
	}
	return found;
}

static __always_inline __u64 window_length(struct path *path)
{
	__u64 us = path->rtt_min_us > WINDOW_LEAST_US ? path->rtt_min_us : WINDOW_LEAST_US;

	return us * NSEC_PER_USEC;
}

static __always_inline void open_window(struct path *path, __u64 now)
{
	path->window_ns = now;
	path->delivered = 0;
	path->lost = 0;
	path->window_rtt_us = 0;
	path->limited = 0;
}

/* When the next drain begins, the same for all hosts whose clocks agree. */
static __always_inline __u64 next_drain(__u64 now)
{
	__u64 past = (now / NSEC_PER_MSEC + SET(setting_clock_ms)) % DRAIN_INTERVAL_MS;

	return now + (DRAIN_INTERVAL_MS - past) * NSEC_PER_MSEC;
}

static __always_inline __u64 least_scale(struct path *path)
{
	return path->contended ? SCALE_CONTENDED : SCALE;
}

/* Bytes on the way while the queue is empty. */
static __always_inline __u64 held_bytes(struct path *path)
{
	return path->rate * path->rtt_min_us / USEC_PER_SEC;
}

/* Bytes that a connection may have in flight. */
static __always_inline __u64 share_bytes(struct path *path)
{
	__u64 flows = path->flows > 1 ? path->flows : 1;
	__u64 scale = path->phase == DRAIN ? SCALE_DRAIN : path->scale;

	return held_bytes(path) * scale / 100 / flows;
}

/* Bytes that no connection has been granted. */
static __always_inline __u64 spare_bytes(struct path *path)
{
	__s64 spare = held_bytes(path) * SCALE_MOST / 100 - path->granted;

	return spare > 0 ? spare : 0;
}

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
	path->settled_ns = now + 2 * window_length(path);
	path->free = 0;
	if (path->scale < least_scale(path))
		path->scale = least_scale(path);
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
		path->drain_ns = next_drain(now);
		path->phase = STEADY;
	}
	scale = path->scale * path->rtt_min_us * least_scale(path) / path->window_rtt_us / 100;
	if (scale < path->scale)
		path->scale = scale > least_scale(path) ? scale : least_scale(path);
}

/* And after another one. */
static __always_inline void on_free_window(struct path *path, __u64 rate)
{
	__u64 most = least_scale(path) * (path->flows > 1 ? path->flows : 1);

	if (path->phase == HOLD || rate * 100 > path->rate * RISING) {
		path->phase = STARTUP;
		path->queued = 0;
	}
	if (rate > path->rate)
		path->rate = rate;
	/* Connections that need less than their share leave it to the others. */
	if (path->limited && ++path->free % FREE_WINDOWS == 0)
		path->scale += path->scale / 4;
	if (path->scale > most)
		path->scale = most;
}

static __always_inline void close_window(struct path *path, __u64 now)
{
	__u64 began = path->window_ns, delivered = path->delivered, lost = path->lost;
	__u64 us = (now - began) / NSEC_PER_USEC;
	__u64 rtt = path->window_rtt_us;
	bool was_held = path->phase != STARTUP;
	bool is_judged = path->phase != DRAIN && began >= path->settled_ns;
	__u64 rate;

	/* Another CPU may close it as well. */
	if (us == 0 || __sync_val_compare_and_swap(&path->window_ns, began, now) != began)
		return;
	rate = delivered * USEC_PER_SEC / us;
	/* Connections with little to send show nothing of the path. */
	if (is_judged && was_held && path->limited &&
	    rtt > path->rtt_min_us + path->rtt_min_us / 16 + 1000)
		on_busy_window(path, rate, now);
	else if (is_judged)
		on_free_window(path, rate);
	if (delivered + lost > LOSS_BYTES && lost * 100 > (delivered + lost) * LOSS_MOST)
		path->rate = path->rate * LOSS_FACTOR / 100;
	open_window(path, now);
}
