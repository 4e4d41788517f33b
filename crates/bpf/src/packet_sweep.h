/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What happens to flows of the packet path without a packet of theirs. User space runs
 * these programs.
 *
 * packet_sweep    removes entries that have lived their time
 * packet_resend   sends a SYN again that the server has not answered, and in the end resets
 *                 the client; probes the ends of an idle flow, and in the end
 *                 resets both
 * packet_abort    resets both ends of a flow
 */
#pragma once
#include "packet_learning.h"
#include "packet_segment.h"

#define SECOND_NS 1000000000ull
/* How long entries live. Without a SYN-ACK: */
#define LEARNING_NS (10 * SECOND_NS)
/* While the client has not acknowledged its answer: as Linux repeats a SYN-ACK. */
#define HALF_OPEN_NS (63 * SECOND_NS)
/* After the flow was given up, until the client's next segment, which is reset. */
#define GIVEN_UP_NS (60 * SECOND_NS)
/* After a reset, and after both FINs are acknowledged: longer than the time in which one that was lost
 * five times in a row is repeated. */
#define CLOSED_NS (2 * SECOND_NS)
#define FINISHED_NS (15 * SECOND_NS)
/* How often the ends of an idle flow are probed, 1, 2, ... 64 s after the last time but not later than flows are
 * idle. It ends as late as a client of Linux gives up its SYN. */
#define PROBES_MAX 7
/* How often both ends are reset then. */
#define RESETS_MAX 4

/* Keys in a frame. */
#define SWEEP_KEYS_MAX 96
/* Where they start: the kernel runs a program only on a frame with a link layer header. */
#define SWEEP_KEYS_AT ETH_HLEN
/* Above these bits of the return value are the SYNs to send again. */
#define SWEEP_LEFT_BITS 16

#define SWEEP_ALIVE 1
#define SWEEP_LAST 2

/* A sweep. */
struct sweep {
	struct __sk_buff *skb; /* with the keys */
	__u64 now;
	__u32 left;
	__u32 due; /* SYNs to send again */
};

static __always_inline __u64 elapsed(__u64 since, __u64 now)
{
	return now > since ? now - since : 0;
}

static __always_inline struct packet_patience *patience_of_node(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&packet_patience, &only);
}

/* How long a client may take to acknowledge its answer. Like a host whose queue of handshakes fills, the node
 * waits less while more than half of a budget is used up. `key`: of the client's prefix. */
static __always_inline __u64 half_open_ns(__u64 key)
{
	struct packet_prefix *prefix = bpf_map_lookup_elem(&packet_prefixes, &key);
	struct packet_patience *patience = patience_of_node();
	struct packet_control *control = control_of_node();

	if (!patience || !control)
		return HALF_OPEN_NS;
	if (control->half_open > SET(setting_budget) / 2 ||
	    (prefix && prefix->half_open > SET(setting_prefix_budget) / 2))
		return patience->half_open_ns;
	return patience->half_open_ns > HALF_OPEN_NS ? patience->half_open_ns : HALF_OPEN_NS;
}

/* Whether an entry has lived its time. An open flow has not as long as one of its ends may wait for the
 * other. */
static __always_inline bool is_stale(const struct packet_key *key, const struct packet_flow *entry,
				     __u64 now)
{
	__u64 age = elapsed(entry->since_ns, now), idle = elapsed(entry->last_ns, now);

	switch (entry->state) {
	case PACKET_LEARNING:
		return age > LEARNING_NS;
	case PACKET_ANSWERED:
	case PACKET_ACCEPTED:
		return age > half_open_ns(prefix_of_flow(key, entry));
	case PACKET_GIVEN_UP:
		return idle > GIVEN_UP_NS;
	case PACKET_CLOSED:
	case PACKET_ABORTED:
		return idle > CLOSED_NS;
	case PACKET_OPEN:
		return has_closed(entry) && idle > FINISHED_NS;
	}
	return entry->state == PACKET_REMOVED;
}

/* Whether the server has had the time that its rule allows. */
static __always_inline bool is_given_up(const struct packet_flow *entry, __u64 now)
{
	return elapsed(entry->since_ns, now) > entry->connect_cs * (SECOND_NS / 100);
}

/* `tries` of a flow whose client was reset. */
#define TRIES_RESET 255

/* How often a SYN may be sent again. A client that is not validated repeats its SYN
 * if it got no SYN-ACK; but it may have got it, its ACK may be lost, and if it waits for the server to speak it
 * sends nothing more. */
