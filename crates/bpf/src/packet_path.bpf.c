// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The packet path: early SYN forwarding without sockets (docs/design/0022). The node
 * answers a SYN itself and forwards it at the same time; once the server has answered
 * it only translates numbers. All of it happens at the interface of the client, so the
 * rest of this host sees an ordinary forwarded connection in the server's numbers.
 *
 * packet_in      tc ingress, before `redirect`
 * packet_out     tc egress
 * packet_sweep   run by user space
 * packet_resend  likewise
 * packet_abort   likewise
 */
#include "packet_hold.h"
#include "packet_icmp.h"
#include "packet_narrow.h"
#include "packet_stamp.h"
#include "packet_sweep.h"
#include "packet_syn.h"

#define PACKET_HOST 0
/* Sequence numbers behind the client's first that a reset before the server's answer
 * may have. */
#define FIRST_FLIGHT_MAX (1u << 20)
/* How long segments pass another interface alone until the flow is there. A bridge and its port
 * both see each of them, the one soon after the other. */
#define STRAY_NS 8000000ull
#define MOVES_AFTER (200000000ull / STRAY_NS)

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

	if (ack - from > granted->next - from)
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

/* Resets the client of a flow that no server answered, at its next segment: the reset that the
 * sweep sent may be lost. */
GLOBAL int reset_client(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
			struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;

	if (!pkt || !entry || !scratch || pkt->tcp.rst)
		return DROP;
	segment = &scratch->segment;
	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = reversed(&pkt->flow);
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	reset_to_client(segment, entry);
	segment->partial = spoil_checksum(skb, at);
	swap_link_addresses(skb, pkt->l2_bytes);
	if (write_segment(skb, segment, NULL))
		bpf_clone_redirect(skb, skb->ifindex, 0);
	entry->state = PACKET_CLOSED;
	return DROP;
}

/* A reset of the client before the server has answered. */
static __always_inline int on_early_reset(struct __sk_buff *skb, const struct packet *pkt,
					  __u32 at, struct packet_flow *entry,
					  struct packet_scratch *scratch)
{
	__u32 seq = bpf_ntohl(pkt->tcp.seq);
	int verdict;

	/* Another number: the client or the node resets an older connection, whose numbers may be near
	 * these. */
	if (seq - entry->client_isn - 1 > FIRST_FLIGHT_MAX ||
	    (entry->older != OLDER_NONE && seq == entry->of_server))
		return PASS;
	/* That of a host without the connection has the number that was acknowledged. One that
	 * has it sends what the node acknowledges too. */
	if (pkt->tcp.ack ? bpf_ntohl(pkt->tcp.ack_seq) != entry->node_isn + 1 :
			   seq != entry->client_isn + 1 && seq != entry->held_next)
		return DROP;
	/* What the server opens for an earlier SYN is reset when it answers. The client may use its port
	 * again at once. */
	verdict = entry->state == PACKET_ACCEPTED ?
			  translate_in(skb, entry, at, pkt->tcp.doff * 4) :
			  DROP;
	close_early(&scratch->key, entry);
	return verdict;
}

/* The first of the two ends has answered. */
static __always_inline void note_nearer(struct packet_flow *entry)
{
	entry->nearer_us = (bpf_ktime_get_ns() - entry->since_ns) / 1000;
}

/* Both have. By forwarding, the client's data would have left that much later: by the round
 * trip of the nearer end. Only here, where the client has proved itself, a broken promise counts. */
static __always_inline void note_opened(const struct packet_flow *entry,
					const struct destination *service)
{
	count(STAT_PACKET_OPENED);
	count_by(STAT_PACKET_SAVED, entry->nearer_us);
	if (entry->promised & ~entry->granted) {
		count(STAT_PACKET_MISMATCHES);
		mark_bad(service, UNLIKE_NS);
	}
}

/* Whether a segment before the server's answer has numbers of the client's: it acknowledges no more than
 * the node's SYN. */
