/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The maps that both objects use. The loader makes them once. */
#pragma once

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 2);
	__type(key, __u32); /* 2 * worker + (1 for IPv6) */
	__type(value, __u64);
} listeners SEC(".maps");

/* Flows whose SYN met a TIME_WAIT socket, and the key in `listeners` of the
 * listener meant for them. */
#define NO_LISTENER 0xffffffff

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct flow);
	__type(value, __u32);
} renewals SEC(".maps");

/* An IPv4 address as the maps hold it. */
static __always_inline struct address mapped(__be32 ip)
{
	return (struct address){ .word = { 0, 0, bpf_htonl(0xffff), ip } };
}
