/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What a client sends before its server has answered: it is held, and released by the server's
 * SYN-ACK. A segment in hand becomes those that go on, since a program cannot make a packet.
 */
#pragma once
#include "packet_syn.h"

/* A search for room for pieces of a segment that its sender left to the device to cut. */
struct cutting {
	struct __sk_buff *skb;
	struct packet_flow *entry;
	struct packet_held_key key;
	__u32 at;    /* of the payload that is left */
	__u32 left;  /* bytes */
	__u32 piece; /* bytes of a segment */
	__u32 seq;
	__u32 flags;
	__u32 window;
	__u32 sum;   /* of what comes before the payload; 0: it needs no comparison */
	__u32 open;  /* the server has answered meanwhile */
};

/* Reads a piece, and compares the checksum of a segment that has one: the piece gets a new one,
 * which would be right for wrong data too. */
static __always_inline bool read_piece(const struct cutting *cut, struct packet_held *held,
				       __u32 bytes)
{
	held->bytes = bytes;
	if (is_between(&bytes, 1, PACKET_PAYLOAD_MAX)) {
		__builtin_memset(held->payload + bytes, 0, 4);
		if (bpf_skb_load_bytes(cut->skb, cut->at, held->payload, bytes))
			return false;
	}
	if (!cut->sum)
		return true;
	return held->bytes == cut->left && fold(payload_sum(held, cut->sum)) == 0xffff;
}

/* Holds a piece; 1 ends the search. */
static long hold_piece(__u32 index, struct cutting *cut)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_flow *entry = cut->entry;
	struct packet_held *held;
	__u32 bytes = cut->left < cut->piece ? cut->left : cut->piece;
	__u32 last = bytes == cut->left;
	__u32 flags = last ? cut->flags : cut->flags & ~TCP_FIN;
	__u32 next = cut->seq + bytes + (flags & TCP_FIN ? 1 : 0);

	(void)index;
	if (!scratch || bytes > PACKET_PAYLOAD_MAX || entry->held >= PACKET_HELD_MAX)
		return 1;
	held = &scratch->held;
	/* Only what joins on: the client repeats the rest. A reset takes no number. */
	if (cut->seq == entry->held_next && read_piece(cut, held, bytes) &&
	    __sync_val_compare_and_swap(&entry->held_next, cut->seq, next) == cut->seq) {
		note_client_ts(entry, &scratch->options);
		entry->window = cut->window;
		held->ready = 1;
		held->seq = cut->seq;
		held->flags = flags;
		cut->key.index = __sync_fetch_and_add(&entry->held, 1);
		if (cut->key.index >= PACKET_HELD_MAX)
			return 1;
		if (bpf_map_update_elem(&packet_held, &cut->key, held, BPF_ANY))
			return 1;
		count(STAT_PACKET_HELD);
		/* The releaser opens the flow, then reads what is held; so it has missed
		 * none, or this sees that the flow is open. The same holds for who closes. */
		held = bpf_map_lookup_elem(&packet_held, &cut->key);
		if (entry->state != PACKET_HELD && held &&
		    __sync_val_compare_and_swap(&held->ready, 1, 2) == 1) {
			bpf_map_delete_elem(&packet_held, &cut->key);
			cut->open = entry->state == PACKET_OPEN;
			return 1;
		}
	}
	cut->at += bytes;
	cut->left -= bytes;
	cut->seq = next;
	return last;
}

/* Holds what the client sends before its server has answered; false if the server has
 * answered meanwhile, and the segment may go on. */
GLOBAL int hold(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct cutting cut = { .skb = skb };
	__u32 whole, head;

	if (!pkt || !entry || !scratch)
		return true;
	head = pkt->tcp.doff * 4;
	whole = pkt->l2_bytes + (pkt->family == AF_INET ?
					 bpf_ntohs(pkt->ip.v4.tot_len) :
					 sizeof(struct ipv6hdr) + bpf_ntohs(pkt->ip.v6.payload_len));
	if (whole < at + head || whole > skb->len)
		return true;
	cut.left = whole - at - head;
	/* An urgent pointer would be lost: the client repeats the segment. */
	if (pkt->tcp.urg || !load_header(skb, &scratch->header, at, head))
		return true;
	cut.sum = sum_header(pkt, scratch, head + cut.left);
	if (!cut.left && !pkt->tcp.fin && !pkt->tcp.rst) {
		if (!cut.sum || fold(cut.sum) == 0xffff)
			entry->window = bpf_ntohs(pkt->tcp.window);
		return true;
	}
	read_header(skb, scratch, at, head);
	cut.key.flow = scratch->key;
	cut.entry = entry;
	cut.at = at + head;
	cut.piece = skb->gso_size ? skb->gso_size : cut.left;
	cut.seq = bpf_ntohl(pkt->tcp.seq);
	cut.flags = scratch->header.before[TCP_FLAGS_AT];
	cut.window = bpf_ntohs(pkt->tcp.window);
	bpf_loop(PACKET_HELD_MAX, hold_piece, &cut, 0);
	return !cut.open;
}

