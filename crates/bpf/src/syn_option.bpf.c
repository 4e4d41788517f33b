// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Puts the option that announces a flow into the SYN of the hop it leaves by.
 *
 * add_syn_option   sockops: the worker has left the option with the socket
 *
 * The option goes out with the first SYN only. Where somebody on the way drops
 * SYNs that have it, the repetition gets through, and the request behind it says
 * the same.
 */
#include <stdbool.h>
#include "helpers.h"
#include "types.h"

#define TCP_FLAG_SYN 0x02
#define TCP_FLAG_ACK 0x10

/* What sockets are to say in their SYN. Goes with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct syn_option);
} syn_options SEC(".maps");

/* Of the redirect programs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STAT_MAX);
	__type(key, __u32);
	__type(value, __u64);
} stats SEC(".maps");

static __always_inline void count(__u32 stat)
{
	__u64 *value = bpf_map_lookup_elem(&stats, &stat);

	if (value)
		*value += 1;
}

static __always_inline struct syn_option *syn_option_of(struct bpf_sock_ops *ctx)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&syn_options, sk, NULL, 0) : NULL;
}

/* Has the kernel ask what to put into each segment, or no longer. */
static __always_inline void ask_for_options(struct bpf_sock_ops *ctx, bool ask)
{
	int flags = ctx->bpf_sock_ops_cb_flags;

	if (ask)
		flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	else
		flags &= ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
	bpf_sock_ops_cb_flags_set(ctx, flags);
}

static __always_inline bool is_syn(struct bpf_sock_ops *ctx)
{
	__u32 flags = ctx->skb_tcp_flags;

	return (flags & TCP_FLAG_SYN) && !(flags & TCP_FLAG_ACK);
}

SEC("sockops")
int add_syn_option(struct bpf_sock_ops *ctx)
{
	struct syn_option *syn_option;
	__u32 bytes;

	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		if (syn_option_of(ctx))
			ask_for_options(ctx, true);
		return 1;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
			ask_for_options(ctx, false);
		return 1;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		break;
	default:
		return 1;
	}
	syn_option = is_syn(ctx) ? syn_option_of(ctx) : NULL;
	if (!syn_option)
		return 1;
	bytes = syn_option->bytes;
	if (ctx->op == BPF_SOCK_OPS_HDR_OPT_LEN_CB) {
		if (syn_option->tried)
			return 1;
		syn_option->tried = 1;
		if (bpf_reserve_hdr_opt(ctx, bytes, 0))
			count(STAT_SYN_OPTIONS_LEFT_OUT);
		return 1;
	}
	if (bytes <= SYN_OPTION_MAX)
		bpf_store_hdr_opt(ctx, syn_option->option, SYN_OPTION_MAX, 0);
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