static __always_inline bool is_early(const struct packet *pkt, const struct packet_flow *entry)
{
	return bpf_ntohl(pkt->tcp.ack_seq) == entry->node_isn + 1 &&
	       bpf_ntohl(pkt->tcp.seq) - entry->client_isn - 1 <= FIRST_FLIGHT_MAX;
}

/* Whether the client of a flow in this state may have another connection with these addresses, that is older
 * than this program: a forged SYN must not harm that. What does not fit the flow passes as it is. */
static __always_inline bool is_unproved(__u32 state)
{
	return is_half_open(state) || state == PACKET_CLOSED;
}

/* Whether a segment of the client before the server's answer belongs to the flow. */
static __always_inline bool proves(const struct packet_flow *entry, bool acknowledges, __u32 ack)
{
	return acknowledges && ack == entry->node_isn + 1;
}

/* A segment of the client, whose first was a SYN that the node answered. */
GLOBAL int from_client(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		       struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct destination service;
	__u64 prefix;
	__u32 state;

	if (!pkt || !entry || !scratch)
		return DROP;
	state = entry->state;
	/* Another CPU has opened it meanwhile. */
	if (state == PACKET_OPEN)
		return translate_in(skb, entry, at, pkt->tcp.doff * 4);
	if (state == PACKET_GIVEN_UP)
		return reset_client(skb, pkt, at, entry);
	if (is_unproved(state) && !pkt->tcp.rst &&
	    !proves(entry, pkt->tcp.ack && !pkt->tcp.syn, bpf_ntohl(pkt->tcp.ack_seq)))
		return PASS;
	if (state == PACKET_CLOSED)
		return pkt->tcp.rst ? PASS : reset_client(skb, pkt, at, entry);
	if (!is_half_open(state) && state != PACKET_HELD)
		return DROP;
	if (pkt->tcp.rst)
		return on_early_reset(skb, pkt, at, entry, scratch);
	if (!pkt->tcp.ack || pkt->tcp.syn)
		return DROP;
	if (!is_early(pkt, entry))
		return DROP;
	prefix = prefix_of(&pkt->flow.client);
	if (change(entry, PACKET_ANSWERED, PACKET_HELD)) {
		leave_half_open(prefix, true);
		note_client_rtt(entry, prefix);
		note_nearer(entry);
	} else if (change(entry, PACKET_ACCEPTED, PACKET_OPEN)) {
		leave_half_open(prefix, true);
		note_client_rtt(entry, prefix);
		service = service_of(&pkt->flow);
		note_opened(entry, &service);
	}
	if (entry->state == PACKET_HELD && hold(skb, pkt, at, entry))
		return entry->older == OLDER_SEEN ? renew(skb, pkt, entry) : DROP;
	return translate_in(skb, entry, at, pkt->tcp.doff * 4);
}

/* Whether one direction of a flow passes this interface. `since`: when segments began to pass another
 * one alone. */
static __always_inline bool passes(__u32 ifindex, __u8 *since, __u32 here)
{
	if (ifindex != here)
		return false;
	if (*since)
		*since = 0;
	return true;
}

/* Whether segments have passed another interface alone for long enough, to which their route was moved. */
static __always_inline bool has_moved(__u8 *since)
{
	__u8 now = (bpf_ktime_get_coarse_ns() / STRAY_NS) | 1;

	if (*since)
		return (__u8)(now - *since) >= MOVES_AFTER;
	*since = now;
	return false;
}

/* Whether a segment has numbers of what is in flight: who does not see the flow has to guess them.
 * `shown` has what it sends, in its receiver's view; what it acknowledges is within `acked` and `next`. */
static __always_inline bool fits(const struct shown *shown, __u32 ack, __u32 acked, __u32 next)
{
	__u32 in_flight = *shown->next - shown->acked;

	return (shown->flags & (TCP_ACK | TCP_SYN)) == TCP_ACK && ack - acked <= next - acked &&
	       shown->seq - shown->acked + GAP_MAX <= in_flight + 2 * GAP_MAX;
}

