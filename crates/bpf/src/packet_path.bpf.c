// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The packet path: early SYN forwarding without sockets (docs/design/0022). The node
 * answers a SYN itself and forwards it at the same time; once the server has answered
 * it only translates numbers. All of it happens at the interface of the client, so the
 * rest of this host sees an ordinary forwarded connection in the server's numbers.
 *
 * packet_in      tc ingress, before `redirect`
 * packet_out     tc egress
 * packet_sweep   run by user space
 * packet_resend  likewise
 * packet_abort   likewise
 */
#include "packet_icmp.h"
#include "packet_moves.h"
#include "packet_narrow.h"
#include "packet_server.h"
#include "packet_sweep.h"

#define PACKET_HOST 0

/* Whether a segment is the first of a connection. */
static __always_inline bool opens(const struct view *view)
{
	return (view->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

/* The verdict on a segment of a flow that is being aborted. What it acknowledges is noted by then. */
static __always_inline int only_resets(const struct view *view, int verdict)
{
	return view->flags & TCP_RST ? verdict : DROP;
}

/* A SYN that is rare. The node does not answer it, nor learn from it. */
GLOBAL int on_rare_syn(struct __sk_buff *skb, const struct view *view)
{
	struct packet_flow *entry;

	if (!view)
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view->key);
	if (!entry || (entry->state == PACKET_LEARNING && entry->client_isn == view->seq))
		return NEXT;
	if (has_ended(entry)) {
		/* It would translate the new connection by the old numbers. */
		stop_learning(entry, PACKET_CLOSED);
		bpf_map_delete_elem(&packet_flows, &view->key);
		return NEXT;
	}
	/* The one that the node has answered comes again as it was. */
	if (entry->client_isn == view->seq)
		return DROP;
	if (entry->ifindex == skb->ifindex)
		entry->other_isn = view->seq;
	count(STAT_PACKET_BUSY);
	return PASS;
}

/* A segment of the client of a flow. */
static __always_inline int carry_on_in(struct __sk_buff *skb, struct packet_flow *entry,
				       struct view *view, __u32 l2_bytes)
{
	struct packet *pkt;
	int elsewhere;
	bool is_open;

	if (is_carried(skb))
		return PASS;
	if (!is_sound(skb, view))
		return DROP;
	is_open = entry->state == PACKET_OPEN || entry->state == PACKET_ABORTED;
	if (!passes(entry->ifindex, &entry->strayed, skb->ifindex)) {
		elsewhere = is_open ? look_elsewhere(skb, entry, view, 0) : ELSEWHERE_TRANSLATE;
		if (elsewhere == ELSEWHERE_PASS)
			return entry->state == PACKET_OPEN ? PASS : only_resets(view, PASS);
		if (elsewhere == ELSEWHERE_DROP)
			return DROP;
		if (!view->rare)
			moves_in(skb, entry, view, l2_bytes);
	}
	if (entry->state == PACKET_OPEN) {
		if (!view->rare && is_too_long(skb, entry, view->at, view->bytes))
			return report_narrow(skb, entry, view->at);
		return translate_in(skb, entry, view->at, view->bytes, view->rare);
	}
	if (entry->state == PACKET_ABORTED)
		return only_resets(view, translate_in(skb, entry, view->at, view->bytes, view->rare));
	if (view->rare && !strip_headers(skb, view, l2_bytes))
		return on_early_part(skb, entry, view);
	pkt = parse_segment(skb, view, 0, l2_bytes);
	return pkt ? from_client(skb, pkt, view->at, entry) : DROP;
}

static __always_inline int carry_in(struct __sk_buff *skb, struct view *view)
{
	__u32 ifindex = skb->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct packet_flow *entry;
	struct packet *pkt;
	int seen;

	if (!device || is_tagged(skb) || skb->pkt_type != PACKET_HOST)
		return NEXT;
	seen = see_segment(skb, view, device->l2_bytes);
	if (seen != SEEN_SEGMENT)
		return seen == SEEN_ICMP ? icmp_in(skb) : NEXT;
	if (opens(view)) {
		forget_leaving(view->seq);
		if (view->rare)
			return on_rare_syn(skb, view);
		pkt = parse_segment(skb, view, 0, device->l2_bytes);
		return pkt ? on_syn(skb, pkt, view->at) : NEXT;
	}
	/* A segment of a server. Where flows may have sockets, `redirect` would search for one: PASS,
	 * for which the flow must be found, costs less. */
	if (!has_relayed() && !may_be_client(source_port(view)))
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view->key);
	if (!entry)
		return NEXT;
	if (entry->state == PACKET_LEARNING) {
		if (view->turned != entry->turned || view->rare & RARE_PART)
			return NEXT;
		return confirm(skb, &view->key, entry, view);
	}
	if (view->turned != entry->turned)
		/* The server's: translated where it leaves to the client. */
		return PASS;
	return carry_on_in(skb, entry, view, device->l2_bytes);
}

