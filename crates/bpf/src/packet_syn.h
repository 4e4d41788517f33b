/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * SYNs of clients: whether the packet path carries the flow, and whether the node answers.
 */
#pragma once
#include "packet_answer.h"
#include "packet_leaving.h"
#include "rules.h"

/* A node that has not shown itself for so long is dead: no new flows. */
#define HEARTBEAT_NS 5000000000ull
/* What is left of the hop limits of usual hosts, 64 and more, at the end of long paths. With less, a
 * client may look for the routers on its way, and wait for their errors. */
#define HOPS_MIN 32

/* What a rule requests for a flow: bits. */
enum request {
	REQUEST_NONE = 0,
	REQUEST_PACKETS = 1,
	REQUEST_OBSERVED = 2, /* only once its client was seen to reach the destination */
	REQUEST_SHORT = 4,    /* only for short answers */
};
/* Above these bits is how long the server may take to answer. */
#define REQUEST_BITS 16

/* Whether a rule wants the flow on the packet path, and a living node serves it. */
GLOBAL __u32 request_of(const struct packet *pkt, __u64 now)
{
	struct packet_control *control = control_of_node();
	struct verdict verdict = {};

	if (!pkt || !control || now - control->heartbeat_ns > HEARTBEAT_NS ||
	    is_draining(this_worker()))
		return REQUEST_NONE;
	if (!find_rule(pkt, &verdict) || verdict.action != ACTION_RELAY ||
	    verdict.data_path == DATA_PATH_SOCKET)
		return REQUEST_NONE;
	return REQUEST_PACKETS | (verdict.observe ? REQUEST_OBSERVED : 0) |
	       (verdict.data_path == DATA_PATH_AUTO ? REQUEST_SHORT : 0) |
	       (__u32)verdict.connect_cs << REQUEST_BITS;
}

/* Whether conntrack sees the packets of an interface before this program does: then it
 * sees the client's acknowledgements in the node's numbers, and calls them invalid. */
static __always_inline bool is_tracked(__u32 ifindex)
{
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);

	return !device || device->tracked;
}

/* Whether the packet path can carry the flow of a SYN. */
static __always_inline bool is_fit(struct __sk_buff *skb, const struct packet *pkt,
				   const struct read_options *options)
{
	return !is_tracked(skb->ifindex) && !options->unknown && options->mss_at &&
	       !pkt->tcp.fin && hop_limit(pkt) >= HOPS_MIN;
}

/* Whether segments of its client's prefix have come in parts before the server's answer. */
static __always_inline bool sends_parts(const struct packet *pkt, __u64 now)
{
	__u64 key = prefix_of(&pkt->flow.client);
	struct packet_prefix *prefix = bpf_map_lookup_elem(&packet_prefixes, &key);

	return prefix && now < prefix->parts_until_ns;
}

/* Routers choose among equal paths by the flow label (RFC 6438), so what the node sends for a
 * client has that of its SYN. */
static __always_inline __be32 class_label_of(const struct packet *pkt)
{
	__be32 word;

	if (pkt->family == AF_INET)
		return bpf_htonl((__u32)pkt->ip.v4.tos << 20);
	__builtin_memcpy(&word, &pkt->ip.v6, sizeof(word));
	return word & bpf_htonl(0x0fffffff);
}

/* The entry of a SYN that is forwarded and not answered. */
static __always_inline void describe(struct __sk_buff *skb, const struct packet *pkt,
				     struct packet_scratch *scratch, __u64 now)
{
	struct packet_flow *made = &scratch->flow;

	__builtin_memset(made, 0, sizeof(*made));
	made->since_ns = made->last_ns = now;
	made->ifindex = skb->ifindex;
	made->turned = is_turned(&pkt->flow);
	made->client_isn = made->other_isn = bpf_ntohl(pkt->tcp.seq);
	made->up.acked = made->up.next = made->up.edge = made->client_isn + 1;
	made->out_ifindex = made->ifindex;
	made->hop_limit = hop_limit(pkt);
	made->window = bpf_ntohs(pkt->tcp.window);
	made->class_label = class_label_of(pkt);
	made->syn_mss = scratch->options.mss;
	if (pkt->l2_bytes)
		bpf_skb_load_bytes(skb, 0, made->link, sizeof(made->link));
	made->promised = scratch->options.offers;
}

