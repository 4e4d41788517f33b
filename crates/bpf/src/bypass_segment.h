/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Reads the segment in hand into what bypass.h decides on, and writes what it has decided: other
 * numbers, a cut payload, or the reset of its sender.
 */
#pragma once
#include "bypass.h"
#include "packet_rare.h"

#define DROP TC_ACT_SHOT
#define TCP_PSH 8
/* What bpf_csum_diff may take before Linux 6.13. */
#define SUM_MAX 512
/* More than the longest payload has such parts. */
#define SUM_PARTS 132

/* The segment in hand. The stack has no room for it. */
struct bypass_work {
	struct tcp_header header;
	struct bypass_segment in;
	struct bypass_segment out;
	__u32 at;      /* of the TCP header in the frame */
	__u32 l2_bytes;
	__u32 ts_at;   /* of the option in the TCP header; 0: there is none */
	__u32 sack_at; /* likewise */
	__u32 sack_bytes;
	__u32 sum; /* of the payload that is cut off */
	__u8 part[SUM_MAX + 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bypass_work);
} bypass_work SEC(".maps");

static __always_inline struct bypass_work *work_area(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&bypass_work, &only);
}

/* Finds one option; 1 ends the walk. */
static long find_option(__u32 index, struct bypass_work **of)
{
	struct bypass_work *work = *of;
	__u32 at = work->header.at, bytes;
	const __u8 *option;

	(void)index;
	if (at >= work->header.bytes)
		return 1;
	at &= HEADER_MASK;
	OPAQUE(at);
	at &= HEADER_MASK;
	option = work->header.before + at;
	if (option[0] == TCP_OPTION_END)
		return 1;
	if (option[0] == TCP_OPTION_NOP) {
		work->header.at = at + 1;
		return 0;
	}
	bytes = option[1];
	if (bytes < 2 || at + bytes > work->header.bytes)
		return 1;
	if (option[0] == TCP_OPTION_TIMESTAMPS && bytes == 10)
		work->ts_at = at;
	if (option[0] == TCP_OPTION_SACK && bytes <= 2 + 8 * BYPASS_BLOCKS) {
		work->sack_at = at;
		work->sack_bytes = bytes;
	}
	work->header.at = at + bytes;
	return 0;
}

static __always_inline __u8 *option_at(__u8 *header, __u32 at)
{
	OPAQUE(at);
	return header + (at & HEADER_MASK);
}

static __always_inline void read_options(struct bypass_work *work)
{
	struct bypass_segment *in = &work->in;
	const __u8 *option;

	work->ts_at = work->sack_at = work->sack_bytes = 0;
	bpf_loop(TCP_OPTIONS_MAX, find_option, &work, 0);
	in->ts_value = in->ts_echo = 0;
	in->has_ts = !!work->ts_at;
	if (work->ts_at) {
		option = option_at(work->header.before, work->ts_at);
		in->ts_value = read_number(option + 2);
		in->ts_echo = read_number(option + 6);
	}
	clear_blocks(in);
	if (!work->sack_at)
		return;
	option = option_at(work->header.before, work->sack_at);
	for (int i = 0; i < BYPASS_BLOCKS; i++) {
		if (2 + 8 * i + 8 > (int)work->sack_bytes)
			break;
		in->first[i] = read_number(option + 2 + 8 * i);
		in->last[i] = read_number(option + 6 + 8 * i);
	}
}

/* Bytes from the IP header on. A short frame has padding behind them. */
static __always_inline __u32 packet_bytes(struct __sk_buff *skb, __u32 l2_bytes)
{
	__be16 bytes = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, l2_bytes + offsetof(struct iphdr, tot_len), &bytes, 2);
		return bpf_ntohs(bytes);
	}
	bpf_skb_load_bytes(skb, l2_bytes + offsetof(struct ipv6hdr, payload_len), &bytes, 2);
	/* Zero is a packet too long for the field (BIG TCP), which needs no padding. */
	return bytes ? bpf_ntohs(bytes) + sizeof(struct ipv6hdr) : skb->len - l2_bytes;
}