/* A release of what is held. */
struct release {
	struct packet_held_key key;
	struct __sk_buff *skb;
	struct segment *segment;
	__u32 sent;
};

/* Releases one segment. */
static long release_piece(__u32 index, struct release *release)
{
	struct packet_held *held;

	release->key.index = index;
	held = bpf_map_lookup_elem(&packet_held, &release->key);
	/* There was no room for it, or it comes at this moment. */
	if (!held || __sync_val_compare_and_swap(&held->ready, 1, 2) != 1)
		return 0;
	release->segment->seq = held->seq;
	release->segment->flags = held->flags | TCP_ACK;
	if (write_segment(release->skb, release->segment, held) &&
	    !bpf_clone_redirect(release->skb, release->skb->ifindex, BPF_F_INGRESS)) {
		release->sent += 1;
		count(STAT_PACKET_RELEASED);
	}
	bpf_map_delete_elem(&packet_held, &release->key);
	return 0;
}

/* Sends the client's segments to the server, in the client's numbers and by the client's
 * way: they enter its interface once more, and are translated there as any. The packet
 * that becomes them is one of the server's. */
GLOBAL int turn_round(struct __sk_buff *skb, const struct packet *pkt, struct packet_flow *entry)
{
	struct release release = { .skb = skb };
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;
	__u32 at;

	if (!pkt || !entry || !scratch)
		return DROP;
	segment = &scratch->segment;
	__builtin_memset(segment, 0, sizeof(*segment));
	at = tcp_at(pkt->family, pkt->l2_bytes);
	release.key.flow = scratch->key;
	segment->flow.client = pkt->flow.server;
	segment->flow.server = pkt->flow.client;
	segment->flow.client_port = pkt->flow.server_port;
	segment->flow.server_port = pkt->flow.client_port;
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	segment->hop_limit = entry->hop_limit;
	segment->class_label = entry->class_label;
	segment->window = entry->window;
	segment->ack = entry->node_isn + 1;
	segment->timestamps = !!(entry->promised & OFFERS_TIMESTAMPS);
	segment->ts_value = entry->client_ts;
	segment->ts_echo = entry->node_ts;
	segment->partial = spoil_checksum(skb, at);
	release.segment = segment;
	swap_link_addresses(skb, pkt->l2_bytes);
	bpf_loop(held_pieces(entry), release_piece, &release, 0);
	if (release.sent)
		return DROP;
	segment->seq = entry->client_isn + 1;
	segment->flags = TCP_ACK;
	return write_segment(skb, segment, NULL) ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) : DROP;
}

/* Resets an older connection that the server still has with these addresses, as a client in SYN-SENT
 * would (RFC 9293 section 3.10.7.3), and sends the SYN again behind the reset. Once until the timer sends
 * the SYN: a server need not believe the reset (RFC 1337). Both enter the client's interface once more,
 * and the packet in hand, of either end, becomes them. */
GLOBAL int renew(struct __sk_buff *skb, const struct packet *pkt, struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;

	if (!pkt || !entry || !scratch)
		return DROP;
	segment = &scratch->segment;
	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = flow_of(&scratch->key, entry->turned);
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	segment->hop_limit = entry->hop_limit;
	segment->class_label = entry->class_label;
	segment->seq = entry->older_ack;
	segment->flags = TCP_RST;
	segment->partial = spoil_checksum(skb, tcp_at(pkt->family, pkt->l2_bytes));
	if (pkt->l2_bytes)
		bpf_skb_store_bytes(skb, 0, entry->link, sizeof(entry->link), 0);
	entry->older = OLDER_RESET;
	count(STAT_PACKET_RENEWED);
	if (!write_segment(skb, segment, NULL))
		return DROP;
	bpf_clone_redirect(skb, entry->ifindex, BPF_F_INGRESS);
	repeat_syn(segment, entry);
	return write_segment(skb, segment, NULL) ? bpf_redirect(entry->ifindex, BPF_F_INGRESS) : DROP;
}
