/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Entries of flows whose client is not validated. */
#pragma once
#include "packet.h"

/* Sized to the half-open budget: the bound is enforced here, whatever user space does.
 * Not LRU: evicting an entry would let the server's SYN-ACK through. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct half_open);
} half_open_flows SEC(".maps");

/* The reserve of the budget, for clients from prefixes in `validated_prefixes`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct half_open);
} half_open_reserve SEC(".maps");

static __always_inline struct half_open *find_half_open(const struct flow *flow)
{
	struct half_open *half_open = bpf_map_lookup_elem(&half_open_flows, flow);

	return half_open ? half_open : bpf_map_lookup_elem(&half_open_reserve, flow);
}