/* Makes it that of a flow that the node answers. */
static __always_inline void answer(struct packet_flow *made, const struct packet *pkt,
				   const struct packet_profile *profile, __u32 mss,
				   const struct read_options *options)
{
	__u64 hash = keyed_hash(&pkt->flow, made->client_isn, made->since_ns);

	promise(made, profile, mss, options);
	made->node_isn = hash;
	made->down.acked = made->down.next = made->down.edge = made->node_isn + 1;
	made->node_ts = (__u32)(hash >> 32) + (__u32)(made->since_ns / 1000000);
	made->client_ts = options->ts_value;
	made->delay_ms = answer_delay(made, prefix_of(&pkt->flow.client), profile);
	made->state = PACKET_ANSWERED;
}

/* Whether the node has relays, or may have had some. */
static __always_inline bool has_relayed(void)
{
	__u32 only = 0;
	__u32 *relays = bpf_map_lookup_elem(&packet_relays, &only);

	return !relays || *relays;
}

/* Whether a relay that was opened under former rules has the addresses and ports of a SYN:
 * forwarding drops what belongs to a socket. A node that never had relays does without the
 * look-up, whose search among all listeners costs as much as the rest of the decision. */
static __always_inline bool has_socket(struct __sk_buff *skb, struct packet *pkt)
{
	int owner;

	if (!has_relayed())
		return false;
	owner = owner_of(skb, pkt);
	return owner != OWNER_NONE && owner != OWNER_LISTENER;
}

/* Counts a SYN that the packet path leaves to others, by the reason. */
static __always_inline int leave(__u32 reason)
{
	count(reason);
	return NEXT;
}

/* A SYN that the packet path does not carry. Of a client that sends data with it the sockets would take a
 * round trip, which forwarding does not. */
static __always_inline int leave_unfit(struct packet_scratch *scratch, int request)
{
	count(STAT_PACKET_UNFIT);
	if (!(request & REQUEST_SHORT) || !scratch->options.hurries)
		return NEXT;
	scratch->flow.state = PACKET_LEARNING;
	return PASS;
}

/* The lesser of two sizes; 0 if the second is not known. */
static __always_inline __u32 least(__u32 one, __u32 other)
{
	return one < other ? one : other;
}

/* What the node would do about the SYN of a new flow once it has left: the entry that it would make. */
GLOBAL int open_flow(struct __sk_buff *skb, struct packet *pkt)
{
	struct packet_scratch *scratch = scratch_area();
	__u64 now = bpf_ktime_get_ns();
	struct packet_profile *profile;
	struct destination service;
	struct packet_flow *made;
	__u32 request, mss, known;

	if (!pkt || !scratch)
		return NEXT;
	request = request_of(pkt, now);
	if (!request)
		return NEXT;
	known = passage_mss(&pkt->flow, skb->ifindex, now);
	if (known == PASSAGE_TURNS || has_socket(skb, pkt))
		return leave(STAT_PACKET_LOCAL);
	if (!is_fit(skb, pkt, &scratch->options) || sends_parts(pkt, now))
		return leave_unfit(scratch, request);
	service = service_of(&pkt->flow);
	profile = bpf_map_lookup_elem(&packet_profiles, &service);
	/* A SYN-ACK from the client's interface is none. */
	if (profile && profile->answers_from == skb->ifindex)
		return leave(STAT_PACKET_LOCAL);
	if (profile && now < profile->bad_until_ns)
		return leave(STAT_PACKET_BAD);
	made = &scratch->flow;
	describe(skb, pkt, scratch, now);
	if (!profile || !has_tested(profile, scratch->options.offers, now)) {
		if (!routes_back(skb, pkt))
			return leave(STAT_PACKET_CLIENT);
		return expect_leaving(&scratch->key, made, LEAVING_UNKNOWN) ? PASS : NEXT;
	}
	mss = profile->mss;
	if (request & REQUEST_OBSERVED)
		mss = least(mss, known);
	if (!mss) {
		count(STAT_PACKET_CLIENT);
		return expect_leaving(&scratch->key, made, LEAVING_NEW) ? PASS : NEXT;
	}
	if ((request & REQUEST_SHORT && profile->is_long) || receives_much(profile, now))
		return leave(STAT_PACKET_LONG);
	if (!returns(skb, pkt))
		return leave(STAT_PACKET_CLIENT);
	made->connect_cs = request >> REQUEST_BITS;
	answer(made, pkt, profile, fit_mss(skb, pkt->family, mss), &scratch->options);
	return expect_leaving(&scratch->key, made, LEAVING_NEW) ? PASS : NEXT;
}

