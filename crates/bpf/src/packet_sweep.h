/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What happens to flows of the packet path without a packet of theirs. User space runs
 * these programs.
 *
 * packet_sweep    removes entries that have lived their time
 * packet_resend   sends a SYN again that the server has not answered, and in the end resets
 *                 the client
 * packet_abort    resets both ends of a flow
 */
#pragma once
#include "packet_learning.h"
#include "packet_segment.h"

/* How long entries live. Without a SYN-ACK: */
#define LEARNING_NS 10000000000ull
#define HALF_OPEN_NS 5000000000ull
#define HOLD_NS 4000000000ull
/* Then until the client's next segment, which is reset. */
#define GIVEN_UP_NS 60000000000ull
/* After a reset, and after both FINs: longer than the time in which one that was lost
 * five times in a row is repeated. */
#define CLOSED_NS 2000000000ull
#define FINISHED_NS 15000000000ull
/* RFC 5382 section 5, REQ-5. */
#define IDLE_NS (124 * 60 * 1000000000ull)

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

/* Whether an entry has lived its time. */
static __always_inline bool is_stale(const struct packet_flow *entry, __u64 now)
{
	__u64 age = now > entry->since_ns ? now - entry->since_ns : 0;
	__u64 idle = now > entry->last_ns ? now - entry->last_ns : 0;

	switch (entry->state) {
	case PACKET_LEARNING:
		return age > LEARNING_NS;
	case PACKET_ANSWERED:
	case PACKET_ACCEPTED:
		return age > HALF_OPEN_NS;
	case PACKET_GIVEN_UP:
		return age > GIVEN_UP_NS;
	case PACKET_CLOSED:
	case PACKET_ABORTED:
		return idle > CLOSED_NS;
	case PACKET_OPEN:
		return idle > (entry->ended >= (PACKET_FIN_CLIENT | PACKET_FIN_SERVER) ?
				       FINISHED_NS :
				       IDLE_NS);
	}
	return entry->state == PACKET_REMOVED;
}

/* `tries` of a flow whose client was reset. */
#define TRIES_RESET 3

/* How often a SYN may be sent again. A client that is not validated repeats its SYN if it got no
 * SYN-ACK; but it may have got it, its ACK may be lost, and if it waits for the server to speak it
 * sends nothing more. */
static __always_inline __u32 tries_max(const struct packet_flow *entry)
{
	return entry->state == PACKET_HELD ? 2 : entry->state == PACKET_ANSWERED ? 1 : 0;
}

/* Whether the node has to act: the SYN is sent again after 1 s and 3 s, as its sender would
 * (RFC 6298 section 5.5). */
static __always_inline bool is_due(const struct packet_flow *entry, __u64 now)
{
	__u64 wait = entry->tries ? 3000000000ull : 1000000000ull;

	if (entry->state == PACKET_GIVEN_UP)
		return entry->tries != TRIES_RESET;
	return entry->tries < tries_max(entry) && now > entry->since_ns + wait;
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
		if (sweep->now < entry->since_ns + HOLD_NS ||
		    !change(entry, PACKET_HELD, PACKET_GIVEN_UP))
			return 0;
		count(STAT_PACKET_GIVEN_UP);
		flow = flow_of(&key, entry->turned);
		forget(&flow);
	} else {
		/* Claimed before it is removed: a SYN may take the entry meanwhile. */
		if (!is_stale(entry, sweep->now) || !change(entry, state, PACKET_REMOVED))
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

	if (control && skb->cb[0] == SWEEP_ALIVE) {
		control->heartbeat_ns = sweep.now;
		expect_clients(control, this_epoch());
	} else if (control && skb->cb[0] == SWEEP_LAST) {
		control->heartbeat_ns = 0;
	}
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

/* Makes the segment out of the frame and sends it: to the server by its client's way, that is into
 * the client's interface once more. */
static __always_inline long send_segment(struct __sk_buff *skb, const struct segment *segment,
					 const struct packet_flow *entry, bool to_client)
{
	if (!write_segment(skb, segment, NULL))
		return -1;
	bpf_skb_store_bytes(skb, 0, entry->link, sizeof(entry->link), 0);
	if (!to_client)
		return bpf_clone_redirect(skb, entry->ifindex, BPF_F_INGRESS);
	swap_link_addresses(skb, ETH_HLEN);
	return bpf_clone_redirect(skb, entry->out_ifindex, 0);
}

/* Looks after a flow that may be due. A client whose flow was given up may wait for the
 * server to speak, so the reset does not wait for its next segment, which is reset too: the first
 * may be lost. The frame is of the flow's family: the kernel derives from it the protocol of a
 * packet without a link layer header. */
SEC("classifier")
int packet_resend(struct __sk_buff *skb)
{
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;
	struct packet_flow *entry;
	bool given_up;

	if (!scratch)
		return 0;
	entry = flow_in_frame(skb, scratch);
	if (!entry || !is_due(entry, bpf_ktime_get_ns()))
		return 0;
	given_up = entry->state == PACKET_GIVEN_UP;
	entry->tries = given_up ? TRIES_RESET : entry->tries + 1;
	segment = begin_segment(scratch, entry, given_up);
	if (given_up)
		reset_to_client(segment, entry);
	else
		repeat_syn(segment, entry);
	/* The reset of an older connection may be lost: then the server answers this SYN by an ACK too. */
	entry->older = OLDER_NONE;
	if (!send_segment(skb, segment, entry, given_up) && !given_up)
		count(STAT_PACKET_RESENT);
	return 0;
}

/* Resets one end of a flow, in the numbers of the other: they are translated as any. An end
 * believes only the number that it expects (RFC 5961 section 3.2), which is what it has
 * acknowledged once it sends no more ACKs. */
static __always_inline void abort_end(struct __sk_buff *skb, struct packet_scratch *scratch,
				      const struct packet_flow *entry, bool client)
{
	struct segment *segment = begin_segment(scratch, entry, client);

	segment->flags = TCP_RST;
	segment->hop_limit = ANSWER_HOPS;
	segment->seq = client ? entry->client_ack - entry->seq_delta :
				entry->server_ack - entry->client_seq_delta;
	send_segment(skb, segment, entry, client);
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
