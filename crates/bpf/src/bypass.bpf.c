// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The segments of a flow that its relay is about to leave (docs/design/0023): bypass.h has
 * the rules, this file the packets.
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
#include "bypass.h"
#include "packet_flows.h"

#define NEXT TC_ACT_UNSPEC
#define DROP TC_ACT_SHOT
#define PACKET_HOST 0
#define TCP_PSH 8
/* The longest that another CPU has a pair is some microseconds. */
#define LOCK_TRIES 4096
/* What bpf_csum_diff may take before Linux 6.13. */
#define SUM_MAX 512
/* More than the longest payload has such parts. */
#define SUM_PARTS 132

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

/* The segment in hand. The stack has no room for it. */
struct bypass_work {
	struct tcp_header header;
	struct bypass_segment in;
	struct bypass_segment out;
	__u32 at;      /* of the TCP header in the frame */
	__u32 l2_bytes;
	__u32 ts_at;   /* of the option in the TCP header; 0: there is none */
	__u32 sack_at; /* likewise */
	__u32 sack_bytes;
	__u32 sum; /* of the payload that is cut off */
	__u8 part[SUM_MAX + 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bypass_work);
} bypass_work SEC(".maps");

static __always_inline struct bypass_work *work_area(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&bypass_work, &only);
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

/* Finds one option; 1 ends the walk. */
static long find_option(__u32 index, struct bypass_work **of)
{
	struct bypass_work *work = *of;
	__u32 at = work->header.at, bytes;
	const __u8 *option;

	(void)index;
	if (at >= work->header.bytes)
		return 1;
	at &= HEADER_MASK;
	OPAQUE(at);
	at &= HEADER_MASK;
	option = work->header.before + at;
	if (option[0] == TCP_OPTION_END)
		return 1;
	if (option[0] == TCP_OPTION_NOP) {
		work->header.at = at + 1;
		return 0;
	}
	bytes = option[1];
	if (bytes < 2 || at + bytes > work->header.bytes)
		return 1;
	if (option[0] == TCP_OPTION_TIMESTAMPS && bytes == 10)
		work->ts_at = at;
	if (option[0] == TCP_OPTION_SACK && bytes <= 2 + 8 * BYPASS_BLOCKS) {
		work->sack_at = at;
		work->sack_bytes = bytes;
	}
	work->header.at = at + bytes;
	return 0;
}

static __always_inline __u8 *option_at(__u8 *header, __u32 at)
{
	OPAQUE(at);
	return header + (at & HEADER_MASK);
}

static __always_inline void read_options(struct bypass_work *work)
{
	struct bypass_segment *in = &work->in;
	const __u8 *option;

	work->ts_at = work->sack_at = work->sack_bytes = 0;
	bpf_loop(TCP_OPTIONS_MAX, find_option, &work, 0);
	in->ts_value = in->ts_echo = 0;
	in->has_ts = !!work->ts_at;
	if (work->ts_at) {
		option = option_at(work->header.before, work->ts_at);
		in->ts_value = read_number(option + 2);
		in->ts_echo = read_number(option + 6);
	}
	clear_blocks(in);
	if (!work->sack_at)
		return;
	option = option_at(work->header.before, work->sack_at);
	for (int i = 0; i < BYPASS_BLOCKS; i++) {
		if (2 + 8 * i + 8 > (int)work->sack_bytes)
			break;
		in->first[i] = read_number(option + 2 + 8 * i);
		in->last[i] = read_number(option + 6 + 8 * i);
	}
}

/* Bytes from the IP header on. A short frame has padding behind them. */
static __always_inline __u32 packet_bytes(struct __sk_buff *skb, __u32 l2_bytes)
{
	__be16 bytes = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, l2_bytes + offsetof(struct iphdr, tot_len), &bytes, 2);
		return bpf_ntohs(bytes);
	}
	bpf_skb_load_bytes(skb, l2_bytes + offsetof(struct ipv6hdr, payload_len), &bytes, 2);
	/* Zero is a packet too long for the field (BIG TCP), which needs no padding. */
	return bytes ? bpf_ntohs(bytes) + sizeof(struct ipv6hdr) : skb->len - l2_bytes;
}

/* Reads the segment in hand; false if its headers do not add up. */
GLOBAL int read_segment(struct __sk_buff *skb, __u32 at, __u32 bytes, __u32 l2_bytes)
{
	struct bypass_work *work = work_area();
	struct bypass_segment *in;
	const __u8 *header;
	__u32 whole;

	if (!work || !load_header(skb, &work->header, at, bytes))
		return false;
	whole = packet_bytes(skb, l2_bytes) + l2_bytes;
	if (whole < at + work->header.bytes || whole > skb->len)
		return false;
	work->at = at;
	work->l2_bytes = l2_bytes;
	in = &work->in;
	header = work->header.before;
	in->seq = read_number(header + TCP_SEQ_AT);
	in->ack = read_number(header + TCP_ACK_AT);
	in->len = whole - at - work->header.bytes;
	in->window = (__u32)header[14] << 8 | header[15];
	in->fin = !!(header[TCP_FLAGS_AT] & TCP_FIN);
	in->rst = !!(header[TCP_FLAGS_AT] & TCP_RST);
	read_options(work);
	return true;
}