/* The programs of others see what passes too, as it goes on. */
SEC("classifier")
int packet_in(struct __sk_buff *skb)
{
	struct view view;
	bool is_whole;
	int verdict;

	view.rare = 0;
	verdict = carry_in(skb, &view);
	is_whole = !(view.rare & RARE_PART);
	/* What is not whole has no later parts that are carried too: `redirect` forgets where it led the
	 * parts of an earlier packet with the same identification. */
	skb->cb[MESSAGE_CARRIED] = verdict == PASS && is_whole ? MESSAGE_IS_CARRIED : 0;
	return verdict == PASS ? NEXT : verdict;
}

/* A segment of the server of a flow that learns, which passes as it is. */
static __always_inline int learn_from(struct __sk_buff *skb, struct packet_flow *entry,
				      const struct view *view, __u32 l2_bytes)
{
	struct packet *pkt;

	/* Of this host itself. */
	if (!skb->ingress_ifindex)
		return NEXT;
	if (!passes(entry->out_ifindex, &entry->out_strayed, skb->ifindex) &&
	    (view->rare || !moves_out(skb, entry, view, l2_bytes)))
		return NEXT;
	if (!(view->flags & TCP_SYN))
		return entry->is_measured ? measure(skb, entry, view) : NEXT;
	if (view->rare || !(view->flags & TCP_ACK))
		return NEXT;
	pkt = parse_segment(skb, view, 1, l2_bytes);
	return pkt ? on_syn_ack(skb, pkt, view->at, entry) : NEXT;
}

/* A segment of the server of a flow. */
static __always_inline int carry_on_out(struct __sk_buff *skb, struct packet_flow *entry,
					struct view *view, __u32 l2_bytes)
{
	int elsewhere, verdict;
	bool is_open;

	if (is_carried(skb))
		return NEXT;
	if (entry->state == PACKET_LEARNING)
		return learn_from(skb, entry, view, l2_bytes);
	if (!is_sound(skb, view))
		return DROP;
	is_open = (entry->state == PACKET_OPEN && !(view->flags & TCP_SYN)) ||
		  entry->state == PACKET_ABORTED;
	if (is_open && entry->out_ifindex != skb->ifindex) {
		elsewhere = look_elsewhere(skb, entry, view, 1);
		if (elsewhere == ELSEWHERE_PASS)
			return entry->state == PACKET_OPEN ? NEXT : only_resets(view, NEXT);
		if (elsewhere == ELSEWHERE_DROP)
			return DROP;
		/* At once: at the former one, behind, it would be translated again if it has lost its
		 * mark. */
		entry->out_ifindex = skb->ifindex;
	}
	if (!is_open)
		return on_other(skb, entry, view, l2_bytes);
	if (entry->state == PACKET_ABORTED)
		return only_resets(view, translate_out(skb, entry, view->at, view->bytes, view->rare));
	if (!entry->is_long && is_long(entry, view->seq))
		note_long(&view->key, entry);
	verdict = translate_out(skb, entry, view->at, view->bytes, view->rare);
	/* After its number was noted: it may be the last segment of the flow. */
	if (!entry->is_sender && sends_much(entry, entry->up.acked))
		note_sender(&view->key, entry);
	if (verdict == NEXT && !view->rare && is_stamped(entry))
		return stamp(skb, &view->key, entry, view->at, view->bytes);
	return verdict;
}

SEC("classifier")
int packet_out(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct packet_flow *entry;
	struct device *device;
	struct view view;
	int seen;

	/* It is translated: by `bypass_in`, for a pair that may be a flow by now, or in one
	 * piece with others, as which it is sent. */
	if ((skb->mark & NODE_MARKS) == NODE_MARKS) {
		skb->mark &= ~NODE_MARKS;
		mark_carried(skb);
		return is_piece(skb) ? stamp_piece_in_hand(skb) : NEXT;
	}
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!device || is_tagged(skb))
		return NEXT;
	seen = see_segment(skb, &view, device->l2_bytes);
	if (seen != SEEN_SEGMENT)
		return seen == SEEN_ICMP ? icmp_out(skb) : NEXT;
	if (opens(&view))
		return skb->ingress_ifindex ? on_leaving(skb, &view, device->l2_bytes) : NEXT;
	if (!may_be_client(destination_port(&view)))
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view.key);
	if (!entry || view.turned == entry->turned)
		return NEXT;
	return carry_on_out(skb, entry, &view, device->l2_bytes);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
