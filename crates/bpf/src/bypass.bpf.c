// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The segments of a flow that its relay is about to leave (docs/design/0023): bypass.h has
 * the rules, bypass_segment.h the packets, this file the programs.
 *
 * bypass_in     tc ingress, before `redirect`
 * bypass_out    tc egress
 * bypass_learn  run by user space, until the cut is chosen
 * bypass_step   likewise; user space carries out what it returns
 * bypass_settle likewise, once the relay's sockets are closed
 * bypass_bury   likewise: ends pairs whose relay has ended, and has those become flows for which
 *               there was no room
 *
 * A segment that goes both ways enters its interface once more, as the relay's copy, with
 * both marks of the node. One that goes direct has them at egress, where `packet_out` removes
 * them: the pair may have become a flow of the packet path meanwhile.
 */
#include "bypass_segment.h"
#include "packet_flows.h"

#define NEXT TC_ACT_UNSPEC
#define PACKET_HOST 0
/* The longest that another CPU has a pair is some microseconds. */
#define LOCK_TRIES 4096

/* Pairs that are handed over at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct packet_key);
	__type(value, struct bypass_pair);
} bypass_pairs SEC(".maps");

/* Whether there may be pairs. Segments need a look-up only then. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} bypass_present SEC(".maps");

static __always_inline bool may_have_pairs(void)
{
	__u32 only = 0;
	__u32 *present = bpf_map_lookup_elem(&bypass_present, &only);

	return present && *present;
}

struct locking {
	struct bypass_pair *pair;
	bool done;
};

static long try_lock(__u32 index, struct locking *locking)
{
	(void)index;
	locking->done = !__sync_val_compare_and_swap(&locking->pair->lock, 0, 1);
	return locking->done;
}

/* Two CPUs may have segments of a flow at once. False after a time in which the holder would
 * have done its work: the segment is lost then, and its sender repeats it. */
static __always_inline bool lock(struct bypass_pair *pair)
{
	struct locking locking = { .pair = pair };

	bpf_loop(LOCK_TRIES, try_lock, &locking, 0);
	return locking.done;
}

static __always_inline void unlock(struct bypass_pair *pair)
{
	__sync_val_compare_and_swap(&pair->lock, 1, 0);
}

/* Sends the segment to the other end. Routing alone would not: the kernel looks for a socket
 * before it forwards, and the relay's is still there. */
