/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The rules of a hand-over (docs/design/0023), as the crate posthaste-bypass has them: what
 * happens to a segment while a relay leaves its flow. Pure: no packet is touched here.
 *
 * End 0 is the client, end 1 the server. A direction carries the bytes of the end of its
 * number, and its numbers are those of that end, in host order.
 */
#pragma once
#include "packet_view.h"

/* How far the TSval of direct segments is ahead of the relay's own, in milliseconds: a late
 * one of the relay must not fail the PAWS check of an end (RFC 7323 section 5). */
#define BYPASS_TS_SLACK 1000
/* Longest overlap, in milliseconds. */
#define BYPASS_DRAIN_LIMIT 60000
/* With timestamps, a header has room for so many (RFC 2018 section 3). */
#define BYPASS_BLOCKS 3

enum bypass_phase {
	BYPASS_RELAYING, /* given up */
	BYPASS_CLAMPING, /* the relay keeps its windows small */
	BYPASS_OVERLAP,  /* bytes below the cuts are the relay's, the others go direct */
	BYPASS_DIRECT,   /* all go direct; the relay closes its sockets */
	BYPASS_DEAD,     /* the process has ended, or the overlap has not: the ends are reset */
};

/* A process that has not looked at an overlap for so long is dead. */
#define BYPASS_ALIVE_NS 3000000000ll

/* What user space does next. */
enum bypass_step {
	BYPASS_STEP_RELAY,
	BYPASS_STEP_GIVE_UP,
	BYPASS_STEP_CLAMP,
	BYPASS_STEP_DRAIN,
	BYPASS_STEP_CLOSE, /* silently */
	BYPASS_STEP_RESET,
	BYPASS_STEP_BUSY, /* another CPU has the pair: once more */
};

struct bypass_direction {
	__u32 delta;      /* its sender's number to the one that its receiver reads */
	__u32 ts_delta;   /* the same for TSval of direct segments */
	__u32 seen;       /* end of the highest payload */
	__u32 cut;        /* first byte that is not the relay's */
	__u32 relay_ack;  /* what the relay has acknowledged */
	__u32 relay_sent; /* the relay's snd_nxt toward the receiver */
	__u32 end_ack;    /* what the receiver has acknowledged */
	__u32 promised;   /* highest right window edge that its sender read */
	__u32 edge;       /* highest that its receiver advertised */
	__u32 fin;	  /* sequence number, where `has_fin` */
	__u8 has_fin;
	__u8 end_shift;   /* of the sender's window (RFC 7323 section 2) */
	__u8 relay_shift; /* of the relay's socket toward the sender */
	__u8 pad;
};

/* The last TSval that each machine sent. */
struct bypass_clocks {
	__u32 end[2];	    /* of the ends */
	__u32 relay[2];     /* of the relay's socket toward each */
	__u32 relay_age[2]; /* when that was, in milliseconds (CLOCK_MONOTONIC) */
	__u32 seen;	    /* one bit for each of the first four */
};

/* A pair of connections that the relay is about to leave. */
struct bypass_pair {
	__u32 lock;
	__u32 phase;    /* enum bypass_phase */
	__u32 deadline; /* in milliseconds of the caller's clock */
	__u32 reset;    /* an end has aborted the flow */
	struct bypass_direction by[2];
	struct bypass_clocks clocks;
	__u32 ifindex[2]; /* of the ends */
	__u32 turned;     /* the client is the second of the key */
	__u32 known;      /* the numbers of its sockets were read */
	__u32 skew[2];    /* what the kernel counts as acknowledged beyond the bytes sent to an end */
	__u32 probed[2];  /* a dead pair has probed the end */
	__u8 link[2][ETH_HLEN]; /* link layer header of the ends' segments */
	__u64 looked_ns;  /* when user space last did (CLOCK_MONOTONIC) */
};

/* The sequence numbers and windows of one socket of the relay. */
struct bypass_socket {
	__u32 sent;	/* snd_nxt */
	__u32 acked;    /* snd_una */
	__u32 received; /* rcv_nxt */
	__u32 sent_first;
	__u32 received_first;
	__u32 window; /* receive window in bytes, from rcv_nxt on at most */
};

