/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the TCP options of a SYN request. */
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
