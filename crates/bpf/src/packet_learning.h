/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What services grant, and by which way their answers come. A forwarded SYN and its SYN-ACK show
 * it. The node promises no more than was granted, and where a rule wants destinations
 * observed, it answers only where answers from there come back this way.
 */
#pragma once
#include "observe.h"
#include "packet_path.h"

/* Entries of flows that learn. Destinations without a profile are free to name for who
 * forges SYNs, and must not fill the flow table. */
#define LEARNING_MAX 1024
/* One flow at a time learns the same. Another one may try after a second, and if no
 * SYN-ACK came this way, the next after 2, 4, ... 256 s: the packets of some servers return
 * by another path. */
#define LEARNING_AGAIN_NS 1000000000ull
#define LEARNING_TRIES_MAX 8

/* By service, and by prefixes as `packet_passages`. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct profile_key);
	__type(value, struct packet_attempts);
} packet_attempts SEC(".maps");

/* Answers come back this way. A route holds for more than one address. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct packet_passage_key);
	__type(value, struct packet_passage);
} packet_passages SEC(".maps");

/* The first 24 bits of an IPv4 address, the first 64 of an IPv6 one. */
static __always_inline struct address prefix_address(const struct address *ip)
{
	if (is_mapped(ip))
		return mapped(ip->word[3] & bpf_htonl(0xffffff00));
	return (struct address){ .word = { ip->word[0], ip->word[1] } };
}

static __always_inline struct packet_passage_key passage_of(const struct flow *flow, __u32 ifindex)
{
	return (struct packet_passage_key){
		.client = prefix_address(&flow->client),
		.server = prefix_address(&flow->server),
		.ifindex = ifindex,
	};
}

static __always_inline struct profile_key prefixes_key(const struct flow *flow)
{
	return (struct profile_key){
		.client = prefix_address(&flow->client),
		.server = prefix_address(&flow->server),
	};
}

static __always_inline struct profile_key service_key(const struct flow *flow)
{
	return (struct profile_key){ .server = flow->server, .port = flow->server_port };
}

/* What can be held of segments of this size. */
static __always_inline __u32 held_window(__u32 mss)
{
	__u32 pieces = mss > PACKET_PAYLOAD_MAX ? (mss + PACKET_PIECE - 1) / PACKET_PIECE : 1;

	if (pieces > PACKET_HELD_MAX)
		return PACKET_HELD_MAX * PACKET_PIECE;
	return PACKET_HELD_MAX / pieces * mss;
}

/* The largest promise: 8 MB, in units of 128 bytes. In larger ones small windows of another
 * server would have no number. */
#define SHIFT_MAX 7

/* The promises of the node to a client, which may be granted `mss`. */
static __always_inline void promise(struct packet_flow *made, const struct packet_profile *profile,
				    __u32 mss, const struct read_options *offered)
{
	made->promised = profile->offers & offered->offers;
	made->mss = mss;
	made->node_window = profile->window;
	if (made->node_window > held_window(mss))
		made->node_window = held_window(mss);
	if (made->promised & OFFERS_WINDOW_SCALE) {
		made->promised_shift = profile->shift < SHIFT_MAX ? profile->shift : SHIFT_MAX;
		made->client_shift = offered->shift;
	}
}

/* The least delay that is worth it, and the longest: less than a client waits before it repeats
 * its SYN (RFC 6298 section 2.1). */
#define DELAY_MIN_US 10000
#define DELAY_MAX_US 500000

/* How long the answer to a client waits, in ms. A client that is much nearer than its server
 * takes the way to the node for the whole one, and repeats data that wait here for the server.
 * After the delay both handshakes complete together, so the server gets nothing later. An
 * eighth less, since the server may answer sooner than before. `key`: of the client's prefix. */
static __always_inline __u16 answer_delay(const struct packet_flow *made, __u64 key,
					  const struct packet_profile *profile)
{
	__u32 ifindex = made->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct packet_prefix *prefix = bpf_map_lookup_elem(&packet_prefixes, &key);
	__u32 least = profile->rtt_us - profile->rtt_us / 8;
	__u32 delay;

	if (!device || !device->paced || !prefix || !prefix->rtt_us || least < prefix->rtt_us)
		return 0;
	delay = least - prefix->rtt_us;
	if (delay < DELAY_MIN_US)
		return 0;
	return (delay < DELAY_MAX_US ? delay : DELAY_MAX_US) / 1000;
}

