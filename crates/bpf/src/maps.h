/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps that a node starts with, which its objects share. The loader makes them once,
 * before the first flow: tables of many entries take long, and are made with the deferred
 * programs where `redirect` does without. */
#pragma once
#include "types.h"

/* The interfaces that the program is attached to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, struct device);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32); /* 2 * worker + (1 for IPv6) */
	__type(value, __u64);
} listeners SEC(".maps");

/* Workers that take no new flows. Flows that have begun continue, and still need their
 * listeners. One more entry, behind those of the workers, is set while a successor's
 * program follows this one on every interface. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32); /* worker */
	__type(value, __u32);
} draining SEC(".maps");

/* Source addresses of peers whose SYN options are accepted. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, __u32);
} syn_option_peers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STAT_MAX);
	__type(key, __u32);
	__type(value, __u64);
} stats SEC(".maps");

/* The programs of deferred.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAIL_MAX);
	__type(key, __u32); /* enum step */
	__type(value, __u32);
} tail_calls SEC(".maps");

/* Where the workers listen, by the keys of `listeners`. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct multipath_listener);
} multipath_listeners SEC(".maps");

/* One value: the configuration, and the epoch. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct observing);
} observing SEC(".maps");

/* One value: until when flows that must be observed are not relayed (CLOCK_MONOTONIC,
 * ns), since this host blocks relays. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} blocked SEC(".maps");

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
