// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What a node begins to relay without, and is given once it does: a program
 * takes some hundred microseconds to load.
 *
 * find_listener   sk_lookup, only for SYNs that meet a TIME_WAIT socket
 * inject          run by hand, puts a frame back on a device
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "types.h"
#include "maps.h"

#define AF_INET 2

/*
 * A `struct flow` in pieces that are written once each. A node has given up
 * CAP_PERFMON by now, and without it the verifier of Linux 6.1 refuses a second
 * write to the same eight bytes of stack.
 */
struct pieces {
	__u64 client[2];
	__u64 server[2];
	__u32 ports;
};
_Static_assert(__builtin_offsetof(struct pieces, ports) == 32, "as in struct flow");

static __always_inline __u64 pair(__be32 first, __be32 second)
{
	union {
		__be32 word[2];
		__u64 both;
	} pair = { .word = { first, second } };

	return pair.both;
}

static __always_inline __u32 port_pair(__be16 first, __be16 second)
{
	union {
		__be16 port[2];
		__u32 both;
	} pair = { .port = { first, second } };

	return pair.both;
}

SEC("sk_lookup")
int find_listener(struct bpf_sk_lookup *ctx)
{
	struct bpf_sock *listener;
	struct pieces flow;
	__u32 *key;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	flow.ports = port_pair(ctx->remote_port, bpf_htons(ctx->local_port));
	if (ctx->family == AF_INET) {
		flow.client[0] = flow.server[0] = 0;
		flow.client[1] = pair(bpf_htonl(0xffff), ctx->remote_ip4);
		flow.server[1] = pair(bpf_htonl(0xffff), ctx->local_ip4);
	} else {
		flow.client[0] = pair(ctx->remote_ip6[0], ctx->remote_ip6[1]);
		flow.client[1] = pair(ctx->remote_ip6[2], ctx->remote_ip6[3]);
		flow.server[0] = pair(ctx->local_ip6[0], ctx->local_ip6[1]);
		flow.server[1] = pair(ctx->local_ip6[2], ctx->local_ip6[3]);
	}
	key = bpf_map_lookup_elem(&renewals, &flow);
	if (!key)
		return SK_PASS;
	listener = bpf_map_lookup_elem(&listeners, key);
	bpf_map_delete_elem(&renewals, &flow);
	/* None of ours: then none at all, for a wildcard listener of the host
	 * must not take a flow in transit. */
	if (!listener)
		return SK_DROP;
	bpf_sk_assign(ctx, listener, 0);
	bpf_sk_release(listener);
	return SK_PASS;
}

/* Puts the frame it is run with on the device cb[0]; cb[1] says which way
 * (BPF_F_INGRESS or 0). */
SEC("tc")
int inject(struct __sk_buff *skb)
{
	return bpf_clone_redirect(skb, skb->cb[0], skb->cb[1]);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
