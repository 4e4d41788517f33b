/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A packet as both objects parse it, and the common actions on one.
 *
 * The functions marked GLOBAL are global to the verifier: it checks each once, on its
 * own, which keeps a node's start within its time bound. They take a pointer that the
 * verifier assumes may be NULL.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include "helpers.h"
#include "types.h"
#include "maps.h"

/* From headers that include the C library's. */
#define AF_INET 2
#define AF_INET6 10
#define GLOBAL __attribute__((noinline))
#define IP_OFFSET 0x1fff
#define IP_MF 0x2000
#define IP6_OFFSET 0xfff8
#define NEXTHDR_FRAGMENT 44

/* Number of workers, and the node's two fwmark bits. */
SETTING(setting_workers);
SETTING(setting_redirect_mark);
SETTING(setting_socket_mark);
#define workers SET(setting_workers)
#define redirect_mark SET(setting_redirect_mark)
#define socket_mark SET(setting_socket_mark)
/* Both, on what a program translated and sends once more: the redirect mark is otherwise that of
 * ingress, and the socket mark that of egress. */
#define NODE_MARKS (redirect_mark | socket_mark)

/* After the IPv6 header of a fragment (RFC 8200 section 4.5). */
struct fragment_header {
	__u8 nexthdr;
	__u8 reserved;
	__be16 frag_off;
	__be32 id;
};

/* Which part of a packet it is. */
enum fragment {
	FRAGMENT_NONE, /* the whole */
	FRAGMENT_FIRST,
	FRAGMENT_LATER, /* without ports */
};

/* A TCP segment on its way in. */
struct packet {
	struct flow flow; /* its source is the `client` */
	struct bpf_sock_tuple tuple;
	__u32 tuple_bytes;
	__u32 family;
	__u32 l2_bytes;
	__u32 protocol;
	__u32 fragment; /* enum fragment */
	__u32 fragment_id;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	struct tcphdr tcp;
};

/* What programs pass to those behind them, as words of skb->cb. */
enum message {
	MESSAGE_L2_BYTES,
	MESSAGE_WAITING, /* whether the SYN met a TIME_WAIT socket */
	MESSAGE_CARRIED, /* MESSAGE_IS_CARRIED: the packet path has it, `redirect` leaves it */
	MESSAGE_PIECE,	 /* MESSAGE_IS_PIECE: which piece of it the packet path sends */
};

/* No value that an skb has before the first program runs. */
#define MESSAGE_IS_CARRIED 0x70617468
/* With the number of the piece in the lower bits. */
#define MESSAGE_IS_PIECE 0x70696000
#define PIECE_BITS 0xfff

GLOBAL int count_by(__u32 stat, __u32 amount)
{
	__u64 *value = bpf_map_lookup_elem(&stats, &stat);

	if (value)
		*value += amount;
	return 0;
}

static __always_inline void count(__u32 stat)
{
	count_by(stat, 1);
}

/* An IPv4 address in the form of the maps. */
static __always_inline struct address mapped(__be32 ip)
{
	return (struct address){ .word = { 0, 0, bpf_htonl(0xffff), ip } };
}

static __always_inline struct address address_of(const struct in6_addr *ip)
{
	struct address address;

	__builtin_memcpy(&address, ip, sizeof(address));
	return address;
}

static __always_inline struct flow reversed(const struct flow *flow)
{
	return (struct flow){
		.client = flow->server,
		.server = flow->client,
		.client_port = flow->server_port,
		.server_port = flow->client_port,
	};
}

/* The tuple by which the kernel finds the socket for a segment of this flow from its
 * client. */
static __always_inline void fill_tuple(struct packet *pkt)
{
	const struct flow *flow = &pkt->flow;

	if (pkt->family == AF_INET) {
		pkt->tuple.ipv4.saddr = flow->client.word[3];
		pkt->tuple.ipv4.daddr = flow->server.word[3];
		pkt->tuple.ipv4.sport = flow->client_port;
		pkt->tuple.ipv4.dport = flow->server_port;
		pkt->tuple_bytes = sizeof(pkt->tuple.ipv4);
		return;
	}
	__builtin_memcpy(pkt->tuple.ipv6.saddr, &flow->client, sizeof(flow->client));
	__builtin_memcpy(pkt->tuple.ipv6.daddr, &flow->server, sizeof(flow->server));
	pkt->tuple.ipv6.sport = flow->client_port;
	pkt->tuple.ipv6.dport = flow->server_port;
	pkt->tuple_bytes = sizeof(pkt->tuple.ipv6);
}

/* Never valid on the wire (RFC 4942 section 2.2), and the maps would take them for
 * IPv4. */
static __always_inline bool is_mapped(const struct address *ip)
{
	return !ip->word[0] && !ip->word[1] && ip->word[2] == bpf_htonl(0xffff);
}