/* Reads the segment in hand; false if its headers do not add up. */
GLOBAL int read_segment(struct __sk_buff *skb, __u32 at, __u32 bytes, __u32 l2_bytes)
{
	struct bypass_work *work = work_area();
	struct bypass_segment *in;
	const __u8 *header;
	__u32 whole;

	if (!work || !load_header(skb, &work->header, at, bytes))
		return false;
	whole = packet_bytes(skb, l2_bytes) + l2_bytes;
	if (whole < at + work->header.bytes || whole > skb->len)
		return false;
	work->at = at;
	work->l2_bytes = l2_bytes;
	in = &work->in;
	header = work->header.before;
	in->seq = read_number(header + TCP_SEQ_AT);
	in->ack = read_number(header + TCP_ACK_AT);
	in->len = whole - at - work->header.bytes;
	in->window = (__u32)header[14] << 8 | header[15];
	in->fin = !!(header[TCP_FLAGS_AT] & TCP_FIN);
	in->rst = !!(header[TCP_FLAGS_AT] & TCP_RST);
	read_options(work);
	return true;
}

/* The sum of the bytes that are cut off. */
struct tail {
	struct __sk_buff *skb;
	struct bypass_work *work;
	__u32 at;   /* in the frame */
	__u32 left; /* bytes */
	__u32 odd;  /* the first is the second of its 16 bits */
};

static long sum_part(__u32 index, struct tail *tail)
{
	struct bypass_work *work = tail->work;
	__u32 odd = tail->odd & 1, bytes = tail->left;

	(void)index;
	if (!bytes)
		return 1;
	if (bytes > SUM_MAX - odd)
		bytes = SUM_MAX - odd;
	__builtin_memset(work->part, 0, sizeof(work->part));
	if (!is_between(&bytes, 1, SUM_MAX) ||
	    bpf_skb_load_bytes(tail->skb, tail->at, work->part + odd, bytes))
		return 1;
	work->sum = bpf_csum_diff(work->part, SUM_MAX, NULL, 0, work->sum);
	tail->at += bytes;
	tail->left -= bytes;
	tail->odd = 0;
	return 0;
}

