/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the connections between two addresses know of their path together, and how it is measured.
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

/* Segments of the smallest share, so that it has acknowledgements to clock it. */
#define WINDOW_LEAST 4
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
#define SCALE_CONTENDED 185
#define SCALE_DRAIN 75
/*
 * Bytes in flight beyond: the same on all paths that share a bottleneck, so their rates become
 * equal. Without, they would keep their ratio.
 */
#define EQUAL_BYTES 12000
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
/* Losses of a window in per mille from which on it is no random loss. */
#define LOSS_MOST 150
/* Bytes that show a share of losses: those of as many windows as needed. */
#define LOSS_BYTES 262144
/* The estimate after such a window, in percent. */
#define LOSS_FACTOR 85
/* Such shares that show the path's own losses by the least of them. */
#define SAMPLES_LEAST 4
/* Windows after an idle time that show none: bytes are delivered before losses are found. */
#define SAMPLE_WINDOWS 3
/* Losses of a window in per mille, beyond twice the path's, that show a full and short queue. */
#define OVERFLOW_LOSS 20
/*
 * Losses in per mille from which on they are the path's. Without such, a short queue is
 * shared with senders that take each loss for congestion, as CUBIC does (RFC 9438): after an
 * overflow, less is in flight by as much as CUBIC's factor, and it returns as slowly. With such,
 * only what overflows is saved. In percent, and the least that is left.
 */
#define RANDOM_LOSS 5
#define CUT_SHARED 70
#define SCALE_SHARED 75
#define CUT_RANDOM 90
#define SCALE_RANDOM 95
/* How long a queue counts as short after it has overflowed: meanwhile no slow start fills it. */
#define SHORT_NS 30000000000ull
/* Windows before the first drain of a path, which shows its losses. */
#define FIRST_WINDOWS 4
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
SETTING(setting_rcv_saddr);
SETTING(setting_v6_rcv_saddr);
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

/* A path, by the addresses of its ends. */
struct path {
	/* When it was first seen, which distinguishes it from a former one. */
	__u64 born_ns;
	/* Bytes per second that it delivers, and that it may be sent; 0: no limit. */
	__u64 rate;
	__u64 limit;
	/* The least round trip: of the interval before the last drain and since, and since only. */
	__u64 rtt_min_us;
	__u64 rtt_since_us;
	/* When the next drain begins; during one, when it ends, and the least round trip at its end. */
	__u64 drain_ns;
	__u64 drain_rtt_us;
	/* Windows that began before are not judged: a drain or a cut has made them. */
	__u64 settled_ns;
	/* Bytes delivered and lost that have not shown a share of losses yet. */
	__u64 sample_delivered;
	__u64 sample_lost;
	/* From when on they may. */
	__u64 sampled_ns;
	/* Shares of losses in the current interval, and the least of them in per mille, and one. */
	__u64 samples;
	__u64 loss_since;
	/* That of an interval with enough of them; 0 if unknown. */
	__u64 random_loss;
	/* The current window: its start, bytes delivered and lost, the least and longest round trip. */
	__u64 window_ns;
	__u64 delivered;
	__u64 lost;
	__u64 window_rtt_us;
	__u64 window_most_us;
	/* Bytes per second of the last two windows with a queue. */
	__u64 last, before;
	/* Percent of what the path holds that all connections together have in flight. */
	__u64 scale;
	/* Until when the queue counts as short. */
	__u64 short_until_ns;
	/* Windows without a queue in a row. */
	__u64 free;
	/* Windows since the scale was cut. */
	__u64 recovering;
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

struct end {
	__u32 address[4];
};

struct path_key {
	struct end remote, local;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct path_key);
	__type(value, struct path);
} paths SEC(".maps");

/* Bytes per second that an address may be sent, all connections together. Room for the five
 * addresses of each of 1024 peers. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 5120);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct end);
	__type(value, __u64);
} limits SEC(".maps");

static __always_inline void read_ends(void *sk, struct path_key *key)
{
	if (FIELD(sk, __u16, family) == INET) {
		key->remote.address[2] = bpf_htonl(0xffff);
		key->remote.address[3] = FIELD(sk, __u32, daddr);
		key->local.address[3] = FIELD(sk, __u32, rcv_saddr);
	} else {
		/* The verifier takes the address for bytes, and a copy byte by byte is longer. */
		bpf_probe_read_kernel(&key->remote, sizeof(key->remote),
				      (char *)sk + SET(setting_v6_daddr));
		bpf_probe_read_kernel(&key->local, sizeof(key->local),
				      (char *)sk + SET(setting_v6_rcv_saddr));
	}
}

static __always_inline __u64 read_limit(void *sk)
{
	struct path_key key = {};
	__u64 *limit;

	read_ends(sk, &key);
	limit = bpf_map_lookup_elem(&limits, &key.remote);
	return limit ? *limit : 0;
}

/* The path of a socket; a new one is in slow start. */
static __always_inline struct path *find_path(void *sk)
{
	struct path_key key = {};
	struct path *found;

	read_ends(sk, &key);
	found = bpf_map_lookup_elem(&paths, &key);
	if (!found) {
		struct path path = { .born_ns = bpf_ktime_get_ns(), .scale = SCALE };

		path.limit = read_limit(sk);
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
	path->window_most_us = 0;
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

static __always_inline __u64 sharers(struct path *path)
{
	return path->flows > 1 ? path->flows : 1;
}

/* Bytes that a connection may have in flight. */
static __always_inline __u64 share_bytes(struct path *path)
{
	__u64 scale = path->phase == DRAIN ? SCALE_DRAIN : path->scale;

	return (held_bytes(path) * scale / 100 + (path->phase == STEADY ? EQUAL_BYTES : 0)) /
	       sharers(path);
}

/* Bytes that no connection has been granted. */
static __always_inline __u64 spare_bytes(struct path *path)
{
	/* A short queue has overflowed. */
	__u64 scale = path->scale < SCALE ? path->scale : SCALE_MOST;
	__s64 spare = held_bytes(path) * scale / 100 - path->granted;

	return spare > 0 ? spare : 0;
}
