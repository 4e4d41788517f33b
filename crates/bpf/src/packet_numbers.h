/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The numbers of an open flow: what its ends send, acknowledge and grant, and how it ends. Several CPUs may
 * carry segments of one direction at a time, in any order.
 */
#pragma once
#include "packet_path.h"

/* How far a number may be behind what was acknowledged. */
#define SPAN (1u << 20)

/* A segment of an open flow. */
struct shown {
	struct packet_way *way;  /* its own */
	struct packet_way *back; /* what it acknowledges */
	__u32 *newest;  /* TSval that its end has sent */
	__u32 ts_delta; /* what `newest` has more than its end counts */
	__u32 seq;     /* as its receiver counts */
	__u32 bytes;   /* of sequence numbers; of a part, the most that its segment may have */
	__u32 ts;      /* TSval, as `newest`; 0: none */
	__u32 ack;
	__u32 window; /* in bytes */
	__u32 first;  /* what it acknowledges begins there */
	__u8 flags;
	__u8 end; /* PACKET_FIN_* of the sender */
	__u8 probed; /* PACKET_PROBED_* of the sender */
	__u8 is_part; /* it does not show how long it is, nor where its FIN */
};

/* A segment after a reset, which its receiver may not have believed then; or of an end that was probed,
 * but for the probes of the other end that the node sends in its name. Ends that send more than answers find out by
 * themselves whether the other one lives. */
static __always_inline void note_sign_of_life(struct packet_flow *entry, const struct shown *shown)
{
	if (entry->ended & PACKET_RESET) {
		/* It may have been on its way too. */
		doubt(entry);
		__sync_fetch_and_and(&entry->ended, ~PACKET_RESET);
	} else if (shown->bytes) {
		__sync_fetch_and_and(&entry->ended, ~PACKET_PROBED);
	} else if (shown->seq != shown->way->acked - 1) {
		__sync_fetch_and_and(&entry->ended, ~(__u32)shown->probed);
	}
}

/* Moves a number forward from what it was, also where other CPUs do so at the same time: if one that is late
 * moved it back, the flow would have no end. */
static __always_inline void advance(__u32 *number, __u32 from, __u32 to)
{
	for (int i = 0; i < 4; i++) {
		__u32 found = __sync_val_compare_and_swap(number, from, to);

		if (found == from || (__s32)(to - found) <= 0)
			return;
		from = found;
	}
}

/* Whether a number is of what was sent: not beyond, and not long before what was acknowledged. */
static __always_inline bool was_sent(const struct packet_way *way, __u32 number)
{
	__u32 from = way->acked - SPAN;

	return number - from <= way->next - from;
}

/* Whether a segment acknowledges what its receiver has sent: who does not see the flow has to guess that
 * (RFC 5961 section 5). */
static __always_inline bool acknowledges(const struct shown *shown)
{
	return shown->flags & TCP_ACK && was_sent(shown->back, shown->ack);
}

/* Notes up to where a segment sends that has new bytes within the window of its receiver. The CPUs carry them in
 * any order: what is in front may be noted later. */
static __always_inline void note_bytes(struct packet_flow *entry, const struct shown *shown)
{
	struct packet_way *way = shown->way;
	__u32 end = shown->seq + shown->bytes, acked = way->acked, edge = way->edge, next = way->next;

	if (shown->is_part && (__s32)(end - edge) > 0)
		end = edge;
	if (end - acked > edge - acked + GAP_MAX)
		return;
	if ((__s32)(end - next) > 0)
		advance(&way->next, next, end);
	if (!(shown->flags & TCP_FIN))
		return;
	if (shown->is_part) {
		doubt(entry);
		return;
	}
	/* One that is acknowledged is right, and so the only one. */
	if (!(entry->ended & shown->end) || way->fin != acked) {
		way->fin = end;
		__sync_fetch_and_or(&entry->ended, shown->end);
	}
}

/* Whether a reset ends the flow: its receiver believes the next number that it expects (RFC 5961 section 3.2), which is
 * what it has acknowledged, or is behind what is on its way to it. */
static __always_inline void note_reset(struct packet_flow *entry, const struct shown *shown)
{
	__u32 acked = shown->way->acked, next = shown->way->next;

	if (shown->seq == acked || shown->seq == next)
		__sync_fetch_and_or(&entry->ended, PACKET_RESET);
	else if (shown->seq - acked < next - acked)
		doubt(entry);
}

/* Notes what a segment acknowledges, and how much more it grants. */
static __always_inline void note_acked(const struct shown *shown)
{
	struct packet_way *back = shown->back;
	__u32 from = back->acked, edge = back->edge;
	__u32 ack = shown->ack, granted = ack + shown->window;

	if ((__s32)(ack - from) < 0)
		return;
	if ((__s32)(granted - edge) > 0)
		advance(&back->edge, edge, granted);
	if (ack - shown->first < from - shown->first)
		back->wraps += 1;
	advance(&back->acked, from, ack);
}

