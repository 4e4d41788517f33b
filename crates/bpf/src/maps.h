/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps that both objects share. The loader makes them once. */
#pragma once
#include "types.h"

/* The interfaces that the program is attached to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
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
