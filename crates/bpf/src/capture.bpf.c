// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Redirects the TCP connections of the processes in a cgroup to listeners of `posthaste
 * run` on this host, transparently to the processes.
 *
 * redirect_connect4, redirect_connect6   connect: replaces the destination by the
 * listener
 * announce                 sockops: stores the destination for the listener
 * restore_peername4, 6          getpeername: returns the destination to the process
 *
 * A connection that cannot be redirected, for whatever reason, goes to its destination.
 */
#include <stdbool.h>
#include <linux/in.h>
#include "helpers.h"
#include "types.h"

/* From headers that include the C library's. */
#define SOCK_STREAM 1

/* Whether the kernel supports Multipath TCP. */
SETTING(setting_mptcp);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct capture);
} capture_config SEC(".maps");

/* Destinations that are not redirected. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct exempt_key);
	__type(value, __u32);
} exempt SEC(".maps");

/* The original destinations of redirected sockets. Ends with the socket. Port 0: a
 * Multipath TCP connection that was not redirected. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct destination);
} original_dst SEC(".maps");

/* The same for the listener, by the client's address and port, until it has accepted:
 * as many entries as its queue may have. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct destination);
	__type(value, struct destination);
} original_dst_by_client SEC(".maps");

static __always_inline struct address mapped(__be32 ip)
{
	return (struct address){ { 0, 0, bpf_htonl(0xffff), ip } };
}

static __always_inline bool is_mapped(const struct address *ip)
{
	return !ip->word[0] && !ip->word[1] && ip->word[2] == bpf_htonl(0xffff);
}

static __always_inline bool is_exempt(const struct address *ip)
{
	struct exempt_key key = { .prefix_bits = 128, .ip = *ip };

	return bpf_map_lookup_elem(&exempt, &key);
}

/* The listener for a connection to `to`, or 0 to leave it alone. */
static __always_inline __be16 listener_for(struct bpf_sock_addr *ctx,
					   const struct destination *to)
{
	struct capture *capture;
	__u32 zero = 0;
	__be16 port;

	if (ctx->type != SOCK_STREAM)
		return 0;
	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_MPTCP)
		return 0;
	capture = bpf_map_lookup_elem(&capture_config, &zero);
	if (!capture || is_exempt(&to->ip))
		return 0;
	/* The listeners are in one network namespace, and reachable only by its
	 * loopback interface. */
	if (bpf_get_netns_cookie(ctx) != capture->netns || ctx->sk->bound_dev_if)
		return 0;
	port = is_mapped(&to->ip) ? capture->port4 : capture->port6;
	return port;
}

static __always_inline bool remember(void *sk, struct destination *to)
{
	struct destination *original;

	original = bpf_sk_storage_get(&original_dst, sk, to, BPF_SK_STORAGE_GET_F_CREATE);
	if (!original)
		return false;
	*original = *to;
	return true;
}

/* A Multipath TCP connection is a socket of its own, which getpeername refers to, above
 * the subflow sockets that connect: the first, and more that the kernel adds toward
 * addresses that the server names. Those must go where the first went. Returns whether
 * this is a later subflow. */
static __always_inline bool is_join(struct bpf_sock *sk, struct destination *to, bool led)
{
	struct destination left = {};
	struct mptcp_sock *above;

	if (!SET(setting_mptcp))
		return false;
	above = bpf_skc_to_mptcp_sock(sk);
	if (!above)
		return false;
	if (bpf_sk_storage_get(&original_dst, above, NULL, 0))
		return true;
	remember(above, led ? to : &left);
	return false;
}

/* Records the destination of a socket. Returns the listener it is redirected to. */
static __always_inline __be16 redirect_connect(struct bpf_sock_addr *ctx, struct destination *to)
{
	struct bpf_sock *sk = ctx->sk;
	__be16 port;

	if (!sk)
		return 0;
	port = listener_for(ctx, to);
	if (is_join(sk, to, port))
		return 0;
	if (!port) {
		/* From an earlier attempt. */
		bpf_sk_storage_delete(&original_dst, sk);
		return 0;
	}
	return remember(sk, to) ? port : 0;
}

SEC("cgroup/connect4")
int redirect_connect4(struct bpf_sock_addr *ctx)
{
	struct destination to = { .ip = mapped(ctx->user_ip4), .port = ctx->user_port };
	__be16 port = redirect_connect(ctx, &to);

	if (port) {
		ctx->user_ip4 = bpf_htonl(INADDR_LOOPBACK);
		ctx->user_port = port;
	}
	return 1;
}

SEC("cgroup/connect6")
int redirect_connect6(struct bpf_sock_addr *ctx)
{
	struct destination to = { .port = ctx->user_port };
	__be16 port;

	for (int i = 0; i < 4; i++)
		to.ip.word[i] = ctx->user_ip6[i];
	port = redirect_connect(ctx, &to);
	if (!port)
		return 1;
	/* An IPv6 socket with an IPv4 destination keeps a v4-mapped address. */
	ctx->user_ip6[0] = 0;
	ctx->user_ip6[1] = 0;
	ctx->user_ip6[2] = is_mapped(&to.ip) ? bpf_htonl(0xffff) : 0;
	ctx->user_ip6[3] = bpf_htonl(is_mapped(&to.ip) ? INADDR_LOOPBACK : 1);
	ctx->user_port = port;
	return 1;
}

SEC("sockops")
int record_original_dst(struct bpf_sock_ops *ctx)
{
	struct destination *original;
	struct destination client = {};
	struct bpf_sock *sk;

	/* The SYN is about to be sent, and the socket has a port. */
	if (ctx->op != BPF_SOCK_OPS_TCP_CONNECT_CB)
		return 1;
	sk = ctx->sk;
	if (!sk)
		return 1;
	original = bpf_sk_storage_get(&original_dst, sk, NULL, 0);
	if (!original)
		return 1;
	client.port = bpf_htons(ctx->local_port);
	if (is_mapped(&original->ip)) {
		client.ip = mapped(ctx->local_ip4);
	} else {
		client.ip.word[0] = ctx->local_ip6[0];
		client.ip.word[1] = ctx->local_ip6[1];
		client.ip.word[2] = ctx->local_ip6[2];
		client.ip.word[3] = ctx->local_ip6[3];
	}
	bpf_map_update_elem(&original_dst_by_client, &client, original, BPF_ANY);
	return 1;
}

static __always_inline struct destination *original_of(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct destination *original;

	if (!sk)
		return NULL;
	original = bpf_sk_storage_get(&original_dst, sk, NULL, 0);
	return original && original->port ? original : NULL;
}

SEC("cgroup/getpeername4")
int restore_peername4(struct bpf_sock_addr *ctx)
{
	struct destination *original = original_of(ctx);

	if (original) {
		ctx->user_ip4 = original->ip.word[3];
		ctx->user_port = original->port;
	}
	return 1;
}

SEC("cgroup/getpeername6")
int restore_peername6(struct bpf_sock_addr *ctx)
{
	struct destination *original = original_of(ctx);

	if (original) {
		ctx->user_ip6[0] = original->ip.word[0];
		ctx->user_ip6[1] = original->ip.word[1];
		ctx->user_ip6[2] = original->ip.word[2];
		ctx->user_ip6[3] = original->ip.word[3];
		ctx->user_port = original->port;
	}
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
