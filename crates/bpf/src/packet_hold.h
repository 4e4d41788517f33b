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
	__u32 at;    /* of the payload that is left */
	__u32 left;  /* bytes */
	__u32 piece; /* bytes of a segment */
	__u32 seq;
	__u32 flags;
	__u32 window;
	__u32 open;  /* the server has answered meanwhile */
	__u64 prefix; /* of the client */
};

/* Reads a part of a payload. */
static __always_inline bool read_part(struct __sk_buff *skb, __u32 at, struct packet_held *held,
				      __u32 bytes)
{
	held->bytes = bytes;
	if (!is_between(&bytes, 1, PACKET_PAYLOAD_MAX))
		return !bytes;
	__builtin_memset(held->payload + bytes, 0, 4);
	return !bpf_skb_load_bytes(skb, at, held->payload, bytes);
}

/* The sum of a payload that is longer than one call takes. */
struct summing {
	struct __sk_buff *skb;
	__u32 at;
	__u32 left;
	__u32 sum;
};

static long sum_part(__u32 index, struct summing *summing)
{
	struct packet_scratch *scratch = scratch_area();
	__u32 bytes = summing->left < PACKET_PAYLOAD_MAX ? summing->left : PACKET_PAYLOAD_MAX;

	(void)index;
	if (!bytes || !scratch || !read_part(summing->skb, summing->at, &scratch->held, bytes))
		return 1;
	summing->sum = payload_sum(&scratch->held, summing->sum);
	summing->at += bytes;
	summing->left -= bytes;
	return 0;
}

/* Parts of the longest payload. */
#define PARTS_MAX 43

/* Whether the checksum of a segment is right, whose header is in the scratch area and whose payload of
 * `bytes` bytes is at `at`. What is held gets a new one, which would be right for wrong data too. */
GLOBAL int is_intact(struct __sk_buff *skb, const struct packet *pkt, __u32 at, __u32 bytes)
{
	struct summing summing = { .skb = skb, .at = at, .left = bytes };
	struct packet_scratch *scratch = scratch_area();

	if (!pkt || !scratch)
		return false;
	summing.sum = sum_header(pkt, scratch, pkt->tcp.doff * 4 + bytes);
	if (!summing.sum)
		return true;
	bpf_loop(PARTS_MAX, sum_part, &summing, 0);
	return !summing.left && fold(summing.sum) == 0xffff;
}

/* Stores a piece; false if it has no room. Then it is as if it had not come: its client sends it
 * again. */