/* Whether the client's direction moves to this interface, by a segment of it: with the numbers of the flow,
 * after silence at the former one, if this host would answer by this one. */
GLOBAL int moves_in(struct __sk_buff *skb, struct packet_flow *entry, const struct view *view,
		    __u32 l2_bytes)
{
	struct shown shown = {};
	struct packet *pkt;

	if (!entry || !view)
		return false;
	pkt = parse_segment(skb, view, 0, l2_bytes);
	if (!pkt)
		return false;
	shown.acked = entry->server_ack;
	shown.next = &entry->client_next;
	shown.seq = view->seq + entry->client_seq_delta;
	shown.flags = view->flags;
	if (!fits(&shown, bpf_ntohl(pkt->tcp.ack_seq), entry->client_ack, entry->server_next) ||
	    !has_moved(&entry->strayed) || !routes_back(skb, pkt))
		return false;
	entry->ifindex = skb->ifindex;
	entry->strayed = 0;
	if (pkt->l2_bytes)
		bpf_skb_load_bytes(skb, 0, entry->link, sizeof(entry->link));
	return true;
}

/* Whether the server's direction does. This host has routed the segment here. */
GLOBAL int moves_out(struct __sk_buff *skb, struct packet_flow *entry, const struct view *view,
		     __u32 l2_bytes)
{
	struct shown shown = {};
	struct packet *pkt;

	if (!entry || !view)
		return false;
	pkt = parse_segment(skb, view, 1, l2_bytes);
	if (!pkt)
		return false;
	shown.acked = entry->client_ack;
	shown.next = &entry->server_next;
	shown.seq = view->seq + entry->seq_delta;
	shown.flags = view->flags;
	if (entry->state != PACKET_OPEN) {
		/* The server has shown no number yet. */
		shown.seq = entry->client_ack;
		shown.flags &= ~TCP_SYN;
	}
	if (!fits(&shown, bpf_ntohl(pkt->tcp.ack_seq), entry->server_ack, entry->client_next) ||
	    !has_moved(&entry->out_strayed))
		return false;
	entry->out_ifindex = skb->ifindex;
	entry->out_strayed = 0;
	return true;
}

/* How far a number may be behind what was acknowledged. */
#define SPAN (1u << 20)

/* What happens to a segment at another interface than its flow's. */
enum elsewhere {
	ELSEWHERE_TRANSLATE, /* its route was moved */
	ELSEWHERE_PASS,	     /* it was translated before, and another program has removed the mark */
	ELSEWHERE_DROP,	     /* its numbers fit neither, or both */
};

/* Whether a number of the server's bytes, as the client counts them, is near what is in flight. */
static __always_inline bool is_near(const struct packet_flow *entry, __u32 number)
{
	return number - entry->client_ack + SPAN <= entry->server_next - entry->client_ack + 2 * SPAN;
}

/* Shows, by the number of the server's bytes, which both directions have, whether a segment of an open flow is in
 * the numbers of its sender or of its receiver: enum elsewhere. */
GLOBAL int look_elsewhere(struct __sk_buff *skb, const struct packet_flow *entry,
			  const struct view *view, __u32 out)
{
	bool clients, servers, raw, done;
	__be32 ack = 0;
	__u32 number;

	if (!entry || !view)
		return ELSEWHERE_DROP;
	if (!out && !(view->flags & TCP_ACK))
		/* It has none, and its own is the same in both, unless the flow was relayed. */
		return entry->was_relayed ? ELSEWHERE_DROP : ELSEWHERE_TRANSLATE;
	if (!out && bpf_skb_load_bytes(skb, view->at + TCP_ACK_AT, &ack, sizeof(ack)))
		return ELSEWHERE_DROP;
	number = out ? view->seq : bpf_ntohl(ack);
	clients = is_near(entry, number);
	servers = is_near(entry, number + entry->seq_delta);
	raw = out ? servers : clients;
	done = out ? clients : servers;
	if (raw == done)
		return ELSEWHERE_DROP;
	return raw ? ELSEWHERE_TRANSLATE : ELSEWHERE_PASS;
}

