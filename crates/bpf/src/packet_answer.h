/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The number of the node's answer to a SYN of the packet path, which proves to whom it was sent, and
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

/* Makes of the SYN that the scratch area has read the one that the server gets. */
static __always_inline int strip_syn(struct __sk_buff *skb, struct packet_scratch *scratch, __u32 at,
				     const struct packet_flow *entry)
{
	strip_header(scratch, entry);
	return store_header(skb, &scratch->header, at) ? PASS : DROP;
}
