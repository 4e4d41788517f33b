/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What has no ports of its own, or not in each packet.
 *
 * redirect_fragment     a fragment of a segment
 * redirect_icmp_error   an error that quotes a segment
 */
#pragma once
#include "packet.h"

/* The common fields of the fragments of a packet. */
struct datagram_key {
	struct address source;
	struct address destination;
	__u32 id;
};

/* Segments for sockets of the node whose first fragment has arrived, and until when
 * their other fragments are expected (CLOCK_MONOTONIC, ns). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct datagram_key);
	__type(value, __u64);
} fragments SEC(".maps");

/* That time: longer than fragments that were sent together are apart. After it the
 * identification belongs to another packet, as a first fragment may show sooner. */
#define FRAGMENTS_NS 5000000000ull

/* Whether the first fragment of a segment is for a socket of the node. A SYN is not:
 * SYNs in fragments are never held. */
static __always_inline bool first_is_ours(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	if (!parse_tcp(skb, pkt, at) || pkt->tcp.syn)
		return false;
	switch (owner_of(skb, pkt)) {
	case OWNER_CONNECTING:
	case OWNER_OURS:
		return true;
	case OWNER_REQUEST:
	case OWNER_WAITING:
		return forwardable(skb, pkt);
	default:
		return false;
	}
}

/* A fragment of a TCP segment. The first has the ports, and decides for those that
 * arrive after it; fragments that arrived before it have been forwarded. */
SEC("classifier")
int redirect_fragment(struct __sk_buff *skb)
{
	struct packet pkt = {};
	struct datagram_key datagram_key;
	__u64 now, *until;
	__u32 at;

	at = parse_ip(skb, &pkt, skb->cb[MESSAGE_L2_BYTES]);
	if (!at)
		return TC_ACT_UNSPEC;
	datagram_key = (struct datagram_key){ pkt.flow.client, pkt.flow.server, pkt.fragment_id };
	now = bpf_ktime_get_ns();
	if (pkt.fragment == FRAGMENT_LATER) {
		until = bpf_map_lookup_elem(&fragments, &datagram_key);
		return until && now < *until ? deliver(skb) : TC_ACT_UNSPEC;
	}
	if (!first_is_ours(skb, &pkt, at)) {
		/* The identification was that of an earlier segment for the node. */
		bpf_map_delete_elem(&fragments, &datagram_key);
		return TC_ACT_UNSPEC;
	}
	now += FRAGMENTS_NS;
	bpf_map_update_elem(&fragments, &datagram_key, &now, BPF_ANY);
	return deliver(skb);
}

/* An ICMP error that quotes a segment which a socket of the node sent under another
 * host's address. Without the mark it would be forwarded to that host, and path MTU
 * discovery would fail. */
SEC("classifier")
int redirect_icmp_error(struct __sk_buff *skb)
{
	struct packet pkt = {}, quoted = {};
	struct bpf_sock *sk, *full;
	bool ours = false;
	__be16 ports[2];
	__u32 at;

	at = parse_ip(skb, &pkt, skb->cb[MESSAGE_L2_BYTES]);
	if (!at)
		return TC_ACT_UNSPEC;
	at = parse_ip(skb, &quoted, at + 8);
	if (!at || quoted.protocol != IPPROTO_TCP || quoted.fragment == FRAGMENT_LATER ||
	    bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return TC_ACT_UNSPEC;
	quoted.flow.client_port = ports[0];
	quoted.flow.server_port = ports[1];
	quoted.flow = reversed(&quoted.flow);
	fill_tuple(&quoted);
	sk = bpf_skc_lookup_tcp(skb, &quoted.tuple, quoted.tuple_bytes, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return TC_ACT_UNSPEC;
	full = bpf_sk_fullsock(sk);
	if (full && full->state != BPF_TCP_LISTEN)
		ours = full->mark & socket_mark;
	bpf_sk_release(sk);
	if (!ours)
		return TC_ACT_UNSPEC;
	count(STAT_ICMP);
	return deliver(skb);
}
