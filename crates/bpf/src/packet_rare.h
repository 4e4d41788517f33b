/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Segments that `view_segment` does not see: behind IP options (RFC 791) or extension headers (RFC
 * 8200), in fragments, and chains of segments. Of a flow with an entry they leave in the right numbers or
 * not at all, as all others.
 *
 * All numbers are in the first fragment. Later ones have no part in it, and pass: without their first no
 * host puts them together.
 */
#pragma once
#include "packet_view.h"

#define NEXTHDR_DEST 60
#define NEXTHDR_MOBILITY 135
#define NEXTHDR_HIP 139
#define NEXTHDR_SHIM6 140
/* A packet has no room for more. */
#define EXTENSIONS_MAX (65536 / 8)
#define IP6_MF 1
#define VLAN_ID 0xfff

/* How `sk_buff` and `skb_shared_info` are laid out, in bytes; 0: not known. */
SETTING(setting_skb_head);
SETTING(setting_skb_end);
SETTING(setting_gso_type);
/* Whether the kernel cuts a chain anew that was made one segment. Since Linux 6.12 (commit
 * 17bd3bd82f9f); before, it takes the second of the chain for granted. */
SETTING(setting_cuts_chains);

#define GSO_FRAGLIST (1 << 18)

enum seen {
	SEEN_OTHER, /* no segment, a later fragment, or not even ports */
	SEEN_ICMP,
	SEEN_SEGMENT,
};

/* What a segment that was translated bears as its `tc_index`, so that it is not translated again at an
 * interface behind: a bridge and its port both see each segment. Its own in each network namespace. Other
 * programs of tc may remove it. */
SETTING(setting_carried);

static __always_inline bool is_carried(const struct __sk_buff *skb)
{
	return skb->tc_index == SET(setting_carried);
}

static __always_inline void mark_carried(struct __sk_buff *skb)
{
	skb->tc_index = SET(setting_carried);
}

/* Whether a frame belongs to a VLAN. Without a number, its tag has only a priority (IEEE 802.1Q). */
static __always_inline bool is_tagged(const struct __sk_buff *skb)
{
	return skb->vlan_present && skb->vlan_tci & VLAN_ID;
}

/* A walk along the headers of a packet. */
struct headers {
	struct __sk_buff *skb;
	__u32 at;
	__u32 next;	/* what is at `at`, of IPPROTO_* */
	__u32 rare;	/* RARE_* of the view */
	__u32 final_at; /* of the last destination of a source route that is not at its end; or 0 */
	__u32 is_ipv6;
};

/* Steps over a header; 1 ends the walk. */
static long step_over(__u32 index, struct headers *headers)
{
	__u8 head[8];
	__u32 field;

	(void)index;
	if (headers->next == IPPROTO_TCP || (!headers->is_ipv6 && headers->next != IPPROTO_AH))
		return 1;
	if (bpf_skb_load_bytes(headers->skb, headers->at, head, sizeof(head)))
		return 1;
	switch (headers->next) {
	case NEXTHDR_FRAGMENT:
		field = (__u32)head[2] << 8 | head[3];
		if (field & IP6_OFFSET)
			return 1;
		if (field & IP6_MF)
			headers->rare |= RARE_PART;
		headers->at += 8;
		break;
	case IPPROTO_AH:
		headers->rare |= RARE_PART;
		headers->at += (head[1] + 2) * 4;
		break;
	case IPPROTO_ROUTING:
		if (head[3]) {
			headers->rare |= RARE_PART;
			headers->final_at = headers->at + 8;
		}
		headers->at += (head[1] + 1) * 8;
		break;
	case IPPROTO_HOPOPTS:
	case NEXTHDR_DEST:
	case NEXTHDR_MOBILITY:
	case NEXTHDR_HIP:
	case NEXTHDR_SHIM6:
		headers->at += (head[1] + 1) * 8;
		break;
	default:
		return 1;
	}
	headers->next = head[0];
	return 0;
}

/* Reads the IP header: the addresses of the flow, and where the walk begins. Returns where the packet ends in
 * the frame, or 0. */