/* What the rules read and write of a segment. Empty blocks have equal edges. */
struct bypass_segment {
	__u32 seq;
	__u32 len;
	__u32 ack;
	__u32 window; /* as on the wire */
	__u32 ts_value;
	__u32 ts_echo;
	__u32 first[BYPASS_BLOCKS];
	__u32 last[BYPASS_BLOCKS];
	__u8 fin;
	__u8 rst;
	__u8 has_ts;
	__u8 pad;
};

/* Where a segment goes: bits. */
#define BYPASS_TO_RELAY 1
#define BYPASS_TO_END 2
/* Back to where it came from, as a reset. */
#define BYPASS_TO_SENDER 4

/* RFC 9293 section 3.4. */
static __always_inline bool is_earlier(__u32 a, __u32 b)
{
	return b - a - 1 < (1u << 31) - 1;
}

static __always_inline __u32 later(__u32 a, __u32 b)
{
	return is_earlier(a, b) ? b : a;
}

static __always_inline __u32 earlier(__u32 a, __u32 b)
{
	return is_earlier(a, b) ? a : b;
}

static __always_inline bool is_abandoned(const struct bypass_pair *pair)
{
	__s64 since = bpf_ktime_get_ns() - pair->looked_ns;

	return since > BYPASS_ALIVE_NS;
}

static __always_inline __u32 end_of(const struct bypass_segment *segment)
{
	return segment->seq + segment->len + segment->fin;
}

static __always_inline bool is_drained(const struct bypass_direction *direction)
{
	return !is_earlier(direction->end_ack, direction->cut);
}

static __always_inline bool is_finished(const struct bypass_direction *direction)
{
	return direction->has_fin && is_earlier(direction->fin, direction->end_ack);
}

/* Whether the relay has left, and neither end sends anything more. */
static __always_inline bool is_over(const struct bypass_pair *pair)
{
	return pair->phase == BYPASS_DIRECT &&
	       (pair->reset || (is_finished(&pair->by[0]) && is_finished(&pair->by[1])));
}

static __always_inline __u32 window_to(__u32 edge, __u32 ack, __u8 shift)
{
	__u32 bytes = is_earlier(ack, edge) ? edge - ack : 0;

	bytes >>= shift & 15;
	return bytes > 0xffff ? 0xffff : bytes;
}

static __always_inline void clear_blocks(struct bypass_segment *segment)
{
	for (int i = 0; i < BYPASS_BLOCKS; i++)
		segment->first[i] = segment->last[i] = 0;
}

/* The window that the sender of a direction reads: up to its receiver's edge,
 * whichever end acknowledges. */
static __always_inline void promise_window(struct bypass_direction *acked,
					   struct bypass_segment *segment)
{
	segment->window = window_to(acked->edge, segment->ack, acked->relay_shift);
	acked->promised = later(acked->promised,
				segment->ack + (segment->window << (acked->relay_shift & 15)));
}

/* What the sender of a direction reads about its bytes: `in` is the receiver's segment. The
 * byte at the cut is in no block: the relay's acknowledgement reaches the cut before the
 * receiver's does, and one that points at a byte in a block is reneging. */
static __always_inline void acknowledge(struct bypass_direction *acked,
					const struct bypass_segment *in,
					struct bypass_segment *out)
{
	__u32 first, last;

	out->ack = is_drained(acked) ? acked->end_ack : acked->relay_ack;
	clear_blocks(out);
	for (int i = 0; i < BYPASS_BLOCKS; i++) {
		first = in->first[i] - acked->delta;
		last = in->last[i] - acked->delta;
		if (!is_earlier(first, last))
			continue;
		first = later(first, acked->cut + 1);
		if (!is_earlier(first, last))
			continue;
		out->first[i] = first;
		out->last[i] = last;
	}
	promise_window(acked, out);
}

static __always_inline void translate_segment(const struct bypass_direction *data,
					      const struct bypass_direction *acked,
					      struct bypass_segment *out)
{
	out->seq += data->delta;
	out->ack -= acked->delta;
	out->ts_value += data->ts_delta;
	/* Zero means that there is no echo yet (RFC 7323 section 3.2). */
	if (out->ts_echo)
		out->ts_echo -= acked->ts_delta;
}