/* Whether a flow has ended, so that a SYN may use its entry. */
static __always_inline bool has_ended(const struct packet_flow *entry)
{
	return entry->state == PACKET_CLOSED || entry->state == PACKET_LEARNING ||
	       /* Its client has begun anew. */
	       entry->state == PACKET_GIVEN_UP || has_closed(entry);
}

/* What the node sends for the client must not carry an older timestamp than a repeated SYN
 * (PAWS, RFC 7323 section 5). */
static __always_inline void note_client_ts(struct packet_flow *entry,
					   const struct read_options *options)
{
	if ((__s32)(options->ts_value - entry->client_ts) > 0)
		entry->client_ts = options->ts_value;
}

/* Whether it is the client's, whole, and in one piece. */
static __always_inline bool is_plain(const struct packet *pkt, __u32 at)
{
	if (pkt->family == AF_INET)
		return bpf_ntohs(pkt->ip.v4.tot_len) == at - pkt->l2_bytes + pkt->tcp.doff * 4;
	return bpf_ntohs(pkt->ip.v6.payload_len) == pkt->tcp.doff * 4;
}

/* The sum of a segment up to its payload: of the pseudo header, and of the header in the scratch
 * area. Zero where a device completes the checksum (CHECKSUM_PARTIAL), also of what the kernel has
 * joined. */
static __always_inline __u32 sum_header(const struct packet *pkt, struct packet_scratch *scratch,
					__u32 tcp_bytes)
{
	__s64 sum = pseudo_sum(&pkt->flow, tcp_bytes);
	__u32 bytes = scratch->header.bytes;

	if (pkt->tcp.check == fold(sum))
		return 0;
	if (!is_between(&bytes, sizeof(struct tcphdr), TCP_HEADER_MAX))
		return 1;
	return bpf_csum_diff(NULL, 0, (__be32 *)scratch->header.before, bytes, sum);
}

/* Whether the checksum of a segment whose header is in the scratch area is right; of one with contents that is
 * not known. */
static __always_inline bool is_whole(const struct packet *pkt, struct packet_scratch *scratch,
				     __u32 at)
{
	__u32 sum;

	if (!is_plain(pkt, at))
		return true;
	sum = sum_header(pkt, scratch, pkt->tcp.doff * 4);
	return !sum || fold(sum) == 0xffff;
}

GLOBAL int on_syn(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_flow *entry;
	__u32 isn;
	int verdict;

	if (!pkt || !scratch)
		return NEXT;
	isn = bpf_ntohl(pkt->tcp.seq);
	entry = bpf_map_lookup_elem(&packet_flows, &scratch->key);
	if (entry && !has_ended(entry) && entry->client_isn != isn) {
		/* The server decides, and answers an ACK if it still has the flow. */
		if (entry->ifindex == skb->ifindex)
			entry->other_isn = isn;
		count(STAT_PACKET_BUSY);
		return PASS;
	}
	if (entry && entry->state == PACKET_LEARNING) {
		if (entry->client_isn == isn)
			return PASS;
		stop_learning(entry, PACKET_CLOSED);
	}
	if (!read_header(skb, scratch, at, pkt->tcp.doff * 4))
		return NEXT;
	if (!is_plain(pkt, at)) {
		scratch->options.hurries |= !scratch->options.unknown;
		scratch->options.unknown = true;
	}
	if (!is_whole(pkt, scratch, at))
		/* Its numbers are not the client's, which sends it again. */
		return entry ? PASS : NEXT;
	if (!entry || has_ended(entry)) {
		/* It would translate the new connection by the old numbers. Claimed first: the sweep may be about to
		 * remove what has this key by then. */
		if (entry) {
			if (!change(entry, entry->state, PACKET_REMOVED))
				return NEXT;
			bpf_map_delete_elem(&packet_flows, &scratch->key);
		}
		verdict = open_flow(skb, pkt);
		return verdict == PASS && scratch->flow.state == PACKET_ANSWERED ?
			       strip_syn(skb, scratch, at, &scratch->flow) :
			       verdict;
	}
	if (entry->ifindex != skb->ifindex)
		return PASS;
	/* Repeated: by the client, or by the node for it. One that has come back in a loop of routers is not
	 * answered again. */
	note_client_ts(entry, &scratch->options);
	if (is_half_open(entry->state) && hop_limit(pkt) >= entry->hop_limit && returns(skb, pkt))
		expect_leaving(&scratch->key, entry, LEAVING_REPEATED);
	return strip_syn(skb, scratch, at, entry);
}