static __always_inline __u32 tries_max(const struct packet_flow *entry)
{
	return entry->state == PACKET_HELD ? 10 : entry->state == PACKET_ANSWERED ? 1 : 0;
}

/* Whether the node has to probe the ends of an idle flow, or to end it since they do not. */
static __always_inline bool has_to_probe(const struct packet_flow *entry, __u64 now)
{
	__u64 wait = SECOND_NS << (entry->tries & 7) >> 1;
	struct packet_patience *patience = patience_of_node();
	__u64 idle = elapsed(entry->last_ns, now);

	if (!patience || has_closed(entry))
		return false;
	if (entry->ended & PACKET_PROBED && wait < patience->idle_ns)
		return idle > wait;
	return idle > patience->idle_ns;
}

/* When a SYN is sent again, in seconds after the first: as a client of Linux would, at first each second, then
 * after 7, 11, 19, 35 and 67 (net.ipv4.tcp_syn_linear_timeouts). */
static __always_inline __u32 resend_s(__u32 tries)
{
	return tries < 5 ? tries + 1 : 3 + (4 << ((tries - 5) & 7));
}

/* Whether the node has to act. */
static __always_inline bool is_due(const struct packet_flow *entry, __u64 now)
{
	switch (entry->state) {
	case PACKET_OPEN:
		return has_to_probe(entry, now);
	case PACKET_GIVEN_UP:
		return entry->tries != TRIES_RESET;
	case PACKET_ABORTED:
		return entry->tries < RESETS_MAX;
	}
	return entry->tries < tries_max(entry) &&
	       elapsed(entry->since_ns, now) > resend_s(entry->tries) * SECOND_NS;
}

/* Looks after one entry. */
static long sweep_flow(__u32 index, struct sweep *sweep)
{
	struct packet_flow *entry;
	struct packet_key key;
	struct flow flow;
	__u32 state;

	if (bpf_skb_load_bytes(sweep->skb, SWEEP_KEYS_AT + index * sizeof(key), &key, sizeof(key)))
		return 1;
	entry = bpf_map_lookup_elem(&packet_flows, &key);
	if (!entry)
		return 0;
	state = entry->state;
	sweep->left += 1;
	sweep->due += is_due(entry, sweep->now);
	if (state == PACKET_HELD) {
		if (!is_given_up(entry, sweep->now) ||
		    !change(entry, PACKET_HELD, PACKET_GIVEN_UP))
			return 0;
		entry->last_ns = sweep->now;
		count(STAT_PACKET_GIVEN_UP);
		flow = flow_of(&key, entry->turned);
		forget(&flow, entry->ifindex);
	} else {
		/* Claimed before it is removed: a SYN may take the entry meanwhile. */
		if (!is_stale(&key, entry, sweep->now) || !change(entry, state, PACKET_REMOVED))
			return 0;
		if (is_half_open(state))
			leave_half_open(prefix_of_flow(&key, entry), false);
		else if (state == PACKET_LEARNING)
			leave_learning();
		sweep->left -= 1;
	}
	discard_held(&key, entry);
	if (state != PACKET_HELD)
		bpf_map_delete_elem(&packet_flows, &key);
	return 0;
}

/* Looks after the flows whose keys are in the frame. A walk over all of them in one run would
 * keep this CPU from receiving. With SWEEP_ALIVE in cb[0] it is a node that runs this, which so
 * shows that it lives; with SWEEP_LAST no more flows are taken. Returns how many are left and, above
 * SWEEP_LEFT_BITS, due. */
SEC("classifier")
int packet_sweep(struct __sk_buff *skb)
{
	struct sweep sweep = { .skb = skb, .now = bpf_ktime_get_ns() };
	struct packet_control *control = control_of_node();

	if (control && skb->cb[0] == SWEEP_ALIVE)
		control->heartbeat_ns = sweep.now;
	else if (control && skb->cb[0] == SWEEP_LAST)
		control->heartbeat_ns = 0;
	bpf_loop(SWEEP_KEYS_MAX, sweep_flow, &sweep, 0);
	return sweep.left | sweep.due << SWEEP_LEFT_BITS;
}

/* The entry of the flow whose key is in the frame. */
static __always_inline struct packet_flow *flow_in_frame(struct __sk_buff *skb,
							 struct packet_scratch *scratch)
{
	if (bpf_skb_load_bytes(skb, SWEEP_KEYS_AT, &scratch->key, sizeof(scratch->key)))
		return NULL;
	return bpf_map_lookup_elem(&packet_flows, &scratch->key);
}