/* Whether a part of a segment, which cannot be held or answered, belongs to the flow that has not opened. */
GLOBAL int is_part_of(struct __sk_buff *skb, const struct packet_flow *entry,
		      const struct view *view, __u32 out)
{
	__be32 ack;

	if (!entry || !view || !is_unproved(entry->state) ||
	    bpf_skb_load_bytes(skb, view->at + TCP_ACK_AT, &ack, sizeof(ack)))
		return true;
	return view->flags & TCP_ACK &&
	       bpf_ntohl(ack) == (out ? entry->client_isn : entry->node_isn) + 1;
}

/* A first fragment does not show how long its segment is: at most this much follows. */
static __always_inline void expect_rest(__u32 *next, __u32 seq)
{
	__u32 end = seq + 0xffff;

	if ((__s32)(seq - *next) <= GAP_MAX && (__s32)(end - *next) > 0)
		*next = end;
}

/* Whether a segment is the first of a connection. */
static __always_inline bool opens(const struct view *view)
{
	return (view->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

/* The verdict on a segment of a flow that is being aborted. What it acknowledges is noted by then. */
static __always_inline int only_resets(const struct view *view, int verdict)
{
	return view->flags & TCP_RST ? verdict : DROP;
}

/* A SYN that is rare. The node does not answer it, nor learn from it. */
GLOBAL int on_rare_syn(struct __sk_buff *skb, const struct view *view)
{
	struct packet_flow *entry;

	if (!view)
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view->key);
	if (!entry || (entry->state == PACKET_LEARNING && entry->client_isn == view->seq))
		return NEXT;
	if (has_ended(entry)) {
		/* It would translate the new connection by the old numbers. */
		stop_learning(entry, PACKET_CLOSED);
		bpf_map_delete_elem(&packet_flows, &view->key);
		return NEXT;
	}
	/* The one that the node has answered comes again as it was. */
	if (entry->client_isn == view->seq)
		return DROP;
	if (entry->ifindex == skb->ifindex)
		entry->other_isn = view->seq;
	count(STAT_PACKET_BUSY);
	return PASS;
}

/* A segment of the client of a flow. */
static __always_inline int carry_on_in(struct __sk_buff *skb, struct packet_flow *entry,
				       struct view *view, __u32 l2_bytes)
{
	struct packet *pkt;
	int elsewhere, verdict;
	bool is_open;

	if (is_carried(skb))
		return PASS;
	if (!is_sound(skb, view))
		return DROP;
	is_open = entry->state == PACKET_OPEN || entry->state == PACKET_ABORTED;
	if (!passes(entry->ifindex, &entry->strayed, skb->ifindex)) {
		elsewhere = is_open ? look_elsewhere(skb, entry, view, 0) : ELSEWHERE_TRANSLATE;
		if (elsewhere == ELSEWHERE_PASS)
			return entry->state == PACKET_OPEN ? PASS : only_resets(view, PASS);
		if (elsewhere == ELSEWHERE_DROP)
			return DROP;
		if (!view->rare)
			moves_in(skb, entry, view, l2_bytes);
	}
	if (entry->state == PACKET_OPEN) {
		/* By what came before: the segment in hand adds to it when it is translated. */
		if (!entry->is_sender && sends_much(entry, entry->client_next))
			note_sender(&view->key, entry);
		if (!view->rare && is_too_long(skb, entry, view->at, view->bytes))
			return report_narrow(skb, entry, view->at);
		verdict = translate_in(skb, entry, view->at, view->bytes);
		if (view->rare & RARE_PART)
			expect_rest(&entry->client_next, view->seq + entry->client_seq_delta);
		return verdict;
	}
	if (entry->state == PACKET_ABORTED)
		return only_resets(view, translate_in(skb, entry, view->at, view->bytes));
	if (view->rare && !strip_headers(skb, view, l2_bytes))
		return is_part_of(skb, entry, view, 0) ? DROP : PASS;
	pkt = parse_segment(skb, view, 0, l2_bytes);
	return pkt ? from_client(skb, pkt, view->at, entry) : DROP;
}

static __always_inline int carry_in(struct __sk_buff *skb, struct view *view)
{
	__u32 ifindex = skb->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct packet_flow *entry;
	struct packet *pkt;
	int seen;

	if (!device || is_tagged(skb) || skb->pkt_type != PACKET_HOST)
		return NEXT;
	seen = see_segment(skb, view, device->l2_bytes);
	if (seen != SEEN_SEGMENT)
		return seen == SEEN_ICMP ? icmp_in(skb) : NEXT;
	if (opens(view)) {
		if (view->rare)
			return on_rare_syn(skb, view);
		pkt = parse_segment(skb, view, 0, device->l2_bytes);
		return pkt ? on_syn(skb, pkt, view->at) : NEXT;
	}
	/* A segment of a server. Where flows may have sockets, `redirect` would search for one: PASS,
	 * for which the flow must be found, costs less. */
	if (!has_relayed() && !may_be_client(source_port(view)))
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view->key);
	if (!entry)
		return NEXT;
	if (entry->state == PACKET_LEARNING) {
		if (view->turned != entry->turned || view->rare & RARE_PART)
			return NEXT;
		if (entry->is_measured && !entry->is_sender && sends_much(entry, view->seq))
			note_sender(&view->key, entry);
		return confirm(skb, &view->key, entry, view);
	}
	if (view->turned != entry->turned)
		/* The server's: translated where it leaves to the client. */
		return PASS;
	return carry_on_in(skb, entry, view, device->l2_bytes);
}

