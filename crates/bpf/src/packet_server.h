/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Segments of the server of a flow that is not open. */
#pragma once
#include "packet_client.h"
#include "packet_stamp.h"

/* Turns a repeated SYN-ACK, whose header and options the scratch area has, into a keepalive of the client
 * (RFC 9293 section 3.8.4). Its answer validates it: the server may be the first to send data. If it is validated
 * and the node's ACK was lost, its answer is that, with its time and numbers of now. */
GLOBAL int probe_client(struct __sk_buff *skb, const struct packet *pkt,
			struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct translation how = {};
	__u32 window;
	__u8 *to;

	if (!pkt || !entry || !scratch)
		return DROP;
	to = scratch->header.after;
	write_number(to + TCP_SEQ_AT, entry->node_isn);
	to[TCP_FLAGS_AT] = TCP_ACK;
	how.narrow = entry->promised_shift;
	window = scaled(bpf_ntohs(pkt->tcp.window), &how);
	to[14] = window >> 8;
	to[15] = window;
	for (int i = sizeof(struct tcphdr); i < TCP_HEADER_MAX; i++)
		to[i] = i < (int)scratch->header.bytes ? TCP_OPTION_NOP : 0;
	/* It has room for them: the SYN-ACK had them too. */
	if (entry->granted & OFFERS_TIMESTAMPS && scratch->options.ts_at) {
		to[22] = TCP_OPTION_TIMESTAMPS;
		to[23] = 10;
		write_number(to + 24, scratch->options.ts_value + entry->ts_delta);
		write_number(to + 28, scratch->options.ts_echo);
	}
	mark_carried(skb);
	return store_header(skb, &scratch->header, tcp_at(pkt->family, pkt->l2_bytes)) ? NEXT : DROP;
}

/* Stores the contents of the server's SYN-ACK. */
static __always_inline void accept(struct __sk_buff *skb, struct packet_flow *entry,
				   const struct packet *pkt, const struct read_options *options)
{
	entry->older = OLDER_NONE;
	entry->server_ifindex = skb->ingress_ifindex;
	entry->granted = (options->offers & entry->promised) | (entry->granted & GRANTS_SHORT);
	entry->server_shift = options->shift;
	entry->seq_delta = entry->node_isn - bpf_ntohl(pkt->tcp.seq);
	if (entry->granted & OFFERS_TIMESTAMPS)
		entry->ts_delta = entry->node_ts - options->ts_value;
}

/* A segment of the server that acknowledges something else than the SYN, before that is answered: of an older
 * connection with these addresses, or of what guards the server and tests whether the client is there. */
static __always_inline int meet_older(struct __sk_buff *skb, const struct packet *pkt,
				      struct packet_flow *entry)
{
	/* What was sent before the reset came shows nothing new, and another reset would end the new
	 * connection in conntrack. */
	if (entry->older == OLDER_RESET)
		return DROP;
	entry->of_server = bpf_ntohl(pkt->tcp.ack_seq);
	entry->older = OLDER_SEEN;
	/* Another host may have forged the SYN: the client has to answer first. */
	return entry->state == PACKET_HELD ? renew(skb, pkt, entry) : NEXT;
}

/* Turns a SYN-ACK for another connection into a keepalive of the client of this one. If that has begun anew, it
 * resets what it does not know (RFC 9293 section 3.10.7.3), and the SYN-ACK that comes again passes; else the SYN
 * was forged, and maybe the SYN-ACK too. */
static __always_inline int probe_instead(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
					 struct packet_flow *entry, struct segment *segment)
{
	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = pkt->flow;
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	as_keepalive_of_client(segment, entry);
	segment->partial = spoil_checksum(skb, at);
	if (!write_segment(skb, segment, NULL))
		return DROP;
	if (entry->state == PACKET_OPEN)
		doubt(entry);
	return translate_out(skb, entry, at, header_bytes(segment), 0);
}

/* A SYN-ACK that does not acknowledge the SYN of the flow. */
GLOBAL int on_other_syn_ack(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
			    struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	__u32 ack;

	if (!pkt || !entry || !scratch)
		return NEXT;
	ack = bpf_ntohl(pkt->tcp.ack_seq);
	/* A new connection, for which the server has lost the old one. Only for a SYN that has passed. */
	if (ack == entry->other_isn + 1 && entry->other_isn != entry->client_isn &&
	    (entry->state == PACKET_OPEN || entry->state == PACKET_HELD)) {
		if (!has_closed(entry))
			return probe_instead(skb, pkt, at, entry, &scratch->segment);
		bpf_map_delete_elem(&packet_flows, &scratch->key);
		return NEXT;
	}
	return entry->state == PACKET_ANSWERED || entry->state == PACKET_HELD ?
		       meet_older(skb, pkt, entry) :
		       NEXT;
}

