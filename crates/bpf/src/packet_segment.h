/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Segments that the packet path makes out of another packet, which becomes theirs. */
#pragma once
#include "packet_path.h"

#define IPV4_DONT_FRAGMENT 0x4000
/* Bytes that one call of bpf_csum_diff may take before Linux 6.13. */
#define SUM_MAX 512

/* Whether a device or a later hook completes the checksum at `at` (CHECKSUM_PARTIAL).
 * Then the kernel leaves it unchanged here; else it is spoilt, and must be written. */
static __always_inline bool spoil_checksum(struct __sk_buff *skb, __u32 at)
{
	__u16 before = 0, after = 0;

	bpf_skb_load_bytes(skb, at + TCP_CHECKSUM_AT, &before, sizeof(before));
	bpf_l4_csum_replace(skb, at + TCP_CHECKSUM_AT, 0, 0x1234, 0);
	bpf_skb_load_bytes(skb, at + TCP_CHECKSUM_AT, &after, sizeof(after));
	return before == after;
}

static __always_inline void swap_link_addresses(struct __sk_buff *skb, __u32 l2_bytes)
{
	__u8 from[2 * ETH_ALEN], to[2 * ETH_ALEN];

	if (!l2_bytes)
		return;
	bpf_skb_load_bytes(skb, 0, from, sizeof(from));
	__builtin_memcpy(to, from + ETH_ALEN, ETH_ALEN);
	__builtin_memcpy(to + ETH_ALEN, from, ETH_ALEN);
	bpf_skb_store_bytes(skb, 0, to, sizeof(to), 0);
}

/* What the node sends for a client into its interface comes as from the client: without the mark, the
 * priority and the time of the packet that became it, by which the host would route or filter it. */
static __always_inline void as_from_client(struct __sk_buff *skb)
{
	skb->mark = 0;
	skb->priority = 0;
	bpf_set_hash_invalid(skb);
	bpf_skb_set_tstamp(skb, 0, BPF_SKB_TSTAMP_UNSPEC);
}

/* Writes the IP header of a segment of `bytes` bytes. */
GLOBAL int write_ip(struct __sk_buff *skb, const struct segment *segment, __u32 bytes)
{
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip = {};
	__be32 word;

	if (!segment)
		return 0;
	if (segment->family == AF_INET) {
		ip.v4.version = 4;
		ip.v4.ihl = 5;
		ip.v4.tos = bpf_ntohl(segment->class_label) >> 20;
		ip.v4.tot_len = bpf_htons(sizeof(ip.v4) + bytes);
		ip.v4.frag_off = bpf_htons(IPV4_DONT_FRAGMENT);
		ip.v4.ttl = segment->hop_limit;
		ip.v4.protocol = IPPROTO_TCP;
		ip.v4.saddr = segment->flow.client.word[3];
		ip.v4.daddr = segment->flow.server.word[3];
		ip.v4.check = ~fold(bpf_csum_diff(NULL, 0, &ip.v4, sizeof(ip.v4), 0));
		return bpf_skb_store_bytes(skb, segment->l2_bytes, &ip.v4, sizeof(ip.v4), 0);
	}
	word = segment->class_label | bpf_htonl(6u << 28);
	__builtin_memcpy(&ip.v6, &word, sizeof(word));
	ip.v6.payload_len = bpf_htons(bytes);
	ip.v6.nexthdr = IPPROTO_TCP;
	ip.v6.hop_limit = segment->hop_limit;
	__builtin_memcpy(&ip.v6.saddr, &segment->flow.client, sizeof(ip.v6.saddr));
	__builtin_memcpy(&ip.v6.daddr, &segment->flow.server, sizeof(ip.v6.daddr));
	return bpf_skb_store_bytes(skb, segment->l2_bytes, &ip.v6, sizeof(ip.v6), 0);
}

/* Takes options and extension headers out of a whole segment, whose IP header is at `at`. Then it is as any;
 * false if that is not possible. */
