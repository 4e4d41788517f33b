// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Adds the option that announces a flow to the SYN of the hop that carries it.
 *
 * add_syn_option   sockops: the worker has stored the option with the socket
 *
 * Only the first SYN has the option. Where a middlebox drops SYNs with it, the
 * retransmission gets through, and the request behind it has the same content.
 */
#include <stdbool.h>
#include "helpers.h"
#include "types.h"

#define TCP_FLAG_SYN 0x02
#define TCP_FLAG_ACK 0x10

/* The options of sockets' SYNs. Ends with the socket. */
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

/* Enables or disables the kernel's callback for options of each segment. */
static __always_inline void set_option_callback(struct bpf_sock_ops *ctx, bool on)
{
	int flags = ctx->bpf_sock_ops_cb_flags;

	if (on)
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
			set_option_callback(ctx, true);
		return 1;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (ctx->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG)
			set_option_callback(ctx, false);
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
