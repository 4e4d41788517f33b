// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Programs that a node loads after it has begun to relay: the verifier takes some
 * milliseconds for them.
 *
 * open_flow, check_cookie, hold_syn_ack, and those in deferred_*.h
 *                 called by `redirect`, to continue with a packet
 * find_listener   sk_lookup, only for SYNs that meet a TIME_WAIT socket
 * inject          run by user space, injects a frame at a device
 */
#include "deferred_fragments.h"
#include "deferred_multipath.h"
#include "deferred_syn_option.h"

/* Destinations that failed in early mode, and until when that counts (CLOCK_MONOTONIC,
 * ns). */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct destination);
	__type(value, __u64);
} failed_destinations SEC(".maps");

/* Flows whose SYN met a TIME_WAIT socket, and the key in `listeners` of the
 * listener meant for them. */
#define NO_LISTENER 0xffffffff

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct flow);
	__type(value, __u32);
} time_wait_syns SEC(".maps");

/* A SYN with a lower TTL may be a traceroute's, or be in a routing loop: its
 * destination or a router must answer it, not this host. */
#define HOP_LIMIT_SURE 32

/* The action on a SYN. SYN_LISTEN has the listener's key in the higher bits. */
#define SYN_PASS 0   /* on, unrelayed */
#define SYN_HOLD 1   /* nowhere: the worker has a copy */
#define SYN_LISTEN 2 /* to a listener */
#define SYN_ACTION_BITS 2

/* A function of its own, as all on the way of a SYN together have 512 bytes of stack. */
GLOBAL int has_failed(const struct packet *pkt)
{
	struct destination key;
	__u64 *until;

	if (!pkt)
		return false;
	key = destination_of(pkt);
	until = bpf_map_lookup_elem(&failed_destinations, &key);
	return until && bpf_ktime_get_ns() < *until;
}

static __always_inline __u32 action_of_retransmission(const struct half_open *half_open,
						    const struct packet *pkt)
{
	switch (half_open->syn) {
	case SYN_ADMITTED:
		return SYN_LISTEN | listener_key(half_open->worker, pkt) << SYN_ACTION_BITS;
	case SYN_HELD:
		return SYN_HOLD;
	}
	return SYN_PASS;
}

/* Of the flows of a near prefix one in so many opens early, to measure it again. */
#define NEAR_SAMPLE 64

/* Whether the client is so near that a flow may as well open late, which costs less. */
static __always_inline bool gains_nothing(const struct packet *pkt)
{
	__u64 prefix = client_prefix(pkt);
	__u8 *near = bpf_map_lookup_elem(&validated_prefixes, &prefix);

	return near && *near && bpf_get_prandom_u32() % NEAR_SAMPLE;
}

/* Decides on the SYN of a flow to relay, and reports it to the worker. */
GLOBAL __u32 admit_syn(struct __sk_buff *skb, const struct packet *pkt, struct event_head *event)
{
	struct half_open made = {};
	struct half_open *half_open;
	__u32 worker, listen;
	struct flow flow;
	__u8 accept;

	if (!pkt || !event)
		return SYN_PASS;
	worker = placed_worker(pkt);
	flow = pkt->flow;
	half_open = find_half_open(&flow);
	if (half_open && half_open->isn == pkt->tcp.seq)
		return action_of_retransmission(half_open, pkt);
	/* The client starts over: the worker of the former attempt must end that. */
	if (half_open)
		worker = half_open->worker;
	listen = SYN_LISTEN | listener_key(worker, pkt) << SYN_ACTION_BITS;
	if (is_draining(worker))
		return SYN_PASS;
	if (worker != this_worker())
		count(STAT_PLACED);
	accept = event->accept;
	if (!(accept & ACCEPT_AT_SYN))
		return listen;
	if (accept & ACCEPT_YIELDS && has_failed(pkt)) {
		count(STAT_FAILED_DESTINATIONS);
		accept = ACCEPT_STRICT;
	}
	if (hop_limit(pkt) < HOP_LIMIT_SURE)
		accept = ACCEPT_STRICT;
	event->accept = accept;
	made.worker = worker;
	made.isn = pkt->tcp.seq;
	if (accept & ACCEPT_HOLDS) {
		made.syn = SYN_HELD;
		/* The ring is full: it cannot be held, so forward. */
		return report(skb, pkt, event, worker, &made) ? SYN_HOLD : SYN_PASS;
	}
	if (!half_open && gains_nothing(pkt))
		return listen;
	made.syn = SYN_ADMITTED;
	/* The ring is full: early becomes late. */
	report(skb, pkt, event, worker, &made);
	return listen;
}

