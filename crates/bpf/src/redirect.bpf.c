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
#include "half_open.h"
#include "multipath.h"
#include "observe.h"
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

/* The programs of deferred.bpf.c. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, TAIL_MAX);
	__type(key, __u32); /* enum step */
	__type(value, __u32);
} tail_calls SEC(".maps");

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

/* Whether the packet path carries a flow, or nothing does. It takes no Multipath TCP. */
static __always_inline bool is_left_to_packets(struct __sk_buff *skb, const struct packet *pkt,
					       __u32 at, const struct verdict *verdict)
{
	struct options options = {};

	if (verdict->action != ACTION_RELAY || verdict->data_path != DATA_PATH_PACKET)
		return false;
	if (verdict->multipath == MULTIPATH_CONVERT)
		look_at_options(skb, pkt, at, &options);
	return options.kind != OPTIONS_CAPABLE;
}

/* Looks up what to do with a flow, whose TCP header is at `at`. It is left alone where no
 * worker listens, and where its server, which may check the port (rsh, NFS), would get
 * another. */
GLOBAL int lookup_rule(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		       struct verdict *verdict)
{
	struct bpf_sock *listener;
	__u32 key;

	if (!pkt || !verdict)
		return ACTION_FORWARD;
	if (is_martian(pkt) || !find_rule(pkt, verdict))
		return ACTION_FORWARD;
	key = listener_key(this_worker(), pkt);
	listener = bpf_map_lookup_elem(&listeners, &key);
	if (!listener)
		return ACTION_FORWARD;
	bpf_sk_release(listener);
	if (is_left_to_packets(skb, pkt, at, verdict))
		return ACTION_FORWARD;
	if (verdict->action == ACTION_RELAY && bpf_ntohs(pkt->flow.client_port) < least_port) {
		count(STAT_PORTS);
		return ACTION_FORWARD;
	}
	return verdict->action;
}

/* Whether a segment is the first of a connection. */
static __always_inline bool opens(const struct tcphdr *tcp)
{
	return tcp->syn && !tcp->ack && !tcp->rst && !tcp->fin;
}

/* The advice of a profile on a SYN. */
enum advice {
	ADVICE_FORWARD,
	ADVICE_TRY, /* relay it, and see whether that works */
	ADVICE_RELAY,
};

/* Whether a profile is valid. */
static __always_inline bool is_current(const struct profile *profile,
				       const struct observing *how, __u64 now)
{
	if (profile->epoch != how->epoch || profile->state == PROFILE_DOUBTED)
		return false;
	if (profile->state == PROFILE_BYPASSED)
		return now < profile->until_ns;
	return now - profile->learned_ns < how->ttl_ns;
}

/* The advice of a valid profile. */
static __always_inline int advice_of(const struct profile *profile, const struct observing *how,
				     struct verdict *verdict)
{
	__u32 nearer = profile->client_us < profile->server_us ? profile->client_us :
								 profile->server_us;

	if (profile->state == PROFILE_BYPASSED) {
		count(STAT_BYPASSED);
		return ADVICE_FORWARD;
	}
	/* Each connection may reach another server behind the address. */
	if (profile->translated & TRANSLATED_DESTINATION) {
		count(STAT_TRANSLATED);
		return ADVICE_FORWARD;
	}
	/* Each round trip over the whole path becomes one over its longer half. */
	if ((__u64)nearer * verdict->rounds < how->gain_min_us) {
		count(STAT_NO_GAIN);
		return ADVICE_FORWARD;
	}
	verdict->out_ifindex = profile->out_ifindex;
	verdict->mss = profile->syn_mss;
	if (profile->options.mss && (!verdict->mss || profile->options.mss < verdict->mss))
		verdict->mss = profile->options.mss;
	return profile->state == PROFILE_VALIDATED ? ADVICE_RELAY : ADVICE_TRY;
}

/* Forwards a SYN and observes its handshake. */
static __always_inline void observe_handshake(struct __sk_buff *skb, const struct flow *flow,
					      __be32 isn, __u64 now, __u32 epoch)
{
	struct handshake made = {
		.syn_ns = now,
		.ifindex = skb->ifindex,
		.isn = isn,
		.epoch = epoch,
	};

	bpf_map_update_elem(&handshakes, flow, &made, BPF_ANY);
	bpf_map_update_elem(&leaving, &isn, flow, BPF_ANY);
	count(STAT_OBSERVED);
}