static __always_inline void observe_end(struct bypass_pair *pair, __u32 e,
					struct bypass_direction *data,
					struct bypass_direction *acked,
					const struct bypass_segment *in)
{
	__u32 ack = in->ack - acked->delta;

	/* The number of a pure ACK may be past a FIN that was lost: a cut there would make
	 * the FIN the relay's. */
	if (end_of(in) != in->seq)
		data->seen = later(data->seen, end_of(in));
	if (in->fin) {
		data->has_fin = true;
		data->fin = end_of(in) - 1;
	}
	if (in->has_ts) {
		pair->clocks.end[e & 1] = in->ts_value;
		pair->clocks.seen |= 1 << (e & 1);
	}
	acked->end_ack = later(acked->end_ack, ack);
	acked->edge = later(acked->edge, ack + (in->window << (data->end_shift & 15)));
	if (pair->phase == BYPASS_DIRECT) {
		/* A cut left 2 GiB behind would seem to be ahead. */
		acked->cut = later(acked->cut, acked->end_ack - (1u << 30));
		data->cut = later(data->cut, data->end_ack - (1u << 30));
	}
}

static __always_inline void observe_relay(struct bypass_pair *pair, __u32 e,
					  struct bypass_direction *sent,
					  struct bypass_direction *acked,
					  const struct bypass_segment *in)
{
	sent->relay_sent = later(sent->relay_sent, end_of(in) - sent->delta);
	acked->relay_ack = later(acked->relay_ack, in->ack);
	if (in->has_ts) {
		pair->clocks.relay[e & 1] = in->ts_value;
		pair->clocks.relay_age[e & 1] = bpf_ktime_get_ns() / 1000000;
		pair->clocks.seen |= 4 << (e & 1);
	}
	if (pair->phase != BYPASS_OVERLAP)
		acked->promised = later(acked->promised,
					in->ack + (in->window << (acked->relay_shift & 15)));
}

/* A segment whose payload and number all go direct. */
static __always_inline void forward_all(const struct bypass_pair *pair,
					const struct bypass_direction *data,
					struct bypass_direction *acked,
					const struct bypass_segment *in,
					struct bypass_segment *out)
{
	translate_segment(data, acked, out);
	if (!in->rst && !pair->reset)
		acknowledge(acked, in, out);
}

/* Up to here both receivers have the bytes of a sender. */
static __always_inline __u32 lowest_of(const struct bypass_direction *data)
{
	return earlier(data->relay_ack, data->end_ack);
}

/* Whether a segment begins beyond the window of its sender. A FIN may be behind the last byte,
 * and an ACK behind that. */
static __always_inline bool is_beyond(const struct bypass_direction *data,
				      const struct bypass_segment *in)
{
	return is_earlier(data->promised + 1, in->seq);
}

/* Whether an end acknowledges what it was sent, and no less than a delayed segment may (RFC 5961
 * section 5). Its receiver could not check that: it reads the pair's numbers. */
static __always_inline bool is_ack_valid(const struct bypass_direction *data,
					 const struct bypass_direction *acked,
					 const struct bypass_segment *in)
{
	__u32 ack = in->ack - acked->delta;
	__u32 window = 0xffffu << (data->end_shift & 15);

	return !is_earlier(later(acked->seen, acked->relay_sent), ack) &&
	       !is_earlier(ack, acked->end_ack - window);
}

static __always_inline int reset_from_end(struct bypass_pair *pair,
					  const struct bypass_direction *data,
					  struct bypass_direction *acked,
					  const struct bypass_segment *in,
					  struct bypass_segment *out)
{
	/* Both receivers would refuse it. */
	if (is_earlier(in->seq, lowest_of(data)) || is_beyond(data, in))
		return 0;
	if (pair->phase <= BYPASS_CLAMPING) {
		pair->reset = true;
		return BYPASS_TO_RELAY;
	}
	/* An end that is closed for good answers what the relay sends again with RST. */
	if (pair->phase == BYPASS_DEAD || (is_finished(data) && is_finished(acked)))
		return 0;
	/* The number of an end that aborts, or with which it answers an ACK. Any other may be a
	 * guess: its receiver challenges the end (RFC 5961 section 3), which if it has aborted
	 * answers with such a number. */
	if (in->seq == data->seen || in->seq == data->relay_ack || in->seq == data->end_ack)
		pair->reset = true;
	forward_all(pair, data, acked, in, out);
	return BYPASS_TO_END;
}