/* The client has acknowledged its answer. A longer way than before counts at once: to delay too
 * little costs less than to delay too much. `key`: of its prefix. */
static __always_inline void note_client_rtt(const struct packet_flow *entry, __u64 key)
{
	__u32 taken = (bpf_ktime_get_ns() - entry->since_ns) / 1000;
	__u32 delay = entry->delay_ms * 1000;
	struct packet_prefix *prefix = bpf_map_lookup_elem(&packet_prefixes, &key);
	__u32 rtt = taken > delay ? taken - delay : 1;

	if (!prefix)
		return;
	if (rtt < prefix->rtt_us)
		rtt = prefix->rtt_us - (prefix->rtt_us - rtt) / 8;
	prefix->rtt_us = rtt;
}

/* How long a profile is valid: an option that a server stopped granting is not offered to
 * it any more, so only a forwarded SYN can show that it grants the option again. */
#define PROFILE_NS UNLIKE_NS

static __always_inline bool is_valid(const struct packet_profile *profile, __u64 now)
{
	/* Zero is not long ago on a host that has just started. */
	return profile->learned_ns && now - profile->learned_ns < PROFILE_NS;
}

/* Whether a profile shows what the server grants of these options. The client of which it
 * was learned may have offered fewer. */
static __always_inline bool has_tested(const struct packet_profile *profile, __u8 offers, __u64 now)
{
	return is_valid(profile, now) && !(offers & ~profile->tested);
}

/* What is known in place of a segment size of a way that leaves by the interface by which it comes. */
#define PASSAGE_TURNS 1

/* The maximum segment size of connections between these prefixes, if answers were seen to come this way; else
 * 0, or PASSAGE_TURNS. */
GLOBAL int passage_mss(const struct flow *flow, __u32 ifindex, __u64 now)
{
	const struct observing *how = how_to_observe();
	struct packet_passage_key key;
	struct packet_passage *passage;

	if (!flow || !how)
		return 0;
	key = passage_of(flow, ifindex);
	passage = bpf_map_lookup_elem(&packet_passages, &key);
	if (!passage || now - passage->learned_ns >= how->ttl_ns)
		return 0;
	return passage->mss;
}

/* What fits the client's interface of a maximum segment size. A host that clamps it to the MTU of the
 * route leaves no more in the server's SYN-ACK. */
static __always_inline __u32 fit_mss(struct __sk_buff *skb, __u32 family, __u32 mss)
{
	__u32 headers = family == AF_INET ? 20 + 20 : 40 + 20;
	__u32 mtu = 0;

	bpf_check_mtu(skb, 0, &mtu, 0, 0);
	return mtu > headers && mtu - headers < mss ? mtu - headers : mss;
}

/* Whether the same may be learned now; then its next turn is later. */
static __always_inline bool take_turn(const struct profile_key *key, __u64 now)
{
	struct packet_attempts *former = bpf_map_lookup_elem(&packet_attempts, key);
	struct packet_attempts made = { .next_ns = now + LEARNING_AGAIN_NS, .tries = 1 };

	if (former) {
		if (now < former->next_ns)
			return false;
		made.next_ns = now + (LEARNING_AGAIN_NS << (former->tries & 15));
		made.tries = former->tries;
		if (made.tries < LEARNING_TRIES_MAX)
			made.tries += 1;
	}
	bpf_map_update_elem(&packet_attempts, key, &made, BPF_ANY);
	return true;
}

static __always_inline void leave_learning(void)
{
	struct packet_control *control = control_of_node();

	if (control)
		__sync_fetch_and_sub(&control->learning, 1);
}

/* Ends the learning of a flow, whose state becomes `to`. Only the caller that changes the
 * state returns its place. */
static __always_inline void stop_learning(struct packet_flow *entry, __u32 to)
{
	if (change(entry, PACKET_LEARNING, to))
		leave_learning();
}

/* Makes the entry of a flow whose SYN-ACK shows what the node has not learned yet: what its service grants, or that
 * its answers come this way. False if the same was learned a moment ago, or there is no room. */
