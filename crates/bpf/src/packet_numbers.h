/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The numbers of an open flow: what its ends send, acknowledge and grant, and how it ends. Several CPUs may
 * carry segments of one direction at a time, in any order.
 */
#pragma once
#include "packet_path.h"

/* What a segment shows of its sender, in its receiver's view. */
struct shown {
	__u32 acked; /* by the receiver */
	__u32 edge; /* of the window that the receiver has granted */
	__u32 *next; /* behind what was sent */
	__u32 *fin; /* behind the FIN */
	__u32 *newest; /* TSval that was sent */
	__u32 seq;
	__u32 bytes; /* of sequence numbers */
	__u32 ts;    /* TSval; 0: none */
	__u8 flags;
	__u8 end; /* PACKET_FIN_* of the sender */
	__u8 probed; /* PACKET_PROBED_* of the sender */
};

/* A segment after a reset, which its receiver has not believed then; or of an end that was probed,
 * but for the probes of the other end that the node sends in its name. Ends that send more than answers find out by
 * themselves whether the other one lives. */
static __always_inline void note_sign_of_life(struct packet_flow *entry, const struct shown *shown)
{
	__u32 gone = PACKET_RESET;

	if (shown->bytes)
		gone |= PACKET_PROBED;
	else if (shown->seq != shown->acked - 1)
		gone |= shown->probed;
	__sync_fetch_and_and(&entry->ended, ~gone);
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

/* Notes up to where a segment sends that has new bytes within the window of its receiver. The CPUs carry them in
 * any order: what is in front may be noted later. */
static __always_inline void note_bytes(struct packet_flow *entry, const struct shown *shown, __u32 next)
{
	__u32 end = shown->seq + shown->bytes;

	if (end - shown->acked > shown->edge - shown->acked + GAP_MAX)
		return;
	if ((__s32)(end - next) > 0)
		advance(shown->next, next, end);
	/* One that is acknowledged is right, and so the only one. */
	if (shown->flags & TCP_FIN && (!(entry->ended & shown->end) || *shown->fin != shown->acked)) {
		*shown->fin = end;
		__sync_fetch_and_or(&entry->ended, shown->end);
	}
}

/* Notes what the segment in hand sends, and whether it ends the flow: only with the numbers of what is
 * in flight, as its receiver would believe it (RFC 5961 section 3.2), and as hard to guess. */
static __always_inline void note_sent(struct packet_flow *entry, const struct shown *shown)
{
	__u32 next = *shown->next;

	entry->last_ns = bpf_ktime_get_coarse_ns();
	if (shown->bytes)
		note_bytes(entry, shown, next);
	if (!(shown->flags & TCP_RST) && entry->ended & (PACKET_RESET | PACKET_PROBED))
		note_sign_of_life(entry, shown);
	if (shown->seq - shown->acked > next - shown->acked)
		return;
	if (shown->flags & TCP_RST)
		__sync_fetch_and_or(&entry->ended, PACKET_RESET);
	else if (shown->ts && (__s32)(shown->ts - *shown->newest) > 0)
		*shown->newest = shown->ts;
}

/* What a segment shows of the other end, which receives it, in its sender's view. */
struct granted {
	__u32 *acked;
	__u32 *edge;
	__u16 *wraps;
	__u32 next; /* behind what the other end has sent */
	__u32 first; /* its first number */
	__u32 ack;
	__u32 window; /* in bytes */
};

/* Notes what a segment acknowledges, and how much more it grants: nothing that was not sent, so who does not see
 * the flow has to guess that too. */
static __always_inline void note_acked(const struct granted *granted)
{
	__u32 from = *granted->acked, ack = granted->ack;

	/* Another CPU may have noted a later one since `next` was read. */
	if ((__s32)(ack - from) < 0 || ack - from > granted->next - from)
		return;
	if ((__s32)(ack + granted->window - *granted->edge) > 0)
		*granted->edge = ack + granted->window;
	if (ack - granted->first < from - granted->first)
		*granted->wraps += 1;
	advance(granted->acked, from, ack);
}

/* Sequence numbers that the segment takes whose TCP header of `bytes` bytes is at `at`. */
static __always_inline __u32 numbers_of(const struct __sk_buff *skb, __u32 at, __u32 bytes, __u8 flags)
{
	return skb->len - at - bytes + !!(flags & TCP_FIN);
}

/* Translates a segment of the client. */
GLOBAL int translate_in(struct __sk_buff *skb, struct packet_flow *entry, __u32 at, __u32 bytes)
{
	struct packet_scratch *scratch = scratch_area();
	struct translation how = {};
	struct granted granted;
	struct shown shown;

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
	if (!translate(skb, at, bytes, &how))
		return DROP;
	mark_carried(skb);
	shown.acked = entry->server_ack;
	shown.edge = entry->client_edge;
	shown.next = &entry->client_next;
	shown.fin = &entry->client_fin;
	shown.newest = &entry->client_ts;
	shown.ts = how.former_ts;
	shown.seq = how.former_seq + entry->client_seq_delta;
	shown.bytes = numbers_of(skb, at, bytes, how.flags);
	shown.flags = how.flags;
	shown.end = PACKET_FIN_CLIENT;
	shown.probed = PACKET_PROBED_CLIENT;
	note_sent(entry, &shown);
	if (how.flags & TCP_ACK) {
		granted.acked = &entry->client_ack;
		granted.edge = &entry->server_edge;
		granted.wraps = &entry->client_wraps;
		granted.next = entry->server_next;
		granted.first = entry->node_isn + 1;
		granted.ack = how.former_ack;
		granted.window = how.former_window << entry->client_shift;
		note_acked(&granted);
	}
	return PASS;
}

/* Translates a segment of the server. */
GLOBAL int translate_out(struct __sk_buff *skb, struct packet_flow *entry, __u32 at, __u32 bytes)
{
	struct packet_scratch *scratch = scratch_area();
	struct translation how = {};
	struct granted granted;
	struct shown shown;

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
	if (!translate(skb, at, bytes, &how))
		return DROP;
	mark_carried(skb);
	shown.acked = entry->client_ack;
	shown.edge = entry->server_edge;
	shown.next = &entry->server_next;
	shown.fin = &entry->server_fin;
	shown.newest = &entry->node_ts;
	shown.ts = how.former_ts ? how.former_ts + entry->ts_delta : 0;
	shown.seq = how.former_seq + entry->seq_delta;
	shown.bytes = numbers_of(skb, at, bytes, how.flags);
	shown.flags = how.flags;
	shown.end = PACKET_FIN_SERVER;
	shown.probed = PACKET_PROBED_SERVER;
	note_sent(entry, &shown);
	if (how.flags & TCP_ACK) {
		granted.acked = &entry->server_ack;
		granted.edge = &entry->client_edge;
		granted.wraps = &entry->server_wraps;
		granted.next = entry->client_next;
		granted.first = entry->client_isn + 1;
		granted.ack = how.former_ack;
		granted.window = how.former_window << how.widen;
		note_acked(&granted);
	}
	return NEXT;
}
