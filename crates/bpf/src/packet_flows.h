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
		entry->down.acked == entry->down.fin && entry->up.acked == entry->up.fin);
}

/* The flow may have ended unseen, or another host forges its end: the sweep probes both ends. */
static __always_inline void doubt(struct packet_flow *entry)
{
	if (!(__sync_fetch_and_or(&entry->ended, PACKET_PROBED) & PACKET_PROBED))
		entry->tries = 0;
}

/* The clients' ports of all flows. Segments of servers have other ones, mostly, and are not looked up where
 * they need no translation. A client's may come by any interface: its route may change at any moment. */
static __always_inline __u32 *word_of_port(struct packet_control *control, __be16 port)
{
	return &control->ports[port / 32 % PACKET_PORT_WORDS];
}

static __always_inline bool may_be_client(__be16 port)
{
	struct packet_control *control = control_of_node();

	return control && *word_of_port(control, port) & 1u << port % 32;
}

static __always_inline void note_client_port(__be16 port)
{
	struct packet_control *control = control_of_node();

	if (control && !may_be_client(port))
		__sync_fetch_and_or(word_of_port(control, port), 1u << port % 32);
}