/* Notes what the segment in hand shows of the flow, if it is of one who sees the flow, and whether it ends
 * it. */
static __always_inline void note(struct packet_flow *entry, const struct shown *shown)
{
	const struct packet_way *way = shown->way;

	entry->last_ns = bpf_ktime_get_coarse_ns();
	if (shown->flags & TCP_RST) {
		note_reset(entry, shown);
		return;
	}
	if (entry->ended & (PACKET_RESET | PACKET_PROBED))
		note_sign_of_life(entry, shown);
	if (!acknowledges(shown))
		return;
	if (shown->ts && (__s32)(shown->ts - *shown->newest) > 0 &&
	    shown->seq - way->acked <= way->next - way->acked)
		*shown->newest = shown->ts;
	if (shown->bytes)
		note_bytes(entry, shown);
	note_acked(shown);
}

/* A first fragment does not show how long its segment is: no longer than a packet. */
#define PART_MAX 0xffff

/* Sequence numbers that the segment takes whose TCP header of `bytes` bytes is at `at`. */
static __always_inline __u32 numbers_of(const struct __sk_buff *skb, __u32 at, __u32 bytes, __u8 flags)
{
	return skb->len - at - bytes + !!(flags & TCP_FIN);
}

/* Translates the segment in hand and notes what it shows, beyond what its direction has filled in; false if that
 * fails. `rare`: RARE_*. */
static __always_inline bool carry(struct __sk_buff *skb, struct packet_flow *entry,
				  struct translation *how, struct shown *shown, __u32 at, __u32 bytes,
				  __u32 rare, __u32 shift)
{
	if (!translate(skb, at, bytes, how))
		return false;
	mark_carried(skb);
	shown->seq = how->former_seq + how->seq;
	shown->ts = how->former_ts ? how->former_ts + shown->ts_delta : 0;
	shown->ack = how->former_ack;
	shown->window = how->former_window << shift;
	shown->flags = how->flags;
	shown->is_part = rare & RARE_PART;
	shown->bytes = shown->is_part ? PART_MAX : numbers_of(skb, at, bytes, how->flags);
	note(entry, shown);
	return true;
}

/* Translates a segment of the client. */
GLOBAL int translate_in(struct __sk_buff *skb, struct packet_flow *entry, __u32 at, __u32 bytes,
			__u32 rare)
{
	struct packet_scratch *scratch = scratch_area();
	struct translation how = {};
	struct shown shown = {};

	if (!entry || !scratch)
		return DROP;
	how.header = &scratch->header;
	how.seq = entry->client_seq_delta;
	how.ack = -entry->seq_delta;
	how.ts_value = entry->client_ts_delta;
	how.ts_echo = -entry->ts_delta;
	/* The client scales by its own shift if it was promised to be understood: its SYN
	 * reached the server, unless a relay made the server's connection. */
	if (entry->was_relayed || !(entry->granted & OFFERS_WINDOW_SCALE))
		how.widen = entry->client_shift;
	how.narrow = entry->node_shift;
	shown.way = &entry->up;
	shown.back = &entry->down;
	shown.newest = &entry->client_ts;
	shown.first = entry->node_isn + 1;
	shown.end = PACKET_FIN_CLIENT;
	shown.probed = PACKET_PROBED_CLIENT;
	return carry(skb, entry, &how, &shown, at, bytes, rare, entry->client_shift) ? PASS : DROP;
}

/* Translates a segment of the server. */
GLOBAL int translate_out(struct __sk_buff *skb, struct packet_flow *entry, __u32 at, __u32 bytes,
			 __u32 rare)
{
	struct packet_scratch *scratch = scratch_area();
	struct translation how = {};
	struct shown shown = {};

	if (!entry || !scratch)
		return DROP;
	how.header = &scratch->header;
	how.seq = entry->seq_delta;
	how.ack = -entry->client_seq_delta;
	how.ts_value = entry->ts_delta;
	how.ts_echo = -entry->client_ts_delta;
	if (entry->granted & OFFERS_WINDOW_SCALE)
		how.widen = entry->server_shift;
	how.narrow = entry->promised_shift;
	shown.way = &entry->down;
	shown.back = &entry->up;
	shown.newest = &entry->node_ts;
	shown.ts_delta = entry->ts_delta;
	shown.first = entry->client_isn + 1;
	shown.end = PACKET_FIN_SERVER;
	shown.probed = PACKET_PROBED_SERVER;
	return carry(skb, entry, &how, &shown, at, bytes, rare, how.widen) ? NEXT : DROP;
}
