// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Takes transit TCP flows off the forwarding path and hands them to the
 * workers' listeners, without NAT and without a rule per port.
 *
 * redirect       tc ingress on every interface
 * widen_window   sockops, only when a rule sets an initial window
 *
 * The programs hold no policy: user space writes `rules`, they look it up.
 * While a worker has no listener in `listeners` (not started, or dead) or has
 * `withdrawn` (full, starved, draining), its new flows are left to IP forwarding.
 *
 * The functions marked STEP are global to the verifier: it checks each once,
 * on its own, which keeps a node's start under its time bound. They take a
 * pointer that the verifier believes may be NULL.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "types.h"
#include "maps.h"

/* From headers that drag in the C library. */
#define ICMP_DEST_UNREACH 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_DEST_UNREACH 1
#define ICMPV6_PARAMPROB 4
#define SOL_TCP 6
#define PACKET_HOST 0
#define AF_INET 2
#define AF_INET6 10
#define STEP __attribute__((noinline))
#define IP_OFFSET 0x1fff
#define IP_MF 0x2000

/* Set before load: workers, and the two fwmark bits that are ours. */
const volatile __u32 workers = 1;
const volatile __u32 redirect_mark;
const volatile __u32 socket_mark;

/* Written at run time: the policy in force. */
volatile __u32 generation;

/* Bytes of link layer header on each interface the program is attached to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32); /* ifindex */
	__type(value, __u32);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_key);
	__type(value, struct candidates);
} rules SEC(".maps");

/* Sized to the half-open budget: the bound holds here, whatever user space
 * does. Not LRU: an evicted gate would be an open one. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct gate);
} gates SEC(".maps");

/* The part of the budget kept for clients from `known` prefixes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow);
	__type(value, struct gate);
} gates_kept SEC(".maps");

/* Client prefixes (IPv4 /24, IPv6 /64) that completed a handshake. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, __u64);
	__type(value, __u8);
} known SEC(".maps");

/* Destinations that failed in early mode, until when (CLOCK_MONOTONIC, ns). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct destination);
	__type(value, __u64);
} suspects SEC(".maps");

/* Workers that take no new flows. What they have begun goes on, and needs
 * their listeners for that. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32); /* worker */
	__type(value, __u32);
} withdrawn SEC(".maps");

struct ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32); /* worker */
	__array(values, struct ring);
} rings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, STAT_MAX);
	__type(key, __u32);
	__type(value, __u64);
} stats SEC(".maps");

/* A TCP segment on its way in. */
struct packet {
	struct flow flow; /* its source is the `client` */
	struct bpf_sock_tuple tuple;
	__u32 tuple_bytes;
	__u32 family;
	__u32 l2_bytes;
	__u32 protocol;
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} ip;
	struct tcphdr tcp;
};

/* What becomes of a SYN. FATE_LISTEN carries the listener's key above it. */
#define FATE_PASS 0   /* on, unrelayed */
#define FATE_HOLD 1   /* nowhere: the worker has a copy */
#define FATE_LISTEN 2 /* to a listener */
#define FATE_BITS 2

STEP int count(__u32 stat)
{
	__u64 *value = bpf_map_lookup_elem(&stats, &stat);

	if (value)
		*value += 1;
	return 0;
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

/* The tuple by which the kernel finds the socket that would receive a segment
 * of this flow from its client. */
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

/* Addresses that nothing can be sent back to: a reset or a hop upstream for
 * them would fail here, and be blamed on the server. */
static __always_inline bool is_nobody(const struct packet *pkt)
{
	const __u32 *word = pkt->flow.client.word;
	__u8 first;

	if (pkt->family == AF_INET) {
		first = bpf_ntohl(word[3]) >> 24;
		return first == 0 || first == 127 || first >= 224;
	}
	first = bpf_ntohl(word[0]) >> 24;
	return first == 0xff || (!word[0] && !word[1] && !word[2] && bpf_ntohl(word[3]) <= 1);
}

/* IPv6 has no use for these on the wire (RFC 4942 section 2.2), and here they
 * would pass for IPv4. */
static __always_inline bool is_mapped(const struct address *ip)
{
	return !ip->word[0] && !ip->word[1] && ip->word[2] == bpf_htonl(0xffff);
}

/* Reads the IP header at `at`. Returns the offset of what follows it; 0 for
 * what is never ours: other protocols, fragments, IPv6 extension headers (no
 * TCP stack sends them with a SYN). */
STEP __u32 parse_ip(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	if (!pkt)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at, &pkt->ip.v4, sizeof(pkt->ip.v4)))
			return 0;
		if (pkt->ip.v4.frag_off & bpf_htons(IP_OFFSET | IP_MF))
			return 0;
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
		return at + sizeof(pkt->ip.v6);
	}
	return 0;
}

