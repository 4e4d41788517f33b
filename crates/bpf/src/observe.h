/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Handshakes that are forwarded and observed at the client's interface, and what
 * they show. A SYN in, its SYN-ACK out, and the client's ACK in by the same
 * interface prove that firewall, NAT and routes of this host let the connection
 * pass, and that both directions cross it.
 */
#pragma once
#include "packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow);
	__type(value, struct handshake);
} handshakes SEC(".maps");

/* SYNs of observed handshakes on their way through this host, by sequence number:
 * NAT changes all else that they could be known by. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32); /* the sequence number as it is on the wire */
	__type(value, struct flow);
} leaving SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* observe.profiles_max */
	__type(key, struct profile_key);
	__type(value, struct profile);
} profiles SEC(".maps");

/* One value: the configuration, and the epoch. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct observing);
} observing SEC(".maps");

/* Flows whose handshakes were forwarded. A SYN of theirs may be forged by a neighbour
 * of the client: it is forwarded, and the server knows what to think of it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow);
	__type(value, __u8);
} forwarded SEC(".maps");

/* Relayed flows whose source this host translates. What comes late for one that has
 * ended must not be forwarded: it would leave untranslated. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow);
	__type(value, __u8);
} hidden SEC(".maps");

/* Flows that are tried, until the node has answered their client or given them back:
 * what the host itself refuses of them is not for the client to hear. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct flow);
	__type(value, __u8);
} trials SEC(".maps");

/* The verdict on a segment that no socket knows: it goes on, unless it comes late for a
 * relay that has ended and must not. */
GLOBAL int go_on(const struct packet *pkt)
{
	struct flow flow;

	if (!pkt)
		return TC_ACT_UNSPEC;
	flow = pkt->flow;
	return bpf_map_lookup_elem(&hidden, &flow) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* One value: until when nothing is relayed that has to be observed (CLOCK_MONOTONIC,
 * ns), since this host stands in the way of relays. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} blocked SEC(".maps");

static __always_inline bool is_blocked(__u64 now)
{
	__u32 only = 0;
	__u64 *until = bpf_map_lookup_elem(&blocked, &only);

	return until && now < *until;
}

static __always_inline const struct observing *how_to_observe(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&observing, &only);
}

static __always_inline struct profile_key profile_key(const struct flow *flow)
{
	return (struct profile_key){
		.client = flow->client,
		.server = flow->server,
		.port = flow->server_port,
	};
}

/* The profile of a flow whose client is at an interface; it may count no more. */
static __always_inline struct profile *find_profile(const struct flow *flow, __u32 ifindex)
{
	struct profile_key key = profile_key(flow);
	struct profile *profile = bpf_map_lookup_elem(&profiles, &key);

	return profile && profile->ifindex == ifindex ? profile : NULL;
}

static __always_inline bool is_same(const struct address *one, const struct address *other)
{
	return one->word[0] == other->word[0] && one->word[1] == other->word[1] &&
	       one->word[2] == other->word[2] && one->word[3] == other->word[3];
}