GLOBAL int strip_headers(struct __sk_buff *skb, struct view *view, __u32 at)
{
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	__u32 base, bytes;

	if (!view || view->rare & RARE_PART)
		return false;
	base = at + (v4 ? sizeof(ip.v4) : sizeof(ip.v6));
	bytes = view->at - base;
	if (bytes && bpf_skb_adjust_room(skb, -(__s32)bytes, BPF_ADJ_ROOM_NET, 0))
		return false;
	if (v4) {
		if (bpf_skb_load_bytes(skb, at, &ip.v4, sizeof(ip.v4)))
			return false;
		ip.v4.ihl = 5;
		ip.v4.protocol = IPPROTO_TCP;
		ip.v4.tot_len = bpf_htons(bpf_ntohs(ip.v4.tot_len) - bytes);
		ip.v4.check = 0;
		ip.v4.check = ~fold(bpf_csum_diff(NULL, 0, &ip.v4, sizeof(ip.v4), 0));
		bpf_skb_store_bytes(skb, at, &ip.v4, sizeof(ip.v4), 0);
	} else {
		if (bpf_skb_load_bytes(skb, at, &ip.v6, sizeof(ip.v6)) || !ip.v6.payload_len)
			return false;
		ip.v6.nexthdr = IPPROTO_TCP;
		ip.v6.payload_len = bpf_htons(bpf_ntohs(ip.v6.payload_len) - bytes);
		bpf_skb_store_bytes(skb, at, &ip.v6, sizeof(ip.v6), BPF_F_RECOMPUTE_CSUM);
	}
	view->at = base;
	view->rare = 0;
	return true;
}

/* The sum of a held payload. */
static __always_inline __s64 payload_sum(struct packet_held *held, __s64 sum)
{
	__u32 left = held->bytes;

	for (__u32 at = 0; at < PACKET_PAYLOAD_MAX; at += SUM_MAX) {
		__u32 part = left < SUM_MAX ? left : SUM_MAX;

		part = (part + 3) & ~3u;
		if (!is_between(&part, 1, SUM_MAX))
			break;
		sum = bpf_csum_diff(NULL, 0, held->payload + at, part, sum);
		left = left < SUM_MAX ? 0 : left - SUM_MAX;
	}
	return sum;
}

/* Writes the options of a SYN, each at a fixed place. */
static __always_inline void write_syn_options(__u8 *to, const struct segment *segment)
{
	for (int i = 0; i < 20; i++)
		to[i] = TCP_OPTION_NOP;
	to[0] = TCP_OPTION_MSS;
	to[1] = 4;
	to[2] = segment->mss >> 8;
	to[3] = segment->mss;
	if (segment->offers & OFFERS_SACK) {
		to[4] = TCP_OPTION_SACK_PERMITTED;
		to[5] = 2;
	}
	if (segment->offers & OFFERS_TIMESTAMPS) {
		to[6] = TCP_OPTION_TIMESTAMPS;
		to[7] = 10;
		write_number(to + 8, segment->ts_value);
		write_number(to + 12, segment->ts_echo);
	}
	if (segment->offers & OFFERS_WINDOW_SCALE) {
		to[17] = TCP_OPTION_WINDOW_SCALE;
		to[18] = 3;
		to[19] = segment->shift;
	}
}

/* The reset of a client that the node has answered, and no server. */
static __always_inline void reset_to_client(struct segment *segment,
					    const struct packet_flow *entry)
{
	segment->seq = entry->node_isn + 1;
	segment->flags = TCP_RST;
	segment->hop_limit = ANSWER_HOPS;
}

/* The client's last window, which a SYN does not scale (RFC 7323 section 2.2). */
static __always_inline __u16 syn_window(const struct packet_flow *entry)
{
	__u64 window = entry->window;

	if (entry->state == PACKET_HELD && entry->promised & OFFERS_WINDOW_SCALE)
		window <<= entry->client_shift & 15;
	return window > 0xffff ? 0xffff : window;
}

/* The client's SYN once more. It differs from the client's only in the place of its options. */
static __always_inline void repeat_syn(struct segment *segment, const struct packet_flow *entry)
{
	segment->hop_limit = entry->hop_limit;
	segment->class_label = entry->class_label;
	segment->seq = entry->client_isn;
	segment->flags = TCP_SYN;
	segment->window = syn_window(entry);
	segment->offers = entry->promised;
	segment->mss = entry->syn_mss;
	segment->shift = entry->client_shift;
	segment->ts_value = entry->client_ts;
}

/* The node's answer to the client's SYN. */
static __always_inline void answer_syn(struct segment *segment, const struct packet_flow *entry)
{
	segment->hop_limit = ANSWER_HOPS;
	segment->seq = entry->node_isn;
	segment->ack = entry->client_isn + 1;
	segment->flags = TCP_SYN | TCP_ACK;
	segment->window = entry->node_window;
	segment->offers = entry->promised;
	segment->mss = entry->mss;
	segment->shift = entry->promised_shift;
	segment->ts_value = entry->node_ts;
	segment->ts_echo = entry->client_ts;
}