/* The programs of others see what passes too, as it goes on. */
SEC("classifier")
int packet_in(struct __sk_buff *skb)
{
	struct view view;
	bool is_whole;
	int verdict;

	view.rare = 0;
	verdict = carry_in(skb, &view);
	is_whole = !(view.rare & RARE_PART);
	/* What is not whole has no later parts that are carried too: `redirect` forgets where it led the
	 * parts of an earlier packet with the same identification. */
	skb->cb[MESSAGE_CARRIED] = verdict == PASS && is_whole ? MESSAGE_IS_CARRIED : 0;
	return verdict == PASS ? NEXT : verdict;
}

/* Turns a repeated SYN-ACK, whose header and options the scratch area has, into a keepalive of the client
 * (RFC 9293 section 3.8.4). Its answer validates it: the server may be the first to send data. If it is validated
 * and the node's ACK was lost, its answer is that, with its time and numbers of now. */
GLOBAL int probe_client(struct __sk_buff *skb, const struct packet *pkt,
			struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct translation how = {};
	__u32 window;
	__u8 *to;

	if (!pkt || !entry || !scratch)
		return DROP;
	to = scratch->header.after;
	write_number(to + TCP_SEQ_AT, entry->node_isn);
	to[TCP_FLAGS_AT] = TCP_ACK;
	how.narrow = entry->promised_shift;
	window = scaled(bpf_ntohs(pkt->tcp.window), &how);
	to[14] = window >> 8;
	to[15] = window;
	for (int i = sizeof(struct tcphdr); i < TCP_HEADER_MAX; i++)
		to[i] = i < (int)scratch->header.bytes ? TCP_OPTION_NOP : 0;
	/* It has room for them: the SYN-ACK had them too. */
	if (entry->granted & OFFERS_TIMESTAMPS && scratch->options.ts_at) {
		to[22] = TCP_OPTION_TIMESTAMPS;
		to[23] = 10;
		write_number(to + 24, scratch->options.ts_value + entry->ts_delta);
		write_number(to + 28, scratch->options.ts_echo);
	}
	mark_carried(skb);
	return store_header(skb, &scratch->header, tcp_at(pkt->family, pkt->l2_bytes)) ? NEXT : DROP;
}