/* Whether this host would forward the packet: the destination is not ours,
 * there is a route, and forwarding is on. And whether it would leave where this
 * program sees the answer come back: elsewhere the answer would meet a socket
 * of ours unmarked, and be lost. */
STEP int forwardable(struct __sk_buff *skb, const struct packet *pkt)
{
	struct bpf_fib_lookup fib = {
		.l4_protocol = IPPROTO_TCP,
		.ifindex = skb->ifindex,
	};
	__u32 out;

	if (!pkt)
		return false;
	fib.family = pkt->family;
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
		return false;
	}
	out = fib.ifindex;
	return bpf_map_lookup_elem(&devices, &out) != NULL;
}

/* Hands the packet to a socket: assigned, and marked so that routing delivers
 * it locally. Only a listener needs the assignment; the others the kernel
 * finds again by tuple. */
static __always_inline void steer(struct __sk_buff *skb, void *sk)
{
	bpf_sk_assign(skb, sk, 0);
	skb->mark |= redirect_mark;
}

static __always_inline __u32 this_worker(void)
{
	return bpf_get_smp_processor_id() % workers;
}

static __always_inline __u32 listener_key(__u32 worker, const struct packet *pkt)
{
	return worker * 2 + (pkt->family == AF_INET6);
}

STEP int covers(const struct candidate *rule, const struct packet *pkt)
{
	const __u32 *client;
	__u16 port;

	if (!rule || !pkt)
		return false;
	client = pkt->flow.client.word;
	port = bpf_ntohs(pkt->flow.server_port);
	if (port < rule->port_first || port > rule->port_last)
		return false;
	if (rule->family && rule->family != pkt->family)
		return false;
	for (int i = 0; i < 4; i++)
		if ((client[i] & rule->source_mask.word[i]) != rule->source.word[i])
			return false;
	return true;
}

/* What a rule says about a flow. */
struct judgement {
	__u16 rule;
	__u16 window_down;
	__u16 window_up;
	__u8 action;
	__u8 accept;
};

/* Finds the rule for a flow; false when there is none. The trie finds the
 * longest destination prefix; its candidates include those of every shorter
 * prefix. */
STEP int classify(const struct packet *pkt, struct judgement *judgement)
{
	struct rule_key key = {
		.prefix_bits = 32 + 128,
		.generation = generation,
	};
	const struct candidates *found;

	if (!pkt || !judgement)
		return false;
	key.ip = pkt->flow.server;
	found = bpf_map_lookup_elem(&rules, &key);
	if (!found)
		return false;
	for (__u32 i = 0; i < CANDIDATES_MAX && i < found->count; i++) {
		const struct candidate *rule = &found->list[i];

		if (!covers(rule, pkt))
			continue;
		judgement->rule = rule->rule;
		judgement->window_down = rule->window_down;
		judgement->window_up = rule->window_up;
		judgement->action = rule->action;
		judgement->accept = rule->accept;
		return true;
	}
	return false;
}

/* The first 24 bits of an IPv4 client, the first 64 of an IPv6 one. */
static __always_inline __u64 client_prefix(const struct packet *pkt)
{
	const __u32 *word = pkt->flow.client.word;

	if (pkt->family == AF_INET)
		return ((__u64)(word[3] & bpf_htonl(0xffffff00)) << 32) | word[2];
	return ((__u64)word[1] << 32) | word[0];
}

