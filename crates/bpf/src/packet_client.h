/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Segments of the client of a flow that is not open. */
#pragma once
#include "packet_hold.h"
#include "packet_numbers.h"

/* Sequence numbers behind the client's first that a reset before the server's answer
 * may have. */
#define FIRST_FLIGHT_MAX (1u << 20)

/* Resets the client of a flow that no server answered, at its next segment: the reset that the
 * sweep sent may be lost. */
GLOBAL int reset_client(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
			struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;

	if (!pkt || !entry || !scratch || pkt->tcp.rst)
		return DROP;
	segment = &scratch->segment;
	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = reversed(&pkt->flow);
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	reset_to_client(segment, entry);
	segment->partial = spoil_checksum(skb, at);
	swap_link_addresses(skb, pkt->l2_bytes);
	if (write_segment(skb, segment, NULL))
		bpf_clone_redirect(skb, skb->ifindex, 0);
	entry->state = PACKET_CLOSED;
	return DROP;
}

/* A reset of the client before the server has answered. */
static __always_inline int on_early_reset(struct __sk_buff *skb, const struct packet *pkt,
					  __u32 at, struct packet_flow *entry,
					  struct packet_scratch *scratch)
{
	__u32 seq = bpf_ntohl(pkt->tcp.seq);
	int verdict;

	/* Another number: the client or the node resets an older connection, whose numbers may be near
	 * these. */
	if (seq - entry->client_isn - 1 > FIRST_FLIGHT_MAX ||
	    (entry->older != OLDER_NONE && seq == entry->of_server))
		return PASS;
	/* That of a host without the connection has the number that was acknowledged. One that
	 * has it sends what the node acknowledges too. */
	if (pkt->tcp.ack ? bpf_ntohl(pkt->tcp.ack_seq) != entry->node_isn + 1 :
			   seq != entry->client_isn + 1 && seq != entry->up.next)
		return DROP;
	/* What the server opens for an earlier SYN is reset when it answers. The client may use its port
	 * again at once. */
	verdict = entry->state == PACKET_ACCEPTED ?
			  translate_in(skb, entry, at, pkt->tcp.doff * 4, 0) :
			  DROP;
	close_early(&scratch->key, entry);
	return verdict;
}

/* The first of the two ends has answered. */
static __always_inline void note_nearer(struct packet_flow *entry)
{
	entry->nearer_us = (bpf_ktime_get_ns() - entry->since_ns) / 1000;
}

/* Both have. By forwarding, the client's data would have left that much later: by the round
 * trip of the nearer end. Only here, where the client has proved itself, a broken promise counts. */
static __always_inline void note_opened(const struct packet_flow *entry,
					const struct destination *service)
{
	count(STAT_PACKET_OPENED);
	count_by(STAT_PACKET_SAVED, entry->nearer_us);
	if (entry->promised & ~entry->granted) {
		count(STAT_PACKET_MISMATCHES);
		mark_bad(service, UNLIKE_NS);
	}
}

/* Whether a segment before the server's answer has numbers of the client's: it acknowledges no more than
 * the node's SYN. */
static __always_inline bool is_early(const struct packet *pkt, const struct packet_flow *entry)
{
	return bpf_ntohl(pkt->tcp.ack_seq) == entry->node_isn + 1 &&
	       bpf_ntohl(pkt->tcp.seq) - entry->client_isn - 1 <= FIRST_FLIGHT_MAX;
}

/* Whether the client of a flow in this state may have another connection with these addresses, that is older
 * than this program: a forged SYN must not harm that. What does not fit the flow passes as it is. */
static __always_inline bool is_unproved(__u32 state)
{
	return is_half_open(state) || state == PACKET_CLOSED;
}

/* Whether a segment of the client before the server's answer belongs to the flow. */
static __always_inline bool proves(const struct packet_flow *entry, bool acknowledges, __u32 ack)
{
	return acknowledges && ack == entry->node_isn + 1;
}

/* A segment of the client, whose first was a SYN that the node answered. */
GLOBAL int from_client(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		       struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct destination service;
	__u64 prefix;
	__u32 state;

	if (!pkt || !entry || !scratch)
		return DROP;
	state = entry->state;
	/* Another CPU has opened it meanwhile. */
	if (state == PACKET_OPEN)
		return translate_in(skb, entry, at, pkt->tcp.doff * 4, 0);
	if (state == PACKET_GIVEN_UP)
		return reset_client(skb, pkt, at, entry);
	if (is_unproved(state) && !pkt->tcp.rst &&
	    !proves(entry, pkt->tcp.ack && !pkt->tcp.syn, bpf_ntohl(pkt->tcp.ack_seq)))
		return PASS;
	if (state == PACKET_CLOSED)
		return pkt->tcp.rst ? PASS : reset_client(skb, pkt, at, entry);
	if (!is_half_open(state) && state != PACKET_HELD)
		return DROP;
	if (pkt->tcp.rst)
		return on_early_reset(skb, pkt, at, entry, scratch);
	if (!pkt->tcp.ack || pkt->tcp.syn)
		return DROP;
	if (!is_early(pkt, entry))
		return DROP;
	prefix = prefix_of(&pkt->flow.client);
	if (change(entry, PACKET_ANSWERED, PACKET_HELD)) {
		leave_half_open(prefix, true);
		note_client_rtt(entry, prefix);
		note_nearer(entry);
	} else if (change(entry, PACKET_ACCEPTED, PACKET_OPEN)) {
		leave_half_open(prefix, true);
		note_client_rtt(entry, prefix);
		service = service_of(&pkt->flow);
		note_opened(entry, &service);
	}
	if (entry->state == PACKET_HELD && hold(skb, pkt, at, entry))
		return entry->older == OLDER_SEEN ? renew(skb, pkt, entry) : DROP;
	return translate_in(skb, entry, at, pkt->tcp.doff * 4, 0);
}

/* Whether a part of a segment, which cannot be held or answered, belongs to the flow that has not opened. */
GLOBAL int is_part_of(struct __sk_buff *skb, const struct packet_flow *entry,
		      const struct view *view, __u32 out)
{
	__be32 ack;

	if (!entry || !view || !is_unproved(entry->state) ||
	    bpf_skb_load_bytes(skb, view->at + TCP_ACK_AT, &ack, sizeof(ack)))
		return true;
	return view->flags & TCP_ACK &&
	       bpf_ntohl(ack) == (out ? entry->client_isn : entry->node_isn) + 1;
}

/* A part of a segment of the client before the server's answer. The client repeats it then; but the parts behind it,
 * which show no flow, wait for it in the host's reassembly, whose memory the clients behind a narrow path could fill:
 * they are not answered for a while. */
GLOBAL int on_early_part(struct __sk_buff *skb, const struct packet_flow *entry,
			 const struct view *view)
{
	struct packet_prefix *prefix;
	__be32 ack;

	if (!entry || !view || bpf_skb_load_bytes(skb, view->at + TCP_ACK_AT, &ack, sizeof(ack)))
		return DROP;
	if (!is_part_of(skb, entry, view, 0))
		return PASS;
	/* Who does not see the flow must not take its client off the path. */
	if (skb->ifindex != entry->ifindex || !(view->flags & TCP_ACK) ||
	    bpf_ntohl(ack) != entry->node_isn + 1 ||
	    view->seq - entry->client_isn - 1 > FIRST_FLIGHT_MAX)
		return DROP;
	prefix = prefix_record(prefix_of_flow(&view->key, entry));
	if (prefix)
		prefix->parts_until_ns = bpf_ktime_get_ns() + UNLIKE_NS;
	return DROP;
}
