// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Takes transit TCP flows off the forwarding path and hands them to the workers'
 * listeners, without NAT and without a rule per port.
 *
 * redirect           tc ingress on every interface
 * set_initial_cwnd   sockops, only when a rule sets an initial window
 *
 * The programs contain no policy: user space writes `rules`, and they look it up. New
 * flows of a worker are left to IP forwarding while it has no listener in `listeners`
 * (not started, or dead) or is in `draining` (full, out of descriptors, draining).
 *
 * Work beyond parsing a segment is done by the programs of deferred.bpf.c, called
 * through `tail_calls`. A node relays before they are loaded: until then flows open
 * late.
 */
#include "admission.h"
#include "packet.h"
#include "rules.h"

#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_DEST_UNREACH 1
#define ICMPV6_PARAMPROB 4
#define SOL_TCP 6
#define PACKET_HOST 0
/* In segments: 1.5 MB. */
#define PEER_WINDOW_MAX 1024

/* Addresses of other nodes, which hops are opened to or come from. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct address);
	__type(value, struct peer_settings);
} initial_cwnd SEC(".maps");

/* Whether a segment is the first of a connection. */
static __always_inline bool opens(const struct tcphdr *tcp)
{
	return tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin;
}

/* Most bytes of the header of a SYN with the options of usual stacks: the maximum segment
 * size, selective ACKs, timestamps and window scaling. */
#define SYN_HEADER_USUAL (20 + 20)

/*
 * The rest is for open_flow. Until it is loaded early becomes late; strict is impossible,
 * so forward, and so is what must be observed, and what the server or the packet path may
 * do better. A longer header than usual may request that: walking the options would take
 * the verifier longer than all the rest. `waiting`: the SYN met the TIME_WAIT socket of an
 * earlier connection on the same tuple.
 */
static __always_inline int on_syn(struct __sk_buff *skb, const struct packet *pkt, bool waiting)
{
	struct verdict verdict = {};
	__u32 worker = this_worker();

	skb->cb[MESSAGE_WAITING] = waiting;
	bpf_tail_call(skb, &tail_calls, TAIL_OPEN_FLOW);
	if (waiting || pkt->tcp.doff * 4 > SYN_HEADER_USUAL || is_draining(worker) ||
	    lookup_rule(pkt, worker, false, &verdict) != ACTION_RELAY || verdict.observe ||
	    verdict.accept & ACCEPT_HOLDS || !passes_host(skb, pkt))
		return TC_ACT_UNSPEC;
	count(STAT_REDIRECTED);
	return give(skb, listener_key(worker, pkt));
}

/* Least length of a TCP header with a SYN option, in bytes. */
#define SYN_OPTION_HEADER_MIN (20 + 16)

/* Whether a segment may announce a flow: it opens a connection to a listener of the
 * node, is addressed to this host, and has enough options. */
static __always_inline bool may_send_syn_option(struct __sk_buff *skb, const struct packet *pkt)
{
	return pkt->family == AF_INET && pkt->tcp.doff * 4 >= SYN_OPTION_HEADER_MIN &&
	       opens(&pkt->tcp) && !forwardable(skb, pkt);
}

/* The owner of a segment without IP options, extension headers and fragments: nearly every
 * one, and all of these headers are in the linear part. OWNER_UNKNOWN of any other packet. */
static __always_inline enum owner plain_owner(struct __sk_buff *skb, __u32 l2_bytes)
{
	void *end = (void *)(long)skb->data_end;
	void *start = (void *)(long)skb->data;
	struct bpf_sock_tuple tuple;
	struct ipv6hdr *v6;
	struct tcphdr *tcp;
	struct iphdr *v4;

	if (l2_bytes > ETH_HLEN)
		return OWNER_UNKNOWN;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		v4 = start + l2_bytes;
		tcp = (void *)(v4 + 1);
		if ((void *)(tcp + 1) > end || v4->ihl != 5 || v4->protocol != IPPROTO_TCP ||
		    v4->frag_off & bpf_htons(IP_OFFSET | IP_MF))
			return OWNER_UNKNOWN;
		tuple.ipv4.saddr = v4->saddr;
		tuple.ipv4.daddr = v4->daddr;
		tuple.ipv4.sport = tcp->source;
		tuple.ipv4.dport = tcp->dest;
		return owner_by_tuple(skb, &tuple, sizeof(tuple.ipv4));
	}
	v6 = start + l2_bytes;
	tcp = (void *)(v6 + 1);
	if (skb->protocol != bpf_htons(ETH_P_IPV6) || (void *)(tcp + 1) > end ||
	    v6->nexthdr != IPPROTO_TCP)
		return OWNER_UNKNOWN;
	__builtin_memcpy(tuple.ipv6.saddr, &v6->saddr, sizeof(tuple.ipv6.saddr));
	__builtin_memcpy(tuple.ipv6.daddr, &v6->daddr, sizeof(tuple.ipv6.daddr));
	tuple.ipv6.sport = tcp->source;
	tuple.ipv6.dport = tcp->dest;
	return owner_by_tuple(skb, &tuple, sizeof(tuple.ipv6));
}