/* Whether an ACK has something for the sender of the data above the cut. */
static __always_inline bool is_news(const struct bypass_direction *acked,
				    const struct bypass_segment *in)
{
	__u32 first, last;

	if (is_drained(acked) || is_earlier(acked->promised, acked->edge))
		return true;
	for (int i = 0; i < BYPASS_BLOCKS; i++) {
		first = in->first[i] - acked->delta;
		last = in->last[i] - acked->delta;
		if (is_earlier(first, last) && is_earlier(later(first, acked->cut + 1), last))
			return true;
	}
	return false;
}

/* The direct part. Below the cut a segment is the relay's; its ACK goes on without payload. */
static __always_inline int forward_in_overlap(struct bypass_direction *data,
					      struct bypass_direction *acked,
					      const struct bypass_segment *in,
					      struct bypass_segment *out)
{
	if (!is_earlier(data->cut, end_of(in))) {
		out->seq = data->cut;
		out->len = 0;
	}
	if (!out->len && !out->fin && !is_news(acked, in))
		return BYPASS_TO_RELAY;
	translate_segment(data, acked, out);
	acknowledge(acked, in, out);
	return BYPASS_TO_RELAY | BYPASS_TO_END;
}

/* A TSval that end `e` takes for no older one than it has: since 6.14 (commit 124c4c32e9f3) Linux drops
 * an old number with an old TSval and does not answer. Once the pair has cuts, the end has read some of
 * the other end's. */
static __always_inline __u32 fresh_ts(const struct bypass_pair *pair, __u32 e)
{
	const struct bypass_direction *data = &pair->by[(e & 1) ^ 1];
	__u32 relay = pair->clocks.relay[e & 1] + BYPASS_TS_SLACK;

	if (!data->ts_delta)
		return relay;
	return later(relay, pair->clocks.end[(e & 1) ^ 1] + data->ts_delta);
}

/* A probe of end `e` of a dead pair: an old number, which the end answers (RFC 9293 section
 * 3.10.7.4). */
static __always_inline void probe(struct bypass_pair *pair, __u32 e, struct bypass_segment *out)
{
	const struct bypass_direction *data = &pair->by[(e & 1) ^ 1];
	struct bypass_direction *acked = &pair->by[e & 1];

	pair->probed[e & 1] = true;
	out->seq = data->end_ack - 1 + data->delta;
	out->ack = is_drained(acked) ? acked->end_ack : acked->relay_ack;
	out->len = 0;
	out->fin = 0;
	out->ts_value = fresh_ts(pair, e);
	out->ts_echo = pair->clocks.end[e & 1];
	clear_blocks(out);
	promise_window(acked, out);
}

/* What a dead pair does with a segment. An end accepts a reset only by the number that it
 * expects next (RFC 5961 section 3), which is its acknowledgement number. The first segment becomes
 * a probe of the other end, which may send nothing: no process may be there to do that. */
static __always_inline int bury(struct bypass_pair *pair, __u32 e,
				const struct bypass_segment *in, struct bypass_segment *out)
{
	__u32 other = (e & 1) ^ 1;

	if (!pair->probed[e & 1] && !pair->probed[other]) {
		probe(pair, other, out);
		return BYPASS_TO_END;
	}
	out->seq = in->ack;
	out->len = 0;
	out->fin = 0;
	clear_blocks(out);
	out->ack = 0;
	out->window = 0;
	out->rst = 1;
	return BYPASS_TO_SENDER;
}

/* Looks after a pair that may be dead, with or without segments of its ends: whether it is, and
 * `out` is a probe of end `e`. `ended`: its process certainly is. */