static __always_inline bool enter_learning(const struct packet_key *key, const struct packet_flow *made,
					   bool about_service)
{
	struct packet_control *control = control_of_node();
	struct flow flow = flow_of(key, made->turned);
	struct profile_key about = about_service ? service_key(&flow) : prefixes_key(&flow);

	if (!control || control->learning >= LEARNING_MAX || !take_turn(&about, made->since_ns)) {
		count(STAT_PACKET_UNLEARNED);
		return false;
	}
	__sync_fetch_and_add(&control->learning, 1);
	if (bpf_map_update_elem(&packet_flows, key, made, BPF_NOEXIST)) {
		leave_learning();
		return false;
	}
	count(STAT_PACKET_LEARNING);
	return true;
}

/* Bytes that a server sends before it waits for an acknowledgement (RFC 6928). A split
 * saves round trips of longer answers. */
#define FIRST_WINDOW (10 * 1448)

/* Whether a segment of the server shows that its answer is long. */
static __always_inline bool is_long(const struct packet_flow *entry, __u32 seq)
{
	__u32 sent = seq + entry->seq_delta - entry->node_isn;

	/* The first beyond the window are near it: who guesses a number hits none of them. */
	return sent > FIRST_WINDOW && sent - FIRST_WINDOW < GAP_MAX;
}

/* Stores it with what its destination grants: both are valid for as long. */
GLOBAL int note_long(const struct packet_key *key, struct packet_flow *entry)
{
	struct packet_profile *profile;
	struct destination service;
	struct flow flow;

	if (!key || !entry)
		return 0;
	entry->is_long = true;
	flow = flow_of(key, entry->turned);
	service = service_of(&flow);
	profile = bpf_map_lookup_elem(&packet_profiles, &service);
	if (profile)
		profile->is_long = true;
	return 0;
}

/* Bytes of a client that show that it sends much, once they are acknowledged. Its congestion control takes the time until it
 * was answered for the round trip, and one that paces by it (BBR) is slow for ten seconds, if
 * the server is further away. */
#define SENT_MUCH 30000
/* How long that is expected of clients of the destination. */
#define RECEIVED_NS (24 * 3600 * 1000000000ull)

static __always_inline bool sends_much(const struct packet_flow *entry, __u32 acked)
{
	__u32 sent = acked - entry->client_isn - 1;

	/* As for long answers. */
	return sent > SENT_MUCH && sent - SENT_MUCH < GAP_MAX;
}

static __always_inline bool receives_much(const struct packet_profile *profile, __u64 now)
{
	return profile->received_ns && now - profile->received_ns < RECEIVED_NS;
}

GLOBAL int note_sender(const struct packet_key *key, struct packet_flow *entry)
{
	struct packet_profile *profile;
	struct destination service;
	struct flow flow;

	if (!key || !entry)
		return 0;
	entry->is_sender = true;
	flow = flow_of(key, entry->turned);
	service = service_of(&flow);
	profile = bpf_map_lookup_elem(&packet_profiles, &service);
	if (profile)
		profile->received_ns = bpf_ktime_get_ns();
	return 0;
}


/* A segment of the server, of a flow that learns. */
GLOBAL int measure(struct __sk_buff *skb, struct packet_flow *entry, const struct view *view)
{
	bool has_shown;
	__be32 ack;

	if (!entry || !view)
		return NEXT;
	if (!entry->is_sender && view->flags & TCP_ACK &&
	    !bpf_skb_load_bytes(skb, view->at + TCP_ACK_AT, &ack, sizeof(ack)) &&
	    sends_much(entry, bpf_ntohl(ack)))
		note_sender(&view->key, entry);
	has_shown = is_long(entry, view->seq);
	if (has_shown)
		note_long(&view->key, entry);
	if (has_shown || view->flags & (TCP_FIN | TCP_RST)) {
		stop_learning(entry, PACKET_REMOVED);
		bpf_map_delete_elem(&packet_flows, &view->key);
	}
	return NEXT;
}

/* RFC 9293 section 3.7.1, and the least that is promised. */
#define MSS_LEAST 536

/* Without the option, the default (RFC 9293 section 3.7.1); that of IPv6 is larger, and the smaller one
 * is safe. */
static __always_inline __u16 granted_mss(const struct read_options *options)
{
	return options->mss ? options->mss : MSS_LEAST;
}