static __always_inline __u32 begin_walk(struct headers *headers, __u32 at, struct flow *flow)
{
	struct __sk_buff *skb = headers->skb;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	__u32 bytes;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at, &ip.v4, sizeof(ip.v4)) ||
		    ip.v4.frag_off & bpf_htons(IP_OFFSET))
			return 0;
		if (ip.v4.frag_off & bpf_htons(IP_MF))
			headers->rare |= RARE_PART;
		flow->client = mapped(ip.v4.saddr);
		flow->server = mapped(ip.v4.daddr);
		headers->at = at + ip.v4.ihl * 4;
		headers->next = ip.v4.protocol;
		bytes = bpf_ntohs(ip.v4.tot_len);
	} else {
		if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
		    bpf_skb_load_bytes(skb, at, &ip.v6, sizeof(ip.v6)))
			return 0;
		flow->client = address_of(&ip.v6.saddr);
		flow->server = address_of(&ip.v6.daddr);
		headers->at = at + sizeof(ip.v6);
		headers->next = ip.v6.nexthdr;
		headers->is_ipv6 = true;
		bytes = bpf_ntohs(ip.v6.payload_len);
		bytes += bytes ? sizeof(ip.v6) : 0;
	}
	/* Zero is a packet too long for the field (BIG TCP). */
	return bytes ? at + bytes : skb->len;
}

/* Reads a segment that `view_segment` has not seen, whose IP header is at `at`: enum seen. Of a header
 * that is not whole, as in a short first fragment, `bytes` is 0. */
GLOBAL int view_rare(struct __sk_buff *skb, struct view *view, __u32 at)
{
	struct headers headers = { .skb = skb, .rare = RARE_HEADERS };
	__u8 tcp[sizeof(struct tcphdr)] = {};
	struct flow flow = {};
	__u32 end;

	if (!view)
		return SEEN_OTHER;
	end = begin_walk(&headers, at, &flow);
	if (!end)
		return SEEN_OTHER;
	bpf_loop(EXTENSIONS_MAX, step_over, &headers, 0);
	if (headers.next == (headers.is_ipv6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return SEEN_ICMP;
	/* No host takes fewer bytes for a fragment. */
	if (headers.next != IPPROTO_TCP || bpf_skb_load_bytes(skb, headers.at, tcp, 8))
		return SEEN_OTHER;
	if (headers.final_at && bpf_skb_load_bytes(skb, headers.final_at, &flow.server, 16))
		return SEEN_OTHER;
	if (headers.is_ipv6 && (is_mapped(&flow.client) || is_mapped(&flow.server)))
		return SEEN_OTHER;
	if (headers.at + sizeof(tcp) <= end && headers.at + sizeof(tcp) <= skb->len)
		bpf_skb_load_bytes(skb, headers.at, tcp, sizeof(tcp));
	view_tcp(view, tcp, is_before(flow.server.word, flow.client.word));
	view->key.first = view->turned ? flow.server : flow.client;
	view->key.second = view->turned ? flow.client : flow.server;
	view->at = headers.at;
	view->rare = headers.rare;
	if (view->bytes < sizeof(tcp) || headers.at + view->bytes > end)
		view->bytes = 0;
	return SEEN_SEGMENT;
}

/* Reads a segment, also one that is rare, whose IP header is at `at`: enum seen. */
static __always_inline int see_segment(struct __sk_buff *skb, struct view *view, __u32 at)
{
	if (view_segment(skb, at, view))
		return SEEN_SEGMENT;
	__builtin_memset(view, 0, sizeof(*view));
	return view_rare(skb, view, at);
}

/* Whether a packet is a chain of segments with a header each (SKB_GSO_FRAGLIST), as GRO makes them where an
 * interface has `rx-gro-list`. Where that cannot be read, any may be one. */
static __always_inline bool is_chain(struct __sk_buff *skb)
{
	__u32 head_at = SET(setting_skb_head);
	__u32 end = 0, type = 0;
	__u64 head = 0;

	OPAQUE(head_at);
	if (!head_at)
		return true;
	bpf_probe_read_kernel(&head, sizeof(head), (void *)skb + head_at);
	bpf_probe_read_kernel(&end, sizeof(end), (void *)skb + SET(setting_skb_end));
	bpf_probe_read_kernel(&type, sizeof(type), (void *)(head + end + SET(setting_gso_type)));
	return type & GSO_FRAGLIST;
}

/* Makes a chain one segment, which the kernel cuts anew: it would write the numbers of the first only. With
 * all bytes in one piece, since the kernel cuts no other piece that differs in size from the segments. False
 * if that is not possible. */
GLOBAL int join_chain(struct __sk_buff *skb)
{
	if (!is_chain(skb))
		return true;
	return SET(setting_cuts_chains) && !bpf_skb_pull_data(skb, skb->len);
}

/* Takes off what Ethernet pads short frames with (IEEE 802.3): it would count as payload. False if that is not
 * possible. */
static __always_inline bool trim(struct __sk_buff *skb, const struct view *view)
{
	return !view->end || skb->len <= view->end || !bpf_skb_change_tail(skb, view->end, 0);
}

/* Whether the header of a segment is whole, and it is one segment with nothing behind it. */
static __always_inline bool is_sound(struct __sk_buff *skb, const struct view *view)
{
	return view->bytes && (skb->gso_size ? join_chain(skb) : trim(skb, view));
}
