/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps of the packet path, and its half-open budget. */
#pragma once
#include "packet.h"
#include "packet_flows.h"
#include "packet_rare.h"

/* The verdicts here. PASS ends the chain of programs: the socket path must not see a
 * segment of a flow of the packet path. */
#define NEXT TC_ACT_UNSPEC
#define PASS TC_ACT_OK
#define DROP TC_ACT_SHOT

/* Preallocated: the allocator would cost more than the copy. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, PACKET_HELD_ALL);
	__type(key, struct packet_held_key);
	__type(value, struct packet_held);
} packet_held SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct destination);
	__type(value, struct packet_profile);
} packet_profiles SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, struct packet_prefix);
} packet_prefixes SEC(".maps");

/* Whether the node has redirected flows to sockets here, or a predecessor may have. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} packet_relays SEC(".maps");

/* Which process keeps the flows. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} packet_owner SEC(".maps");

/* The half-open budget: of all clients, further ones of validated prefixes, and the
 * most of one prefix. */
SETTING(setting_budget);
SETTING(setting_reserve);
SETTING(setting_prefix_budget);

/* Bytes by which a segment may be outside of the window of its receiver, as this host knows it, and still be the
 * sender's. Who does not see the flow has to guess its numbers. */
#define GAP_MAX (1 << 18)

/* The options of a segment, and where they are in its header; 0: nowhere. */
struct read_options {
	__u32 mss_at;
	__u32 shift_at;
	__u32 sack_at;
	__u32 ts_at;
	__u32 ts_value;
	__u32 ts_echo;
	__u16 mss;
	__u8 shift;
	__u8 offers; /* OFFERS_* */
	__u32 unknown; /* there is an option that the packet path does not carry in a SYN */
	__u32 hurries; /* its client sends data with the SYN, or wants to (TCP Fast Open) */
};

/* A segment to make. */
struct segment {
	struct flow flow; /* its source is the `client` */
	__u32 family;
	__u32 seq;
	__u32 ack;
	__u32 flags; /* byte 13 of the TCP header */
	__u32 ts_value;
	__u32 ts_echo;
	__u32 window;
	__be32 class_label; /* traffic class and flow label (RFC 8200 section 3) */
	__u8 hop_limit;
	__u8 timestamps; /* whether it has the option */
	__u8 offers;	 /* OFFERS_* of a SYN, which also has the next two */
	__u8 shift;
	__u16 mss; /* 0: it is no SYN */
	__u8 partial;	 /* whether the device completes the checksum */
	__u8 l2_bytes;
};

/* Work areas that the stack has no room for. */
struct packet_scratch {
	struct packet_key key;	 /* of the segment in hand */
	struct packet_flow flow; /* of the SYN in hand */
	struct tcp_header header;
	struct read_options options;
	struct packet_held held;
	struct packet_held_key held_key; /* of it */
	struct segment segment;
	__u8 made[40]; /* the TCP header of a segment */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_scratch);
} packet_scratch SEC(".maps");

/* The packet in hand, of either direction: a SYN-ACK of the node is sent while the SYN
 * is. Not on the stack, whose 512 bytes serve all functions of a chain of calls. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32); /* 0: in, 1: out */
	__type(value, struct packet);
} packet_in_hand SEC(".maps");

/* Bytes of padded timestamps in a header. */
#define STAMP_BYTES 12

/* Whether the node adds timestamps to the segments of the server, which has granted none: their
 * client was promised them, and may drop segments without (RFC 7323 section 3.2). */
static __always_inline bool is_stamped(const struct packet_flow *entry)
{
	return entry->promised & ~entry->granted & OFFERS_TIMESTAMPS;
}

/* Where the TCP header is in a packet without IP options. */
static __always_inline __u32 tcp_at(__u32 family, __u32 l2_bytes)
{
	return (l2_bytes ? ETH_HLEN : 0) +
	       (family == AF_INET ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
}

static __always_inline struct packet_scratch *scratch_area(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&packet_scratch, &only);
}

/* The whole of a segment that was viewed, or NULL. Its key is in the scratch area then. */
static __always_inline struct packet *parse_segment(struct __sk_buff *skb, const struct view *view,
						    __u32 direction, __u32 l2_bytes)
{
	struct packet *pkt = bpf_map_lookup_elem(&packet_in_hand, &direction);
	struct packet_scratch *scratch = scratch_area();
	__u32 at;

	if (!pkt || !scratch)
		return NULL;
	scratch->key = view->key;
	pkt->fragment = FRAGMENT_NONE;
	pkt->l2_bytes = l2_bytes ? ETH_HLEN : 0;
	at = parse_ip(skb, pkt, pkt->l2_bytes);
	return at && parse_tcp(skb, pkt, at) ? pkt : NULL;
}