static __always_inline void note_fragment(struct packet *pkt, bool later, __u32 id)
{
	pkt->fragment = later ? FRAGMENT_LATER : FRAGMENT_FIRST;
	pkt->fragment_id = id;
}

/* Parses the IP header at `at`. Returns the offset of what follows it; 0 for packets
 * that are never relayed: other protocols, and IPv6 extension headers other than that
 * of a fragment (no TCP stack sends them with a SYN). */
GLOBAL __u32 parse_ip(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	struct fragment_header part;

	if (!pkt)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at, &pkt->ip.v4, sizeof(pkt->ip.v4)))
			return 0;
		if (pkt->ip.v4.frag_off & bpf_htons(IP_OFFSET | IP_MF))
			note_fragment(pkt, pkt->ip.v4.frag_off & bpf_htons(IP_OFFSET),
				      pkt->ip.v4.id);
		pkt->family = AF_INET;
		pkt->flow.client = mapped(pkt->ip.v4.saddr);
		pkt->flow.server = mapped(pkt->ip.v4.daddr);
		pkt->protocol = pkt->ip.v4.protocol;
		return at + pkt->ip.v4.ihl * 4;
	}
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, at, &pkt->ip.v6, sizeof(pkt->ip.v6)))
			return 0;
		pkt->family = AF_INET6;
		pkt->flow.client = address_of(&pkt->ip.v6.saddr);
		pkt->flow.server = address_of(&pkt->ip.v6.daddr);
		pkt->protocol = pkt->ip.v6.nexthdr;
		if (is_mapped(&pkt->flow.client) || is_mapped(&pkt->flow.server))
			return 0;
		at += sizeof(pkt->ip.v6);
		if (pkt->protocol != NEXTHDR_FRAGMENT)
			return at;
		if (bpf_skb_load_bytes(skb, at, &part, sizeof(part)))
			return 0;
		pkt->protocol = part.nexthdr;
		note_fragment(pkt, part.frag_off & bpf_htons(IP6_OFFSET), part.id);
		return at + sizeof(part);
	}
	return 0;
}

/* Parses the TCP header at `at`; false if the packet is too short. */
static __always_inline bool parse_tcp(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	if (bpf_skb_load_bytes(skb, at, &pkt->tcp, sizeof(pkt->tcp)))
		return false;
	pkt->flow.client_port = pkt->tcp.source;
	pkt->flow.server_port = pkt->tcp.dest;
	return true;
}

/* TTL or hop limit. */
static __always_inline __u8 hop_limit(const struct packet *pkt)
{
	return pkt->family == AF_INET ? pkt->ip.v4.ttl : pkt->ip.v6.hop_limit;
}

/* The common fields of a look-up in the routing table. */
static __always_inline struct bpf_fib_lookup route_from(__u32 ifindex, __u32 family)
{
	return (struct bpf_fib_lookup){
		.family = family,
		.l4_protocol = IPPROTO_TCP,
		.ifindex = ifindex,
	};
}

/* Whether this host would forward the packet: the destination is not local, there is a
 * route, and forwarding is on. And whether it would leave by an interface where the
 * program captures the answer: elsewhere the answer would reach a socket of the node
 * unmarked, and be lost. Returns the interface by which it would leave, or 0. */
GLOBAL __u32 forwardable(struct __sk_buff *skb, const struct packet *pkt)
{
	struct bpf_fib_lookup fib;
	__u32 out;

	if (!pkt)
		return 0;
	fib = route_from(skb->ifindex, pkt->family);
	fib.sport = pkt->flow.client_port;
	fib.dport = pkt->flow.server_port;
	if (pkt->family == AF_INET) {
		fib.tos = pkt->ip.v4.tos;
		fib.ipv4_src = pkt->flow.client.word[3];
		fib.ipv4_dst = pkt->flow.server.word[3];
	} else {
		__builtin_memcpy(fib.ipv6_src, &pkt->flow.client, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &pkt->flow.server, sizeof(fib.ipv6_dst));
	}
	switch (bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		break;
	default:
		return 0;
	}
	out = fib.ifindex;
	return bpf_map_lookup_elem(&devices, &out) ? out : 0;
}

/* Whether this host would send an answer by the interface by which the packet came and, with `exactly`, to
 * the same link address. */