static __always_inline bool suspected(const struct packet *pkt)
{
	struct destination key = {
		.ip = pkt->flow.server,
		.port = pkt->flow.server_port,
	};
	__u64 *until = bpf_map_lookup_elem(&suspects, &key);

	return until && bpf_ktime_get_ns() < *until;
}

/* Makes the gate of a new flow. Within the budget anybody may; in the reserve
 * only clients whose prefix has completed a handshake before. */
static __always_inline bool make_gate(const struct packet *pkt, const struct gate *gate,
				      struct event_head *event)
{
	__u64 prefix = client_prefix(pkt);
	struct flow flow = pkt->flow;
	struct gate made = *gate;

	if (!bpf_map_update_elem(&gates, &flow, &made, BPF_ANY)) {
		/* An earlier attempt on this tuple may have used the reserve. */
		bpf_map_delete_elem(&gates_kept, &flow);
		return true;
	}
	if (bpf_map_lookup_elem(&known, &prefix) &&
	    !bpf_map_update_elem(&gates_kept, &flow, &made, BPF_ANY)) {
		event->kept = 1;
		return true;
	}
	count(STAT_GATES_FULL);
	return false;
}

/* Gives a worker an event with the frame, and the flow its `gate` if there is
 * one to make. False when there is no room for either: then nothing has changed,
 * and the gate of an earlier attempt still stands. */
STEP int report(struct __sk_buff *skb, const struct packet *pkt, const struct event_head *head,
		__u32 worker, const struct gate *gate)
{
	__u32 bytes = skb->len < FRAME_MAX ? skb->len : FRAME_MAX;
	struct event *event;
	void *ring;

	ring = bpf_map_lookup_elem(&rings, &worker);
	if (!pkt || !head || !ring)
		return false;
	event = bpf_ringbuf_reserve(ring, sizeof(*event), 0);
	if (!event) {
		count(STAT_EVENTS_LOST);
		return false;
	}
	event->head = *head;
	event->head.ifindex = skb->ifindex;
	event->head.l2_bytes = pkt->l2_bytes;
	event->head.generation = generation;
	event->head.isn = bpf_ntohl(pkt->tcp.seq);
	event->head.frame_bytes = bytes;
	/* Changes nothing, but lets the verifier of Linux 6.1 see that it is 1 to
	 * FRAME_MAX; clang must not fold what it knows into it. */
	asm volatile("" : "+r"(bytes));
	bytes = ((bytes - 1) & (FRAME_MAX - 1)) + 1;
	if (bpf_skb_load_bytes(skb, 0, event->frame, bytes) ||
	    (gate && !make_gate(pkt, gate, &event->head))) {
		bpf_ringbuf_discard(event, 0);
		return false;
	}
	bpf_ringbuf_submit(event, 0);
	return true;
}

static __always_inline struct gate *find_gate(const struct flow *flow)
{
	struct gate *gate = bpf_map_lookup_elem(&gates, flow);

	return gate ? gate : bpf_map_lookup_elem(&gates_kept, flow);
}

static __always_inline __u32 fate_of_retransmission(const struct gate *gate,
						    const struct packet *pkt)
{
	switch (gate->syn) {
	case SYN_ADMITTED:
		return FATE_LISTEN | listener_key(gate->worker, pkt) << FATE_BITS;
	case SYN_HELD:
		return FATE_HOLD;
	}
	return FATE_PASS;
}

static __always_inline bool has_withdrawn(__u32 worker)
{
	__u32 *set = bpf_map_lookup_elem(&withdrawn, &worker);

	return set && *set;
}