/* Stores the contents of the server's SYN-ACK. */
static __always_inline void accept(struct __sk_buff *skb, struct packet_flow *entry,
				   const struct packet *pkt, const struct read_options *options)
{
	entry->older = OLDER_NONE;
	entry->of_server = skb->ingress_ifindex;
	entry->granted = (options->offers & entry->promised) | (entry->granted & GRANTS_SHORT);
	entry->server_shift = options->shift;
	entry->seq_delta = entry->node_isn - bpf_ntohl(pkt->tcp.seq);
	if (entry->granted & OFFERS_TIMESTAMPS)
		entry->ts_delta = entry->node_ts - options->ts_value;
}

/* A segment of the server that acknowledges something else than the SYN, before that is answered: of an older
 * connection with these addresses, or of what guards the server and tests whether the client is there. */
static __always_inline int meet_older(struct __sk_buff *skb, const struct packet *pkt,
				      struct packet_flow *entry)
{
	/* What was sent before the reset came shows nothing new, and another reset would end the new
	 * connection in conntrack. */
	if (entry->older == OLDER_RESET)
		return DROP;
	entry->of_server = bpf_ntohl(pkt->tcp.ack_seq);
	entry->older = OLDER_SEEN;
	/* Another host may have forged the SYN: the client has to answer first. */
	return entry->state == PACKET_HELD ? renew(skb, pkt, entry) : NEXT;
}

/* A SYN-ACK that does not acknowledge the SYN of the flow. */
GLOBAL int on_other_syn_ack(struct __sk_buff *skb, const struct packet *pkt,
			    struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	__u32 ack;

	if (!pkt || !entry || !scratch)
		return NEXT;
	ack = bpf_ntohl(pkt->tcp.ack_seq);
	if (ack == entry->other_isn + 1 && entry->other_isn != entry->client_isn &&
	    (entry->state == PACKET_OPEN || entry->state == PACKET_HELD)) {
		/* A new connection: the server has lost the old one. Only for a SYN that has passed. */
		close_early(&scratch->key, entry);
		bpf_map_delete_elem(&packet_flows, &scratch->key);
		return NEXT;
	}
	return entry->state == PACKET_ANSWERED || entry->state == PACKET_HELD ?
		       meet_older(skb, pkt, entry) :
		       NEXT;
}