/* The SYN-ACK for a forwarded SYN. What it shows counts once the client has acknowledged it. Bounds: no server
 * has a window of 0 for long, or takes so small segments; a client that was promised that would be slow. */
static __always_inline void note_grant(struct __sk_buff *skb, struct packet_flow *entry,
				       const struct packet *pkt,
				       const struct read_options *options)
{
	if (granted_mss(options) < MSS_LEAST || !pkt->tcp.window)
		return;
	entry->node_isn = bpf_ntohl(pkt->tcp.seq);
	entry->node_window = bpf_ntohs(pkt->tcp.window);
	entry->mss = granted_mss(options);
	entry->granted = options->offers & entry->promised;
	entry->server_shift = options->shift;
	entry->nearer_us = (bpf_ktime_get_ns() - entry->since_ns) / 1000;
	entry->server_ifindex = skb->ingress_ifindex;
}

static __always_inline bool is_equal(const struct packet_profile *one,
				     const struct packet_profile *other)
{
	return one->learned_ns == other->learned_ns && one->mss == other->mss &&
	       one->window == other->window && one->shift == other->shift &&
	       one->offers == other->offers && one->tested == other->tested &&
	       one->rtt_us == other->rtt_us && one->answers_from == other->answers_from &&
	       one->bad_until_ns == other->bad_until_ns;
}

/* Whether a server that grants these must keep its destination off this path, since it grants less
 * than most. Behind one address there may be others: what the node strips from the SYNs of all, their
 * clients would miss. Timestamps do not count: many servers have none, and what is lost is little. */
static __always_inline bool is_plain_server(const struct packet_flow *entry, __u8 granted)
{
	return entry->promised & ~granted & (OFFERS_SACK | OFFERS_WINDOW_SCALE);
}

/* A SYN-ACK shows what its server grants of the options that it was offered. What it was
 * not offered stays as it was. */
GLOBAL int learn_profile(const struct destination *of, const struct packet_flow *entry, __u32 window)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_profile made = {}, *profile;
	struct destination service;
	__u64 now = bpf_ktime_get_ns();
	__u32 rtt_us;
	__u8 offered;
	__u16 mss;

	if (!of || !entry || !scratch)
		return 0;
	service = *of;
	offered = entry->promised;
	profile = bpf_map_lookup_elem(&packet_profiles, &service);
	if (profile) {
		made.bad_until_ns = profile->bad_until_ns;
		made.received_ns = profile->received_ns;
	}
	if (profile && is_valid(profile, now)) {
		made = *profile;
		made.tested &= ~offered;
		made.offers &= ~offered;
	}
	if (!made.learned_ns || entry->state == PACKET_LEARNING)
		made.learned_ns = now;
	rtt_us = entry->state == PACKET_LEARNING ? entry->nearer_us :
						   (now - entry->since_ns) / 1000;
	if (!made.rtt_us || rtt_us < made.rtt_us)
		made.rtt_us = rtt_us;
	/* The most that a client was granted, whose connections may be clamped, but no more than a promise that was
	 * broken. */
	mss = granted_mss(&scratch->options);
	if (!made.mss || (entry->state == PACKET_LEARNING ? mss > made.mss :
							      mss < made.mss && mss >= MSS_LEAST))
		made.mss = mss;
	if (window)
		made.window = window;
	made.answers_from = entry->server_ifindex;
	/* The most that a server needed. */
	if (offered & OFFERS_WINDOW_SCALE && scratch->options.shift > made.shift)
		made.shift = scratch->options.shift;
	made.tested |= offered;
	made.offers |= scratch->options.offers & offered;
	if (entry->state == PACKET_LEARNING && is_plain_server(entry, scratch->options.offers))
		made.bad_until_ns = now + UNLIKE_NS;
	/* Most SYN-ACKs show what is known, and writing costs several look-ups. */
	if (!profile || !is_equal(profile, &made))
		bpf_map_update_elem(&packet_profiles, &service, &made, BPF_ANY);
	return 0;
}

/* Answers to the client come this way. A firewall may clamp the segments of all its connections (RFC 6691), and a
 * server only those of its own: the most counts. */
