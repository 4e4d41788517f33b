/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Segments of a flow at other interfaces than before: its route was moved, another device in front or behind
 * shows them too, or a host forges them.
 */
#pragma once
#include "packet_numbers.h"
#include "packet_segment.h"

/* How long segments pass another interface alone until the flow is there. A bridge and its port
 * both see each of them, the one soon after the other. */
#define STRAY_NS 8000000ull
#define MOVES_AFTER (200000000ull / STRAY_NS)

/* Whether one direction of a flow passes this interface. `since`: when segments began to pass another
 * one alone. */
static __always_inline bool passes(__u32 ifindex, __u8 *since, __u32 here)
{
	if (ifindex != here)
		return false;
	if (*since)
		*since = 0;
	return true;
}

/* Whether segments have passed another interface alone for long enough, to which their route was moved. */
static __always_inline bool has_moved(__u8 *since)
{
	__u8 now = (bpf_ktime_get_coarse_ns() / STRAY_NS) | 1;

	if (*since)
		return (__u8)(now - *since) >= MOVES_AFTER;
	*since = now;
	return false;
}

/* Whether a segment has numbers of what is in flight: who does not see the flow has to guess them. `seq` is as its
 * receiver counts. */
static __always_inline bool fits(const struct packet_way *way, __u32 seq, const struct packet_way *back,
				 __u32 ack)
{
	return ack - back->acked <= back->next - back->acked &&
	       seq - way->acked + GAP_MAX <= way->next - way->acked + 2 * GAP_MAX;
}

/* Whether the client's direction moves to this interface, by a segment of it: with the numbers of the flow,
 * after silence at the former one, if this host would answer by this one. */
GLOBAL int moves_in(struct __sk_buff *skb, struct packet_flow *entry, const struct view *view,
		    __u32 l2_bytes)
{
	struct packet *pkt;

	if (!entry || !view || (view->flags & (TCP_ACK | TCP_SYN)) != TCP_ACK)
		return false;
	pkt = parse_segment(skb, view, 0, l2_bytes);
	if (!pkt ||
	    !fits(&entry->up, view->seq + entry->client_seq_delta, &entry->down,
		  bpf_ntohl(pkt->tcp.ack_seq)) ||
	    !has_moved(&entry->strayed) || !routes_back(skb, pkt))
		return false;
	entry->ifindex = skb->ifindex;
	entry->strayed = 0;
	if (pkt->l2_bytes)
		bpf_skb_load_bytes(skb, 0, entry->link, sizeof(entry->link));
	return true;
}

/* Whether the server's direction does. This host has routed the segment here. */
GLOBAL int moves_out(struct __sk_buff *skb, struct packet_flow *entry, const struct view *view,
		     __u32 l2_bytes)
{
	struct packet *pkt;
	__u32 seq;

	if (!entry || !view || !(view->flags & TCP_ACK))
		return false;
	seq = view->seq + entry->seq_delta;
	if (entry->state != PACKET_OPEN)
		/* The server has shown no number yet. */
		seq = entry->down.acked;
	else if (view->flags & TCP_SYN)
		return false;
	pkt = parse_segment(skb, view, 1, l2_bytes);
	if (!pkt || !fits(&entry->down, seq, &entry->up, bpf_ntohl(pkt->tcp.ack_seq)) ||
	    !has_moved(&entry->out_strayed))
		return false;
	entry->out_ifindex = skb->ifindex;
	entry->out_strayed = 0;
	return true;
}

/* What happens to a segment at another interface than its flow's. */
enum elsewhere {
	ELSEWHERE_TRANSLATE, /* its route was moved */
	ELSEWHERE_PASS,	     /* it was translated before, and another program has removed the mark */
	ELSEWHERE_DROP,	     /* its numbers fit neither, or both */
};

/* Whether a number of the server's bytes, as the client counts them, is near what is in flight. */
static __always_inline bool is_near(const struct packet_flow *entry, __u32 number)
{
	return number - entry->down.acked + SPAN <= entry->down.next - entry->down.acked + 2 * SPAN;
}

/* Shows, by the number of the server's bytes, which both directions have, whether a segment of an open flow is in
 * the numbers of its sender or of its receiver: enum elsewhere. */
GLOBAL int look_elsewhere(struct __sk_buff *skb, const struct packet_flow *entry,
			  const struct view *view, __u32 out)
{
	bool clients, servers, raw, done;
	__be32 ack = 0;
	__u32 number;

	if (!entry || !view)
		return ELSEWHERE_DROP;
	if (!out && !(view->flags & TCP_ACK))
		/* It has none, and its own is the same in both, unless the flow was relayed. Only a reset of an end has
		 * none (RFC 9293 section 3.10.7.4): others would raise what counts as sent. */
		return entry->was_relayed || !(view->flags & TCP_RST) ? ELSEWHERE_DROP :
									ELSEWHERE_TRANSLATE;
	if (!out && bpf_skb_load_bytes(skb, view->at + TCP_ACK_AT, &ack, sizeof(ack)))
		return ELSEWHERE_DROP;
	number = out ? view->seq : bpf_ntohl(ack);
	clients = is_near(entry, number);
	servers = is_near(entry, number + entry->seq_delta);
	raw = out ? servers : clients;
	done = out ? clients : servers;
	if (raw == done)
		return ELSEWHERE_DROP;
	return raw ? ELSEWHERE_TRANSLATE : ELSEWHERE_PASS;
}