/* A SYN-ACK on its way to the client. */
GLOBAL int on_syn_ack(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		      struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct destination service;
	__u32 state;

	if (!pkt || !entry || !scratch)
		return DROP;
	state = entry->state;
	if (skb->ingress_ifindex == entry->ifindex)
		/* From where the client is: of no server. Any client can forge that. */
		return state == PACKET_LEARNING ? NEXT : DROP;
	if (bpf_ntohl(pkt->tcp.ack_seq) != entry->client_isn + 1)
		return on_other_syn_ack(skb, pkt, entry);
	if (!read_header(skb, scratch, at, pkt->tcp.doff * 4) || !is_whole(pkt, scratch, at))
		return state == PACKET_LEARNING ? NEXT : DROP;
	if (state == PACKET_LEARNING) {
		note_grant(skb, entry, pkt, &scratch->options);
		return NEXT;
	}
	if (state == PACKET_ANSWERED || state == PACKET_HELD) {
		service = service_from(&pkt->flow);
		accept(skb, entry, pkt, &scratch->options);
		note_mss(&pkt->flow, entry);
		/* Nobody has completed the handshake otherwise. */
		if (state == PACKET_HELD)
			learn_profile(&service, entry, bpf_ntohs(pkt->tcp.window));
		if (change(entry, PACKET_ANSWERED, PACKET_ACCEPTED)) {
			note_nearer(entry);
			return DROP;
		}
		if (change(entry, PACKET_HELD, PACKET_OPEN))
			note_opened(entry, &service);
		return turn_round(skb, pkt, entry);
	}
	if (state == PACKET_ACCEPTED || state == PACKET_OPEN)
		return probe_client(skb, pkt, entry);
	return state == PACKET_CLOSED ? reset_server(skb, pkt, entry) : DROP;
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

/* The server refuses the flow. */
GLOBAL int on_refusal(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		      struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct destination service;

	if (!pkt || !entry || !scratch ||
	    !load_header(skb, &scratch->header, at, pkt->tcp.doff * 4))
		return DROP;
	/* The client has the node's SYN-ACK: the next number is the only one that resets it
	 * (RFC 5961 section 3.2). */
	write_number(scratch->header.after + TCP_SEQ_AT, entry->node_isn + 1);
	if (!store_header(skb, &scratch->header, at))
		return DROP;
	mark_carried(skb);
	count(STAT_PACKET_REFUSED);
	service = service_from(&pkt->flow);
	mark_bad(&service, BAD_NS);
	close_early(&scratch->key, entry);
	return NEXT;
}

/* A segment other than a SYN-ACK from a server that has not accepted the flow. What belongs to an older
 * connection passes as it is, as long as its client may have that. */
static __always_inline int on_early_segment(struct __sk_buff *skb, const struct packet *pkt,
					    __u32 at, struct packet_flow *entry)
{
	int verdict = entry->state == PACKET_HELD ? DROP : NEXT;
	__u32 ack = bpf_ntohl(pkt->tcp.ack_seq);

	if (!pkt->tcp.ack)
		return verdict;
	if (skb->ingress_ifindex == entry->ifindex)
		return DROP;
	if (ack == entry->client_isn + 1) {
		if (pkt->tcp.rst)
			return on_refusal(skb, pkt, at, entry);
		/* Without numbers to translate by, only the node's own keepalive passes, from an
		 * interface in front. */
		return bpf_ntohl(pkt->tcp.seq) == entry->node_isn && is_plain(pkt, at) ? NEXT : DROP;
	}
	if (pkt->tcp.rst || entry->state == PACKET_ACCEPTED)
		return verdict;
	return meet_older(skb, pkt, entry);
}

/* A segment of the server of a flow that was closed or given up. The client gets the node's reset. */
static __always_inline int on_late_segment(const struct packet *pkt, const struct packet_flow *entry)
{
	if (pkt->tcp.rst && bpf_ntohl(pkt->tcp.seq) == entry->node_isn + 1)
		return NEXT;
	if (!is_unproved(entry->state))
		return DROP;
	return pkt->tcp.ack && bpf_ntohl(pkt->tcp.ack_seq) == entry->client_isn + 1 ? DROP : NEXT;
}

/* A segment of the server of a flow that is not open, or a SYN. */
static __always_inline int on_other(struct __sk_buff *skb, struct packet_flow *entry,
				    struct view *view, __u32 l2_bytes)
{
	struct packet *pkt;

	/* The node's own SYN-ACK is sent by a program that runs on this CPU: it leaves before
	 * the scratch area is touched. */
	if (view->flags & TCP_SYN && view->seq == entry->node_isn)
		return PASS;
	if (view->rare && !strip_headers(skb, view, l2_bytes))
		return is_part_of(skb, entry, view, 1) ? DROP : NEXT;
	pkt = parse_segment(skb, view, 1, l2_bytes);
	if (!pkt)
		return DROP;
	if (pkt->tcp.syn)
		/* A SYN begins a connection of its own. */
		return pkt->tcp.ack ? on_syn_ack(skb, pkt, view->at, entry) : NEXT;
	if (is_half_open(entry->state) || entry->state == PACKET_HELD)
		return on_early_segment(skb, pkt, view->at, entry);
	/* Another CPU has opened it meanwhile. */
	if (entry->state == PACKET_OPEN)
		return translate_out(skb, entry, view->at, view->bytes);
	return on_late_segment(pkt, entry);
}

/* A segment of the server of a flow that learns, which passes as it is. */
static __always_inline int learn_from(struct __sk_buff *skb, struct packet_flow *entry,
				      const struct view *view, __u32 l2_bytes)
{
	struct packet *pkt;

	if (!passes(entry->out_ifindex, &entry->out_strayed, skb->ifindex) &&
	    (view->rare || !moves_out(skb, entry, view, l2_bytes)))
		return NEXT;
	if (!(view->flags & TCP_SYN))
		return entry->is_measured ? measure(&view->key, entry, view->seq, view->flags) :
					    NEXT;
	if (view->rare || !(view->flags & TCP_ACK))
		return NEXT;
	pkt = parse_segment(skb, view, 1, l2_bytes);
	return pkt ? on_syn_ack(skb, pkt, view->at, entry) : NEXT;
}

/* A segment of the server of a flow. */
static __always_inline int carry_on_out(struct __sk_buff *skb, struct packet_flow *entry,
					struct view *view, __u32 l2_bytes)
{
	int elsewhere, verdict;
	bool is_open;

	if (is_carried(skb))
		return NEXT;
	if (entry->state == PACKET_LEARNING)
		return learn_from(skb, entry, view, l2_bytes);
	if (!is_sound(skb, view))
		return DROP;
	is_open = (entry->state == PACKET_OPEN && !(view->flags & TCP_SYN)) ||
		  entry->state == PACKET_ABORTED;
	if (is_open && entry->out_ifindex != skb->ifindex) {
		elsewhere = look_elsewhere(skb, entry, view, 1);
		if (elsewhere == ELSEWHERE_PASS)
			return entry->state == PACKET_OPEN ? NEXT : only_resets(view, NEXT);
		if (elsewhere == ELSEWHERE_DROP)
			return DROP;
		/* At once: at the former one, behind, it would be translated again if it has lost its
		 * mark. */
		entry->out_ifindex = skb->ifindex;
	}
	if (!is_open)
		return on_other(skb, entry, view, l2_bytes);
	if (entry->state == PACKET_ABORTED)
		return only_resets(view, translate_out(skb, entry, view->at, view->bytes));
	if (!entry->is_long && is_long(entry, view->seq))
		note_long(&view->key, entry);
	verdict = translate_out(skb, entry, view->at, view->bytes);
	if (view->rare & RARE_PART)
		expect_rest(&entry->server_next, view->seq + entry->seq_delta);
	if (verdict == NEXT && !view->rare && is_stamped(entry))
		return stamp(skb, &view->key, entry, view->at, view->bytes);
	return verdict;
}

SEC("classifier")
int packet_out(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct packet_flow *entry;
	struct device *device;
	struct view view;
	int seen;

	/* It is translated: by `bypass_in`, for a pair that may be a flow by now, or in one
	 * piece with others, as which it is sent. */
	if ((skb->mark & NODE_MARKS) == NODE_MARKS) {
		skb->mark &= ~NODE_MARKS;
		mark_carried(skb);
		return is_piece(skb) ? stamp_piece_in_hand(skb) : NEXT;
	}
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!device || is_tagged(skb))
		return NEXT;
	seen = see_segment(skb, &view, device->l2_bytes);
	if (seen != SEEN_SEGMENT)
		return seen == SEEN_ICMP ? icmp_out(skb) : NEXT;
	if (!may_be_client(destination_port(&view)))
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view.key);
	if (!entry || view.turned == entry->turned)
		return NEXT;
	return carry_on_out(skb, entry, &view, device->l2_bytes);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