/* Begins a segment to one end of the flow in the scratch area. */
static __always_inline struct segment *begin_segment(struct packet_scratch *scratch,
						     const struct packet_flow *entry, bool to_client)
{
	struct segment *segment = &scratch->segment;

	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = flow_of(&scratch->key, entry->turned ^ to_client);
	segment->family = is_mapped(&scratch->key.first) ? AF_INET : AF_INET6;
	segment->l2_bytes = ETH_HLEN;
	return segment;
}

/* Looks the client's route up, also the link layer addresses of the way to it: with BPF_FIB_LOOKUP_OUTPUT by
 * the interface `ifindex`, else as of a packet that comes there. */
static __always_inline bool find_client(struct __sk_buff *skb, const struct packet_key *key,
					const struct packet_flow *entry, struct bpf_fib_lookup *fib,
					__u32 flags)
{
	struct flow flow = flow_of(key, entry->turned);

	if (is_mapped(&flow.client)) {
		fib->family = AF_INET;
		fib->ipv4_src = flow.server.word[3];
		fib->ipv4_dst = flow.client.word[3];
	} else {
		fib->family = AF_INET6;
		__builtin_memcpy(fib->ipv6_src, &flow.server, sizeof(fib->ipv6_src));
		__builtin_memcpy(fib->ipv6_dst, &flow.client, sizeof(fib->ipv6_dst));
	}
	fib->l4_protocol = IPPROTO_TCP;
	return bpf_fib_lookup(skb, fib, sizeof(*fib), flags) == BPF_FIB_LKUP_RET_SUCCESS;
}

/* Writes the link layer addresses of what the client would send by the interface: as they are now, else those
 * of its SYN. */
GLOBAL int write_link(struct __sk_buff *skb, const struct packet_key *key,
		      const struct packet_flow *entry, __u32 ifindex)
{
	struct bpf_fib_lookup fib = { .ifindex = ifindex };

	if (!key || !entry)
		return false;
	if (!find_client(skb, key, entry, &fib, BPF_FIB_LOOKUP_OUTPUT) || fib.ifindex != ifindex)
		return !bpf_skb_store_bytes(skb, 0, entry->link, sizeof(entry->link), 0);
	return !bpf_skb_store_bytes(skb, 0, fib.smac, ETH_ALEN, 0) &&
	       !bpf_skb_store_bytes(skb, ETH_ALEN, fib.dmac, ETH_ALEN, 0);
}

/* Sends the segment in the frame: to the server by its client's way, that is into the client's interface once
 * more. */
static __always_inline long send_frame(struct __sk_buff *skb, const struct packet_key *key,
				       const struct packet_flow *entry, bool to_client)
{
	__u32 ifindex = to_client ? entry->out_ifindex : entry->ifindex;

	if (!write_link(skb, key, entry, ifindex))
		return -1;
	if (!to_client)
		return bpf_clone_redirect(skb, ifindex, BPF_F_INGRESS);
	swap_link_addresses(skb, ETH_HLEN);
	return bpf_clone_redirect(skb, ifindex, 0);
}

/* Moves a flow whose interface is gone to where its client is routed now, if the programs are there. */
static __always_inline bool follow_route(struct __sk_buff *skb, const struct packet_key *key,
					 struct packet_flow *entry)
{
	struct bpf_fib_lookup fib = { .ifindex = skb->ifindex };
	__u32 ifindex;

	if (!find_client(skb, key, entry, &fib, 0))
		return false;
	ifindex = fib.ifindex;
	if (!bpf_map_lookup_elem(&devices, &ifindex))
		return false;
	entry->ifindex = entry->out_ifindex = ifindex;
	return true;
}

/* Makes the segment in the scratch area out of the frame and sends it; false if that failed. */
GLOBAL int send_segment(struct __sk_buff *skb, struct packet_flow *entry, __u32 to_client)
{
	struct packet_scratch *scratch = scratch_area();

	if (!entry || !scratch || !write_segment(skb, &scratch->segment, NULL))
		return false;
	if (!send_frame(skb, &scratch->key, entry, to_client))
		return true;
	return follow_route(skb, &scratch->key, entry) &&
	       !send_frame(skb, &scratch->key, entry, to_client);
}

/* Resets one end of a flow, in the numbers of the other: they are translated as any. An end
 * believes only the number that it expects (RFC 5961 section 3.2), which is what it has
 * acknowledged once it sends no more ACKs. */