/* What an end may send until its keepalive is answered: a segment. Its peer's window is not known, and some
 * ends believe that of a keepalive. */
#define PROBE_WINDOW 1460

/* Makes of a segment a keepalive of the client in the server's name (RFC 9293 section 3.8.4), in its numbers and
 * with its newest timestamp. */
static __always_inline void as_keepalive_of_client(struct segment *segment,
						   const struct packet_flow *entry)
{
	segment->flags = TCP_ACK;
	segment->hop_limit = ANSWER_HOPS;
	segment->timestamps = !!(entry->granted & OFFERS_TIMESTAMPS);
	segment->seq = entry->down.acked - entry->seq_delta - 1;
	segment->ack = entry->up.acked;
	segment->ts_value = entry->node_ts - entry->ts_delta;
	segment->ts_echo = entry->client_ts + entry->client_ts_delta;
	segment->window = (PROBE_WINDOW >> (entry->server_shift & 15)) | 1;
}

/* One of the server, in the client's name. */
static __always_inline void as_keepalive_of_server(struct segment *segment,
						   const struct packet_flow *entry)
{
	segment->flags = TCP_ACK;
	segment->hop_limit = ANSWER_HOPS;
	segment->class_label = entry->class_label;
	segment->timestamps = !!(entry->granted & OFFERS_TIMESTAMPS);
	segment->seq = entry->up.acked - entry->client_seq_delta - 1;
	segment->ack = entry->down.acked;
	segment->ts_value = entry->client_ts;
	segment->ts_echo = entry->node_ts;
	segment->window = (PROBE_WINDOW >> (entry->client_shift & 15)) | 1;
}

/* Bytes of the TCP header of a segment. */
static __always_inline __u32 header_bytes(const struct segment *segment)
{
	if (segment->mss)
		return 40;
	return segment->timestamps ? 32 : sizeof(struct tcphdr);
}

/* Makes the segment out of the packet, with the payload of `held` if given. The link
 * addresses stay. False if the packet has no room. */
GLOBAL int write_segment(struct __sk_buff *skb, const struct segment *segment,
			 struct packet_held *held)
{
	struct packet_scratch *scratch = scratch_area();
	__u32 bytes = held ? held->bytes : 0;
	__u32 head, at;
	__u8 *header;
	__u16 check;
	__s64 sum;

	if (!segment || !scratch || bytes > PACKET_PAYLOAD_MAX)
		return false;
	header = scratch->made;
	__builtin_memset(header, 0, sizeof(scratch->made));
	head = header_bytes(segment);
	at = tcp_at(segment->family, segment->l2_bytes);
	if (bpf_skb_change_tail(skb, at + head + bytes, 0) ||
	    write_ip(skb, segment, head + bytes))
		return false;
	__builtin_memcpy(header, &segment->flow.client_port, 2);
	__builtin_memcpy(header + 2, &segment->flow.server_port, 2);
	write_number(header + 4, segment->seq);
	write_number(header + 8, segment->ack);
	header[12] = head << 2;
	header[TCP_FLAGS_AT] = segment->flags;
	header[14] = segment->window >> 8;
	header[15] = segment->window;
	if (segment->mss) {
		write_syn_options(header + 20, segment);
	} else if (segment->timestamps) {
		header[20] = TCP_OPTION_NOP;
		header[21] = TCP_OPTION_NOP;
		header[22] = TCP_OPTION_TIMESTAMPS;
		header[23] = 10;
		write_number(header + 24, segment->ts_value);
		write_number(header + 28, segment->ts_echo);
	}
	sum = pseudo_sum(&segment->flow, head + bytes);
	if (segment->partial) {
		check = fold(sum);
	} else {
		/* The place of options that it lacks is zero. */
		sum = bpf_csum_diff(NULL, 0, header, sizeof(scratch->made), sum);
		if (held)
			sum = payload_sum(held, sum);
		check = ~fold(sum);
	}
	__builtin_memcpy(header + TCP_CHECKSUM_AT, &check, sizeof(check));
	if (!is_between(&head, sizeof(struct tcphdr), sizeof(scratch->made)))
		return false;
	bpf_skb_store_bytes(skb, at, header, head, 0);
	if (held && is_between(&bytes, 1, PACKET_PAYLOAD_MAX))
		bpf_skb_store_bytes(skb, at + head, held->payload, bytes, 0);
	return true;
}
