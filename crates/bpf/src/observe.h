/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Handshakes that are forwarded and observed at the client's interface, and the
 * profiles learned from them. A SYN in, its SYN-ACK out, and the client's ACK in by the
 * same interface prove that firewall, NAT and routes of this host let the connection
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

/* SYNs of observed handshakes in transit through this host, by sequence number: NAT
 * changes every other field that would identify them. */
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

/* Flows whose handshakes were forwarded. A neighbour of the client may forge a SYN of
 * such a flow: it is forwarded, and the server decides. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct flow);
	__type(value, __u8);
} forwarded SEC(".maps");

/* Relayed flows whose source this host translates. Late packets of one that has ended
 * must not be forwarded: they would leave untranslated. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow);
	__type(value, __u8);
} hidden SEC(".maps");

/* Flows on trial, until the node has answered their client or given them back: the
 * host's own errors about them must not reach the client. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct flow);
	__type(value, __u8);
} trials SEC(".maps");

/* The verdict on a segment without a socket: it continues, unless it is a late packet
 * of a relay that has ended and must not be forwarded. */
GLOBAL int go_on(const struct packet *pkt)
{
	struct flow flow;

	if (!pkt)
		return TC_ACT_UNSPEC;
	flow = pkt->flow;
	return bpf_map_lookup_elem(&hidden, &flow) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

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

/* The profile of a flow whose client is at an interface; it may have expired. */
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