/* The sum of the bytes that are cut off. */
struct tail {
	struct __sk_buff *skb;
	struct bypass_work *work;
	__u32 at;   /* in the frame */
	__u32 left; /* bytes */
	__u32 odd;  /* the first is the second of its 16 bits */
};

static long sum_part(__u32 index, struct tail *tail)
{
	struct bypass_work *work = tail->work;
	__u32 odd = tail->odd & 1, bytes = tail->left;

	(void)index;
	if (!bytes)
		return 1;
	if (bytes > SUM_MAX - odd)
		bytes = SUM_MAX - odd;
	__builtin_memset(work->part, 0, sizeof(work->part));
	if (!is_between(&bytes, 1, SUM_MAX) ||
	    bpf_skb_load_bytes(tail->skb, tail->at, work->part + odd, bytes))
		return 1;
	work->sum = bpf_csum_diff(work->part, SUM_MAX, NULL, 0, work->sum);
	tail->at += bytes;
	tail->left -= bytes;
	tail->odd = 0;
	return 0;
}

/* Sets the length in the IP header. */
static __always_inline void set_length(struct __sk_buff *skb, __u32 l2_bytes, __u32 bytes)
{
	__u32 at = l2_bytes + offsetof(struct ipv6hdr, payload_len);
	__be16 from, to = bpf_htons(bytes - sizeof(struct ipv6hdr));

	if (skb->protocol != bpf_htons(ETH_P_IP)) {
		bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
		return;
	}
	at = l2_bytes + offsetof(struct iphdr, tot_len);
	to = bpf_htons(bytes);
	if (bpf_skb_load_bytes(skb, at, &from, sizeof(from)))
		return;
	bpf_l3_csum_replace(skb, l2_bytes + offsetof(struct iphdr, check), from, to, sizeof(to));
	bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

/* Cuts the payload to the length of `out`; false if that is not possible. The checksum follows
 * by difference, so that one that was wrong stays wrong. */
GLOBAL int cut_tail(struct __sk_buff *skb)
{
	struct bypass_work *work = work_area();
	struct tail tail = { .skb = skb };
	__u32 head, keep, check_at;
	__be32 from, to;

	if (!work)
		return false;
	work->sum = 0;
	if (work->out.len >= work->in.len)
		return true;
	head = work->header.bytes;
	keep = work->at + head + work->out.len;
	check_at = work->at + TCP_CHECKSUM_AT;
	tail.work = work;
	tail.at = keep;
	tail.left = work->in.len - work->out.len;
	tail.odd = work->out.len;
	bpf_loop(SUM_PARTS, sum_part, &tail, 0);
	from = bpf_htonl(head + work->in.len);
	to = bpf_htonl(head + work->out.len);
	if (tail.left || bpf_skb_change_tail(skb, keep, 0))
		return false;
	/* A checksum that the device completes has the length in it, and not the payload. */
	bpf_l4_csum_replace(skb, check_at, from, to, BPF_F_PSEUDO_HDR | sizeof(to));
	bpf_l4_csum_replace(skb, check_at, 0, work->sum, 0);
	set_length(skb, work->l2_bytes, keep - work->l2_bytes);
	/* The difference below starts from the checksum as it is now. */
	return load_header(skb, &work->header, work->at, head);
}

/* Writes the blocks that are left, and padding behind them. */
static __always_inline void write_blocks(struct bypass_work *work)
{
	const struct bypass_segment *out = &work->out;
	__u8 *option = option_at(work->header.after, work->sack_at);
	__u32 to = 2;

	for (int i = 0; i < 2 + 8 * BYPASS_BLOCKS; i++)
		if (i < (int)work->sack_bytes)
			option[i] = TCP_OPTION_NOP;
	for (int i = 0; i < BYPASS_BLOCKS; i++) {
		if (out->first[i] == out->last[i])
			continue;
		OPAQUE(to);
		to &= 31;
		if (to + 8 > work->sack_bytes)
			return;
		write_number(option + to, out->first[i]);
		write_number(option + to + 4, out->last[i]);
		to += 8;
	}
	if (to == 2)
		return;
	option[0] = TCP_OPTION_SACK;
	option[1] = to;
}

/* Makes the packet the segment `out`. */
GLOBAL int write_segment(struct __sk_buff *skb)
{
	struct bypass_work *work = work_area();
	__u8 *header, *option;

	if (!work || !cut_tail(skb))
		return false;
	header = work->header.after;
	write_number(header + TCP_SEQ_AT, work->out.seq);
	write_number(header + TCP_ACK_AT, work->out.ack);
	header[14] = work->out.window >> 8;
	header[15] = work->out.window;
	if (!work->out.fin)
		header[TCP_FLAGS_AT] &= ~TCP_FIN;
	if (!work->out.len)
		header[TCP_FLAGS_AT] &= ~TCP_PSH;
	if (work->out.rst && !work->in.rst) {
		header[TCP_FLAGS_AT] = TCP_RST;
		__builtin_memcpy(header, work->header.before + 2, 2);
		__builtin_memcpy(header + 2, work->header.before, 2);
	}
	if (work->ts_at) {
		option = option_at(header, work->ts_at);
		write_number(option + 2, work->out.ts_value);
		write_number(option + 6, work->out.ts_echo);
	}
	if (work->sack_at)
		write_blocks(work);
	store_header(skb, &work->header, work->at);
	return true;
}

/* Exchanges source and destination, on which no checksum depends. */
static __always_inline void turn_round(struct __sk_buff *skb, const struct bypass_work *work)
{
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 at = work->l2_bytes + (v4 ? offsetof(struct iphdr, saddr) :
					  offsetof(struct ipv6hdr, saddr));
	__u32 half = v4 ? 4 : 16;
	__u8 from[16] = {}, to[16] = {};

	if (v4) {
		bpf_skb_load_bytes(skb, at, from, 4);
		bpf_skb_load_bytes(skb, at + half, to, 4);
		bpf_skb_store_bytes(skb, at, to, 4, 0);
		bpf_skb_store_bytes(skb, at + half, from, 4, 0);
	} else {
		bpf_skb_load_bytes(skb, at, from, 16);
		bpf_skb_load_bytes(skb, at + half, to, 16);
		bpf_skb_store_bytes(skb, at, to, 16, 0);
		bpf_skb_store_bytes(skb, at + half, from, 16, 0);
	}
	if (!work->l2_bytes)
		return;
	bpf_skb_load_bytes(skb, 0, from, ETH_ALEN);
	bpf_skb_load_bytes(skb, ETH_ALEN, to, ETH_ALEN);
	bpf_skb_store_bytes(skb, 0, to, ETH_ALEN, 0);
	bpf_skb_store_bytes(skb, ETH_ALEN, from, ETH_ALEN, 0);
}

/* Makes the packet the reset `out` of its sender. */
GLOBAL int send_back(struct __sk_buff *skb)
{
	struct bypass_work *work = work_area();

	/* Without an acknowledgement the sender waits for nothing. */
	if (!work || !(work->header.before[TCP_FLAGS_AT] & TCP_ACK) || !write_segment(skb))
		return DROP;
	turn_round(skb, work);
	/* Else `bypass_out` would take it for one of the relay's. */
	skb->mark |= NODE_MARKS;
	return bpf_redirect(skb->ifindex, 0);
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

	if (!is_copy && !may_have_pairs())
		return NEXT;
	work = work_area();
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!work || !device || skb->vlan_present || skb->pkt_type != PACKET_HOST ||
	    !view_segment(skb, device->l2_bytes, &view))
		return NEXT;
	pair = bpf_map_lookup_elem(&bypass_pairs, &view.key);
	if (!pair || (!pair->known && pair->phase != BYPASS_DEAD))
		return is_copy ? DROP : NEXT;
	if (view.flags & TCP_SYN)
		return on_syn(pair, &view.key);
	e = view.turned != pair->turned;
	if (!read_segment(skb, view.at, view.bytes, device->l2_bytes))
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

	if (!may_have_pairs())
		return NEXT;
	work = work_area();
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!work || !device || skb->vlan_present ||
	    !view_segment(skb, device->l2_bytes, &view) || view.flags & TCP_SYN)
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
	if (!read_segment(skb, view.at, view.bytes, device->l2_bytes) || !lock(pair))
		return DROP;
	phase = pair->phase;
	/* It has the address of the other end. */
	sends = from_relay(pair, view.turned == pair->turned, &work->in, &work->out);
	unlock(pair);
	if (!sends)
		return DROP;
	return phase <= BYPASS_CLAMPING || write_segment(skb) ? NEXT : DROP;
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
	made->client_ack = server->end_ack + server->delta;
	made->server_ack = client->end_ack + client->delta;
	made->node_isn = made->client_ack - 1;
	made->client_isn = made->server_ack - 1;
	/* What is in flight fits into the receiver's window. */
	made->server_next = server->edge + server->delta;
	made->client_next = client->edge + client->delta;
	made->was_relayed = made->is_long = true;
	if (client->has_fin)
		made->ended |= PACKET_FIN_CLIENT;
	if (server->has_fin)
		made->ended |= PACKET_FIN_SERVER;
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
	note_client(made.ifindex);
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
