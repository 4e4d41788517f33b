/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Translation of the numbers in a segment: sequence and acknowledgement numbers, SACK
 * edges (RFC 2018), timestamps (RFC 7323), and the window. One direction at a time.
 */
#pragma once
#include "packet.h"

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2	      /* RFC 9293 section 3.7.1 */
#define TCP_OPTION_WINDOW_SCALE 3     /* RFC 7323 section 2 */
#define TCP_OPTION_SACK_PERMITTED 4   /* RFC 2018 section 2 */
#define TCP_OPTION_SACK 5	      /* RFC 2018 section 3 */
#define TCP_OPTION_TIMESTAMPS 8	      /* RFC 7323 section 3 */
#define TCP_OPTION_FAST_OPEN 34
#define TCP_OPTION_EXPERIMENT 254     /* RFC 6994 */
#define TCP_HEADER_MAX 60
#define TCP_OPTIONS_MAX 40
#define TCP_SEQ_AT 4
#define TCP_ACK_AT 8
#define TCP_CHECKSUM_AT 16
#define TCP_FLAGS_AT 13
#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16
/* Congestion Window Reduced and ECN-Echo (RFC 3168 section 6.1.1). */
#define TCP_ECN (64 | 128)
/* Keeps an index within a header; the arrays below have room behind it for the longest
 * option. */
#define HEADER_MASK 63

/* A TCP header before and after a change. */
struct tcp_header {
	__u8 before[128];
	__u8 after[128];
	__u32 at;    /* of the option that is read next */
	__u32 bytes; /* of the header */
};

/* Numbers to add in one direction. A segment's window is shifted left, then right. */
struct translation {
	struct tcp_header *header; /* a work area */
	__u32 seq;
	__u32 ack; /* and SACK edges */
	__u32 ts_value;
	__u32 ts_echo;
	__u32 widen;
	__u32 narrow;
	/* The values before the translation. */
	__u32 former_seq;
	__u32 former_ack;
	__u32 former_window; /* as in the header */
	__u32 former_ts; /* TSval; 0: none */
	__u32 flags; /* byte 13 of the header */
};

static __always_inline __u32 read_number(const __u8 *from)
{
	return (__u32)from[0] << 24 | (__u32)from[1] << 16 | (__u32)from[2] << 8 | from[3];
}

static __always_inline void write_number(__u8 *to, __u32 number)
{
	to[0] = number >> 24;
	to[1] = number >> 16;
	to[2] = number >> 8;
	to[3] = number;
}

static __always_inline void add_number(__u8 *to, __u32 delta)
{
	write_number(to, read_number(to) + delta);
}

/* Reads the TCP header at `at` into both copies; false if it is not whole. */
static __always_inline bool load_header(struct __sk_buff *skb, struct tcp_header *header,
					__u32 at, __u32 bytes)
{
	if (!is_between(&bytes, sizeof(struct tcphdr), TCP_HEADER_MAX))
		return false;
	if (bpf_skb_load_bytes(skb, at, header->before, bytes))
		return false;
	__builtin_memcpy(header->after, header->before, TCP_HEADER_MAX);
	header->at = sizeof(struct tcphdr);
	header->bytes = bytes;
	return true;
}

/* Writes the changed header back, and corrects the checksum; false if that fails. The difference leaves a
 * checksum that the device will complete (CHECKSUM_PARTIAL) alone: that one covers only
 * the pseudo header, which does not change. */
static __always_inline bool store_header(struct __sk_buff *skb, struct tcp_header *header,
					 __u32 at)
{
	__u32 bytes = header->bytes;
	__s64 diff;

	if (!is_between(&bytes, sizeof(struct tcphdr), TCP_HEADER_MAX))
		return false;
	diff = bpf_csum_diff(header->before, bytes, header->after, bytes, 0);
	return !bpf_skb_store_bytes(skb, at, header->after, bytes, 0) &&
	       !bpf_l4_csum_replace(skb, at + TCP_CHECKSUM_AT, 0, diff, 0);
}

/* Translates one option; 1 ends the walk. */
static long translate_option(__u32 index, struct translation *how)
{
	struct tcp_header *header = how->header;
	__u32 at = header->at;
	__u32 bytes;
	__u8 *option;

	(void)index;
	if (at >= header->bytes)
		return 1;
	at &= HEADER_MASK;
	OPAQUE(at);
	at &= HEADER_MASK;
	option = header->after + at;
	if (option[0] == TCP_OPTION_END)
		return 1;
	if (option[0] == TCP_OPTION_NOP) {
		/* Most come in pairs (RFC 7323 appendix A). */
		header->at = at + 1 + (option[1] == TCP_OPTION_NOP);
		return 0;
	}
	bytes = option[1];
	if (bytes < 2 || at + bytes > header->bytes)
		return 1;
	if (option[0] == TCP_OPTION_TIMESTAMPS && bytes == 10) {
		how->former_ts = read_number(option + 2);
		add_number(option + 2, how->ts_value);
		/* Zero means that there is no echo yet (RFC 7323 section 3.2). */
		if (read_number(option + 6))
			add_number(option + 6, how->ts_echo);
	}
	if (option[0] == TCP_OPTION_SACK)
		for (int edge = 0; edge < 8; edge++)
			if (2 + 4 * edge + 4 <= (int)bytes)
				add_number(option + 2 + 4 * edge, how->ack);
	header->at = at + bytes;
	return 0;
}