GLOBAL int look_after(struct bypass_pair *pair, __u32 e, __u32 ended, struct bypass_segment *out)
{
	if (!pair || !out)
		return false;
	if (ended ? pair->phase == BYPASS_CLAMPING || pair->phase == BYPASS_OVERLAP :
		    pair->phase == BYPASS_OVERLAP && is_abandoned(pair))
		pair->phase = BYPASS_DEAD;
	if (pair->phase != BYPASS_DEAD)
		return false;
	probe(pair, e, out);
	return true;
}

/* A segment that end `e` sent: BYPASS_TO_* bits, and what goes to the other end. */
GLOBAL int from_end(struct bypass_pair *pair, __u32 e, const struct bypass_segment *in,
		    struct bypass_segment *out)
{
	struct bypass_direction *data, *acked;
	bool old, foreign;

	if (!pair || !in || !out)
		return 0;
	data = &pair->by[e & 1];
	acked = &pair->by[(e & 1) ^ 1];
	*out = *in;
	if (pair->phase == BYPASS_OVERLAP && is_abandoned(pair))
		pair->phase = BYPASS_DEAD;
	if (in->rst)
		return reset_from_end(pair, data, acked, in, out);
	old = is_earlier(end_of(in), lowest_of(data));
	foreign = is_beyond(data, in) || !is_ack_valid(data, acked, in);
	/* No receiver would read more of it, and so it shows nothing about the flow. */
	if (!old && !foreign)
		observe_end(pair, e, data, acked, in);
	switch (pair->phase) {
	case BYPASS_OVERLAP:
		if (foreign)
			return 0;
		/* The relay answers it, for example a keep-alive. */
		return old ? BYPASS_TO_RELAY : forward_in_overlap(data, acked, in, out);
	case BYPASS_DIRECT:
		if (foreign)
			return 0;
		forward_all(pair, data, acked, in, out);
		return BYPASS_TO_END;
	case BYPASS_DEAD:
		return bury(pair, e, in, out);
	}
	return BYPASS_TO_RELAY;
}

/* The relay's copy of it: the payload ends at the cut, and it acknowledges only what the
 * relay has sent. Linux refuses a whole block that ends beyond `snd_nxt`. */
GLOBAL int copy_for_relay(const struct bypass_pair *pair, __u32 e,
			  const struct bypass_segment *in, struct bypass_segment *out)
{
	const struct bypass_direction *data, *sent;
	__u32 most, edge;

	if (!pair || !in || !out)
		return 0;
	data = &pair->by[e & 1];
	sent = &pair->by[(e & 1) ^ 1];
	most = sent->relay_sent + sent->delta;
	*out = *in;
	/* Beyond the relay's receive window the ACK would be dropped with the segment. */
	out->seq = earlier(in->seq, data->cut);
	out->len = earlier(in->seq + in->len, data->cut) - out->seq;
	out->fin = 0;
	out->ack = earlier(in->ack, most);
	for (int i = 0; i < BYPASS_BLOCKS; i++) {
		if (is_earlier(in->first[i], most))
			out->last[i] = earlier(in->last[i], most);
		else
			out->first[i] = out->last[i] = 0;
	}
	edge = in->ack + (in->window << (data->end_shift & 15));
	out->window = window_to(edge, out->ack, data->end_shift);
	return 0;
}

/* A segment of the relay's socket toward end `e`: whether it is sent, and as what. */
GLOBAL int from_relay(struct bypass_pair *pair, __u32 e, const struct bypass_segment *in,
		      struct bypass_segment *out)
{
	struct bypass_direction *sent, *acked;

	if (!pair || !in || !out)
		return false;
	acked = &pair->by[e & 1];
	sent = &pair->by[(e & 1) ^ 1];
	*out = *in;
	if (pair->phase <= BYPASS_CLAMPING) {
		observe_relay(pair, e, sent, acked, in);
		return true;
	}
	/* Ends of connections belong to the pair: a FIN here would truncate the stream. */
	if (pair->phase != BYPASS_OVERLAP || in->fin || in->rst)
		return false;
	observe_relay(pair, e, sent, acked, in);
	if (!in->len && !is_earlier(in->seq, sent->relay_sent + sent->delta)) {
		/* The end drops an ACK that is numbered below what it received directly, or beyond
		 * its window, as behind a FIN, or has an older TSval. */
		out->seq = later(in->seq, earlier(sent->seen, sent->edge) + sent->delta);
		out->ts_value = in->ts_value + BYPASS_TS_SLACK;
	}
	out->ack = acked->relay_ack;
	if (is_drained(acked)) {
		out->ack = acked->end_ack;
		clear_blocks(out);
	}
	promise_window(acked, out);
	return true;
}

