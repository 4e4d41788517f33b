// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * A congestion control for hops between nodes (tcp_congestion_ops). All connections with one
 * address share an estimate of the path: the rate at which it delivers, and its round-trip time
 * without a queue. Each connection that has bytes in flight gets its share of both, so that the
 * first flight of a warm hop is as large as the path takes and many of them do not fill the queue.
 *
 * Random loss changes nothing: what a path delivers is measured, not guessed from losses.
 *
 * Fields of the kernel's structures are settings: the loader reads their offsets from the running
 * kernel's type information. The arguments of a program are in an array, the socket first.
 */
#include "congestion_windows.h"

/* enum tcp_ca_event: a connection sends with nothing in flight. */
#define TX_START 0
/* SK_PACING_NONE, SK_PACING_NEEDED: TCP paces, unless fq does. */
#define PACING_NONE 0
#define PACING_NEEDED 1
/* TCP_INFINITE_SSTHRESH */
#define INFINITE_SSTHRESH 0x7fffffff

/* What a connection stores: the path that counts it, and the bytes that it may have in flight. */
#define JOINED(sk) FIELD(sk, __u64, private)
#define GRANTED(sk) (*(&FIELD(sk, __u64, private) + 1))

/* The connection has bytes in flight, from now on. Whether that is news. */
static __always_inline bool join(void *sk, struct path *path)
{
	__u64 now = bpf_ktime_get_ns();

	if (JOINED(sk) == path->born_ns)
		return false;
	JOINED(sk) = path->born_ns;
	GRANTED(sk) = 0;
	/* The time before is none of a window's. */
	if (__sync_fetch_and_add(&path->flows, 1) <= 0) {
		open_window(path, now);
		if (path->scale > least_scale(path))
			path->scale = least_scale(path);
		path->free = 0;
		path->sampled_ns = now + SAMPLE_WINDOWS * window_length(path);
		if (now >= path->drain_ns)
			rest(path, now);
	}
	return true;
}

/* It has none any more. A path that was forgotten meanwhile has not counted it. */
static __always_inline void leave(void *sk, struct path *path)
{
	if (JOINED(sk) == path->born_ns) {
		__sync_fetch_and_add(&path->flows, -1);
		__sync_fetch_and_add(&path->granted, -(__s64)GRANTED(sk));
	}
	JOINED(sk) = 0;
}

static __always_inline bool is_idle(void *sk)
{
	return FIELD(sk, __u32, packets_out) == 0 &&
	       FIELD(sk, __u32, write_seq) == FIELD(sk, __u32, snd_nxt);
}

/* Sets window and pacing of a connection by its share. */
static __always_inline void apply(void *sk, struct path *path, __u32 acked, bool is_first)
{
	__u64 mss = FIELD(sk, __u32, mss_cache);
	__u32 now = FIELD(sk, __u32, snd_cwnd);
	__u64 share, window, rate;

	if (mss == 0 || path->rtt_min_us == 0)
		return;
	share = share_bytes(path);
	window = share / mss > WINDOW_LEAST ? share / mss : WINDOW_LEAST;
	if (is_first) {
		__u64 most = spare_bytes(path) / mss;

		most = most > WINDOW_FIRST ? most : WINDOW_FIRST;
		window = window < most ? window : most;
	}
	if (path->phase < STEADY) {
		/* Slow start, from what is known on, or from a window that was configured. */
		__u64 most = 3 * window + WINDOW_FIRST;
		__u64 grown = now + (path->phase == STARTUP ? acked : 0);

		most = most > now ? most : now;
		grown = grown > most ? most : grown;
		window = grown > window ? grown : window;
	}
	window = window > WINDOW_MAX ? WINDOW_MAX : window;
	FIELD(sk, __u32, snd_cwnd) = window;
	window *= mss;
	__sync_fetch_and_add(&path->granted, window - GRANTED(sk));
	GRANTED(sk) = window;
	/* The queue takes what is above the rate: as much as the window has beyond the path. */
	window = path->phase < STEADY ? 2 * window : window;
	rate = window * USEC_PER_SEC / path->rtt_min_us;
	/* What is written beyond waits in the socket. */
	if (path->limit && rate > path->limit / sharers(path))
		rate = path->limit / sharers(path);
	FIELD(sk, unsigned long, pacing_rate) = rate;
}

static __always_inline void on_ack(void *sk, void *sample)
{
	struct path *path = find_path(sk);
	__u32 acked = FIELD(sample, __u32, acked_sacked);
	__s64 rtt = FIELD(sample, long, rtt_us);
	__s32 losses = FIELD(sample, int, losses);
	__u64 now = bpf_ktime_get_ns();
	bool is_limited;

	if (!path)
		return;
	join(sk, path);
	/* A few segments below the window is what TSO leaves. */
	is_limited = FIELD(sample, __u32, prior_in_flight) * 10 >= FIELD(sk, __u32, snd_cwnd) * 9;
	if (is_limited)
		path->limited = 1;
	if (rtt > 0)
		on_round_trip(path, rtt, is_limited, now);
	__sync_fetch_and_add(&path->delivered, (__u64)acked * FIELD(sk, __u32, mss_cache));
	if (losses > 0)
		__sync_fetch_and_add(&path->lost, (__u64)losses * FIELD(sk, __u32, mss_cache));
	if (now - path->window_ns >= window_length(path)) {
		close_window(path, now);
		path->limit = read_limit(sk);
	}
	if (path->phase >= STEADY && now >= path->drain_ns)
		turn_drain(path, now);
	apply(sk, path, acked, false);
	if (is_idle(sk))
		leave(sk, path);
}

SEC("fentry/start")
void start(__u64 *arguments)
{
	void *sk = (void *)arguments[0];

	FIELD(sk, __u32, snd_ssthresh) = INFINITE_SSTHRESH;
	if (FIELD(sk, __u32, pacing_status) == PACING_NONE)
		FIELD(sk, __u32, pacing_status) = PACING_NEEDED;
}

SEC("fentry/release")
void release(__u64 *arguments)
{
	void *sk = (void *)arguments[0];
	struct path *path = find_path(sk);

	if (path)
		leave(sk, path);
}

/* Until Linux 6.9: socket, sample. */
SEC("fentry/control_of_two")
void control_of_two(__u64 *arguments)
{
	on_ack((void *)arguments[0], (void *)arguments[1]);
}

/* Since Linux 6.10: socket, acknowledged number, flags, sample. */
SEC("fentry/control_of_four")
void control_of_four(__u64 *arguments)
{
	on_ack((void *)arguments[0], (void *)arguments[3]);
}

SEC("fentry/on_event")
void on_event(__u64 *arguments)
{
	void *sk = (void *)arguments[0];
	struct path *path;

	if ((__u32)arguments[1] != TX_START)
		return;
	path = find_path(sk);
	if (!path)
		return;
	if (join(sk, path))
		apply(sk, path, 0, true);
}

/* Losses do not lower the window. */
SEC("fentry/ssthresh")
unsigned int ssthresh(__u64 *arguments)
{
	return FIELD((void *)arguments[0], __u32, snd_ssthresh);
}

SEC("fentry/undo_window")
unsigned int undo_window(__u64 *arguments)
{
	return FIELD((void *)arguments[0], __u32, snd_cwnd);
}

char LICENSE[] SEC("license") = "GPL";