/* The window in the other end's scale: the same number of bytes or, if that does not fit, the
 * most. An open window stays open, even if it is less than one unit of that scale: its sender need
 * not announce again that it is open. */
static __always_inline __u32 scaled(__u32 window, const struct translation *how)
{
	__u32 units = window << how->widen >> how->narrow;

	if (!units)
		return window ? 1 : 0;
	return units > 0xffff ? 0xffff : units;
}

/* NOP, NOP, timestamps: the layout that RFC 7323 appendix A recommends. */
#define PADDED_TIMESTAMPS 0x0101080a
/* Words of a header without options, and with these alone. */
#define PLAIN_WORDS 5
#define STAMPED_WORDS 8

/* Adds to a number of the header, and to the difference of its checksum: in one's complement,
 * the sum of all words that are new less that of all that were (RFC 1624). */
static __always_inline void shift_word(__be32 *word, __u32 delta, __u64 *diff)
{
	__be32 shifted = bpf_htonl(bpf_ntohl(*word) + delta);

	*diff += (__u64)(__u32)~*word + shifted;
	*word = shifted;
}

/* Translates a header of one of the two layouts that nearly all segments have, read by direct
 * access: copying a header and walking its options costs more than all else. Writes `words`,
 * without the checksum. Returns the difference of the latter. */
static __always_inline __u32 translate_words(__be32 *words, bool stamped,
					     const struct translation *how)
{
	__u32 flags_window = bpf_ntohl(words[3]);
	__u64 diff = 0;

	shift_word(&words[1], how->seq, &diff);
	if (flags_window & TCP_ACK << 16)
		shift_word(&words[2], how->ack, &diff);
	shift_word(&words[3],
		   scaled(flags_window & 0xffff, how) - (flags_window & 0xffff), &diff);
	if (stamped) {
		shift_word(&words[6], how->ts_value, &diff);
		/* Zero means that there is no echo yet (RFC 7323 section 3.2). */
		if (words[7])
			shift_word(&words[7], how->ts_echo, &diff);
	}
	diff = (diff & 0xffffffff) + (diff >> 32);
	return (diff & 0xffffffff) + (diff >> 32);
}

/* Translates a segment of such a layout; false if it has another, or is not in the linear
 * part. */
static __always_inline bool translate_plain(struct __sk_buff *skb, __u32 at, __u32 bytes,
					    struct translation *how)
{
	const __be32 *end = (const __be32 *)(unsigned long)skb->data_end;
	const __be32 *tcp;
	bool stamped = bytes == 4 * STAMPED_WORDS;
	__be32 words[STAMPED_WORDS] = {};
	__u32 diff;

	/* The verifier needs a bound for direct access: no header is further behind. Clang must
	 * not move the comparison to another copy of the number. */
	OPAQUE(at);
	if (at > ETH_HLEN + sizeof(struct ipv6hdr))
		return false;
	OPAQUE(at);
	tcp = (const __be32 *)((unsigned long)skb->data + at);
	if (tcp + PLAIN_WORDS > end)
		return false;
	__builtin_memcpy(words, tcp, 4 * PLAIN_WORDS);
	if (stamped) {
		if (tcp + STAMPED_WORDS > end || tcp[5] != bpf_htonl(PADDED_TIMESTAMPS))
			return false;
		__builtin_memcpy(words + 5, tcp + 5, 12);
	} else if (bytes != 4 * PLAIN_WORDS) {
		return false;
	}
	how->former_seq = bpf_ntohl(words[1]);
	how->former_ack = bpf_ntohl(words[2]);
	how->former_ts = bpf_ntohl(words[6]);
	how->former_window = bpf_ntohl(words[3]) & 0xffff;
	how->flags = bpf_ntohl(words[3]) >> 16 & 0xff;
	diff = translate_words(words, stamped, how);
	/* One call for all: what lies between is written as it was. */
	if (bpf_skb_store_bytes(skb, at + TCP_SEQ_AT, words + 1, stamped ? 28 : 12, 0))
		return false;
	/* The header can be written, so this succeeds too. */
	bpf_l4_csum_replace(skb, at + TCP_CHECKSUM_AT, 0, diff, 0);
	return true;
}

/* Translates the segment whose TCP header is at `at`, of any layout; false if that fails. */
static __always_inline bool translate_any(struct __sk_buff *skb, __u32 at, __u32 bytes,
					  struct translation *how)
{
	struct tcp_header *header = how->header;
	__u32 window;

	if (!load_header(skb, header, at, bytes))
		return false;
	how->former_seq = read_number(header->before + TCP_SEQ_AT);
	how->former_ack = read_number(header->before + TCP_ACK_AT);
	how->flags = header->before[TCP_FLAGS_AT];
	add_number(header->after + TCP_SEQ_AT, how->seq);
	if (how->flags & TCP_ACK)
		add_number(header->after + TCP_ACK_AT, how->ack);
	how->former_window = (__u32)header->after[14] << 8 | header->after[15];
	window = scaled(how->former_window, how);
	header->after[14] = window >> 8;
	header->after[15] = window;
	bpf_loop(TCP_OPTIONS_MAX, translate_option, how, 0);
	return store_header(skb, header, at);
}

/* Translates the segment whose TCP header of `bytes` bytes is at `at` in the frame; false if
 * that fails. */
static __always_inline bool translate(struct __sk_buff *skb, __u32 at, __u32 bytes,
				      struct translation *how)
{
	return translate_plain(skb, at, bytes, how) || translate_any(skb, at, bytes, how);
}
