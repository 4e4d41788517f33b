/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Which worker a flow belongs to. */
#pragma once
#include "packet.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32); /* worker */
	__type(value, struct placement);
} placements SEC(".maps");

/* The worker of a flow that begins on this CPU. By the client's port, as the last segment
 * of a handshake with a SYN cookie needs the same one. */
GLOBAL __u32 placed_worker(const struct packet *pkt)
{
	__u32 own = this_worker();
	struct placement *placement = bpf_map_lookup_elem(&placements, &own);
	__u16 hash;

	if (!placement || !pkt)
		return own;
	/* Consecutive ports spread well by the golden ratio (Knuth, volume 3, section 6.4). */
	hash = bpf_ntohs(pkt->flow.client_port) * 40503;
	return (own + placement->shift[hash / (65536 / PLACEMENT_SLOTS)]) % workers;
}
