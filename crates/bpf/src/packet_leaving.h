/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * SYNs that leave this host. What the node would do about a SYN waits until the host has let it pass: a packet runs
 * from the ingress of one interface through firewall, NAT and routing to the egress of another in one run of this CPU.
 * So a SYN that leaves with the number of one that has just come is that SYN, by the rules in force, however
 * the host has translated it. What is dropped, rejected or delivered here leaves nothing behind.
 */
#pragma once
#include "packet_learning.h"
#include "packet_segment.h"

/* SYNs that a CPU has taken in: it may take in a batch before the first of them leaves. */
#define LEAVING_BITS 4
#define LEAVING_MAX (1 << LEAVING_BITS)
/* Longer than a batch takes. */
#define LEAVING_NS 5000000ull

enum leaving_as {
	LEAVING_NEW,
	LEAVING_UNKNOWN,  /* nothing is known of its service */
	LEAVING_REPEATED, /* the flow has an entry */
};

struct packet_leaving {
	struct packet_key key;
	__u32 waits; /* it has not left */
	__u64 taken_ns;
	struct packet_flow flow;
	__u32 as; /* enum leaving_as */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LEAVING_MAX);
	__type(key, __u32);
	__type(value, struct packet_leaving);
} packet_leaving SEC(".maps");

/* Where the SYN with this number is. */
static __always_inline struct packet_leaving *leaving_here(__u32 isn)
{
	__u32 place = isn * 0x9e3779b1u >> (32 - LEAVING_BITS);

	return bpf_map_lookup_elem(&packet_leaving, &place);
}

/* Has the SYN in hand recognized when it leaves. `flow`: its entry, or what that will be. */
static __always_inline bool expect_leaving(const struct packet_key *key, const struct packet_flow *flow,
					   enum leaving_as as)
{
	struct packet_leaving *leaving = leaving_here(flow->client_isn);

	if (!leaving)
		return false;
	leaving->key = *key;
	leaving->flow = *flow;
	leaving->as = as;
	leaving->taken_ns = bpf_ktime_get_ns();
	leaving->waits = true;
	return true;
}

/* Another SYN with the number of one that has not left would be taken for it. */
static __always_inline void forget_leaving(__u32 isn)
{
	struct packet_leaving *leaving = leaving_here(isn);

	if (leaving && leaving->flow.client_isn == isn)
		leaving->waits = false;
}

/* Makes of the SYN in hand, of which a copy goes on, the node's answer to it. A device may have no link layer
 * header where the client's has one. */
static __always_inline int become_answer(struct __sk_buff *skb, const struct packet_leaving *leaving,
					 __u32 l2_bytes)
{
	struct packet_scratch *scratch = scratch_area();
	const struct packet_flow *entry = &leaving->flow;
	__u32 ifindex = entry->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct segment *segment;

	if (!scratch || !device)
		return DROP;
	segment = &scratch->segment;
	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = flow_of(&leaving->key, !entry->turned);
	segment->family = is_mapped(&leaving->key.first) ? AF_INET : AF_INET6;
	segment->l2_bytes = l2_bytes;
	segment->partial = spoil_checksum(skb, tcp_at(segment->family, l2_bytes));
	if (!l2_bytes && device->l2_bytes) {
		__be16 type = skb->protocol;

		if (bpf_skb_change_head(skb, ETH_HLEN, 0) ||
		    bpf_skb_store_bytes(skb, offsetof(struct ethhdr, h_proto), &type, sizeof(type), 0))
			return DROP;
		segment->l2_bytes = ETH_HLEN;
	}
	if (device->l2_bytes) {
		bpf_skb_store_bytes(skb, 0, entry->link, sizeof(entry->link), 0);
		swap_link_addresses(skb, ETH_HLEN);
	}
	as_from_client(skb);
	answer_syn(segment, entry);
	if (!write_segment(skb, segment, NULL))
		return DROP;
	if (entry->delay_ms && leaving->as != LEAVING_REPEATED)
		bpf_skb_set_tstamp(skb, bpf_ktime_get_ns() + entry->delay_ms * 1000000ull,
				   BPF_SKB_TSTAMP_DELIVERY_MONO);
	return bpf_redirect(entry->ifindex, 0);
}

/* Makes the entry of a flow whose SYN leaves; false if there is no room. */
static __always_inline bool admit_flow(struct packet_leaving *leaving)
{
	__u64 prefix = prefix_of_flow(&leaving->key, &leaving->flow);

	if (leaving->flow.state == PACKET_LEARNING)
		return enter_learning(&leaving->key, &leaving->flow,
				      leaving->as == LEAVING_UNKNOWN);
	if (!enter_half_open(prefix)) {
		count(STAT_PACKET_FULL);
		return false;
	}
	if (bpf_map_update_elem(&packet_flows, &leaving->key, &leaving->flow, BPF_NOEXIST)) {
		leave_half_open(prefix, false);
		count(STAT_PACKET_FULL);
		return false;
	}
	count(STAT_PACKET_TAKEN);
	return true;
}

/* A SYN leaves. */
GLOBAL int on_leaving(struct __sk_buff *skb, const struct view *view, __u32 l2_bytes)
{
	struct packet_leaving *leaving;

	if (!view || view->rare)
		return NEXT;
	leaving = leaving_here(view->seq);
	if (!leaving || !leaving->waits || leaving->flow.client_isn != view->seq ||
	    bpf_ktime_get_ns() - leaving->taken_ns > LEAVING_NS)
		return NEXT;
	leaving->waits = false;
	/* To a client whose packets leave where they come, the kernel shows the shorter way (ICMP redirect), which the
	 * flow would take. */
	if (leaving->flow.ifindex == skb->ifindex) {
		note_turn(&leaving->key, &leaving->flow);
		count(STAT_PACKET_LOCAL);
		return NEXT;
	}
	if (leaving->as != LEAVING_REPEATED && !admit_flow(leaving))
		return NEXT;
	note_client_port(leaving->flow.turned ? leaving->key.second_port : leaving->key.first_port);
	if (leaving->flow.state == PACKET_LEARNING)
		return NEXT;
	/* This program sees the copy too, and lets it pass. */
	if (bpf_clone_redirect(skb, skb->ifindex, 0))
		return DROP;
	return become_answer(skb, leaving, l2_bytes);
}
