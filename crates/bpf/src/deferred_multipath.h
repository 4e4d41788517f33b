/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * SYNs of Multipath TCP that the node converts: to which listener they go.
 *
 * join_connection   a SYN with MP_JOIN
 * end_time_wait     one that meets a TIME_WAIT socket
 */
#pragma once
#include "admission.h"
#include "advice.h"
#include "deferred.h"
#include "observe.h"
#include "placement.h"
#include "rules.h"
#include "syn.h"

/* The listener of a worker for Multipath TCP, or NULL. The node's alone: another process
 * may listen there after a worker died. Its address is given by the first and the last
 * word, of which IPv4 has the last. */
static __always_inline struct bpf_sock *find_multipath(struct __sk_buff *skb, struct packet *pkt,
						       __be32 first, __be32 last, __be16 port)
{
	struct bpf_sock *sk;

	fill_tuple(pkt);
	if (pkt->family == AF_INET) {
		pkt->tuple.ipv4.daddr = last;
		pkt->tuple.ipv4.dport = port;
	} else {
		pkt->tuple.ipv6.daddr[0] = first;
		pkt->tuple.ipv6.daddr[1] = 0;
		pkt->tuple.ipv6.daddr[2] = 0;
		pkt->tuple.ipv6.daddr[3] = last;
		pkt->tuple.ipv6.dport = port;
	}
	sk = bpf_skc_lookup_tcp(skb, &pkt->tuple, pkt->tuple_bytes, BPF_F_CURRENT_NETNS, 0);
	if (sk && owner_by(sk) != OWNER_LISTENER) {
		bpf_sk_release(sk);
		return NULL;
	}
	return sk;
}

/* The same for MP_CAPABLE. */
static __always_inline struct bpf_sock *find_capable(struct __sk_buff *skb, struct packet *pkt,
						     __u32 key)
{
	struct multipath_listener *listener = multipath_listener(key);
	__be32 loopback = pkt->family == AF_INET ? bpf_htonl(0x7f000001) : bpf_htonl(1);

	if (!listener)
		return NULL;
	return find_multipath(skb, pkt, 0, loopback, listener->port);
}

/* The worker at which a path joins, by what its SYN and its third segment have in common:
 * the kernel finds the connection by the token, whatever worker has it. */
static __always_inline __u32 join_worker(const struct packet *pkt)
{
	return bpf_ntohs(pkt->flow.client_port) % workers;
}

/* A worker's listener for further paths, with the port of their destination: the kernel
 * refuses one with another port than the connection's. Its address is none of a host: of
 * 240.0.0.0/4 (RFC 1112 section 4), or 100::/64 (RFC 6666). */
static __always_inline struct bpf_sock *find_join(struct __sk_buff *skb, struct packet *pkt,
						  __u32 worker)
{
	struct multipath_listener *to = multipath_listener(listener_key(worker, pkt));

	if (!to)
		return NULL;
	return find_multipath(skb, pkt, bpf_htonl(0x01000000), to->joins, pkt->flow.server_port);
}

/* Gives a SYN with MP_CAPABLE to the worker's listener. Paths may join from the third
 * ACK on, before the worker has accepted the connection. */
static __always_inline void give_capable(struct __sk_buff *skb, struct packet *pkt, __u32 key)
{
	struct bpf_sock *listener = find_capable(skb, pkt, key);
	struct destination to = destination_of(pkt);
	__u64 until = bpf_ktime_get_ns() + JOINS_EXPECTED_NS;

	if (!listener)
		return;
	bpf_sk_assign(skb, listener, 0);
	bpf_sk_release(listener);
	bpf_map_update_elem(&expected_joins, &to, &until, BPF_ANY);
	count(STAT_MULTIPATH_CONVERTED);
	deliver(skb);
}

/* Whether the SYN requests Multipath TCP, and its rule leaves that to the server. So does
 * a node that cannot convert: the client keeps what it had. */
static __always_inline bool passes_multipath(const struct packet *pkt,
					     const struct verdict *verdict, bool capable)
{
	if (!capable || verdict->action != ACTION_RELAY)
		return false;
	if (verdict->multipath == MULTIPATH_OFF ||
	    (verdict->multipath == MULTIPATH_CONVERT &&
	     multipath_listener(listener_key(placed_worker(pkt), pkt))))
		return false;
	count(STAT_MULTIPATH_PASSED);
	return true;
}

/* A SYN that joins a connection is never a flow of its own. The path may be another than
 * that of the connection, so its own rule and interface must allow what the token requests.
 * With the mark it is one that a worker injected. */