static __always_inline bool keep_piece(const struct cutting *cut, struct packet_scratch *scratch,
				       __u32 next)
{
	struct packet_held_key *key = &scratch->held_key;
	struct packet_flow *entry = cut->entry;

	if (!enter_held(cut->prefix))
		return false;
	if (__sync_val_compare_and_swap(&entry->up.next, cut->seq, next) == cut->seq) {
		key->index = __sync_fetch_and_add(&entry->held, 1);
		if (key->index < PACKET_HELD_MAX &&
		    !bpf_map_update_elem(&packet_held, key, &scratch->held, BPF_ANY))
			return true;
		__sync_val_compare_and_swap(&entry->held, key->index + 1, key->index);
		__sync_val_compare_and_swap(&entry->up.next, next, cut->seq);
	}
	leave_held(cut->prefix, 1);
	return false;
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
	/* Only what joins on: the client repeats the rest. */
	if (cut->seq == entry->up.next && read_part(cut->skb, cut->at, held, bytes)) {
		held->ready = 1;
		held->seq = cut->seq;
		held->flags = flags;
		if (!keep_piece(cut, scratch, next))
			return 1;
		note_client_ts(entry, &scratch->options);
		entry->window = cut->window;
		count(STAT_PACKET_HELD);
		/* The releaser opens the flow, then reads what is held; so it has missed
		 * none, or this sees that the flow is open. The same holds for who closes. */
		held = bpf_map_lookup_elem(&packet_held, &scratch->held_key);
		if (entry->state != PACKET_HELD && held &&
		    __sync_val_compare_and_swap(&held->ready, 1, 2) == 1) {
			if (!bpf_map_delete_elem(&packet_held, &scratch->held_key))
				leave_held(cut->prefix, 1);
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
	__u32 whole, head, longest;

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
	/* What the kernel has joined it has compared; a chain has the checksum of its first only. */
	if (!skb->gso_size && !is_intact(skb, pkt, at + head, cut.left))
		return true;
	if (!cut.left && !pkt->tcp.fin) {
		entry->window = bpf_ntohs(pkt->tcp.window);
		return true;
	}
	read_header(skb, scratch, at, head);
	scratch->held_key.flow = scratch->key;
	cut.entry = entry;
	cut.at = at + head;
	longest = skb->gso_size ? skb->gso_size : cut.left;
	cut.piece = longest > PACKET_PAYLOAD_MAX ? PACKET_PIECE : longest;
	cut.prefix = prefix_of(&pkt->flow.client);
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
	__u32 deleted;
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
	if (!bpf_map_delete_elem(&packet_held, &release->key))
		release->deleted += 1;
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
	as_from_client(skb);
	bpf_loop(held_pieces(entry), release_piece, &release, 0);
	leave_held(prefix_of_flow(&scratch->key, entry), release.deleted);
	if (release.sent)
		return DROP;
	segment->seq = entry->client_isn + 1;
	segment->flags = TCP_ACK;
	return write_segment(skb, segment, NULL) ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) : DROP;
}

/* Begins a segment of the client, by its way: into its interface once more. The packet in hand, of
 * either end, becomes it. */
static __always_inline struct segment *begin_for_client(struct __sk_buff *skb,
							const struct packet *pkt,
							struct packet_scratch *scratch,
							const struct packet_flow *entry)
{
	struct segment *segment = &scratch->segment;

	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = flow_of(&scratch->key, entry->turned);
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	segment->hop_limit = entry->hop_limit;
	segment->class_label = entry->class_label;
	segment->partial = spoil_checksum(skb, tcp_at(pkt->family, pkt->l2_bytes));
	if (pkt->l2_bytes)
		bpf_skb_store_bytes(skb, 0, entry->link, sizeof(entry->link), 0);
	as_from_client(skb);
	return segment;
}

/* Resets what the server has opened for a client that has reset it: with the number that it
 * acknowledges (RFC 9293 section 3.10.7.1). */
GLOBAL int reset_server(struct __sk_buff *skb, const struct packet *pkt,
			struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;

	if (!pkt || !entry || !scratch)
		return DROP;
	segment = begin_for_client(skb, pkt, scratch, entry);
	segment->seq = bpf_ntohl(pkt->tcp.ack_seq);
	segment->flags = TCP_RST;
	return write_segment(skb, segment, NULL) ? bpf_redirect(entry->ifindex, BPF_F_INGRESS) : DROP;
}

/* Resets an older connection that the server still has with these addresses, as a client in SYN-SENT
 * would (RFC 9293 section 3.10.7.3), and sends the SYN again behind the reset. Once until the timer sends
 * the SYN: a server need not believe the reset (RFC 1337). What guards a server tests in this way whether
 * its client is there. */
GLOBAL int renew(struct __sk_buff *skb, const struct packet *pkt, struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;

	if (!pkt || !entry || !scratch)
		return DROP;
	segment = begin_for_client(skb, pkt, scratch, entry);
	segment->seq = entry->of_server;
	segment->flags = TCP_RST;
	entry->older = OLDER_RESET;
	count(STAT_PACKET_RENEWED);
	if (!write_segment(skb, segment, NULL))
		return DROP;
	bpf_clone_redirect(skb, entry->ifindex, BPF_F_INGRESS);
	repeat_syn(segment, entry);
	return write_segment(skb, segment, NULL) ? bpf_redirect(entry->ifindex, BPF_F_INGRESS) : DROP;
}