/* Sets the length in the IP header. */
static __always_inline void set_length(struct __sk_buff *skb, __u32 l2_bytes, __u32 bytes)
{
	__u32 at = l2_bytes + offsetof(struct ipv6hdr, payload_len);
	__be16 from, to = bpf_htons(bytes - sizeof(struct ipv6hdr));

	if (skb->protocol != bpf_htons(ETH_P_IP)) {
		bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
		return;
	}
	at = l2_bytes + offsetof(struct iphdr, tot_len);
	to = bpf_htons(bytes);
	if (bpf_skb_load_bytes(skb, at, &from, sizeof(from)))
		return;
	bpf_l3_csum_replace(skb, l2_bytes + offsetof(struct iphdr, check), from, to, sizeof(to));
	bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* Cuts the payload to the length of `out`; false if that is not possible. The checksum follows
 * by difference, so that one that was wrong stays wrong. */
GLOBAL int cut_tail(struct __sk_buff *skb)
{
	struct bypass_work *work = work_area();
	struct tail tail = { .skb = skb };
	__u32 head, keep, check_at;
	__be32 from, to;

	if (!work)
		return false;
	work->sum = 0;
	if (work->out.len >= work->in.len)
		return true;
	head = work->header.bytes;
	keep = work->at + head + work->out.len;
	check_at = work->at + TCP_CHECKSUM_AT;
	tail.work = work;
	tail.at = keep;
	tail.left = work->in.len - work->out.len;
	tail.odd = work->out.len;
	bpf_loop(SUM_PARTS, sum_part, &tail, 0);
	from = bpf_htonl(head + work->in.len);
	to = bpf_htonl(head + work->out.len);
	if (tail.left || bpf_skb_change_tail(skb, keep, 0))
		return false;
	/* A checksum that the device completes has the length in it, and not the payload. */
	bpf_l4_csum_replace(skb, check_at, from, to, BPF_F_PSEUDO_HDR | sizeof(to));
	bpf_l4_csum_replace(skb, check_at, 0, work->sum, 0);
	set_length(skb, work->l2_bytes, keep - work->l2_bytes);
	/* The difference below starts from the checksum as it is now. */
	return load_header(skb, &work->header, work->at, head);
}

/* Writes the blocks that are left, and padding behind them. */
static __always_inline void write_blocks(struct bypass_work *work)
{
	const struct bypass_segment *out = &work->out;
	__u8 *option = option_at(work->header.after, work->sack_at);
	__u32 to = 2;

	for (int i = 0; i < 2 + 8 * BYPASS_BLOCKS; i++)
		if (i < (int)work->sack_bytes)
			option[i] = TCP_OPTION_NOP;
	for (int i = 0; i < BYPASS_BLOCKS; i++) {
		if (out->first[i] == out->last[i])
			continue;
		OPAQUE(to);
		to &= 31;
		if (to + 8 > work->sack_bytes)
			return;
		write_number(option + to, out->first[i]);
		write_number(option + to + 4, out->last[i]);
		to += 8;
	}
	if (to == 2)
		return;
	option[0] = TCP_OPTION_SACK;
	option[1] = to;
}

/* Makes the packet the segment `out`. */
GLOBAL int write_segment(struct __sk_buff *skb)
{
	struct bypass_work *work = work_area();
	__u8 *header, *option;

	if (!work || !cut_tail(skb))
		return false;
	header = work->header.after;
	write_number(header + TCP_SEQ_AT, work->out.seq);
	write_number(header + TCP_ACK_AT, work->out.ack);
	header[14] = work->out.window >> 8;
	header[15] = work->out.window;
	if (!work->out.fin)
		header[TCP_FLAGS_AT] &= ~TCP_FIN;
	if (!work->out.len)
		header[TCP_FLAGS_AT] &= ~TCP_PSH;
	if (work->out.rst && !work->in.rst) {
		header[TCP_FLAGS_AT] = TCP_RST;
		__builtin_memcpy(header, work->header.before + 2, 2);
		__builtin_memcpy(header + 2, work->header.before, 2);
	}
	if (work->ts_at) {
		option = option_at(header, work->ts_at);
		write_number(option + 2, work->out.ts_value);
		write_number(option + 6, work->out.ts_echo);
	}
	if (work->sack_at)
		write_blocks(work);
	return store_header(skb, &work->header, work->at);
}

/* Exchanges source and destination, on which no checksum depends. */
static __always_inline void turn_round(struct __sk_buff *skb, const struct bypass_work *work)
{
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 at = work->l2_bytes + (v4 ? offsetof(struct iphdr, saddr) :
					  offsetof(struct ipv6hdr, saddr));
	__u32 half = v4 ? 4 : 16;
	__u8 from[16] = {}, to[16] = {};

	if (v4) {
		bpf_skb_load_bytes(skb, at, from, 4);
		bpf_skb_load_bytes(skb, at + half, to, 4);
		bpf_skb_store_bytes(skb, at, to, 4, 0);
		bpf_skb_store_bytes(skb, at + half, from, 4, 0);
	} else {
		bpf_skb_load_bytes(skb, at, from, 16);
		bpf_skb_load_bytes(skb, at + half, to, 16);
		bpf_skb_store_bytes(skb, at, to, 16, 0);
		bpf_skb_store_bytes(skb, at + half, from, 16, 0);
	}
	if (!work->l2_bytes)
		return;
	bpf_skb_load_bytes(skb, 0, from, ETH_ALEN);
	bpf_skb_load_bytes(skb, ETH_ALEN, to, ETH_ALEN);
	bpf_skb_store_bytes(skb, 0, to, ETH_ALEN, 0);
	bpf_skb_store_bytes(skb, ETH_ALEN, from, ETH_ALEN, 0);
}

/* Makes the packet the reset `out` of its sender. */
GLOBAL int send_back(struct __sk_buff *skb)
{
	struct bypass_work *work = work_area();

	/* Without an acknowledgement the sender waits for nothing. */
	if (!work || !(work->header.before[TCP_FLAGS_AT] & TCP_ACK) || !write_segment(skb))
		return DROP;
	turn_round(skb, work);
	/* Else `bypass_out` would take it for one of the relay's. */
	skb->mark |= NODE_MARKS;
	return bpf_redirect(skb->ifindex, 0);
}