static __always_inline int on_tcp(struct __sk_buff *skb, struct packet *pkt, __u32 at,
				  enum owner owner)
{
	if (!parse_tcp(skb, pkt, at))
		return TC_ACT_UNSPEC;
	if (owner == OWNER_UNKNOWN)
		owner = owner_of(skb, pkt);
	if (owner == OWNER_LISTENER) {
		if (may_send_syn_option(skb, pkt))
			bpf_tail_call(skb, &tail_calls, TAIL_PARSE_SYN_OPTION);
		owner = OWNER_NONE;
	}
	if ((owner == OWNER_NONE || owner == OWNER_WAITING) && opens(&pkt->tcp))
		return on_syn(skb, pkt, owner == OWNER_WAITING);
	switch (owner) {
	case OWNER_NONE:
		bpf_tail_call(skb, &tail_calls, TAIL_CHECK_COOKIE);
		return TC_ACT_UNSPEC;
	case OWNER_HOST:
		return TC_ACT_UNSPEC;
	case OWNER_CONNECTING:
		if (pkt->tcp.syn && pkt->tcp.ack)
			bpf_tail_call(skb, &tail_calls, TAIL_HOLD_SYN_ACK);
		return deliver(skb);
	case OWNER_OURS:
		return deliver(skb);
	default:
		/* Relayed exactly when this host would forward the packet. */
		return forwardable(skb, pkt) ? deliver(skb) : TC_ACT_UNSPEC;
	}
}

static __always_inline bool icmp_error(struct __sk_buff *skb, const struct packet *pkt, __u32 at)
{
	__u8 type;

	if (bpf_skb_load_bytes(skb, at, &type, sizeof(type)))
		return false;
	if (pkt->family == AF_INET6)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED || type == ICMP_PARAMETERPROB;
}

SEC("classifier")
int redirect(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct device *device;
	struct packet pkt = {};
	enum owner owner;
	__u32 at;

	if (skb->cb[MESSAGE_CARRIED] == MESSAGE_IS_CARRIED) {
		skb->cb[MESSAGE_CARRIED] = 0;
		return TC_ACT_UNSPEC;
	}
	device = bpf_map_lookup_elem(&devices, &ifindex);
	/* A tagged frame belongs to the VLAN device, which has its own program. A
	 * marked one was handled before: a starting node is attached to an interface
	 * twice for a moment. A frame for another host was received promiscuously. */
	if (!device || skb->vlan_present || (skb->mark & redirect_mark) ||
	    skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	/* Most packets are of open connections: no more is parsed of them. */
	owner = plain_owner(skb, device->l2_bytes);
	if (owner == OWNER_OURS)
		return deliver(skb);
	at = parse_ip(skb, &pkt, device->l2_bytes);
	if (!at)
		return TC_ACT_UNSPEC;
	skb->cb[MESSAGE_L2_BYTES] = device->l2_bytes;
	if (pkt.fragment) {
		if (pkt.protocol == IPPROTO_TCP)
			bpf_tail_call(skb, &tail_calls, TAIL_REDIRECT_FRAGMENT);
		return TC_ACT_UNSPEC;
	}
	if (pkt.protocol == IPPROTO_TCP)
		return on_tcp(skb, &pkt, at, owner);
	if (pkt.protocol == (pkt.family == AF_INET ? IPPROTO_ICMP : IPPROTO_ICMPV6) &&
	    icmp_error(skb, &pkt, at))
		bpf_tail_call(skb, &tail_calls, TAIL_REDIRECT_ICMP_ERROR);
	return TC_ACT_UNSPEC;
}

/* The path's bandwidth times the round trip time of the handshake, in segments. */
static __always_inline __u32 initial_cwnd_of(const struct peer_settings *start, __u32 rtt_us, __u32 mss)
{
	__u64 segments = (__u64)start->rate * (rtt_us ? rtt_us : start->rtt_us) / 1000;

	segments = mss ? segments / mss : 0;
	if (segments > PEER_WINDOW_MAX)
		segments = PEER_WINDOW_MAX;
	return segments > start->segments ? segments : start->segments;
}

/* The low half of the cookie of this network namespace. */
SETTING(setting_netns);
#define own_netns SET(setting_netns)

/* A socket of the node is connected: sets its initial window if its rule has one. The
 * kernel accepts it only at this point (TCP_BPF_IW). A node in another network
 * namespace may share the cgroup; its sockets are skipped. */
SEC("sockops")
int set_initial_cwnd(struct bpf_sock_ops *ctx)
{
	bool passive = ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
	struct verdict verdict = {};
	struct packet pkt = {};
	struct bpf_sock *sk = ctx->sk;
	struct address *remote, *local;
	struct peer_settings *of_peer;
	int window;

	if (!passive && ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return 1;
	if (!sk || !(sk->mark & socket_mark) || (__u32)bpf_get_netns_cookie(ctx) != own_netns)
		return 1;
	remote = passive ? &pkt.flow.client : &pkt.flow.server;
	local = passive ? &pkt.flow.server : &pkt.flow.client;
	pkt.family = ctx->family;
	if (ctx->family == AF_INET) {
		*remote = mapped(ctx->remote_ip4);
		*local = mapped(ctx->local_ip4);
	} else {
		for (int i = 0; i < 4; i++) {
			remote->word[i] = ctx->remote_ip6[i];
			local->word[i] = ctx->local_ip6[i];
		}
	}
	of_peer = bpf_map_lookup_elem(&initial_cwnd, remote);
	if (of_peer) {
		window = initial_cwnd_of(of_peer, ctx->srtt_us >> 3, ctx->mss_cache);
		bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
		return 1;
	}
	/* Of the ports only the server's matters. `remote_port` has its two bytes in
	 * network order in the upper half. */
	pkt.flow.server_port = passive ? bpf_htons(ctx->local_port) : ctx->remote_port >> 16;
	if (!find_rule(&pkt, &verdict))
		return 1;
	window = passive ? verdict.window_down : verdict.window_up;
	if (window)
		bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
