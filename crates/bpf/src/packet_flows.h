/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The flows of the packet path. A hand-over adds to them. */
#pragma once
#include "packet.h"

/* The hop limit of what the node makes. */
#define ANSWER_HOPS 64

/* Not LRU: a flow whose entry is lost is dead. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 32768);
	__type(key, struct packet_key);
	__type(value, struct packet_flow);
} packet_flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_control);
} packet_control SEC(".maps");

/* One value. Pinned too: who ages the flows of a dead node needs it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_patience);
} packet_patience SEC(".maps");

static __always_inline struct packet_control *control_of_node(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&packet_control, &only);
}

/* Whether an open flow is over: nothing that one of its ends still waits for may come. */
static __always_inline bool has_closed(const struct packet_flow *entry)
{
	return entry->ended & PACKET_RESET ||
	       ((entry->ended & PACKET_FINS) == PACKET_FINS &&
		entry->client_ack == entry->server_next && entry->server_ack == entry->client_next);
}

/* Whether an interface has had a client, or another one in its place has. */
static __always_inline __u8 *clients_of(struct packet_control *control, __u32 ifindex)
{
	return &control->clients[ifindex % PACKET_CLIENTS / 32][ifindex % 32];
}

/* Sweeps after a change of the host's routes, addresses or interfaces until interfaces without
 * clients are no longer searched: 30 s, since a node sweeps every 0.5 s. */
#define SEARCHES 60

/* After a change of the host, clients may come by any interface. */
static __always_inline void expect_clients(struct packet_control *control, __u32 epoch)
{
	if (control->epoch != epoch) {
		control->epoch = epoch;
		control->searches = SEARCHES;
	} else if (control->searches) {
		control->searches -= 1;
	}
}

static __always_inline void note_client(__u32 ifindex)
{
	struct packet_control *control = control_of_node();

	if (control)
		*clients_of(control, ifindex) = true;
}