/* Decides on the SYN of a flow to relay, and tells the worker. */
STEP __u32 open_flow(struct __sk_buff *skb, const struct packet *pkt, struct event_head *event)
{
	__u32 worker = this_worker();
	struct gate made = {};
	struct gate *gate;
	struct flow flow;
	__u32 listen;

	if (!pkt || !event)
		return FATE_PASS;
	flow = pkt->flow;
	gate = find_gate(&flow);
	if (gate && gate->isn == pkt->tcp.seq)
		return fate_of_retransmission(gate, pkt);
	/* The client starts over: whose the former attempt is, ends it. */
	if (gate)
		worker = gate->worker;
	listen = FATE_LISTEN | listener_key(worker, pkt) << FATE_BITS;
	if (has_withdrawn(worker))
		return FATE_PASS;
	if (event->accept == ACCEPT_LATE)
		return listen;
	if (event->accept == ACCEPT_EARLY && suspected(pkt)) {
		count(STAT_SUSPECTS);
		event->accept = ACCEPT_STRICT;
	}
	made.worker = worker;
	made.isn = pkt->tcp.seq;
	made.syn = event->accept == ACCEPT_STRICT ? SYN_HELD : SYN_ADMITTED;
	if (report(skb, pkt, event, worker, &made))
		return event->accept == ACCEPT_STRICT ? FATE_HOLD : listen;
	/* No room: early becomes late; strict cannot be kept, so forward. */
	return event->accept == ACCEPT_STRICT ? FATE_PASS : listen;
}

static __always_inline bool listening(const struct packet *pkt)
{
	__u32 key = listener_key(this_worker(), pkt);
	struct bpf_sock *listener = bpf_map_lookup_elem(&listeners, &key);

	if (!listener)
		return false;
	bpf_sk_release(listener);
	return true;
}

STEP __u32 judge_syn(struct __sk_buff *skb, const struct packet *pkt)
{
	struct event_head event = { .kind = EVENT_SYN };
	struct judgement judgement = {};

	if (!pkt || is_nobody(pkt) || !classify(pkt, &judgement) ||
	    judgement.action == ACTION_FORWARD)
		return FATE_PASS;
	if (!forwardable(skb, pkt) || !listening(pkt))
		return FATE_PASS;
	event.flow = pkt->flow;
	event.rule = judgement.rule;
	event.accept = judgement.accept;
	if (judgement.action == ACTION_REJECT) {
		event.kind = EVENT_REJECT;
		report(skb, pkt, &event, this_worker(), NULL);
		return FATE_HOLD;
	}
	return open_flow(skb, pkt, &event);
}

/* The SYN is to be forwarded, but forwarding drops what meets a socket, and
 * this one meets a TIME_WAIT socket of ours. So give it to that socket and no
 * listener: it answers with an ACK, the client resets it, and the repeated SYN
 * finds the way free. */
static __always_inline int wake(struct __sk_buff *skb, const struct packet *pkt,
				struct bpf_sock *waiting)
{
	__u32 none = NO_LISTENER;

	if (forwardable(skb, pkt)) {
		bpf_map_update_elem(&renewals, &pkt->flow, &none, BPF_ANY);
		steer(skb, waiting);
	}
	return TC_ACT_UNSPEC;
}

/* `waiting` is the TIME_WAIT socket of an earlier connection on the same
 * tuple, or NULL. With one, the kernel must see the SYN itself (it checks
 * sequence number and timestamp, RFC 6191) and then asks find_listener; a
 * listener assigned here would leave the TIME_WAIT socket to swallow the
 * client's ACK. */
static __always_inline int on_syn(struct __sk_buff *skb, const struct packet *pkt,
				  struct bpf_sock *waiting)
{
	__u32 fate = judge_syn(skb, pkt);
	__u32 key = fate >> FATE_BITS;
	struct bpf_sock *listener;

	if (fate == FATE_PASS)
		return waiting ? wake(skb, pkt, waiting) : TC_ACT_UNSPEC;
	if (fate == FATE_HOLD)
		return TC_ACT_SHOT;
	count(STAT_REDIRECTED);
	if (waiting) {
		bpf_map_update_elem(&renewals, &pkt->flow, &key, BPF_ANY);
		count(STAT_RENEWALS);
		steer(skb, waiting);
		return TC_ACT_UNSPEC;
	}
	listener = bpf_map_lookup_elem(&listeners, &key);
	if (!listener)
		return TC_ACT_UNSPEC;
	steer(skb, listener);
	bpf_sk_release(listener);
	return TC_ACT_UNSPEC;
}

