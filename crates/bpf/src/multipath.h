/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Multipath TCP (RFC 8684) of clients in transit: the listeners of the workers that answer
 * MP_CAPABLE and MP_JOIN.
 *
 * The kernel accepts Multipath TCP sockets in no sockmap. So these listeners are found
 * by address and port, which no packet carries.
 */
#pragma once
#include "options.h"
#include "packet.h"

/* How long after an MP_CAPABLE SYN a join of an unknown token may be for its connection:
 * the client's handshake with one retransmission. */
#define JOINS_EXPECTED_NS 3000000000ull

/* The tokens of the node's connections with clients, in network order. Bounded by the
 * workers, which write it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct multipath_token);
} multipath_tokens SEC(".maps");

/* Tokens of connections that the node does not relay, as a worker found. LRU: anyone may
 * send any token. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __be32);
	__type(value, __u32);
} foreign_tokens SEC(".maps");

/* Destinations of connections that may be about to be accepted, and until when
 * (CLOCK_MONOTONIC, ns). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct destination);
	__type(value, __u64);
} expected_joins SEC(".maps");

static __always_inline struct multipath_listener *multipath_listener(__u32 key)
{
	struct multipath_listener *listener = bpf_map_lookup_elem(&multipath_listeners, &key);

	return listener && listener->port ? listener : NULL;
}

static __always_inline struct destination destination_of(const struct packet *pkt)
{
	return (struct destination){
		.ip = pkt->flow.server,
		.port = pkt->flow.server_port,
	};
}