/* A SYN that its rule would relay. Without a profile that allows relaying, it is
 * forwarded, with every retransmission of it. */
GLOBAL int advise(struct __sk_buff *skb, const struct packet *pkt, struct verdict *verdict)
{
	const struct observing *how = how_to_observe();
	__u64 now = bpf_ktime_get_ns();
	struct handshake *handshake;
	struct profile *profile;
	struct half_open *half_open;
	struct flow flow;
	__be32 isn;
	int advice;

	if (!pkt || !verdict || !how)
		return ADVICE_FORWARD;
	flow = pkt->flow;
	isn = pkt->tcp.seq;
	handshake = bpf_map_lookup_elem(&handshakes, &flow);
	if (handshake && handshake->isn == isn) {
		handshake->flags |= HANDSHAKE_REPEATED;
		return ADVICE_FORWARD;
	}
	/* A retransmission of a SYN that is being relayed. */
	half_open = find_half_open(&flow);
	if (half_open && half_open->isn == isn)
		return ADVICE_RELAY;
	if (is_blocked(now)) {
		count(STAT_BLOCKED);
		return ADVICE_FORWARD;
	}
	profile = find_profile(&flow, skb->ifindex);
	if (profile && is_current(profile, how, now)) {
		if (bpf_map_lookup_elem(&forwarded, &flow))
			return ADVICE_FORWARD;
		advice = advice_of(profile, how, verdict);
		if (advice == ADVICE_TRY)
			bpf_map_update_elem(&trials, &flow, &profile->state, BPF_ANY);
		if (advice != ADVICE_FORWARD && profile->translated)
			bpf_map_update_elem(&hidden, &flow, &profile->translated, BPF_ANY);
		return advice;
	}
	observe_handshake(skb, &flow, isn, now, how->epoch);
	return ADVICE_FORWARD;
}

/* Applies the advice on a SYN that its rule would relay; returns the action. A trial
 * waits for the server's answer: only then can it still be forwarded. */
static __always_inline int apply_advice(struct __sk_buff *skb, const struct packet *pkt,
				struct verdict *verdict)
{
	switch (advise(skb, pkt, verdict)) {
	case ADVICE_RELAY:
		return ACTION_RELAY;
	case ADVICE_TRY:
		verdict->accept = ACCEPT_STRICT;
		verdict->trial = true;
		count(STAT_TRIALS);
		return ACTION_RELAY;
	}
	return ACTION_FORWARD;
}

/* Whether a SYN joins a connection, which may be one of the node's. While no rule
 * converts, no SYN pays for the look. */
static __always_inline bool joins(struct __sk_buff *skb, const struct packet *pkt, __u32 at)
{
	struct options options = {};

	if (!multipath_listener(listener_key(this_worker(), pkt)))
		return false;
	look_at_options(skb, pkt, at, &options);
	return options.kind == OPTIONS_JOIN;
}

/* Whether an earlier handshake showed that this host lets the client's connections through
 * from this interface. Otherwise this one is observed. */
GLOBAL int is_let_through(struct __sk_buff *skb, const struct packet *pkt)
{
	const struct observing *how = how_to_observe();
	__u64 now = bpf_ktime_get_ns();
	struct handshake *handshake;
	struct profile *profile;
	struct flow flow;

	if (!pkt || !how || is_blocked(now))
		return false;
	flow = pkt->flow;
	profile = find_profile(&flow, skb->ifindex);
	if (profile && is_current(profile, how, now))
		return true;
	handshake = bpf_map_lookup_elem(&handshakes, &flow);
	if (handshake && handshake->isn == pkt->tcp.seq)
		handshake->flags |= HANDSHAKE_REPEATED;
	else
		observe_handshake(skb, &flow, pkt->tcp.seq, now, how->epoch);
	return false;
}

/* A SYN that joins a connection is never a flow of its own. The path may be another than
 * that of the connection, so its own rule and interface must allow what the token requests.
 * With the mark it is one that a worker injected. */