/* The last ACK of a handshake that the listener answered with a SYN cookie has
 * no socket yet. Only our listener can have made the cookie. */
STEP int on_cookie(struct __sk_buff *skb, struct packet *pkt)
{
	struct bpf_sock *listener;
	struct gate *gate;
	struct flow flow;
	long valid;
	__u32 key;

	if (!pkt)
		return TC_ACT_UNSPEC;
	flow = pkt->flow;
	gate = find_gate(&flow);
	key = listener_key(gate ? gate->worker : this_worker(), pkt);
	listener = bpf_map_lookup_elem(&listeners, &key);
	if (!listener)
		return TC_ACT_UNSPEC;
	if (pkt->family == AF_INET)
		valid = bpf_tcp_check_syncookie(listener, &pkt->ip.v4, sizeof(pkt->ip.v4),
						&pkt->tcp, sizeof(pkt->tcp));
	else
		valid = bpf_tcp_check_syncookie(listener, &pkt->ip.v6, sizeof(pkt->ip.v6),
						&pkt->tcp, sizeof(pkt->tcp));
	if (valid == 0 && forwardable(skb, pkt)) {
		count(STAT_COOKIES);
		steer(skb, listener);
	}
	bpf_sk_release(listener);
	return TC_ACT_UNSPEC;
}

/* No socket knows the segment. */
static __always_inline int on_stranger(struct __sk_buff *skb, struct packet *pkt)
{
	if (pkt->tcp.rst || pkt->tcp.fin)
		return TC_ACT_UNSPEC;
	if (pkt->tcp.syn)
		return pkt->tcp.ack ? TC_ACT_UNSPEC : on_syn(skb, pkt, NULL);
	return pkt->tcp.ack ? on_cookie(skb, pkt) : TC_ACT_UNSPEC;
}

/* A segment for one of our upstream sockets that is still connecting. The
 * server's SYN-ACK waits at the worker while the client's gate stands. */
STEP int hold_syn_ack(struct __sk_buff *skb, const struct packet *pkt)
{
	struct event_head event = { .kind = EVENT_SYN_ACK };
	struct gate *gate;

	if (!pkt || !pkt->tcp.syn || !pkt->tcp.ack)
		return false;
	event.flow = reversed(&pkt->flow);
	gate = find_gate(&event.flow);
	if (!gate)
		return false;
	/* A full ring loses the copy; the server repeats its SYN-ACK. */
	report(skb, pkt, &event, gate->worker, NULL);
	return true;
}

/* A full socket took the tuple: ours if it carries our mark, else the host's
 * own business. */
static __always_inline int on_socket(struct __sk_buff *skb, const struct packet *pkt,
				     struct bpf_sock *sk)
{
	struct bpf_sock *full = bpf_sk_fullsock(sk);

	if (!full || !(full->mark & socket_mark))
		return TC_ACT_UNSPEC;
	if (full->state == BPF_TCP_SYN_SENT && hold_syn_ack(skb, pkt))
		return TC_ACT_SHOT;
	steer(skb, sk);
	return TC_ACT_UNSPEC;
}

/* Request and TIME_WAIT sockets carry no mark that BPF can read. They are ours
 * exactly when this host would forward the packet. */
static __always_inline int on_mini_socket(struct __sk_buff *skb, const struct packet *pkt,
					  struct bpf_sock *sk)
{
	if (sk->state == BPF_TCP_TIME_WAIT && pkt->tcp.syn && !pkt->tcp.ack)
		return on_syn(skb, pkt, sk);
	if (forwardable(skb, pkt))
		steer(skb, sk);
	return TC_ACT_UNSPEC;
}