/* Acts on the verdict about a SYN. */
static __always_inline __u32 act_on_verdict(struct __sk_buff *skb, const struct packet *pkt,
					    const struct verdict *verdict)
{
	struct event_head event = {
		.kind = EVENT_SYN,
		.flow = pkt->flow,
		.rule = verdict->rule,
		.generation = verdict->generation,
		.accept = verdict->accept,
		.trial = verdict->trial,
		.mss = verdict->mss,
		.bind_ifindex = verdict->bind_ifindex,
	};

	switch (verdict->action) {
	case ACTION_FORWARD:
		return SYN_PASS;
	case ACTION_REJECT:
		if (is_followed() && is_draining(this_worker()))
			return SYN_PASS;
		event.kind = EVENT_REJECT;
		report(skb, pkt, &event, this_worker(), NULL);
		return SYN_HOLD;
	}
	return admit_syn(skb, pkt, &event);
}

/* The SYN is forwarded: lets later packets of the flow through as well. */
GLOBAL int unhide(const struct packet *pkt)
{
	struct flow flow;

	if (pkt) {
		flow = pkt->flow;
		bpf_map_delete_elem(&hidden, &flow);
		bpf_map_delete_elem(&trials, &flow);
	}
	return TC_ACT_UNSPEC;
}

/* Decides on a SYN by its rule and by earlier handshakes between the same hosts. */
static __always_inline void decide(struct __sk_buff *skb, const struct packet *pkt, bool capable,
				   struct verdict *verdict)
{
	verdict->action = lookup_rule(pkt, placed_worker(pkt), capable, verdict);
	if (verdict->action == ACTION_RELAY && verdict->observe)
		verdict->action = apply_advice(skb, pkt, verdict);
}

/*
 * A SYN, which opens a flow if its rule and this host allow that. With a TIME_WAIT socket of an earlier
 * connection on the same tuple, the kernel must see the SYN itself (it checks sequence
 * number and timestamp, RFC 6191) and then calls find_listener; a listener assigned
 * here would leave the TIME_WAIT socket, which would swallow the client's ACK. A SYN to
 * be forwarded goes to that socket too, and to no listener, since forwarding drops
 * packets that have a socket: it answers with an ACK, the client resets it, and the
 * retransmitted SYN is forwarded.
 */
SEC("classifier")
int open_flow(struct __sk_buff *skb)
{
	bool waiting = skb->cb[MESSAGE_WAITING];
	__u32 at, action, key = NO_LISTENER;
	struct options options = {};
	struct verdict verdict = {};
	struct packet pkt = {};
	bool capable;

	at = resume(skb, &pkt);
	if (!at)
		return TC_ACT_UNSPEC;
	look_at_options(skb, &pkt, at, &options);
	capable = options.kind == OPTIONS_CAPABLE;
	/* While no rule converts, it is a SYN as others. */
	if ((capable || options.kind == OPTIONS_JOIN) &&
	    multipath_listener(listener_key(this_worker(), &pkt))) {
		if (waiting && !(skb->mark & socket_mark) && !is_draining(this_worker()))
			bpf_tail_call(skb, &tail_calls, TAIL_END_TIME_WAIT);
		if (!capable && may_join(skb, &pkt))
			bpf_tail_call(skb, &tail_calls, TAIL_JOIN_CONNECTION);
		if (!capable)
			return unhide(&pkt);
	}
	/* Of a SYN that a worker injected again. */
	skb->mark &= ~socket_mark;
	decide(skb, &pkt, capable, &verdict);
	if ((verdict.action == ACTION_FORWARD && !waiting) || !passes_host(skb, &pkt))
		return unhide(&pkt);
	action = SYN_PASS;
	if (is_sound(skb, &pkt, at) && !is_foreign(&options))
		action = passes_multipath(&pkt, &verdict, capable) ?
				 SYN_PASS :
				 act_on_verdict(skb, &pkt, &verdict);
	else
		waiting = false;
	if (action == SYN_PASS)
		unhide(&pkt);
	if (action == SYN_HOLD)
		return TC_ACT_SHOT;
	if (action != SYN_PASS) {
		key = action >> SYN_ACTION_BITS;
		count(STAT_REDIRECTED);
	}
	if (!waiting && action != SYN_PASS) {
		if (capable && verdict.multipath == MULTIPATH_CONVERT)
			give_capable(skb, &pkt, key);
		else
			give(skb, key);
		/* Its listener may be gone: then the SYN is forwarded. */
		if (!(skb->mark & redirect_mark))
			bpf_map_delete_elem(&hidden, &pkt.flow);
	}
	if (!waiting)
		return TC_ACT_UNSPEC;
	if (action == SYN_PASS && is_followed())
		return TC_ACT_UNSPEC;
	if (action != SYN_PASS)
		count(STAT_TIME_WAIT_SYNS);
	bpf_map_update_elem(&time_wait_syns, &pkt.flow, &key, BPF_ANY);
	return deliver(skb);
}

