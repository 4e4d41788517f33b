// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The congestion control as a part of a test: its own source, compiled for this host. What the
 * kernel provides is here: its structures with the fields that the programs use, the clock, and
 * the maps. Each thread has its own.
 */
#include <stdbool.h>
#include "../../src/helpers.h"

/* A setting is a variable here. */
#undef SETTING
#undef SET
#define SETTING(name) static __u32 name
#define SET(name) (name)

#define bpf_ktime_get_ns() host_now
#define bpf_map_lookup_elem(map, key) host_find(map, key)
#define bpf_map_update_elem(map, key, value, flags) host_add(key, value)
#define bpf_probe_read_kernel(to, bytes, from) __builtin_memcpy(to, from, bytes)

/* Names of programs that the test's own program may have. */
#define start congestion_start
#define release congestion_release
#define ssthresh congestion_ssthresh
#define on_event congestion_on_event
#define undo_window congestion_undo_window
#define LICENSE congestion_license

static _Thread_local __u64 host_now;

static void *host_find(void *map, const void *key);
static long host_add(const void *key, const void *value);

#include "../../src/congestion.bpf.c"

/* struct tcp_sock and struct rate_sample. */
struct host_socket {
	__u64 private[13];
	unsigned long pacing_rate;
	__u32 snd_cwnd, snd_ssthresh, mss_cache, packets_out, write_seq, snd_nxt, pacing_status;
	__u32 daddr, rcv_saddr;
	__u16 family;
};

struct host_sample {
	long rtt_us;
	int losses;
	__u32 acked_sacked, prior_in_flight;
};

#define PATHS_MAX 8

static _Thread_local struct path_key host_keys[PATHS_MAX];
static _Thread_local struct path host_paths[PATHS_MAX];
static _Thread_local __u32 host_count;
static _Thread_local __u64 host_limit;

static void *host_find(void *map, const void *key)
{
	if (map == &limits)
		return host_limit ? &host_limit : NULL;
	for (__u32 i = 0; i < host_count; i++)
		if (!__builtin_memcmp(&host_keys[i], key, sizeof(host_keys[i])))
			return &host_paths[i];
	return NULL;
}

static long host_add(const void *key, const void *value)
{
	if (host_count == PATHS_MAX)
		return -1;
	__builtin_memcpy(&host_keys[host_count], key, sizeof(host_keys[0]));
	__builtin_memcpy(&host_paths[host_count++], value, sizeof(host_paths[0]));
	return 0;
}

/* Forgets all paths; the limit is in bytes per second. */
void host_begin(__u64 limit)
{
	host_count = 0;
	host_limit = limit;
	setting_private = offsetof(struct host_socket, private);
	setting_snd_cwnd = offsetof(struct host_socket, snd_cwnd);
	setting_snd_ssthresh = offsetof(struct host_socket, snd_ssthresh);
	setting_mss_cache = offsetof(struct host_socket, mss_cache);
	setting_packets_out = offsetof(struct host_socket, packets_out);
	setting_write_seq = offsetof(struct host_socket, write_seq);
	setting_snd_nxt = offsetof(struct host_socket, snd_nxt);
	setting_pacing_rate = offsetof(struct host_socket, pacing_rate);
	setting_pacing_status = offsetof(struct host_socket, pacing_status);
	setting_family = offsetof(struct host_socket, family);
	setting_daddr = offsetof(struct host_socket, daddr);
	setting_rcv_saddr = offsetof(struct host_socket, rcv_saddr);
	setting_acked_sacked = offsetof(struct host_sample, acked_sacked);
	setting_rtt_us = offsetof(struct host_sample, rtt_us);
	setting_losses = offsetof(struct host_sample, losses);
	setting_prior_in_flight = offsetof(struct host_sample, prior_in_flight);
}

/* The bytes of a socket, which the test provides. */
unsigned long host_socket_bytes(void)
{
	return sizeof(struct host_socket);
}

/* A connection with an address begins, with segments of so many bytes. */
void host_connect(struct host_socket *sk, __u32 address, __u32 mss)
{
	__u64 arguments[] = { (__u64)sk };

	*sk = (struct host_socket){
		.snd_cwnd = 10, .mss_cache = mss, .family = INET, .daddr = address,
	};
	start(arguments);
}

/* It sends with nothing in flight. */
void host_send(struct host_socket *sk, __u64 now)
{
	__u64 arguments[] = { (__u64)sk, TX_START };

	host_now = now;
	on_event(arguments);
}

/* Segments were acknowledged: those, segments lost, in flight before and after, and whether there
 * is more to send. */
void host_ack(struct host_socket *sk, __u64 now, long rtt_us, __u32 acked, int lost, __u32 before,
	      __u32 after, __u32 has_more)
{
	struct host_sample sample = {
		.rtt_us = rtt_us, .losses = lost, .acked_sacked = acked, .prior_in_flight = before,
	};
	__u64 arguments[] = { (__u64)sk, 0, 0, (__u64)&sample };

	host_now = now;
	sk->packets_out = after;
	sk->write_seq = sk->snd_nxt + has_more;
	control_of_four(arguments);
}

void host_end(struct host_socket *sk)
{
	__u64 arguments[] = { (__u64)sk };

	release(arguments);
}

__u32 host_window(const struct host_socket *sk)
{
	return sk->snd_cwnd;
}

/* Bytes per second. */
__u64 host_pacing_rate(const struct host_socket *sk)
{
	return sk->pacing_rate;
}