static __always_inline void abort_end(struct __sk_buff *skb, struct packet_scratch *scratch,
				      struct packet_flow *entry, bool client)
{
	struct segment *segment = begin_segment(scratch, entry, client);

	segment->flags = TCP_RST;
	segment->hop_limit = ANSWER_HOPS;
	segment->seq = client ? entry->down.acked - entry->seq_delta :
				entry->up.acked - entry->client_seq_delta;
	send_segment(skb, entry, client);
}

/* Probes one end of a flow by a keepalive of the other (RFC 9293 section 3.8.4) in the numbers of
 * that, with its newest timestamp. */
static __always_inline void probe_end(struct __sk_buff *skb, struct packet_scratch *scratch,
				    struct packet_flow *entry, bool client)
{
	struct segment *segment = begin_segment(scratch, entry, client);

	if (client)
		as_keepalive_of_client(segment, entry);
	else
		as_keepalive_of_server(segment, entry);
	if (send_segment(skb, entry, client))
		count(STAT_PACKET_PROBED);
}

/* Probes those ends of an idle flow that have not answered. The flow ends if one does not. */
GLOBAL int probe_ends(struct __sk_buff *skb, struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();

	if (!entry || !scratch)
		return 0;
	doubt(entry);
	if (entry->tries >= PROBES_MAX) {
		if (change(entry, PACKET_OPEN, PACKET_ABORTED)) {
			entry->tries = 0;
			/* The sweep must not remove it before the resets. */
			entry->last_ns = bpf_ktime_get_ns();
			count(STAT_PACKET_DEAD);
		}
		return 0;
	}
	entry->tries += 1;
	/* What the node sends counts as a segment, if it reaches a program. */
	entry->last_ns = bpf_ktime_get_ns();
	if (entry->ended & PACKET_PROBED_CLIENT)
		probe_end(skb, scratch, entry, true);
	if (entry->ended & PACKET_PROBED_SERVER)
		probe_end(skb, scratch, entry, false);
	return 0;
}

/* Looks after a flow that may be due. A client whose flow was given up may wait for the
 * server to speak, so the reset does not wait for its next segment, which is reset too: the first
 * may be lost. The frame is of the flow's family: the kernel derives from it the protocol of a
 * packet without a link layer header. */
SEC("classifier")
int packet_resend(struct __sk_buff *skb)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_flow *entry;
	struct segment *segment;
	bool given_up;

	if (!scratch)
		return 0;
	entry = flow_in_frame(skb, scratch);
	if (!entry || !is_due(entry, bpf_ktime_get_ns()))
		return 0;
	if (entry->state == PACKET_OPEN)
		return probe_ends(skb, entry);
	if (entry->state == PACKET_ABORTED) {
		entry->tries += 1;
		abort_end(skb, scratch, entry, true);
		abort_end(skb, scratch, entry, false);
		return 0;
	}
	given_up = entry->state == PACKET_GIVEN_UP;
	entry->tries = given_up ? TRIES_RESET : entry->tries + 1;
	segment = begin_segment(scratch, entry, given_up);
	if (given_up)
		reset_to_client(segment, entry);
	else
		repeat_syn(segment, entry);
	/* The reset of an older connection may be lost: then the server answers this SYN by an ACK too. */
	entry->older = OLDER_NONE;
	if (send_segment(skb, entry, given_up) && !given_up)
		count(STAT_PACKET_RESENT);
	return 0;
}

/* Takes a flow whose client has an answer out of its state. */
static __always_inline bool begin_abort(const struct packet_key *key, struct packet_flow *entry)
{
	__u32 state = entry->state;

	if (state == PACKET_ABORTED)
		return true;
	if (state != PACKET_OPEN && state != PACKET_HELD && !is_half_open(state))
		return false;
	if (!change(entry, state, PACKET_ABORTED))
		return false;
	if (is_half_open(state))
		leave_half_open(prefix_of_flow(key, entry), false);
	return true;
}

/* Ends a flow: from here on only resets pass. An end may have received what it has not
 * acknowledged yet, and a reset may be lost: run this a few times, some 0.2 s apart. */
SEC("classifier")
int packet_abort(struct __sk_buff *skb)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_flow *entry;

	if (!scratch)
		return 0;
	entry = flow_in_frame(skb, scratch);
	if (!entry || !begin_abort(&scratch->key, entry))
		return 0;
	abort_end(skb, scratch, entry, true);
	abort_end(skb, scratch, entry, false);
	return 1;
}