/* The state of a new profile that replaces `former`. A doubt is confirmed: the
 * forwarded flow was answered. */
static __always_inline __u8 next_state(const struct profile *former, const struct observing *how,
				       __u64 now)
{
	if (!former || former->epoch != how->epoch)
		return PROFILE_LEARNED;
	if (former->state == PROFILE_DOUBTED && now < former->until_ns) {
		count(STAT_BYPASSES);
		return PROFILE_BYPASSED;
	}
	if (former->state == PROFILE_BYPASSED && now < former->until_ns)
		return PROFILE_BYPASSED;
	return former->state == PROFILE_VALIDATED ? PROFILE_VALIDATED : PROFILE_LEARNED;
}

static __always_inline __u32 microseconds(__u64 from_ns, __u64 to_ns)
{
	__u64 us = (to_ns - from_ns) / 1000;

	return us < 0xffffffff ? us : 0xffffffff;
}

/* Learns from a handshake that the client's ACK completes. The result is dated to the
 * SYN, which the firewall accepted: a client that delays its ACK must not extend that. */
GLOBAL int learn(struct __sk_buff *skb, const struct packet *pkt)
{
	const struct observing *how = how_to_observe();
	struct profile learned = {};
	struct handshake *handshake;
	struct profile_key key;
	__u8 went_past = 1;
	struct flow flow;
	__u64 now;
	__be32 isn;

	if (!pkt || !how)
		return 0;
	flow = pkt->flow;
	handshake = bpf_map_lookup_elem(&handshakes, &flow);
	if (!handshake || !handshake->syn_ack_ns || handshake->ack != pkt->tcp.ack_seq)
		return 0;
	key = profile_key(&flow);
	if (handshake->flags == HANDSHAKE_LEFT && handshake->ifindex == skb->ifindex &&
	    handshake->epoch == how->epoch) {
		now = bpf_ktime_get_ns();
		learned.learned_ns = handshake->syn_ns;
		learned.until_ns = now + how->bypass_ns;
		learned.source = handshake->source;
		learned.ifindex = skb->ifindex;
		learned.epoch = how->epoch;
		learned.client_us = microseconds(handshake->syn_ack_ns, now);
		learned.server_us = microseconds(handshake->syn_ns, handshake->syn_ack_ns);
		learned.out_ifindex = handshake->out_ifindex;
		learned.options = handshake->options;
		learned.syn_mss = handshake->syn_mss;
		learned.translated = handshake->translated;
		learned.routed = handshake->routed;
		learned.state = next_state(find_profile(&flow, skb->ifindex), how, now);
		bpf_map_update_elem(&profiles, &key, &learned, BPF_ANY);
		count(STAT_LEARNED);
	}
	isn = handshake->isn;
	bpf_map_update_elem(&forwarded, &flow, &went_past, BPF_ANY);
	bpf_map_delete_elem(&leaving, &isn);
	bpf_map_delete_elem(&handshakes, &flow);
	return 0;
}