GLOBAL int note_passage(const struct flow *flow, const struct packet_flow *entry)
{
	struct packet_passage made = { .learned_ns = bpf_ktime_get_ns() };
	struct packet_passage_key key;
	__u32 former;

	if (!flow || !entry)
		return 0;
	former = passage_mss(flow, entry->ifindex, made.learned_ns);
	made.mss = former > entry->mss ? former : entry->mss;
	key = passage_of(flow, entry->ifindex);
	bpf_map_update_elem(&packet_passages, &key, &made, BPF_ANY);
	return 0;
}

/* SYNs to there leave by the interface by which they come. */
GLOBAL int note_turn(const struct packet_key *key, const struct packet_flow *flow)
{
	struct packet_passage made = { .learned_ns = bpf_ktime_get_ns(), .mss = PASSAGE_TURNS };
	struct packet_passage_key passage;
	struct flow ends;

	if (!key || !flow)
		return 0;
	ends = flow_of(key, flow->turned);
	passage = passage_of(&ends, flow->ifindex);
	bpf_map_update_elem(&packet_passages, &passage, &made, BPF_ANY);
	return 0;
}

/* It was learned: the next time may be at once. */
GLOBAL int end_attempts(const struct flow *flow)
{
	struct profile_key key;

	if (!flow)
		return 0;
	key = prefixes_key(flow);
	bpf_map_delete_elem(&packet_attempts, &key);
	key = service_key(flow);
	bpf_map_delete_elem(&packet_attempts, &key);
	return 0;
}

/* A segment of the client of a flow that learns: its first completes the handshake. Who forges the SYN-ACK for a
 * client that is not its own does not come so far. The flow goes on to learn how long the answer is, unless
 * its destination is known; its place is bounded, and free after a time at the latest. */
GLOBAL int confirm(struct __sk_buff *skb, const struct packet_key *key, struct packet_flow *entry,
		   const struct view *view)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_profile *profile;
	struct destination service;
	struct flow flow;
	__be32 ack;

	if (!key || !entry || !view || !scratch || !entry->node_window ||
	    skb->ifindex != entry->ifindex ||
	    (view->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_ACK ||
	    view->seq != entry->client_isn + 1 ||
	    bpf_skb_load_bytes(skb, view->at + TCP_ACK_AT, &ack, sizeof(ack)) ||
	    bpf_ntohl(ack) != entry->node_isn + 1)
		return NEXT;
	flow = flow_of(key, entry->turned);
	service = service_of(&flow);
	profile = bpf_map_lookup_elem(&packet_profiles, &service);
	entry->is_measured = !profile || !is_valid(profile, bpf_ktime_get_ns());
	scratch->options.mss = entry->mss;
	scratch->options.shift = entry->server_shift;
	scratch->options.offers = entry->granted;
	learn_profile(&service, entry, entry->node_window);
	note_passage(&flow, entry);
	end_attempts(&flow);
	entry->node_window = 0;
	if (!entry->is_measured) {
		stop_learning(entry, PACKET_REMOVED);
		bpf_map_delete_elem(&packet_flows, key);
	}
	return NEXT;
}

/* A SYN-ACK, from the server, for a flow that was answered: if it grants a smaller maximum
 * segment size than was promised, the client learns it at its first longer segment, and is
 * promised no more from now on. */
GLOBAL int note_mss(const struct flow *of, struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_passage_key key;
	struct packet_passage *passage;
	struct flow flow;
	__u16 granted;

	if (!of || !entry || !scratch)
		return 0;
	granted = granted_mss(&scratch->options);
	if (granted >= entry->mss)
		return 0;
	entry->mss = granted;
	entry->granted |= GRANTS_SHORT;
	flow = reversed(of);
	key = passage_of(&flow, entry->ifindex);
	passage = bpf_map_lookup_elem(&packet_passages, &key);
	if (passage && granted < passage->mss && granted >= MSS_LEAST)
		passage->mss = granted;
	return 0;
}

/* After silence all is learned anew: the server's packets may return by another path
 * now, or a firewall may have changed. */
static __always_inline void forget(const struct flow *flow, __u32 ifindex)
{
	struct destination service = service_of(flow);
	struct packet_profile *profile = bpf_map_lookup_elem(&packet_profiles, &service);
	struct packet_passage_key key = passage_of(flow, ifindex);

	mark_bad(&service, BAD_NS);
	if (profile)
		profile->learned_ns = 0;
	bpf_map_delete_elem(&packet_passages, &key);
}
