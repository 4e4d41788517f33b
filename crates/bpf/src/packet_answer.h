/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The node's answer to a SYN of the packet path, with a number that proves to whom it was sent, and
 * the SYN that the server gets in place of the client's.
 */
#pragma once
#include "packet_path.h"
#include "packet_segment.h"

/* The key of the initial sequence numbers (RFC 6528). */
SETTING(setting_isn_key0);
SETTING(setting_isn_key1);
SETTING(setting_isn_key2);
SETTING(setting_isn_key3);

static __always_inline __u64 wide(__u32 high, __u32 low)
{
	return (__u64)high << 32 | low;
}

static __always_inline __u64 rotate(__u64 word, __u32 by)
{
	return word << by | word >> (64 - by);
}

/* The state of SipHash. */
struct sip {
	__u64 a, b, c, d;
};

static __always_inline void sip_round(struct sip *sip)
{
	sip->a += sip->b;
	sip->b = rotate(sip->b, 13) ^ sip->a;
	sip->a = rotate(sip->a, 32);
	sip->c += sip->d;
	sip->d = rotate(sip->d, 16) ^ sip->c;
	sip->a += sip->d;
	sip->d = rotate(sip->d, 21) ^ sip->a;
	sip->c += sip->b;
	sip->b = rotate(sip->b, 17) ^ sip->c;
	sip->c = rotate(sip->c, 32);
}

static __always_inline void sip_word(struct sip *sip, __u64 word)
{
	sip->d ^= word;
	sip_round(sip);
	sip_round(sip);
	sip->a ^= word;
}

/* SipHash-2-4 of a SYN and the time, by the secret of this node. The client proves with
 * the acknowledgement of the number made of it that it receives at its address. */
GLOBAL __u64 keyed_hash(const struct flow *flow, __u32 isn, __u64 now)
{
	__u64 first = wide(SET(setting_isn_key0), SET(setting_isn_key1));
	__u64 second = wide(SET(setting_isn_key2), SET(setting_isn_key3));
	struct sip sip = {
		.a = first ^ 0x736f6d6570736575ull,
		.b = second ^ 0x646f72616e646f6dull,
		.c = first ^ 0x6c7967656e657261ull,
		.d = second ^ 0x7465646279746573ull,
	};

	if (!flow)
		return 0;
	sip_word(&sip, wide(flow->client.word[0], flow->client.word[1]));
	sip_word(&sip, wide(flow->client.word[2], flow->client.word[3]));
	sip_word(&sip, wide(flow->server.word[0], flow->server.word[1]));
	sip_word(&sip, wide(flow->server.word[2], flow->server.word[3]));
	sip_word(&sip, wide((__u32)flow->client_port << 16 | flow->server_port, isn));
	sip_word(&sip, now);
	sip_word(&sip, 48ull << 56);
	sip.c ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(&sip);
	return sip.a ^ sip.b ^ sip.c ^ sip.d;
}

/* Overwrites an option of the header with padding. */
static __always_inline void pad_option(struct tcp_header *header, __u32 at, __u32 bytes)
{
	OPAQUE(at);
	at &= HEADER_MASK;
	for (__u32 i = 0; i < bytes; i++)
		header->after[at + i] = TCP_OPTION_NOP;
}

/* Removes the options of a SYN that the node does not promise. */
static __always_inline void strip_options(struct packet_scratch *scratch, __u8 promised)
{
	struct read_options *found = &scratch->options;
	struct tcp_header *header = &scratch->header;

	if (found->shift_at && !(promised & OFFERS_WINDOW_SCALE))
		pad_option(header, found->shift_at, 3);
	if (found->sack_at && !(promised & OFFERS_SACK))
		pad_option(header, found->sack_at, 2);
	if (found->ts_at && !(promised & OFFERS_TIMESTAMPS))
		pad_option(header, found->ts_at, 10);
}

/* Exchanges source and destination of the packet, and sets its hop limit. The IPv4
 * checksum does not depend on the order of the addresses. */
static __always_inline void turn_addresses(struct __sk_buff *skb, const struct packet *pkt,
					   bool back, __u8 hops)
{
	const struct address *source = back ? &pkt->flow.server : &pkt->flow.client;
	const struct address *destination = back ? &pkt->flow.client : &pkt->flow.server;
	__u8 former = back ? hop_limit(pkt) : ANSWER_HOPS;

	if (pkt->family == AF_INET) {
		__be32 both[2] = { source->word[3], destination->word[3] };

		bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct iphdr, saddr), both,
				    sizeof(both), 0);
		bpf_l3_csum_replace(skb, pkt->l2_bytes + offsetof(struct iphdr, check),
				    bpf_htons(former << 8), bpf_htons(hops << 8), 2);
		bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct iphdr, ttl), &hops, 1, 0);
		return;
	}
	bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct ipv6hdr, saddr), source,
			    sizeof(*source), 0);
	bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct ipv6hdr, daddr), destination,
			    sizeof(*destination), 0);
	bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct ipv6hdr, hop_limit), &hops, 1, 0);
}

