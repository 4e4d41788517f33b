/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Whether a SYN may be answered for its server. A SYN that a router would drop must
 * reach no server, and what only the two ends can negotiate is left to them.
 */
#pragma once
#include "multipath.h"
#include "packet.h"

/* Steps of sixteen bytes over a SYN with its payload: 8 KB. */
#define SUM_STEPS_MAX 512

/* Part of a packet: the sum of its 16-bit words (RFC 1071), which is the same in either
 * byte order, and the OR of its whole 32-bit words. */
struct part {
	__u64 sum;
	__u32 start;
	__u32 at;
	__u32 end;
	__u32 bits;
};
_Static_assert(sizeof(struct part) == 24, "no padding, which would be read unset");

struct summing {
	struct __sk_buff *skb;
	struct part part;
};

/* Adds four words, or one, or a byte; 1 ends. */
static long add_words(__u32 index, struct summing *summing)
{
	struct part *part = &summing->part;
	__u32 left = part->end - part->at;
	__u32 word[4] = {};
	__u8 byte;

	(void)index;
	if (!left)
		return 1;
	if (left >= sizeof(word)) {
		if (bpf_skb_load_bytes(summing->skb, part->at, word, sizeof(word)))
			return 1;
		part->at += sizeof(word);
	} else if (left >= sizeof(word[0])) {
		if (bpf_skb_load_bytes(summing->skb, part->at, word, sizeof(word[0])))
			return 1;
		part->at += sizeof(word[0]);
	} else {
		if (bpf_skb_load_bytes(summing->skb, part->at, &byte, sizeof(byte)))
			return 1;
		part->sum += bpf_htons((part->at - part->start) & 1 ? byte : byte << 8);
		part->at += 1;
		return 0;
	}
	part->sum += (__u64)word[0] + word[1] + word[2] + word[3];
	part->bits |= word[0] | word[1] | word[2] | word[3];
	return 0;
}

/* Sums up a part. On failure, `at` stays before `end`. */
GLOBAL int add_up(struct __sk_buff *skb, struct part *part)
{
	struct summing summing = { .skb = skb };

	if (!part)
		return 0;
	summing.part = *part;
	bpf_loop(SUM_STEPS_MAX, add_words, &summing, 0);
	*part = summing.part;
	return 0;
}

static __always_inline __u16 folded(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Checks an IPv4 header as a host must (RFC 1122 section 3.2.1), and that it has no
 * options but padding: other options are the host's to handle. Returns the bytes of the
 * packet; 0 for a bad one. */
static __always_inline __u32 sound_ipv4(struct __sk_buff *skb, const struct packet *pkt)
{
	const struct iphdr *ip = &pkt->ip.v4;
	struct part options = {
		.at = pkt->l2_bytes + sizeof(*ip),
		.end = pkt->l2_bytes + ip->ihl * 4,
	};
	__u32 word[5];

	if (ip->version != 4 || ip->ihl < 5)
		return 0;
	if (ip->ihl > 5)
		add_up(skb, &options);
	if (options.at != options.end || (options.bits & ~0x01010101))
		return 0;
	__builtin_memcpy(word, ip, sizeof(word));
	options.sum += (__u64)word[0] + word[1] + word[2] + word[3] + word[4];
	return folded(options.sum) == 0xffff ? bpf_ntohs(ip->tot_len) : 0;
}

static __always_inline __u64 pseudo_header(const struct packet *pkt, __u32 tcp_bytes)
{
	const __u32 *from = pkt->flow.client.word, *to = pkt->flow.server.word;
	__u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(tcp_bytes);

	if (pkt->family == AF_INET)
		return sum + from[3] + to[3];
	for (int i = 0; i < 4; i++)
		sum += (__u64)from[i] + to[i];
	return sum;
}

/* Whether lengths and checksums of a SYN with its TCP header at `at` are right. The
 * kernel checks that for its own handshake, but only after the upstream SYN was sent. A
 * SYN that has not left its host yet may have an unfinished checksum, the sum of the
 * pseudo header (CHECKSUM_PARTIAL). */
GLOBAL int is_sound(struct __sk_buff *skb, const struct packet *pkt, __u32 at)
{
	struct part tcp = { .start = at, .at = at };
	__u64 pseudo;
	__u32 bytes;

	if (!pkt)
		return false;
	if (pkt->family == AF_INET)
		bytes = sound_ipv4(skb, pkt);
	else
		bytes = pkt->ip.v6.version == 6 ?
				sizeof(pkt->ip.v6) + bpf_ntohs(pkt->ip.v6.payload_len) :
				0;
	tcp.end = pkt->l2_bytes + bytes;
	if (!bytes || tcp.end > skb->len || pkt->tcp.doff < 5 || at + pkt->tcp.doff * 4 > tcp.end)
		return false;
	pseudo = pseudo_header(pkt, tcp.end - at);
	if (pkt->tcp.check == folded(pseudo))
		return true;
	add_up(skb, &tcp);
	return tcp.at == tcp.end && folded(pseudo + tcp.sum) == 0xffff;
}

/* Whether a SYN requests what only its destination can do: signing with a key (RFC
 * 2385, RFC 5925), or joining an existing connection (RFC 8684 section 3.2). Also true
 * if its options cannot be parsed. */
static __always_inline bool is_foreign(const struct options *options)
{
	return options->kind != OPTIONS_PLAIN && options->kind != OPTIONS_CAPABLE;
}