GLOBAL __u32 leads_back(struct __sk_buff *skb, const struct packet *pkt, __u32 exactly)
{
	struct bpf_fib_lookup fib;
	__u8 from[ETH_ALEN];
	long found;

	if (!pkt)
		return false;
	fib = route_from(skb->ifindex, pkt->family);
	fib.sport = pkt->flow.server_port;
	fib.dport = pkt->flow.client_port;
	if (pkt->family == AF_INET) {
		fib.ipv4_src = pkt->flow.server.word[3];
		fib.ipv4_dst = pkt->flow.client.word[3];
	} else {
		__builtin_memcpy(fib.ipv6_src, &pkt->flow.server, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &pkt->flow.client, sizeof(fib.ipv6_dst));
	}
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (fib.ifindex != skb->ifindex)
		return false;
	/* Without link addresses there are no neighbours. */
	if (!exactly || !pkt->l2_bytes)
		return found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH;
	if (found != BPF_FIB_LKUP_RET_SUCCESS || bpf_skb_load_bytes(skb, ETH_ALEN, from, sizeof(from)))
		return false;
	for (int i = 0; i < ETH_ALEN; i++)
		if (from[i] != fib.dmac[i])
			return false;
	return true;
}

/* Whether an answer would go where the packet came from: who only claims the address gets none. */
static __always_inline bool returns(struct __sk_buff *skb, const struct packet *pkt)
{
	return leads_back(skb, pkt, true);
}

/* Whether it would at least go by the same interface. */
static __always_inline bool routes_back(struct __sk_buff *skb, const struct packet *pkt)
{
	return leads_back(skb, pkt, false);
}

/* The owner of a segment. */
enum owner {
	OWNER_UNKNOWN,    /* not looked up yet */
	OWNER_NONE,
	OWNER_LISTENER,   /* a listener of the node, possibly a wildcard one */
	OWNER_HOST,       /* a socket of the host's own */
	OWNER_OURS,
	OWNER_CONNECTING, /* a socket of the node that waits for its SYN-ACK */
	OWNER_REQUEST,    /* a handshake, of the node or the host */
	OWNER_WAITING,    /* a TIME_WAIT socket, of the node or the host */
};

/* The node's sockets have its mark. BPF cannot read the mark of request and TIME_WAIT
 * sockets. */
static __always_inline enum owner owner_by(struct bpf_sock *sk)
{
	struct bpf_sock *full;

	switch (sk->state) {
	case BPF_TCP_LISTEN:
		/* A wildcard listener, which transit must not reach. */
		full = bpf_sk_fullsock(sk);
		return full && (full->mark & socket_mark) ? OWNER_LISTENER : OWNER_NONE;
	case BPF_TCP_NEW_SYN_RECV:
		return OWNER_REQUEST;
	case BPF_TCP_TIME_WAIT:
		return OWNER_WAITING;
	}
	full = bpf_sk_fullsock(sk);
	if (!full || !(full->mark & socket_mark))
		return OWNER_HOST;
	return full->state == BPF_TCP_SYN_SENT ? OWNER_CONNECTING : OWNER_OURS;
}

static __always_inline enum owner owner_by_tuple(struct __sk_buff *skb,
						 struct bpf_sock_tuple *tuple, __u32 bytes)
{
	struct bpf_sock *sk;
	enum owner owner;

	sk = bpf_skc_lookup_tcp(skb, tuple, bytes, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return OWNER_NONE;
	owner = owner_by(sk);
	bpf_sk_release(sk);
	return owner;
}

GLOBAL int owner_of(struct __sk_buff *skb, struct packet *pkt)
{
	if (!pkt)
		return OWNER_HOST;
	fill_tuple(pkt);
	return owner_by_tuple(skb, &pkt->tuple, pkt->tuple_bytes);
}

/* The program chooses, not SO_REUSEPORT: the worker that gets the SYN event must also accept
 * the client. */
static __always_inline __u32 this_worker(void)
{
	return bpf_get_smp_processor_id() % workers;
}

static __always_inline __u32 listener_key(__u32 worker, const struct packet *pkt)
{
	return worker * 2 + (pkt->family == AF_INET6);
}

static __always_inline bool is_draining(__u32 worker)
{
	__u32 *set = bpf_map_lookup_elem(&draining, &worker);

	return set && *set;
}

/* Whether a successor's program handles the packets that this one leaves. Then this one
 * handles only its own flows. */
static __always_inline bool is_followed(void)
{
	return is_draining(workers);
}

/* Marks the packet, so that routing delivers it locally. The kernel finds its socket by
 * the tuple. */
static __always_inline int deliver(struct __sk_buff *skb)
{
	skb->mark |= redirect_mark;
	return TC_ACT_UNSPEC;
}

/* Assigns the packet to a listener, which no tuple leads to. Without one it is
 * forwarded. */
static __always_inline int give(struct __sk_buff *skb, __u32 key)
{
	struct bpf_sock *listener = bpf_map_lookup_elem(&listeners, &key);

	if (!listener)
		return TC_ACT_UNSPEC;
	bpf_sk_assign(skb, listener, 0);
	bpf_sk_release(listener);
	return deliver(skb);
}
