/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Multipath TCP (RFC 8684) of clients in transit: the options of a SYN, and the
 * listeners of the workers that answer MP_CAPABLE and MP_JOIN.
 *
 * The kernel accepts Multipath TCP sockets in no sockmap. So these listeners are found
 * by address and port, which no packet carries.
 */
#pragma once
#include "packet.h"

/* Most bytes of options in a TCP header. */
#define TCP_OPTIONS_MAX 40

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MD5 19   /* RFC 2385 */
#define TCP_OPTION_AO 29    /* RFC 5925 */
#define TCP_OPTION_MPTCP 30 /* RFC 8684 */
#define MPTCP_CAPABLE 0
#define MPTCP_JOIN 1
/* Bytes of MP_JOIN in a SYN, and in the ACK that completes the handshake. */
#define MPTCP_JOIN_BYTES 12
#define MPTCP_JOIN_ACK_BYTES 24

/* How long after an MP_CAPABLE SYN a join of an unknown token may be for its connection:
 * the client's handshake with one retransmission. */
#define JOINS_EXPECTED_NS 3000000000ull

/* Where the workers listen, by the keys of `listeners`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct multipath_listener);
} multipath_listeners SEC(".maps");

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

/* What the options of a SYN request. */
enum options_kind {
	OPTIONS_PLAIN,
	OPTIONS_FOREIGN, /* only the destination can do it, or they cannot be parsed */
	OPTIONS_CAPABLE, /* Multipath TCP */
	OPTIONS_JOIN,    /* a further path of a connection */
	OPTIONS_JOIN_ACK, /* its third segment */
};

struct options {
	__u32 kind; /* enum options_kind */
	__be32 token; /* with OPTIONS_JOIN */
};

/* State of the walk over a SYN's options. */
struct option_look {
	struct __sk_buff *skb;
	__u32 at;
	__u32 end;
	struct options found;
};

/* What MP_JOIN at `look->at` requests. */
static __always_inline __u32 look_at_join(struct option_look *look, __u8 bytes)
{
	if (bytes == MPTCP_JOIN_ACK_BYTES)
		return OPTIONS_JOIN_ACK;
	if (bytes != MPTCP_JOIN_BYTES ||
	    bpf_skb_load_bytes(look->skb, look->at + 4, &look->found.token,
			       sizeof(look->found.token)))
		return OPTIONS_FOREIGN;
	return OPTIONS_JOIN;
}

/* Reads an option of Multipath TCP at `look->at`; 1 ends the walk. No host sends MP_CAPABLE
 * with MP_JOIN, or either twice: the server decides on that. */
static __always_inline long look_at_multipath(struct option_look *look, __u8 subtype, __u8 bytes)
{
	if (subtype != MPTCP_CAPABLE && subtype != MPTCP_JOIN)
		return 0;
	if (look->found.kind != OPTIONS_PLAIN)
		look->found.kind = OPTIONS_FOREIGN;
	else if (subtype == MPTCP_CAPABLE)
		look->found.kind = OPTIONS_CAPABLE;
	else
		look->found.kind = look_at_join(look, bytes);
	return look->found.kind == OPTIONS_FOREIGN;
}

/* Checks one option; 1 ends the walk. */
static long look_at_option(__u32 index, struct option_look *look)
{
	struct {
		__u8 kind;
		__u8 bytes;
		__u8 subtype;
	} option = {};
	long done = 0;

	(void)index;
	if (look->at >= look->end)
		return 1;
	if (bpf_skb_load_bytes(look->skb, look->at, &option.kind, sizeof(option.kind)) ||
	    option.kind == TCP_OPTION_END)
		return 1;
	if (option.kind == TCP_OPTION_NOP) {
		look->at += 1;
		return 0;
	}
	if (bpf_skb_load_bytes(look->skb, look->at + 1, &option.bytes, sizeof(option.bytes)) ||
	    option.bytes < 2 || look->at + option.bytes > look->end) {
		look->found.kind = OPTIONS_FOREIGN;
		return 1;
	}
	if (option.bytes > 2)
		bpf_skb_load_bytes(look->skb, look->at + 2, &option.subtype,
				   sizeof(option.subtype));
	if (option.kind == TCP_OPTION_MD5 || option.kind == TCP_OPTION_AO) {
		look->found.kind = OPTIONS_FOREIGN;
		return 1;
	}
	if (option.kind == TCP_OPTION_MPTCP)
		done = look_at_multipath(look, option.subtype >> 4, option.bytes);
	look->at += option.bytes;
	return done;
}

/* Reads the options of a segment whose TCP header is at `at`. */
GLOBAL int look_at_options(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
			   struct options *found)
{
	struct option_look look = { .skb = skb, .at = at + sizeof(struct tcphdr) };

	if (!pkt || !found)
		return 0;
	look.end = at + pkt->tcp.doff * 4;
	bpf_loop(TCP_OPTIONS_MAX, look_at_option, &look, 0);
	*found = look.found;
	return 0;
}

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
