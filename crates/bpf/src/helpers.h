/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The kernel helpers that the programs call (bpf-helpers(7)), and how maps and programs
 * are declared. The helpers' numbers are in linux/bpf.h.
 */
#pragma once
#include <stddef.h>
#include <linux/stddef.h>
#include <linux/tcp.h>
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
/* linux/stddef.h defines a weaker one. */
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))

/* The parts of a map; the build reads them from the types. */
#define __uint(name, number) int(*name)[number]
#define __type(name, type) typeof(type) *name

/*
 * A number that is set when the programs are loaded. The build takes a map without a type
 * for a setting, and the loader puts the number in place of the map's address: to the
 * verifier it is a constant.
 */
#define SETTING(name) struct { __uint(type, 0); } name SEC(".maps")
#define SET(name) ((__u32)(unsigned long)&(name))

#define bpf_htons(x) ((__be16)__builtin_bswap16(x))
#define bpf_ntohs(x) ((__u16)__builtin_bswap16(x))
#define bpf_htonl(x) ((__be32)__builtin_bswap32(x))
#define bpf_ntohl(x) ((__u32)__builtin_bswap32(x))

#define HELPER(name) (*const bpf_##name) /* parameters */
#define NUMBER(name) ((void *)BPF_FUNC_##name)

static void *HELPER(map_lookup_elem)(void *map, const void *key) = NUMBER(map_lookup_elem);
static long HELPER(map_update_elem)(void *map, const void *key, const void *value,
				    __u64 flags) = NUMBER(map_update_elem);
static long HELPER(map_delete_elem)(void *map, const void *key) = NUMBER(map_delete_elem);
static __u64 HELPER(ktime_get_ns)(void) = NUMBER(ktime_get_ns);
static __u32 HELPER(get_prandom_u32)(void) = NUMBER(get_prandom_u32);
static __u32 HELPER(get_smp_processor_id)(void) = NUMBER(get_smp_processor_id);
static long HELPER(tail_call)(void *ctx, void *programs, __u32 index) = NUMBER(tail_call);
static long HELPER(clone_redirect)(struct __sk_buff *skb, __u32 ifindex,
				   __u64 flags) = NUMBER(clone_redirect);
static long HELPER(skb_load_bytes)(const void *skb, __u32 offset, void *to,
				   __u32 len) = NUMBER(skb_load_bytes);
static long HELPER(setsockopt)(void *ctx, int level, int name, void *value,
			       int len) = NUMBER(setsockopt);
static long HELPER(fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int len,
			       __u32 flags) = NUMBER(fib_lookup);
static long HELPER(check_mtu)(void *ctx, __u32 ifindex, __u32 *mtu_len, __s32 len_diff,
			      __u64 flags) = NUMBER(check_mtu);
static long HELPER(sk_release)(void *sock) = NUMBER(sk_release);
static struct bpf_sock *HELPER(sk_fullsock)(struct bpf_sock *sk) = NUMBER(sk_fullsock);
static struct bpf_sock *HELPER(skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 len,
					       __u64 netns, __u64 flags) = NUMBER(skc_lookup_tcp);
static long HELPER(tcp_check_syncookie)(void *sk, void *ip, __u32 ip_len, struct tcphdr *th,
					__u32 th_len) = NUMBER(tcp_check_syncookie);
static long HELPER(sk_assign)(void *ctx, void *sk, __u64 flags) = NUMBER(sk_assign);
static void *HELPER(sk_storage_get)(void *map, void *sk, void *value,
				    __u64 flags) = NUMBER(sk_storage_get);
static long HELPER(sk_storage_delete)(void *map, void *sk) = NUMBER(sk_storage_delete);
struct mptcp_sock;
static struct mptcp_sock *HELPER(skc_to_mptcp_sock)(void *sk) = NUMBER(skc_to_mptcp_sock);
static __u64 HELPER(get_netns_cookie)(void *ctx) = NUMBER(get_netns_cookie);
static void *HELPER(ringbuf_reserve)(void *ring, __u64 size, __u64 flags) = NUMBER(ringbuf_reserve);
static void HELPER(ringbuf_submit)(void *record, __u64 flags) = NUMBER(ringbuf_submit);
static __u64 HELPER(ringbuf_query)(void *ring, __u64 what) = NUMBER(ringbuf_query);
static void HELPER(ringbuf_discard)(void *record, __u64 flags) = NUMBER(ringbuf_discard);
static long HELPER(sock_ops_cb_flags_set)(void *ctx, int flags) = NUMBER(sock_ops_cb_flags_set);
static long HELPER(reserve_hdr_opt)(void *ctx, __u32 bytes, __u64 flags) = NUMBER(reserve_hdr_opt);
static long HELPER(store_hdr_opt)(void *ctx, const void *from, __u32 bytes,
				  __u64 flags) = NUMBER(store_hdr_opt);
static long HELPER(loop)(__u32 count, void *callback, void *context, __u64 flags) = NUMBER(loop);
static long HELPER(skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from,
				    __u32 len, __u64 flags) = NUMBER(skb_store_bytes);
static long HELPER(l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
				    __u64 size) = NUMBER(l3_csum_replace);
static long HELPER(l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
				    __u64 flags) = NUMBER(l4_csum_replace);
static __s64 HELPER(csum_diff)(const void *from, __u32 from_bytes, const void *to, __u32 to_bytes,
			       __u32 seed) = NUMBER(csum_diff);
static long HELPER(skb_change_tail)(struct __sk_buff *skb, __u32 len,
				    __u64 flags) = NUMBER(skb_change_tail);
static long HELPER(skb_adjust_room)(struct __sk_buff *skb, __s32 bytes, __u32 mode,
				    __u64 flags) = NUMBER(skb_adjust_room);
static long HELPER(skb_change_head)(struct __sk_buff *skb, __u32 bytes,
				    __u64 flags) = NUMBER(skb_change_head);
static long HELPER(skb_pull_data)(struct __sk_buff *skb, __u32 len) = NUMBER(skb_pull_data);
static __u64 HELPER(ktime_get_coarse_ns)(void) = NUMBER(ktime_get_coarse_ns);
static long HELPER(for_each_map_elem)(void *map, void *callback, void *context,
				      __u64 flags) = NUMBER(for_each_map_elem);
static long HELPER(redirect)(__u32 ifindex, __u64 flags) = NUMBER(redirect);
static long HELPER(redirect_neigh)(__u32 ifindex, void *next_hop, int bytes,
				   __u64 flags) = NUMBER(redirect_neigh);
static void HELPER(set_hash_invalid)(struct __sk_buff *skb) = NUMBER(set_hash_invalid);
static long HELPER(skb_set_tstamp)(struct __sk_buff *skb, __u64 tstamp,
				   __u32 kind) = NUMBER(skb_set_tstamp);
static struct bpf_tcp_sock *HELPER(tcp_sock)(void *sk) = NUMBER(tcp_sock);
static long HELPER(probe_read_kernel)(void *to, __u32 bytes,
				      const void *from) = NUMBER(probe_read_kernel);

/* Hides from clang what it knows of a number, so that it does not leave out a check that the
 * verifier needs, or check another copy of the number. */
#define OPAQUE(number) asm volatile("" : "+r"(number))

/* Whether a number is within bounds, in two comparisons: clang would make them one, of the
 * distance to the lower bound, from which the verifier of Linux 6.12 learns nothing. */
static __always_inline bool is_between(__u32 *number, __u32 least, __u32 most)
{
	OPAQUE(*number);
	if (*number < least)
		return false;
	OPAQUE(*number);
	return *number <= most;
}
