/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Gates of flows whose client has not proved itself. */
#pragma once
#include "packet.h"

/* Sized to the half-open budget: the bound holds here, whatever user space
 * does. Not LRU: an evicted gate would be an open one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct gate);
} gates SEC(".maps");

/* The part of the budget kept for clients from `known` prefixes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct gate);
} gates_kept SEC(".maps");

static __always_inline struct gate *find_gate(const struct flow *flow)
{
	struct gate *gate = bpf_map_lookup_elem(&gates, flow);

	return gate ? gate : bpf_map_lookup_elem(&gates_kept, flow);
}