static __always_inline bool is_ending(const struct bypass_pair *pair)
{
	return pair->reset || pair->by[0].has_fin || pair->by[1].has_fin;
}

/* The TSval of the relay's socket toward the receiver, by now, less the sender's last. */
static __always_inline __u32 ts_delta_of(const struct bypass_clocks *clocks, __u32 e, __u32 now)
{
	__u32 other = (e & 1) ^ 1;

	return clocks->relay[other] + now - clocks->relay_age[other] - clocks->end[e & 1] +
	       BYPASS_TS_SLACK;
}

static __always_inline int try_cut(struct bypass_pair *pair, __u32 now)
{
	__u32 clock = bpf_ktime_get_ns() / 1000000;

	if (is_ending(pair) || !is_earlier(now, pair->deadline)) {
		pair->phase = BYPASS_RELAYING;
		return BYPASS_STEP_GIVE_UP;
	}
	if (pair->clocks.seen != 15 || is_earlier(pair->by[0].edge, pair->by[0].promised) ||
	    is_earlier(pair->by[1].edge, pair->by[1].promised))
		return BYPASS_STEP_CLAMP;
	for (int e = 0; e < 2; e++) {
		struct bypass_direction *direction = &pair->by[e];

		direction->cut = later(direction->seen, direction->relay_ack);
		direction->ts_delta = ts_delta_of(&pair->clocks, e, clock);
	}
	pair->phase = BYPASS_OVERLAP;
	pair->deadline = now + BYPASS_DRAIN_LIMIT;
	return BYPASS_STEP_DRAIN;
}

/* Adds the numbers of the sockets toward both ends. What passed before the pair had its numbers is
 * in there, what passes now may not be. */
GLOBAL int learn_from_sockets(struct bypass_pair *pair, const struct bypass_socket *client,
			      const struct bypass_socket *server)
{
	const struct bypass_socket *from, *to;
	struct bypass_direction *direction;

	if (!pair || !client || !server)
		return false;
	for (int e = 0; e < 2; e++) {
		direction = &pair->by[e];
		from = e ? server : client;
		to = e ? client : server;
		if (!pair->known) {
			direction->delta = to->sent_first - from->received_first;
			direction->seen = direction->relay_ack = from->received;
			direction->relay_sent = to->sent - direction->delta;
			direction->end_ack = to->acked - direction->delta;
			direction->edge = direction->end_ack;
			direction->promised = from->received + from->window;
		}
		direction->seen = later(direction->seen, from->received);
		direction->relay_ack = later(direction->relay_ack, from->received);
		direction->relay_sent = later(direction->relay_sent, to->sent - direction->delta);
		direction->promised = later(direction->promised, from->received + from->window);
	}
	pair->known = true;
	return true;
}

/* Advances a hand-over at `now`, in milliseconds of the caller's clock: enum bypass_step. */
GLOBAL int advance(struct bypass_pair *pair, __u32 now)
{
	if (!pair)
		return BYPASS_STEP_RELAY;
	pair->looked_ns = bpf_ktime_get_ns();
	switch (pair->phase) {
	case BYPASS_CLAMPING:
		return try_cut(pair, now);
	case BYPASS_OVERLAP:
		if (pair->reset || (is_drained(&pair->by[0]) && is_drained(&pair->by[1]))) {
			pair->phase = BYPASS_DIRECT;
			return BYPASS_STEP_CLOSE;
		}
		if (is_earlier(now, pair->deadline))
			return BYPASS_STEP_DRAIN;
		pair->phase = BYPASS_DEAD;
		return BYPASS_STEP_RESET;
	case BYPASS_DIRECT:
		return BYPASS_STEP_CLOSE;
	case BYPASS_DEAD:
		return BYPASS_STEP_RESET;
	}
	return BYPASS_STEP_RELAY;
}