static __always_inline int on_tcp(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	struct bpf_sock *sk;
	int verdict;

	if (bpf_skb_load_bytes(skb, at, &pkt->tcp, sizeof(pkt->tcp)))
		return TC_ACT_UNSPEC;
	pkt->flow.client_port = pkt->tcp.source;
	pkt->flow.server_port = pkt->tcp.dest;
	fill_tuple(pkt);
	sk = bpf_skc_lookup_tcp(skb, &pkt->tuple, pkt->tuple_bytes, BPF_F_CURRENT_NETNS, 0);
	if (sk && sk->state == BPF_TCP_LISTEN) {
		/* A wildcard listener of the host, which transit must not reach. */
		bpf_sk_release(sk);
		sk = NULL;
	}
	if (!sk)
		return on_stranger(skb, pkt);
	if (sk->state == BPF_TCP_NEW_SYN_RECV || sk->state == BPF_TCP_TIME_WAIT)
		verdict = on_mini_socket(skb, pkt, sk);
	else
		verdict = on_socket(skb, pkt, sk);
	bpf_sk_release(sk);
	return verdict;
}

/* An ICMP error quotes a segment that one of our sockets sent under another
 * host's address; without the mark it would be forwarded to that host, and
 * path MTU discovery with it. */
STEP int on_icmp(struct __sk_buff *skb, __u32 at)
{
	struct packet quoted = {};
	struct bpf_sock *sk, *full;
	__be16 ports[2];
	__u32 inner;

	inner = parse_ip(skb, &quoted, at + 8);
	if (!inner || quoted.protocol != IPPROTO_TCP ||
	    bpf_skb_load_bytes(skb, inner, ports, sizeof(ports)))
		return TC_ACT_UNSPEC;
	quoted.flow.client_port = ports[0];
	quoted.flow.server_port = ports[1];
	quoted.flow = reversed(&quoted.flow);
	fill_tuple(&quoted);
	sk = bpf_skc_lookup_tcp(skb, &quoted.tuple, quoted.tuple_bytes, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return TC_ACT_UNSPEC;
	full = bpf_sk_fullsock(sk);
	if (full && full->state != BPF_TCP_LISTEN && (full->mark & socket_mark)) {
		count(STAT_ICMP);
		skb->mark |= redirect_mark;
	}
	bpf_sk_release(sk);
	return TC_ACT_UNSPEC;
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

SEC("tcx/ingress")
int redirect(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	__u32 *l2_bytes = bpf_map_lookup_elem(&devices, &ifindex);
	struct packet pkt = {};
	__u32 at;

	/* A tagged frame belongs to the VLAN device, which has its own program.
	 * A marked one was here before: a node that starts holds an interface
	 * twice for a moment. One for another host is only overheard. */
	if (!l2_bytes || skb->vlan_present || (skb->mark & redirect_mark) ||
	    skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
	pkt.l2_bytes = *l2_bytes;
	at = parse_ip(skb, &pkt, pkt.l2_bytes);
	if (!at)
		return TC_ACT_UNSPEC;
	if (pkt.protocol == IPPROTO_TCP)
		return on_tcp(skb, &pkt, at);
	if (pkt.protocol == (pkt.family == AF_INET ? IPPROTO_ICMP : IPPROTO_ICMPV6) &&
	    icmp_error(skb, &pkt, at))
		return on_icmp(skb, at);
	return TC_ACT_UNSPEC;
}

/* A connection of ours is open: widen its initial window if its rule says so.
 * Only here does the kernel take one (TCP_BPF_IW). */
SEC("sockops")
int widen_window(struct bpf_sock_ops *ctx)
{
	bool passive = ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB;
	struct judgement judgement = {};
	struct packet pkt = {};
	struct bpf_sock *sk = ctx->sk;
	struct address *remote, *local;
	int window;

	if (!passive && ctx->op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		return 1;
	if (!sk || !(sk->mark & socket_mark))
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
	/* Of the ports only the server's counts; `remote_port` has its two bytes
	 * in network order in the upper half. */
	pkt.flow.server_port = passive ? bpf_htons(ctx->local_port) : ctx->remote_port >> 16;
	if (!classify(&pkt, &judgement))
		return 1;
	window = passive ? judgement.window_down : judgement.window_up;
	if (window)
		bpf_setsockopt(ctx, SOL_TCP, TCP_BPF_IW, &window, sizeof(window));
	return 1;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