/* Writes the node's SYN-ACK over the header of the SYN, whose other options are padding by
 * now: each stays where the client's was, so no length changes. */
static __always_inline void write_syn_ack(struct packet_scratch *scratch,
					  const struct packet_flow *entry,
					  const struct packet *pkt)
{
	struct read_options *found = &scratch->options;
	struct tcp_header *header = &scratch->header;
	__u32 at;

	__builtin_memcpy(header->after, &pkt->tcp.dest, 2);
	__builtin_memcpy(header->after + 2, &pkt->tcp.source, 2);
	write_number(header->after + 4, entry->node_isn);
	write_number(header->after + 8, entry->client_isn + 1);
	header->after[TCP_FLAGS_AT] = TCP_SYN | TCP_ACK;
	header->after[14] = entry->node_window >> 8;
	header->after[15] = entry->node_window;
	at = found->mss_at;
	OPAQUE(at);
	at &= HEADER_MASK;
	if (at) {
		header->after[at + 2] = entry->mss >> 8;
		header->after[at + 3] = entry->mss;
	}
	at = found->shift_at;
	OPAQUE(at);
	at &= HEADER_MASK;
	if (at && entry->promised & OFFERS_WINDOW_SCALE)
		header->after[at + 2] = entry->promised_shift;
	at = found->ts_at;
	OPAQUE(at);
	at &= HEADER_MASK;
	if (at && entry->promised & OFFERS_TIMESTAMPS) {
		write_number(header->after + at + 2, entry->node_ts);
		write_number(header->after + at + 6, found->ts_value);
	}
}

/* Makes of the SYN's header what the server gets. It must not believe in an option that the
 * client was not promised, nor in ECN, which the node's SYN-ACK declined. */
static __always_inline void strip_header(struct packet_scratch *scratch,
					 const struct packet_flow *entry)
{
	strip_options(scratch, entry->promised);
	scratch->header.after[TCP_FLAGS_AT] &= ~TCP_ECN;
	/* Beside the data offset: the third flag of ECN (RFC 9768 section 3.1), and reserved ones. */
	scratch->header.after[TCP_FLAGS_AT - 1] &= 0xf0;
}

/* Answers the SYN that the scratch area has read, after a delay, and makes of it the one that the
 * server gets; false if that fails. */
GLOBAL int answer_syn(struct __sk_buff *skb, const struct packet *pkt,
		      const struct packet_flow *entry, __u32 delay_ms)
{
	struct packet_scratch *scratch = scratch_area();
	struct tcp_header *header;
	__u32 at;

	if (!pkt || !entry || !scratch)
		return false;
	header = &scratch->header;
	at = tcp_at(pkt->family, pkt->l2_bytes);
	strip_header(scratch, entry);
	__builtin_memcpy(scratch->forwarded, header->after, TCP_HEADER_MAX);
	write_syn_ack(scratch, entry, pkt);
	if (!store_header(skb, header, at))
		return false;
	turn_addresses(skb, pkt, true, ANSWER_HOPS);
	swap_link_addresses(skb, pkt->l2_bytes);
	if (delay_ms)
		bpf_skb_set_tstamp(skb, bpf_ktime_get_ns() + delay_ms * 1000000ull,
				   BPF_SKB_TSTAMP_DELIVERY_MONO);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	if (delay_ms)
		bpf_skb_set_tstamp(skb, 0, BPF_SKB_TSTAMP_UNSPEC);
	swap_link_addresses(skb, pkt->l2_bytes);
	turn_addresses(skb, pkt, false, hop_limit(pkt));
	__builtin_memcpy(header->before, header->after, TCP_HEADER_MAX);
	__builtin_memcpy(header->after, scratch->forwarded, TCP_HEADER_MAX);
	/* The checksum of the answer: its change is computed. */
	bpf_skb_load_bytes(skb, at + TCP_CHECKSUM_AT, header->before + TCP_CHECKSUM_AT, 2);
	__builtin_memcpy(header->after + TCP_CHECKSUM_AT, header->before + TCP_CHECKSUM_AT, 2);
	return store_header(skb, header, at);
}

/* Makes of the SYN that the scratch area has read the one that the server gets. */
static __always_inline int strip_syn(struct __sk_buff *skb, struct packet_scratch *scratch, __u32 at,
				     const struct packet_flow *entry)
{
	strip_header(scratch, entry);
	return store_header(skb, &scratch->header, at) ? PASS : DROP;
}