static __always_inline int send_direct(struct __sk_buff *skb, const struct bypass_work *work,
				       __u32 ifindex)
{
	/* The kernel drops a packet without a link layer header there, as from a tunnel, and
	 * replaces what it finds. */
	if (!work->l2_bytes && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return DROP;
	skb->mark |= NODE_MARKS;
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

/* The relay's copy, which entered the interface once more. */
static __always_inline int on_copy(struct __sk_buff *skb, const struct bypass_pair *pair,
				   struct bypass_work *work, __u32 e)
{
	skb->mark &= ~NODE_MARKS;
	/* The sockets may be gone, and the kernel would answer with a reset. */
	if (pair->phase != BYPASS_OVERLAP)
		return DROP;
	copy_for_relay(pair, e, &work->in, &work->out);
	mark_carried(skb);
	return write_segment(skb) ? NEXT : DROP;
}

static __always_inline int on_segment(struct __sk_buff *skb, struct bypass_pair *pair,
				      struct bypass_work *work, __u32 e)
{
	__u32 phase, ways;

	if (!lock(pair))
		return DROP;
	phase = pair->phase;
	ways = from_end(pair, e, &work->in, &work->out);
	if (phase <= BYPASS_CLAMPING) {
		pair->ifindex[e & 1] = skb->ifindex;
		if (work->l2_bytes)
			bpf_skb_load_bytes(skb, 0, pair->link[e & 1], ETH_HLEN);
	}
	unlock(pair);
	if (!ways)
		return DROP;
	if (ways & BYPASS_TO_SENDER)
		return send_back(skb);
	if (phase <= BYPASS_CLAMPING)
		return NEXT;
	if (!(ways & BYPASS_TO_END))
		return on_copy(skb, pair, work, e);
	if (ways & BYPASS_TO_RELAY) {
		skb->mark |= NODE_MARKS;
		bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
	}
	if (!write_segment(skb))
		return DROP;
	return send_direct(skb, work, pair->ifindex[(e & 1) ^ 1]);
}

/* Whether it does not show how long it is, or not all its numbers. */
static __always_inline bool is_unreadable(const struct view *view)
{
	return view->rare & RARE_PART || !view->bytes;
}

/* Such a segment. A relay whose flow has them stays; once it leaves, the segment would be neither's. */
static __always_inline int on_unreadable(struct bypass_pair *pair)
{
	bool stays;

	if (!lock(pair))
		return DROP;
	stays = pair->phase <= BYPASS_CLAMPING;
	if (stays)
		pair->reset = true;
	unlock(pair);
	return stays ? NEXT : DROP;
}

/* A SYN of a pair's addresses. Without a dead pair its ends would read each other in the wrong
 * numbers, and anyone can send a SYN. */
static __always_inline int on_syn(const struct bypass_pair *pair, const struct packet_key *key)
{
	if (pair->phase == BYPASS_DEAD)
		return DROP;
	if (is_over(pair))
		bpf_map_delete_elem(&bypass_pairs, key);
	return NEXT;
}

SEC("classifier")
int bypass_in(struct __sk_buff *skb)
{
	bool is_copy = (skb->mark & NODE_MARKS) == NODE_MARKS;
	__u32 ifindex = skb->ifindex;
	struct bypass_pair *pair;
	struct bypass_work *work;
	struct device *device;
	struct view view;
	__u32 e;

	if (is_carried(skb) || (!is_copy && !may_have_pairs()))
		return NEXT;
	work = work_area();
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!work || !device || is_tagged(skb) || skb->pkt_type != PACKET_HOST ||
	    see_segment(skb, &view, device->l2_bytes) != SEEN_SEGMENT)
		return NEXT;
	pair = bpf_map_lookup_elem(&bypass_pairs, &view.key);
	if (!pair || (!pair->known && pair->phase != BYPASS_DEAD))
		return is_copy ? DROP : NEXT;
	if (view.flags & TCP_SYN)
		return on_syn(pair, &view.key);
	if (is_unreadable(&view))
		return on_unreadable(pair);
	e = view.turned != pair->turned;
	if (!is_sound(skb, &view) || !read_segment(skb, view.at, view.bytes, device->l2_bytes))
		return DROP;
	if (is_copy)
		return on_copy(skb, pair, work, e);
	return on_segment(skb, pair, work, e);
}

SEC("classifier")
int bypass_out(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct bypass_pair *pair;
	struct bypass_work *work;
	struct device *device;
	struct view view;
	__u32 phase, sends;

	if (is_carried(skb) || !may_have_pairs())
		return NEXT;
	work = work_area();
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!work || !device || is_tagged(skb) || see_segment(skb, &view, device->l2_bytes) != SEEN_SEGMENT ||
	    view.flags & TCP_SYN)
		return NEXT;
	pair = bpf_map_lookup_elem(&bypass_pairs, &view.key);
	if (!pair || (skb->mark & NODE_MARKS) == NODE_MARKS)
		return NEXT;
	/* A segment whose socket is gone, forwarded by this host in the wrong numbers, or the
	 * kernel's answer to it. */
	if (pair->phase >= BYPASS_CLAMPING && !(skb->mark & socket_mark))
		return DROP;
	if (!pair->known)
		return NEXT;
	if (is_unreadable(&view))
		return on_unreadable(pair);
	if (!read_segment(skb, view.at, view.bytes, device->l2_bytes) || !lock(pair))
		return DROP;
	phase = pair->phase;
	/* It has the address of the other end. */
	sends = from_relay(pair, view.turned == pair->turned, &work->in, &work->out);
	unlock(pair);
	if (!sends)
		return DROP;
	if (phase <= BYPASS_CLAMPING)
		return NEXT;
	mark_carried(skb);
	return write_segment(skb) ? NEXT : DROP;
}