/* A SYN-ACK on its way to the client. */
GLOBAL int on_syn_ack(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		      struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct destination service;
	__u32 state;

	if (!pkt || !entry || !scratch)
		return DROP;
	state = entry->state;
	if (skb->ingress_ifindex == entry->ifindex)
		/* From where the client is: of no server. Any client can forge that. */
		return state == PACKET_LEARNING ? NEXT : DROP;
	if (bpf_ntohl(pkt->tcp.ack_seq) != entry->client_isn + 1)
		return on_other_syn_ack(skb, pkt, at, entry);
	if (!read_header(skb, scratch, at, pkt->tcp.doff * 4) || !is_whole(pkt, scratch, at))
		return state == PACKET_LEARNING ? NEXT : DROP;
	if (state == PACKET_LEARNING) {
		note_grant(skb, entry, pkt, &scratch->options);
		return NEXT;
	}
	if (state == PACKET_ANSWERED || state == PACKET_HELD) {
		service = service_from(&pkt->flow);
		accept(skb, entry, pkt, &scratch->options);
		note_mss(&pkt->flow, entry);
		/* Nobody has completed the handshake otherwise. */
		if (state == PACKET_HELD)
			learn_profile(&service, entry, bpf_ntohs(pkt->tcp.window));
		if (change(entry, PACKET_ANSWERED, PACKET_ACCEPTED)) {
			note_nearer(entry);
			return DROP;
		}
		if (change(entry, PACKET_HELD, PACKET_OPEN))
			note_opened(entry, &service);
		return turn_round(skb, pkt, entry);
	}
	if (state == PACKET_ACCEPTED || state == PACKET_OPEN)
		return probe_client(skb, pkt, entry);
	return state == PACKET_CLOSED ? reset_server(skb, pkt, entry) : DROP;
}

/* The server refuses the flow. */
GLOBAL int on_refusal(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		      struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct destination service;

	if (!pkt || !entry || !scratch ||
	    !load_header(skb, &scratch->header, at, pkt->tcp.doff * 4))
		return DROP;
	/* The client has the node's SYN-ACK: the next number is the only one that resets it
	 * (RFC 5961 section 3.2). */
	write_number(scratch->header.after + TCP_SEQ_AT, entry->node_isn + 1);
	if (!store_header(skb, &scratch->header, at))
		return DROP;
	mark_carried(skb);
	count(STAT_PACKET_REFUSED);
	service = service_from(&pkt->flow);
	mark_bad(&service, BAD_NS);
	close_early(&scratch->key, entry);
	return NEXT;
}

/* A segment other than a SYN-ACK from a server that has not accepted the flow. What belongs to an older
 * connection passes as it is, as long as its client may have that. */
static __always_inline int on_early_segment(struct __sk_buff *skb, const struct packet *pkt,
					    __u32 at, struct packet_flow *entry)
{
	int verdict = entry->state == PACKET_HELD ? DROP : NEXT;
	__u32 ack = bpf_ntohl(pkt->tcp.ack_seq);

	if (!pkt->tcp.ack)
		return verdict;
	if (skb->ingress_ifindex == entry->ifindex)
		return DROP;
	if (ack == entry->client_isn + 1) {
		if (pkt->tcp.rst)
			return on_refusal(skb, pkt, at, entry);
		/* Without numbers to translate by, only the node's own keepalive passes, from an
		 * interface in front. */
		return bpf_ntohl(pkt->tcp.seq) == entry->node_isn && is_plain(pkt, at) ? NEXT : DROP;
	}
	if (pkt->tcp.rst || entry->state == PACKET_ACCEPTED)
		return verdict;
	return meet_older(skb, pkt, entry);
}

/* A segment of the server of a flow that was closed or given up. The client gets the node's reset. */
static __always_inline int on_late_segment(const struct packet *pkt, const struct packet_flow *entry)
{
	if (pkt->tcp.rst && bpf_ntohl(pkt->tcp.seq) == entry->node_isn + 1)
		return NEXT;
	if (!is_unproved(entry->state))
		return DROP;
	return pkt->tcp.ack && bpf_ntohl(pkt->tcp.ack_seq) == entry->client_isn + 1 ? DROP : NEXT;
}

/* A segment of the server of a flow that is not open, or a SYN. */
static __always_inline int on_other(struct __sk_buff *skb, struct packet_flow *entry,
				    struct view *view, __u32 l2_bytes)
{
	struct packet *pkt;

	/* The node's own SYN-ACK is sent by a program that runs on this CPU: it leaves before
	 * the scratch area is touched. */
	if (view->flags & TCP_SYN && view->seq == entry->node_isn)
		return PASS;
	if (view->rare && !strip_headers(skb, view, l2_bytes))
		return is_part_of(skb, entry, view, 1) ? DROP : NEXT;
	pkt = parse_segment(skb, view, 1, l2_bytes);
	if (!pkt)
		return DROP;
	if (pkt->tcp.syn)
		/* A SYN begins a connection of its own. */
		return pkt->tcp.ack ? on_syn_ack(skb, pkt, view->at, entry) : NEXT;
	if (is_half_open(entry->state) || entry->state == PACKET_HELD)
		return on_early_segment(skb, pkt, view->at, entry);
	/* Another CPU has opened it meanwhile. */
	if (entry->state == PACKET_OPEN)
		return translate_out(skb, entry, view->at, view->bytes, view->rare);
	return on_late_segment(pkt, entry);
}
