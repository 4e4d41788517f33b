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

SEC("sk_lookup")
int find_listener(struct bpf_sk_lookup *ctx)
{
	struct flow flow = {
		.client_port = ctx->remote_port,
		.server_port = bpf_htons(ctx->local_port),
	};
	struct bpf_sock *listener;
	__u32 *key;

	if (ctx->protocol != IPPROTO_TCP)
		return SK_PASS;
	if (ctx->family == AF_INET) {
		flow.client = mapped(ctx->remote_ip4);
		flow.server = mapped(ctx->local_ip4);
	} else {
		for (int i = 0; i < 4; i++) {
			flow.client.word[i] = ctx->remote_ip6[i];
			flow.server.word[i] = ctx->local_ip6[i];
		}
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
