/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Timestamps for the segments of a server that has granted none to a client that was promised
 * them. A segment may have no room for them, or the kernel may have joined several: then each
 * piece of it is sent as a copy, which passes `packet_out` once more.
 */
#pragma once
#include "packet_learning.h"
#include "packet_segment.h"

/* Options of the server that a header has room for beside them, and three blocks of SACK, which are
 * left where there are four (RFC 2018 section 3). */
#define OTHER_OPTIONS_MAX (TCP_OPTIONS_MAX - STAMP_BYTES)
#define PADDED_SACK_FOUR 0x01010522
#define PADDED_SACK_THREE 0x0101051a
#define TCP_PSH 8
#define TCP_URG 32
#define TCP_URGENT_AT 18

/* The node's clock for a flow. */
static __always_inline __u32 stamp_of(const struct packet_flow *entry)
{
	return entry->node_ts + (__u32)((bpf_ktime_get_ns() - entry->since_ns) / 1000000);
}

/* Bytes of payload of each piece: as many as its sender put into a segment, if they fit. */
static __always_inline __u32 piece_bytes(struct __sk_buff *skb, const struct packet_flow *entry,
					 __u32 head)
{
	__u32 family = skb->protocol == bpf_htons(ETH_P_IP) ? AF_INET : AF_INET6;
	__u32 room = fit_mss(skb, family, PACKET_PAYLOAD_MAX);

	if (entry->syn_mss < room)
		room = entry->syn_mss;
	room -= STAMP_BYTES + head - sizeof(struct tcphdr);
	if (!is_between(&room, 16, PACKET_PAYLOAD_MAX))
		room = 16;
	return skb->gso_size && skb->gso_size < room ? skb->gso_size : room;
}

/* Copies the header, with timestamps before its other options. Returns its bytes. */
static __always_inline __u32 stamp_header(struct tcp_header *header,
					   const struct packet_flow *entry)
{
	__u32 options = header->bytes - sizeof(struct tcphdr);
	__u8 *to = header->after;

	write_number(to + 20, PADDED_TIMESTAMPS);
	write_number(to + 24, stamp_of(entry));
	write_number(to + 28, entry->client_ts);
	for (int i = 0; i < OTHER_OPTIONS_MAX; i++)
		to[32 + i] = i < (int)options ? header->before[20 + i] : 0;
	if (options > OTHER_OPTIONS_MAX) {
		options = 0;
		if (read_number(to + 32) == PADDED_SACK_FOUR) {
			options = OTHER_OPTIONS_MAX;
			write_number(to + 32, PADDED_SACK_THREE);
		}
	}
	options += sizeof(struct tcphdr) + STAMP_BYTES;
	to[12] = options << 2;
	return options;
}

/* Makes the header that of a piece `from` bytes behind the first. */
static __always_inline void cut_header(__u8 *header, __u32 from, bool is_last)
{
	__u32 urgent = (__u32)header[TCP_URGENT_AT] << 8 | header[TCP_URGENT_AT + 1];

	add_number(header + TCP_SEQ_AT, from);
	if (!is_last)
		header[TCP_FLAGS_AT] &= ~(TCP_FIN | TCP_PSH);
	if (!(header[TCP_FLAGS_AT] & TCP_URG))
		return;
	if (urgent <= from)
		header[TCP_FLAGS_AT] &= ~TCP_URG;
	urgent = urgent > from ? urgent - from : 0;
	header[TCP_URGENT_AT] = urgent >> 8;
	header[TCP_URGENT_AT + 1] = urgent;
}

/* Changes the length in the IP header. */
static __always_inline void write_ip_length(struct __sk_buff *skb, __u32 l2_bytes, __u32 bytes)
{
	__be16 from, to;

	if (skb->protocol != bpf_htons(ETH_P_IP)) {
		to = bpf_htons(bytes);
		bpf_skb_store_bytes(skb, l2_bytes + offsetof(struct ipv6hdr, payload_len), &to,
				    sizeof(to), 0);
		return;
	}
	to = bpf_htons(sizeof(struct iphdr) + bytes);
	bpf_skb_load_bytes(skb, l2_bytes + offsetof(struct iphdr, tot_len), &from, sizeof(from));
	bpf_skb_store_bytes(skb, l2_bytes + offsetof(struct iphdr, tot_len), &to, sizeof(to), 0);
	bpf_l3_csum_replace(skb, l2_bytes + offsetof(struct iphdr, check), from, to, sizeof(to));
}

/* Makes one piece of the server's segment in hand, whose TCP header is at `at` and in the client's
 * numbers. False if it has no such piece, or there is no room. */