/* The destination of a segment to the server. */
static __always_inline struct destination service_of(const struct flow *flow)
{
	return (struct destination){ .ip = flow->server, .port = flow->server_port };
}

/* That of its flow, from a segment of the server. */
static __always_inline struct destination service_from(const struct flow *flow)
{
	return (struct destination){ .ip = flow->client, .port = flow->client_port };
}

/* How long a destination gets no promises after it refused a flow, or was silent; and after one
 * of its servers granted less than another: as long as a profile is valid. */
#define BAD_NS 30000000000ull
#define UNLIKE_NS (10 * 60 * 1000000000ull)

static __always_inline void mark_bad(const struct destination *service, __u64 how_long)
{
	struct packet_profile *profile = bpf_map_lookup_elem(&packet_profiles, service);
	__u64 until = bpf_ktime_get_ns() + how_long;

	if (profile && profile->bad_until_ns < until)
		profile->bad_until_ns = until;
}

/* The first 24 bits of an IPv4 client, the first 64 of an IPv6 one. */
static __always_inline __u64 prefix_of(const struct address *client)
{
	const __u32 *word = client->word;

	if (is_mapped(client))
		return ((__u64)(word[3] & bpf_htonl(0xffffff00)) << 32) | word[2];
	return ((__u64)word[1] << 32) | word[0];
}

/* That of a flow. */
static __always_inline __u64 prefix_of_flow(const struct packet_key *key,
					    const struct packet_flow *entry)
{
	return prefix_of(entry->turned ? &key->second : &key->first);
}

/* The budgets of a prefix, or NULL. */
static __always_inline struct packet_prefix *prefix_record(__u64 key)
{
	struct packet_prefix *prefix = bpf_map_lookup_elem(&packet_prefixes, &key);
	struct packet_prefix made = {};

	if (prefix)
		return prefix;
	bpf_map_update_elem(&packet_prefixes, &key, &made, BPF_NOEXIST);
	return bpf_map_lookup_elem(&packet_prefixes, &key);
}

/* Takes a place in the half-open budget; false if there is none. `key`: of the client's prefix. */
GLOBAL int enter_half_open(__u64 key)
{
	struct packet_control *control = control_of_node();
	struct packet_prefix *prefix;
	__u32 most;

	if (!control)
		return false;
	prefix = prefix_record(key);
	if (!prefix || prefix->half_open >= SET(setting_prefix_budget))
		return false;
	most = SET(setting_budget) + (prefix->validated ? SET(setting_reserve) : 0);
	if (control->half_open >= most)
		return false;
	__sync_fetch_and_add(&prefix->half_open, 1);
	__sync_fetch_and_add(&control->half_open, 1);
	return true;
}

/* Returns it. Only the winner of the change of state calls this: a second call would
 * let the counter pass zero. */
static __always_inline void leave_half_open(__u64 key, bool validated)
{
	struct packet_control *control = control_of_node();
	struct packet_prefix *prefix = bpf_map_lookup_elem(&packet_prefixes, &key);

	if (control)
		__sync_fetch_and_sub(&control->half_open, 1);
	if (!prefix)
		return;
	/* It may have been evicted and made anew since. */
	if (prefix->half_open)
		__sync_fetch_and_sub(&prefix->half_open, 1);
	if (validated)
		prefix->validated = true;
}

/* Of all held segments, the most of one prefix. */
#define HELD_OF_PREFIX (PACKET_HELD_ALL / 4)

/* Takes a place for a segment that is held; false if its prefix has too many. */
static __always_inline bool enter_held(__u64 key)
{
	struct packet_prefix *prefix = prefix_record(key);

	if (!prefix || prefix->held >= HELD_OF_PREFIX)
		return false;
	__sync_fetch_and_add(&prefix->held, 1);
	return true;
}

/* Returns the places of so many. */
static __always_inline void leave_held(__u64 key, __u32 pieces)
{
	struct packet_prefix *prefix = bpf_map_lookup_elem(&packet_prefixes, &key);

	if (prefix && pieces)
		__sync_fetch_and_sub(&prefix->held, (__s32)pieces);
}

/* Changes the state of a flow; true for the one caller that did it. */
static __always_inline bool change(struct packet_flow *entry, __u32 from, __u32 to)
{
	return __sync_val_compare_and_swap(&entry->state, from, to) == from;
}

static __always_inline bool is_half_open(__u32 state)
{
	return state == PACKET_ANSWERED || state == PACKET_ACCEPTED;
}

/* Deletes what a flow holds. */
struct discard {
	struct packet_held_key key;
	__u32 deleted;
};

/* The most pieces that a flow may hold. Some may be missing in between: what had no room
 * in the map of all flows. */
static __always_inline __u32 held_pieces(const struct packet_flow *entry)
{
	__u32 held = entry->held;

	return held < PACKET_HELD_MAX ? held : PACKET_HELD_MAX;
}

