/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Whether a SYN opens a flow for the node: its rule, and whether this host would forward
 * it and its answers. `redirect` decides alone until the programs of deferred.bpf.c are
 * loaded, and they decide from then on.
 */
#pragma once
#include "packet.h"
#include "rules.h"

/* Addresses to which no answer can be sent: a reset or an upstream connection for them
 * would fail here and be attributed to the server. Packets from IPv6 link-local
 * addresses are never forwarded (RFC 4291 section 2.5.6). */
static __always_inline bool is_martian(const struct packet *pkt)
{
	const __u32 *word = pkt->flow.client.word;
	__u8 first;

	if (pkt->family == AF_INET) {
		first = bpf_ntohl(word[3]) >> 24;
		return first == 0 || first == 127 || first >= 224;
	}
	first = bpf_ntohl(word[0]) >> 24;
	return first == 0xff || (word[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
	       (!word[0] && !word[1] && !word[2] && bpf_ntohl(word[3]) <= 1);
}

/*
 * Whether this host would send to the source of a SYN: there is a route, and it leads
 * off the host. The host's own addresses are no clients (RFC 1812 section 5.3.7): a SYN
 * of its own that a loop returns would become another one each time. If the interface
 * has a strict reverse path filter, the route must use that interface. `out` is the
 * interface by which answers will arrive.
 */
GLOBAL int answerable(struct __sk_buff *skb, const struct packet *pkt, __u32 out)
{
	struct bpf_fib_lookup fib;
	__u32 ifindex = skb->ifindex;
	struct device *device;

	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!pkt || !device)
		return false;
	fib = route_from(out, pkt->family);
	fib.sport = pkt->flow.server_port;
	fib.dport = pkt->flow.client_port;
	if (pkt->family == AF_INET) {
		fib.tos = pkt->ip.v4.tos;
		fib.ipv4_src = pkt->flow.server.word[3];
		fib.ipv4_dst = pkt->flow.client.word[3];
	} else {
		__builtin_memcpy(fib.ipv6_src, &pkt->flow.server, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &pkt->flow.client, sizeof(fib.ipv6_dst));
	}
	switch (bpf_fib_lookup(skb, &fib, sizeof(fib), 0)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		/* IPv6 has no such filter. */
		return pkt->family != AF_INET || !device->strict_source || fib.ifindex == ifindex;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		/* A tunnel; the kernel returns no more about it here. */
		return pkt->family != AF_INET || !device->strict_source;
	}
	return false;
}

/* The lowest port of a client that the node may bind to. */
SETTING(setting_least_port);
#define least_port SET(setting_least_port)

/* Whether the packet path carries a flow, or nothing does. It takes no Multipath TCP, which
 * a `capable` client requests. */
static __always_inline bool is_left_to_packets(const struct verdict *verdict, bool capable)
{
	return verdict->action == ACTION_RELAY && verdict->data_path == DATA_PATH_PACKET &&
	       !(capable && verdict->multipath == MULTIPATH_CONVERT);
}

/* Looks up what to do with a flow of a worker. It is left alone where that does not listen, and
 * where its server, which may check the port (rsh, NFS), would get another. */
GLOBAL int lookup_rule(const struct packet *pkt, __u32 worker, bool capable,
		       struct verdict *verdict)
{
	struct bpf_sock *listener;
	__u32 key;

	if (!pkt || !verdict)
		return ACTION_FORWARD;
	if (is_martian(pkt) || !find_rule(pkt, verdict))
		return ACTION_FORWARD;
	key = listener_key(worker, pkt);
	listener = bpf_map_lookup_elem(&listeners, &key);
	if (!listener)
		return ACTION_FORWARD;
	bpf_sk_release(listener);
	if (is_left_to_packets(verdict, capable))
		return ACTION_FORWARD;
	if (verdict->action == ACTION_RELAY && bpf_ntohs(pkt->flow.client_port) < least_port) {
		count(STAT_PORTS);
		return ACTION_FORWARD;
	}
	return verdict->action;
}

/* Whether this host would forward a SYN, and its answers to the client. With the last hop
 * used up, a router drops it and sends an ICMP error. */
static __always_inline bool passes_host(struct __sk_buff *skb, const struct packet *pkt)
{
	__u32 out = forwardable(skb, pkt);

	return out && hop_limit(pkt) > 1 && answerable(skb, pkt, out);
}