GLOBAL int stamp_piece(struct __sk_buff *skb, const struct packet_key *key,
		       const struct packet_flow *entry, __u32 at, __u32 index)
{
	struct packet_scratch *scratch = scratch_area();
	__u32 ip_bytes = skb->protocol == bpf_htons(ETH_P_IP) ? 20 : 40;
	__u32 head, left, piece, from;
	struct tcp_header *header;
	struct packet_held *held;
	bool partial;
	__u16 check;
	__s64 sum;

	if (!key || !entry || !scratch)
		return false;
	header = &scratch->header;
	held = &scratch->held;
	head = sizeof(struct tcphdr);
	if (bpf_skb_load_bytes(skb, at, header->before, head))
		return false;
	head = (header->before[12] >> 4) * 4;
	partial = spoil_checksum(skb, at);
	if (!load_header(skb, header, at, head) || skb->len < at + head)
		return false;
	piece = piece_bytes(skb, entry, head);
	from = index * piece;
	left = skb->len - at - head;
	if (left < from || (index && left == from))
		return false;
	left -= from;
	cut_header(header->after, from, left <= piece);
	held->bytes = left < piece ? left : piece;
	from += at + head;
	left = held->bytes;
	if (is_between(&left, 1, PACKET_PAYLOAD_MAX)) {
		if (bpf_skb_load_bytes(skb, from, held->payload, left))
			return false;
		__builtin_memset(held->payload + left, 0, 4);
	}
	head = stamp_header(header, entry);
	if (bpf_skb_change_tail(skb, at + head + held->bytes, 0))
		return false;
	write_ip_length(skb, at - ip_bytes, head + held->bytes);
	header->after[TCP_CHECKSUM_AT] = header->after[TCP_CHECKSUM_AT + 1] = 0;
	sum = pseudo_sum_of(key, head + held->bytes);
	check = fold(sum);
	if (!partial) {
		sum = bpf_csum_diff(NULL, 0, (__be32 *)header->after, TCP_HEADER_MAX, sum);
		check = ~fold(payload_sum(held, sum));
	}
	__builtin_memcpy(header->after + TCP_CHECKSUM_AT, &check, sizeof(check));
	if (!is_between(&head, sizeof(struct tcphdr), TCP_HEADER_MAX))
		return false;
	bpf_skb_store_bytes(skb, at, header->after, head, 0);
	left = held->bytes;
	if (is_between(&left, 1, PACKET_PAYLOAD_MAX))
		bpf_skb_store_bytes(skb, at + head, held->payload, left, 0);
	return true;
}

/* Whether the packet in hand is a copy of which one piece is to be sent. */
static __always_inline bool is_piece(const struct __sk_buff *skb)
{
	return (skb->cb[MESSAGE_PIECE] & ~PIECE_BITS) == MESSAGE_IS_PIECE;
}

/* A copy that `stamp` has made. */
GLOBAL int stamp_piece_in_hand(struct __sk_buff *skb)
{
	__u32 index = skb->cb[MESSAGE_PIECE] & PIECE_BITS, ifindex = skb->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct packet_flow *entry;
	struct view view;

	skb->cb[MESSAGE_PIECE] = 0;
	if (!device || !view_segment(skb, device->l2_bytes, &view))
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view.key);
	if (!entry || !is_stamped(entry))
		return NEXT;
	return stamp_piece(skb, &view.key, entry, view.at, index) ? NEXT : DROP;
}

/* Sends one piece; 1 ends the walk. */
static long send_piece(__u32 index, struct __sk_buff **skb)
{
	(*skb)->cb[MESSAGE_PIECE] = MESSAGE_IS_PIECE | index;
	return bpf_clone_redirect(*skb, (*skb)->ifindex, 0) != 0;
}

/* Adds timestamps to a segment of the server that is translated. */
GLOBAL int stamp(struct __sk_buff *skb, const struct packet_key *key,
		 const struct packet_flow *entry, __u32 at, __u32 bytes)
{
	__u32 piece, pieces;

	if (!key || !entry || skb->len < at + bytes)
		return DROP;
	piece = piece_bytes(skb, entry, bytes);
	pieces = (skb->len - at - bytes + piece - 1) / piece;
	if (pieces <= 1)
		return stamp_piece(skb, key, entry, at, 0) ? NEXT : DROP;
	skb->mark |= NODE_MARKS;
	bpf_loop(pieces < PIECE_BITS ? pieces : PIECE_BITS, send_piece, &skb, 0);
	return DROP;
}
