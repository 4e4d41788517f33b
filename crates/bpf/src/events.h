/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Events to the workers, and the half-open entries that come with them. */
#pragma once
#include "half_open.h"
#include "packet.h"

/* Client prefixes (IPv4 /24, IPv6 /64) that completed a handshake, each with whether its
 * clients are near. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, __u64);
	__type(value, __u8);
} validated_prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32); /* worker */
	__type(value, __u32); /* a ring */
} rings SEC(".maps");

/* The first 24 bits of an IPv4 client, the first 64 of an IPv6 one. */
static __always_inline __u64 client_prefix(const struct packet *pkt)
{
	const __u32 *word = pkt->flow.client.word;

	if (pkt->family == AF_INET)
		return ((__u64)(word[3] & bpf_htonl(0xffffff00)) << 32) | word[2];
	return ((__u64)word[1] << 32) | word[0];
}

/* What anyone can send is reported only while this much of a ring is free, so that a flood
 * of it displaces no other events. */
static __always_inline bool is_idle(__u32 worker)
{
	void *ring = bpf_map_lookup_elem(&rings, &worker);

	return ring && bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) * 4 <
			       bpf_ringbuf_query(ring, BPF_RB_RING_SIZE);
}

/* Makes the half-open entry of a new flow. The budget is open to every client; the
 * reserve only to clients whose prefix has completed a handshake before. */
static __always_inline bool make_half_open(const struct packet *pkt, const struct half_open *half_open,
				      struct event_head *event)
{
	__u64 prefix = client_prefix(pkt);
	struct flow flow = pkt->flow;
	struct half_open made = *half_open;

	if (!bpf_map_update_elem(&half_open_flows, &flow, &made, BPF_ANY)) {
		/* An earlier attempt on this tuple may have used the reserve. */
		bpf_map_delete_elem(&half_open_reserve, &flow);
		return true;
	}
	if (bpf_map_lookup_elem(&validated_prefixes, &prefix) &&
	    !bpf_map_update_elem(&half_open_reserve, &flow, &made, BPF_ANY)) {
		event->kept = 1;
		return true;
	}
	count(STAT_HALF_OPEN_FULL);
	return false;
}

/* Reports an event with the frame to a worker, and makes the flow's `half_open` entry
 * if given. False when there is no room for either: then nothing has changed, and the
 * half-open entry of an earlier attempt remains. */
GLOBAL int report(struct __sk_buff *skb, const struct packet *pkt, const struct event_head *head,
		__u32 worker, const struct half_open *half_open)
{
	__u32 bytes = skb->len < FRAME_MAX ? skb->len : FRAME_MAX;
	struct event *event;
	void *ring;

	ring = bpf_map_lookup_elem(&rings, &worker);
	if (!pkt || !head || !ring)
		return false;
	event = bpf_ringbuf_reserve(ring, sizeof(*event), 0);
	if (!event) {
		count(STAT_EVENTS_LOST);
		return false;
	}
	event->head = *head;
	event->head.ifindex = skb->ifindex;
	event->head.l2_bytes = pkt->l2_bytes;
	event->head.isn = bpf_ntohl(pkt->tcp.seq);
	event->head.frame_bytes = bytes;
	/* A no-op that lets the verifier of Linux 6.1 see that it is 1 to FRAME_MAX;
	 * clang must not fold its own knowledge into it. */
	OPAQUE(bytes);
	bytes = ((bytes - 1) & (FRAME_MAX - 1)) + 1;
	if (bpf_skb_load_bytes(skb, 0, event->frame, bytes) ||
	    (half_open && !make_half_open(pkt, half_open, &event->head))) {
		bpf_ringbuf_discard(event, 0);
		return false;
	}
	bpf_ringbuf_submit(event, 0);
	return true;
}