static long discard_piece(__u32 index, struct discard *discard)
{
	discard->key.index = index;
	if (!bpf_map_delete_elem(&packet_held, &discard->key))
		discard->deleted += 1;
	return 0;
}

GLOBAL int discard_held(const struct packet_key *key, const struct packet_flow *entry)
{
	struct discard discard = {};

	if (!key || !entry)
		return 0;
	discard.key.flow = *key;
	bpf_loop(held_pieces(entry), discard_piece, &discard, 0);
	leave_held(prefix_of_flow(key, entry), discard.deleted);
	return 0;
}

/* Closes a flow in a state before OPEN. */
static __always_inline void close_early(const struct packet_key *key, struct packet_flow *entry)
{
	__u32 state = entry->state;

	if (state != PACKET_CLOSED && change(entry, state, PACKET_CLOSED) && is_half_open(state))
		leave_half_open(prefix_of_flow(key, entry), false);
	discard_held(key, entry);
}

/* Of TCP Fast Open (RFC 7413 section 4.1.1), also by the number of its time as an experiment. */
static __always_inline bool is_fast_open(const __u8 *option, __u32 bytes)
{
	return option[0] == TCP_OPTION_FAST_OPEN ||
	       (option[0] == TCP_OPTION_EXPERIMENT && bytes >= 4 && option[2] == 0xf9 &&
		option[3] == 0x89);
}

/* Reads one option; 1 ends the walk. */
static long read_option(__u32 index, struct packet_scratch **area)
{
	struct packet_scratch *scratch = *area;
	struct read_options *found = &scratch->options;
	struct tcp_header *header = &scratch->header;
	__u32 at = header->at;
	__u32 bytes;
	__u8 *option;

	(void)index;
	if (at >= header->bytes)
		return 1;
	OPAQUE(at);
	at &= HEADER_MASK;
	option = header->before + at;
	if (option[0] == TCP_OPTION_END)
		return 1;
	if (option[0] == TCP_OPTION_NOP) {
		header->at = at + 1;
		return 0;
	}
	bytes = option[1];
	if (bytes < 2 || at + bytes > header->bytes) {
		found->unknown = true;
		return 1;
	}
	header->at = at + bytes;
	if (option[0] == TCP_OPTION_MSS && bytes == 4 && !found->mss_at) {
		found->mss_at = at;
		found->mss = (__u32)option[2] << 8 | option[3];
	} else if (option[0] == TCP_OPTION_WINDOW_SCALE && bytes == 3 && !found->shift_at) {
		found->shift_at = at;
		/* RFC 7323 section 2.3: more counts as 14. */
		found->shift = option[2] > 14 ? 14 : option[2];
		found->offers |= OFFERS_WINDOW_SCALE;
	} else if (option[0] == TCP_OPTION_SACK_PERMITTED && bytes == 2 && !found->sack_at) {
		found->sack_at = at;
		found->offers |= OFFERS_SACK;
	} else if (option[0] == TCP_OPTION_TIMESTAMPS && bytes == 10 && !found->ts_at) {
		found->ts_at = at;
		found->ts_value = read_number(option + 2);
		found->ts_echo = read_number(option + 6);
		found->offers |= OFFERS_TIMESTAMPS;
	} else {
		/* Also one that is repeated: receivers differ in which of them they believe. */
		found->unknown = true;
		found->hurries |= is_fast_open(option, bytes);
	}
	return 0;
}

/* Reads the header at `at` and its options into the scratch area. */
static __always_inline bool read_header(struct __sk_buff *skb, struct packet_scratch *scratch,
					__u32 at, __u32 bytes)
{
	if (!load_header(skb, &scratch->header, at, bytes))
		return false;
	__builtin_memset(&scratch->options, 0, sizeof(scratch->options));
	bpf_loop(TCP_OPTIONS_MAX, read_option, &scratch, 0);
	return true;
}

static __always_inline __u16 fold(__s64 sum)
{
	__u32 folded = (__u32)sum;

	folded = (folded & 0xffff) + (folded >> 16);
	folded = (folded & 0xffff) + (folded >> 16);
	return folded;
}

/* The sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1), of two addresses in
 * any order. The prefix of v4-mapped ones adds 0xffff, which is zero in one's complement. */
static __always_inline __s64 pseudo_sum_of(const void *addresses, __u32 bytes)
{
	__be32 rest[2] = { bpf_htonl(bytes), bpf_htonl(IPPROTO_TCP) };
	__s64 sum = bpf_csum_diff(NULL, 0, addresses, 32, 0);

	return bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
}

static __always_inline __s64 pseudo_sum(const struct flow *flow, __u32 bytes)
{
	return pseudo_sum_of(flow, bytes);
}