/* The tuple by which the kernel finds the socket that receives from the first end of a flow. */
static __always_inline __u32 fill_tuple_of(struct bpf_sock_tuple *tuple, const struct flow *flow)
{
	if (is_mapped(&flow->client)) {
		tuple->ipv4.saddr = flow->client.word[3];
		tuple->ipv4.daddr = flow->server.word[3];
		tuple->ipv4.sport = flow->client_port;
		tuple->ipv4.dport = flow->server_port;
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(tuple->ipv6.saddr, &flow->client, sizeof(flow->client));
	__builtin_memcpy(tuple->ipv6.daddr, &flow->server, sizeof(flow->server));
	tuple->ipv6.sport = flow->client_port;
	tuple->ipv6.dport = flow->server_port;
	return sizeof(tuple->ipv6);
}

/* Reads the node's socket that receives from the flow's `client`; false if it has none, or if
 * numbers changed meanwhile. */
GLOBAL int read_socket(struct __sk_buff *skb, const struct flow *flow, struct bypass_socket *to,
		       __u32 skew)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_tcp_sock *tcp;
	struct bpf_sock *sk;
	__u64 acked, received;
	bool is_read = false;

	if (!flow || !to)
		return false;
	sk = bpf_skc_lookup_tcp(skb, &tuple, fill_tuple_of(&tuple, flow), BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	tcp = owner_by(sk) == OWNER_OURS ? bpf_tcp_sock(sk) : NULL;
	if (tcp) {
		acked = tcp->bytes_acked;
		received = tcp->bytes_received;
		asm volatile("" ::: "memory");
		to->acked = tcp->snd_una;
		to->received = tcp->rcv_nxt;
		to->sent = tcp->snd_nxt;
		asm volatile("" ::: "memory");
		to->sent_first = to->acked - (__u32)acked + skew;
		to->received_first = to->received - (__u32)received;
		is_read = acked == tcp->bytes_acked && received == tcp->bytes_received;
	}
	bpf_sk_release(sk);
	return is_read;
}

static __always_inline struct bypass_pair *pair_of_frame(struct __sk_buff *skb,
							 struct packet_key *key)
{
	if (bpf_skb_load_bytes(skb, ETH_HLEN, key, sizeof(*key)))
		return NULL;
	return bpf_map_lookup_elem(&bypass_pairs, key);
}

/* Adds the numbers of both sockets to a pair; false if they cannot be read now. The frame has
 * the key of the pair behind its link layer header; cb[0] and cb[1] are the receive windows
 * of the sockets toward client and server. */
SEC("classifier")
int bypass_learn(struct __sk_buff *skb)
{
	struct bypass_socket client = { .window = skb->cb[0] }, server = { .window = skb->cb[1] };
	struct bypass_pair *pair;
	struct packet_key key;
	struct flow flow;

	pair = pair_of_frame(skb, &key);
	if (!pair)
		return false;
	flow = flow_of(&key, pair->turned);
	if (!read_socket(skb, &flow, &client, pair->skew[0]))
		return false;
	flow = reversed(&flow);
	if (!read_socket(skb, &flow, &server, pair->skew[1]) || !lock(pair))
		return false;
	learn_from_sockets(pair, &client, &server);
	unlock(pair);
	return true;
}

/* The same frame; cb[0] is the time. */
SEC("classifier")
int bypass_step(struct __sk_buff *skb)
{
	struct bypass_pair *pair;
	struct packet_key key;
	int step;

	pair = pair_of_frame(skb, &key);
	if (!pair)
		return BYPASS_STEP_RELAY;
	if (!lock(pair))
		return BYPASS_STEP_BUSY;
	step = advance(pair, skb->cb[0]);
	unlock(pair);
	return step;
}

/* The flow of the packet path that the pair becomes. */
static __always_inline void describe(struct packet_flow *made, const struct bypass_pair *pair)
{
	const struct bypass_direction *client = &pair->by[0], *server = &pair->by[1];

	made->since_ns = made->last_ns = bpf_ktime_get_ns();
	made->state = PACKET_OPEN;
	made->ifindex = pair->ifindex[0];
	made->turned = pair->turned;
	made->granted = OFFERS_WINDOW_SCALE | OFFERS_SACK | OFFERS_TIMESTAMPS;
	made->seq_delta = server->delta;
	made->ts_delta = server->ts_delta;
	made->client_seq_delta = client->delta;
	made->client_ts_delta = client->ts_delta;
	made->client_shift = client->end_shift;
	made->server_shift = server->end_shift;
	made->promised_shift = client->relay_shift;
	made->node_shift = server->relay_shift;
	made->out_ifindex = made->ifindex;
	__builtin_memcpy(made->link, pair->link[0], sizeof(made->link));
	made->hop_limit = ANSWER_HOPS;
	/* What each end has read by now, if only from the relay. */
	made->node_ts = fresh_ts(pair, 0);
	made->client_ts = fresh_ts(pair, 1) - client->ts_delta;
	made->down.acked = server->end_ack + server->delta;
	made->up.acked = client->end_ack + client->delta;
	made->node_isn = made->down.acked - 1;
	made->client_isn = made->other_isn = made->up.acked - 1;
	/* What is in flight fits into the receiver's window. */
	made->down.next = made->down.edge = server->edge + server->delta;
	made->up.next = made->up.edge = client->edge + client->delta;
	made->was_relayed = made->is_long = true;
	if (client->has_fin) {
		made->ended |= PACKET_FIN_CLIENT;
		made->up.fin = client->fin + 1 + client->delta;
	}
	if (server->has_fin) {
		made->ended |= PACKET_FIN_SERVER;
		made->down.fin = server->fin + 1 + server->delta;
	}
	if (pair->reset)
		made->ended |= PACKET_RESET;
}

/* Makes a pair whose sockets are closed a flow of the packet path, which outlives the process.
 * Without room there it stays a pair, until there is or the flow is over. Returns whether the pair
 * is gone. */
GLOBAL int settle(struct packet_key *key, const struct bypass_pair *pair)
{
	struct packet_flow made = {};

	if (!key || !pair || pair->phase != BYPASS_DIRECT)
		return false;
	describe(&made, pair);
	note_client_port(made.turned ? key->second_port : key->first_port);
	/* In this order: a segment that finds neither would reach the host as one of no flow. */
	if (bpf_map_update_elem(&packet_flows, key, &made, BPF_ANY) && !is_over(pair))
		return false;
	bpf_map_delete_elem(&bypass_pairs, key);
	return true;
}

SEC("classifier")
int bypass_settle(struct __sk_buff *skb)
{
	struct bypass_pair *pair;
	struct packet_key key;

	pair = pair_of_frame(skb, &key);
	return pair && settle(&key, pair);
}

/* Sends the segment in hand, which is in the frame, to an end. */
static __always_inline void send_probe(struct __sk_buff *skb, const struct bypass_pair *pair,
				       __u32 e)
{
	const __u8 *link = pair->link[e & 1];

	if (!pair->known || !pair->ifindex[e & 1] || !write_segment(skb))
		return;
	bpf_skb_store_bytes(skb, 0, link + ETH_ALEN, ETH_ALEN, 0);
	bpf_skb_store_bytes(skb, ETH_ALEN, link, ETH_ALEN, 0);
	skb->mark |= NODE_MARKS;
	bpf_clone_redirect(skb, pair->ifindex[e & 1], 0);
}

/* Looks after a pair: tries again to make it a flow, and probes an end of it if it is dead. The
 * frame is a segment from the other end to it, with timestamps. With cb[0] the process of the pair
 * has certainly ended. Returns whether the pair is dead. */
SEC("classifier")
int bypass_bury(struct __sk_buff *skb)
{
	struct bypass_work *work = work_area();
	struct bypass_pair *pair;
	struct view view;
	bool is_dead;
	__u32 e;

	if (!work || !view_segment(skb, ETH_HLEN, &view))
		return false;
	pair = bpf_map_lookup_elem(&bypass_pairs, &view.key);
	if (pair && pair->phase == BYPASS_DIRECT) {
		if (is_abandoned(pair))
			settle(&view.key, pair);
		return false;
	}
	if (!pair || !read_segment(skb, view.at, view.bytes, ETH_HLEN) || !lock(pair))
		return false;
	e = view.turned == pair->turned;
	work->out = work->in;
	is_dead = look_after(pair, e, skb->cb[0], &work->out);
	unlock(pair);
	if (is_dead)
		send_probe(skb, pair, e);
	return is_dead;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