static __always_inline int on_join(struct __sk_buff *skb, const struct packet *pkt)
{
	struct verdict verdict = {};
	__u32 out;

	if (is_martian(pkt) || !find_rule(pkt, &verdict) || verdict.action != ACTION_RELAY ||
	    verdict.multipath != MULTIPATH_CONVERT)
		return TC_ACT_UNSPEC;
	if (verdict.observe && !(skb->mark & socket_mark) && !is_let_through(skb, pkt))
		return TC_ACT_UNSPEC;
	out = forwardable(skb, pkt);
	if (out && hop_limit(pkt) > 1 && answerable(skb, pkt, out))
		bpf_tail_call(skb, &tail_calls, TAIL_JOIN_CONNECTION);
	return TC_ACT_UNSPEC;
}

/* `waiting`: the SYN met the TIME_WAIT socket of an earlier connection on the
 * same tuple. */
static __always_inline int on_syn(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
				  bool waiting)
{
	struct options options = {};
	struct verdict verdict = {};
	__u32 worker = this_worker();
	__u32 action, out;

	action = lookup_rule(skb, pkt, at, &verdict);
	if (action == ACTION_RELAY && verdict.observe)
		action = apply_advice(skb, pkt, &verdict);
	if (action == ACTION_FORWARD && !waiting)
		return TC_ACT_UNSPEC;
	out = forwardable(skb, pkt);
	/* With the last hop used up, a router drops it and sends an ICMP error. */
	if (!out || hop_limit(pkt) <= 1 || !answerable(skb, pkt, out))
		return TC_ACT_UNSPEC;
	skb->cb[MESSAGE_RULE] = verdict.generation << 16 | verdict.rule;
	skb->cb[MESSAGE_ACTION] = action | waiting << 8 | verdict.multipath << 16;
	skb->cb[MESSAGE_ACCEPT] = verdict.accept | verdict.trial << 8 | verdict.mss << 16;
	skb->cb[MESSAGE_OUT] = verdict.out_ifindex;
	bpf_tail_call(skb, &tail_calls, TAIL_OPEN_FLOW);
	/* The deferred programs are not loaded yet: early becomes late; strict is
	 * impossible, so forward, and so is what the server may do better. */
	look_at_options(skb, pkt, at, &options);
	if (action != ACTION_RELAY || verdict.accept & ACCEPT_HOLDS || waiting ||
	    is_draining(worker) || options.kind != OPTIONS_PLAIN)
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

static __always_inline int on_tcp(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	enum owner owner;

	if (!parse_tcp(skb, pkt, at))
		return TC_ACT_UNSPEC;
	owner = owner_of(skb, pkt);
	if (owner == OWNER_LISTENER) {
		if (may_send_syn_option(skb, pkt))
			bpf_tail_call(skb, &tail_calls, TAIL_PARSE_SYN_OPTION);
		owner = OWNER_NONE;
	}
	if ((owner == OWNER_NONE || owner == OWNER_WAITING) && opens(&pkt->tcp)) {
		bool waiting = owner == OWNER_WAITING;
		int verdict = !waiting && joins(skb, pkt, at) ? on_join(skb, pkt) :
								on_syn(skb, pkt, at, waiting);

		return verdict == TC_ACT_UNSPEC && !(skb->mark & redirect_mark) ? unhide(pkt) :
										  verdict;
	}
	switch (owner) {
	case OWNER_NONE:
		/* A client also resets a path that its server did not join. */
		if (pkt->tcp.ack && !pkt->tcp.syn && !pkt->tcp.fin)
			bpf_tail_call(skb, &tail_calls, TAIL_CHECK_COOKIE);
		return go_on(pkt);
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
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct packet pkt = {};
	__u32 at;

	/* A tagged frame belongs to the VLAN device, which has its own program. A
	 * marked one was handled before: a starting node is attached to an interface
	 * twice for a moment. A frame for another host was received promiscuously. */
	if (!device || skb->vlan_present || (skb->mark & redirect_mark) ||
	    skb->pkt_type != PACKET_HOST)
		return TC_ACT_UNSPEC;
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
		return on_tcp(skb, &pkt, at);
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