/* Whether an ACK returns the SYN cookie of this listener. */
static __always_inline bool is_valid_cookie(struct packet *pkt, struct bpf_sock *listener)
{
	if (pkt->family == AF_INET)
		return !bpf_tcp_check_syncookie(listener, &pkt->ip.v4, sizeof(pkt->ip.v4),
						&pkt->tcp, sizeof(pkt->tcp));
	return !bpf_tcp_check_syncookie(listener, &pkt->ip.v6, sizeof(pkt->ip.v6), &pkt->tcp,
					sizeof(pkt->tcp));
}

/*
 * A segment without a socket. An ACK may complete an observed handshake. Or it is the last
 * one of a handshake that the listener answered with a SYN cookie, which has no socket
 * yet; only the node's listener can have made the cookie.
 */
SEC("classifier")
int check_cookie(struct __sk_buff *skb)
{
	struct options options = {};
	struct bpf_sock *listener;
	struct packet pkt = {};
	struct half_open *half_open;
	struct flow flow;
	__u32 at, key;
	bool valid;

	at = resume(skb, &pkt);
	if (!at)
		return TC_ACT_UNSPEC;
	/* A client also resets a path that its server did not join. */
	if (!pkt.tcp.ack || pkt.tcp.syn || pkt.tcp.fin)
		return go_on(&pkt);
	learn(skb, &pkt);
	flow = pkt.flow;
	half_open = find_half_open(&flow);
	key = listener_key(half_open ? half_open->worker : placed_worker(&pkt), &pkt);
	if (multipath_listener(key))
		look_at_options(skb, &pkt, at, &options);
	if (options.kind == OPTIONS_CAPABLE)
		listener = find_capable(skb, &pkt, key);
	else if (options.kind == OPTIONS_JOIN_ACK)
		listener = find_join(skb, &pkt, join_worker(&pkt));
	else
		listener = bpf_map_lookup_elem(&listeners, &key);
	if (!listener)
		return go_on(&pkt);
	valid = is_valid_cookie(&pkt, listener);
	/* With a half-open entry it is from a node whose SYN had an option. */
	if (!valid || (!half_open && !forwardable(skb, &pkt))) {
		bpf_sk_release(listener);
		return go_on(&pkt);
	}
	count(STAT_COOKIES);
	bpf_sk_assign(skb, listener, 0);
	bpf_sk_release(listener);
	return deliver(skb);
}

/* A SYN-ACK for an upstream socket of the node. The worker holds it while the client
 * has a half-open entry. */
SEC("classifier")
int hold_syn_ack(struct __sk_buff *skb)
{
	struct event_head event = { .kind = EVENT_SYN_ACK };
	struct packet pkt = {};
	struct half_open *half_open;

	if (!resume(skb, &pkt))
		return TC_ACT_UNSPEC;
	event.flow = reversed(&pkt.flow);
	half_open = find_half_open(&event.flow);
	/* It may be for a successor, which then has the half-open entry. */
	if (!half_open)
		return is_followed() ? TC_ACT_UNSPEC : deliver(skb);
	/* A full ring loses the copy; the server retransmits its SYN-ACK. */
	report(skb, &pkt, &event, half_open->worker, NULL);
	return TC_ACT_SHOT;
}

/*
 * A `struct flow` in pieces that are written once each. The node has dropped
 * CAP_PERFMON by now, and without it the verifier of Linux 6.1 rejects a second write
 * to the same eight bytes of stack.
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
	key = bpf_map_lookup_elem(&time_wait_syns, &flow);
	if (!key)
		return SK_PASS;
	listener = bpf_map_lookup_elem(&listeners, key);
	bpf_map_delete_elem(&time_wait_syns, &flow);
	/* Without a listener of the node there must be none: a wildcard listener of the
	 * host must not accept a flow in transit. */
	if (!listener)
		return SK_DROP;
	bpf_sk_assign(ctx, listener, 0);
	bpf_sk_release(listener);
	return SK_PASS;
}

/* Injects the frame it is run with at the device cb[0]; cb[1] is the direction
 * (BPF_F_INGRESS or 0), and cb[2] whether it gets the mark of the node's sockets. */
SEC("classifier")
int inject(struct __sk_buff *skb)
{
	/* The mark shows that the node itself sent the frame. */
	if (skb->cb[2])
		skb->mark |= socket_mark;
	return bpf_clone_redirect(skb, skb->cb[0], skb->cb[1]);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