static __always_inline bool may_join(struct __sk_buff *skb, const struct packet *pkt)
{
	struct verdict verdict = {};

	if (is_martian(pkt) || !find_rule(pkt, &verdict) || verdict.action != ACTION_RELAY ||
	    verdict.multipath != MULTIPATH_CONVERT)
		return false;
	if (verdict.observe && !(skb->mark & socket_mark) && !is_let_through(skb, pkt))
		return false;
	return passes_host(skb, pkt);
}

/* Whether a connection to this destination may be about to be accepted. */
static __always_inline bool expects_join(const struct packet *pkt)
{
	struct destination to = destination_of(pkt);
	__u64 *until = bpf_map_lookup_elem(&expected_joins, &to);

	return until && bpf_ktime_get_ns() < *until;
}

static __always_inline bool is_server_of(const struct multipath_token *token,
					 const struct packet *pkt)
{
	return token->port == pkt->flow.server_port &&
	       is_same(&token->server, &pkt->flow.server);
}

/* Gives a join to the listener that the worker has opened for it. */
static __always_inline int give_join(struct __sk_buff *skb, struct packet *pkt, __u32 worker)
{
	struct bpf_sock *listener = find_join(skb, pkt, worker);

	if (!listener) {
		count(STAT_JOINS_REFUSED);
		return TC_ACT_UNSPEC;
	}
	bpf_sk_assign(skb, listener, 0);
	bpf_sk_release(listener);
	count(STAT_JOINS);
	return deliver(skb);
}

/*
 * A SYN with MP_JOIN of a flow that this host would forward. With the token of a
 * connection of the node it joins that, once a worker listens on its port: the worker
 * gets the SYN, and injects it again with the node's mark. Otherwise the connection may
 * be accepted at this moment: then the worker holds the SYN until the token is known or
 * some milliseconds have passed. All others are forwarded.
 */
SEC("classifier")
int join_connection(struct __sk_buff *skb)
{
	bool injected = skb->mark & socket_mark;
	struct event_head event = { .kind = EVENT_JOIN };
	struct multipath_token *token;
	struct options options = {};
	struct packet pkt = {};
	__u32 at, worker;
	bool ours, wanted;

	skb->mark &= ~socket_mark;
	at = resume(skb, &pkt);
	if (!at || !is_sound(skb, &pkt, at))
		return TC_ACT_UNSPEC;
	look_at_options(skb, &pkt, at, &options);
	token = bpf_map_lookup_elem(&multipath_tokens, &options.token);
	/* Tokens are unique at one host only: another's may be equal. Held, its join would be
	 * injected and held again, forever. */
	ours = token && is_server_of(token, &pkt);
	worker = join_worker(&pkt);
	if (ours && is_draining(worker))
		worker = token->worker;
	if (ours && injected)
		return give_join(skb, &pkt, worker);
	/* A client has the tokens of its connections, and may flood. Others send the SYN again. */
	if (ours && !is_idle(worker)) {
		count(STAT_EVENTS_LOST);
		return TC_ACT_SHOT;
	}
	/* Of a token that was taken for another host's, its connection may have come since. */
	wanted = ours || (!token && expects_join(&pkt) && !is_draining(worker) &&
			  is_idle(worker) &&
			  !bpf_map_lookup_elem(&foreign_tokens, &options.token));
	if (!wanted) {
		count(STAT_JOINS_UNKNOWN);
		return TC_ACT_UNSPEC;
	}
	event.flow = pkt.flow;
	if (!report(skb, &pkt, &event, worker, NULL))
		return TC_ACT_UNSPEC;
	if (!ours)
		count(STAT_JOINS_HELD);
	return TC_ACT_SHOT;
}

/*
 * A SYN of Multipath TCP that met the TIME_WAIT socket of an earlier connection or path. The
 * kernel would give it to a listener of TCP, or for a further path to none. So the worker
 * destroys the socket and injects the SYN again; with the mark where it could not.
 */
SEC("classifier")
int end_time_wait(struct __sk_buff *skb)
{
	struct event_head event = { .kind = EVENT_TIME_WAIT };
	__u32 at, worker = this_worker();
	struct packet pkt = {};

	at = resume(skb, &pkt);
	if (!at || !is_sound(skb, &pkt, at) || is_martian(&pkt) || !passes_host(skb, &pkt))
		return TC_ACT_UNSPEC;
	event.flow = pkt.flow;
	/* Where no socket can be destroyed, one client may send many. It sends a dropped one again. */
	if (is_idle(worker))
		report(skb, &pkt, &event, worker, NULL);
	else
		count(STAT_EVENTS_LOST);
	return TC_ACT_SHOT;
}
