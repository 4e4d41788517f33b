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
 */
#include "packet_path.h"
#include "packet_segment.h"
#include "packet_sweep.h"
#include "packet_icmp.h"
#include "packet_learning.h"
#include "rules.h"

#define PACKET_HOST 0
/* A node that has not shown itself for so long is dead: no new flows. */
#define HEARTBEAT_NS 5000000000ull
/* Sequence numbers behind the client's first that a reset before the server's answer
 * may have. */
#define FIRST_FLIGHT_MAX (1u << 20)
/* What is left of the hop limits of usual hosts, 64 and more, at the end of long paths. With less, a
 * client may look for the routers on its way, and wait for their errors. */
#define HOPS_MIN 32
/* Bytes by which a segment may be ahead of what its sender has sent. Who does not see the flow has to
 * guess its numbers; what is lost before this host is sent again, and closes the gap. */
#define GAP_MAX (1 << 18)
/* How long segments pass another interface alone until the flow is there. A bridge and its port
 * both see each of them, the one soon after the other. */
#define STRAY_NS 8000000ull
#define MOVES_AFTER (200000000ull / STRAY_NS)
/* Where an interface without clients is looked at: at one segment of so many. */
#define LOOKS 4

/* The key of the initial sequence numbers (RFC 6528). */
SETTING(setting_isn_key0);
SETTING(setting_isn_key1);
SETTING(setting_isn_key2);
SETTING(setting_isn_key3);

static __always_inline __u64 wide(__u32 high, __u32 low)
{
	return (__u64)high << 32 | low;
}

static __always_inline __u64 rotate(__u64 word, __u32 by)
{
	return word << by | word >> (64 - by);
}

/* The state of SipHash. */
struct sip {
	__u64 a, b, c, d;
};

static __always_inline void sip_round(struct sip *sip)
{
	sip->a += sip->b;
	sip->b = rotate(sip->b, 13) ^ sip->a;
	sip->a = rotate(sip->a, 32);
	sip->c += sip->d;
	sip->d = rotate(sip->d, 16) ^ sip->c;
	sip->a += sip->d;
	sip->d = rotate(sip->d, 21) ^ sip->a;
	sip->c += sip->b;
	sip->b = rotate(sip->b, 17) ^ sip->c;
	sip->c = rotate(sip->c, 32);
}

static __always_inline void sip_word(struct sip *sip, __u64 word)
{
	sip->d ^= word;
	sip_round(sip);
	sip_round(sip);
	sip->a ^= word;
}

/* SipHash-2-4 of a SYN and the time, by the secret of this node. The client proves with
 * the acknowledgement of the number made of it that it receives at its address. */
GLOBAL __u64 keyed_hash(const struct flow *flow, __u32 isn, __u64 now)
{
	__u64 first = wide(SET(setting_isn_key0), SET(setting_isn_key1));
	__u64 second = wide(SET(setting_isn_key2), SET(setting_isn_key3));
	struct sip sip = {
		.a = first ^ 0x736f6d6570736575ull,
		.b = second ^ 0x646f72616e646f6dull,
		.c = first ^ 0x6c7967656e657261ull,
		.d = second ^ 0x7465646279746573ull,
	};

	if (!flow)
		return 0;
	sip_word(&sip, wide(flow->client.word[0], flow->client.word[1]));
	sip_word(&sip, wide(flow->client.word[2], flow->client.word[3]));
	sip_word(&sip, wide(flow->server.word[0], flow->server.word[1]));
	sip_word(&sip, wide(flow->server.word[2], flow->server.word[3]));
	sip_word(&sip, wide((__u32)flow->client_port << 16 | flow->server_port, isn));
	sip_word(&sip, now);
	sip_word(&sip, 48ull << 56);
	sip.c ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(&sip);
	return sip.a ^ sip.b ^ sip.c ^ sip.d;
}

/* Overwrites an option of the header with padding. */
static __always_inline void pad_option(struct tcp_header *header, __u32 at, __u32 bytes)
{
	OPAQUE(at);
	at &= HEADER_MASK;
	for (__u32 i = 0; i < bytes; i++)
		header->after[at + i] = TCP_OPTION_NOP;
}

/* Removes the options of a SYN that the node does not promise. */
static __always_inline void strip_options(struct packet_scratch *scratch, __u8 promised)
{
	struct read_options *found = &scratch->options;
	struct tcp_header *header = &scratch->header;

	if (found->shift_at && !(promised & OFFERS_WINDOW_SCALE))
		pad_option(header, found->shift_at, 3);
	if (found->sack_at && !(promised & OFFERS_SACK))
		pad_option(header, found->sack_at, 2);
	if (found->ts_at && !(promised & OFFERS_TIMESTAMPS))
		pad_option(header, found->ts_at, 10);
}

/* Exchanges source and destination of the packet, and sets its hop limit. The IPv4
 * checksum does not depend on the order of the addresses. */
static __always_inline void turn_addresses(struct __sk_buff *skb, const struct packet *pkt,
					   bool back, __u8 hops)
{
	const struct address *source = back ? &pkt->flow.server : &pkt->flow.client;
	const struct address *destination = back ? &pkt->flow.client : &pkt->flow.server;
	__u8 former = back ? hop_limit(pkt) : ANSWER_HOPS;

	if (pkt->family == AF_INET) {
		__be32 both[2] = { source->word[3], destination->word[3] };

		bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct iphdr, saddr), both,
				    sizeof(both), 0);
		bpf_l3_csum_replace(skb, pkt->l2_bytes + offsetof(struct iphdr, check),
				    bpf_htons(former << 8), bpf_htons(hops << 8), 2);
		bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct iphdr, ttl), &hops, 1, 0);
		return;
	}
	bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct ipv6hdr, saddr), source,
			    sizeof(*source), 0);
	bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct ipv6hdr, daddr), destination,
			    sizeof(*destination), 0);
	bpf_skb_store_bytes(skb, pkt->l2_bytes + offsetof(struct ipv6hdr, hop_limit), &hops, 1, 0);
}

/* Writes the node's SYN-ACK over the header of the SYN, whose other options are padding by
 * now: each stays where the client's was, so no length changes. */
static __always_inline void write_syn_ack(struct packet_scratch *scratch,
					  const struct packet_flow *entry,
					  const struct packet *pkt)
{
	struct read_options *found = &scratch->options;
	struct tcp_header *header = &scratch->header;
	__u32 at;

	__builtin_memcpy(header->after, &pkt->tcp.dest, 2);
	__builtin_memcpy(header->after + 2, &pkt->tcp.source, 2);
	write_number(header->after + 4, entry->node_isn);
	write_number(header->after + 8, entry->client_isn + 1);
	header->after[TCP_FLAGS_AT] = TCP_SYN | TCP_ACK;
	header->after[14] = entry->node_window >> 8;
	header->after[15] = entry->node_window;
	at = found->mss_at;
	OPAQUE(at);
	at &= HEADER_MASK;
	if (at) {
		header->after[at + 2] = entry->mss >> 8;
		header->after[at + 3] = entry->mss;
	}
	at = found->shift_at;
	OPAQUE(at);
	at &= HEADER_MASK;
	if (at && entry->promised & OFFERS_WINDOW_SCALE)
		header->after[at + 2] = entry->promised_shift;
	at = found->ts_at;
	OPAQUE(at);
	at &= HEADER_MASK;
	if (at && entry->promised & OFFERS_TIMESTAMPS) {
		write_number(header->after + at + 2, entry->node_ts);
		write_number(header->after + at + 6, found->ts_value);
	}
}

/* Makes of the SYN's header what the server gets. It must not believe in an option that the
 * client was not promised, nor in ECN, which the node's SYN-ACK declined. */
static __always_inline void strip_header(struct packet_scratch *scratch,
					 const struct packet_flow *entry)
{
	strip_options(scratch, entry->promised);
	scratch->header.after[TCP_FLAGS_AT] &= ~TCP_ECN;
	/* Beside the data offset: the third flag of ECN (RFC 9768 section 3.1), and reserved ones. */
	scratch->header.after[TCP_FLAGS_AT - 1] &= 0xf0;
}

/* Answers the SYN that the scratch area has read, after a delay, and makes of it the one that the
 * server gets. */
GLOBAL int answer_syn(struct __sk_buff *skb, const struct packet *pkt,
		      const struct packet_flow *entry, __u32 delay_ms)
{
	struct packet_scratch *scratch = scratch_area();
	struct tcp_header *header;
	__u32 at;

	if (!pkt || !entry || !scratch)
		return false;
	header = &scratch->header;
	at = tcp_at(pkt->family, pkt->l2_bytes);
	strip_header(scratch, entry);
	__builtin_memcpy(scratch->forwarded, header->after, TCP_HEADER_MAX);
	write_syn_ack(scratch, entry, pkt);
	store_header(skb, header, at);
	turn_addresses(skb, pkt, true, ANSWER_HOPS);
	swap_link_addresses(skb, pkt->l2_bytes);
	if (delay_ms)
		bpf_skb_set_tstamp(skb, bpf_ktime_get_ns() + delay_ms * 1000000ull,
				   BPF_SKB_TSTAMP_DELIVERY_MONO);
	bpf_clone_redirect(skb, skb->ifindex, 0);
	if (delay_ms)
		bpf_skb_set_tstamp(skb, 0, BPF_SKB_TSTAMP_UNSPEC);
	swap_link_addresses(skb, pkt->l2_bytes);
	turn_addresses(skb, pkt, false, hop_limit(pkt));
	__builtin_memcpy(header->before, header->after, TCP_HEADER_MAX);
	__builtin_memcpy(header->after, scratch->forwarded, TCP_HEADER_MAX);
	/* The checksum of the answer: its change is computed. */
	bpf_skb_load_bytes(skb, at + TCP_CHECKSUM_AT, header->before + TCP_CHECKSUM_AT, 2);
	__builtin_memcpy(header->after + TCP_CHECKSUM_AT, header->before + TCP_CHECKSUM_AT, 2);
	store_header(skb, header, at);
	return true;
}

/* Makes of the SYN that the scratch area has read the one that the server gets. */
static __always_inline int strip_syn(struct __sk_buff *skb, struct packet_scratch *scratch, __u32 at,
				     const struct packet_flow *entry)
{
	strip_header(scratch, entry);
	store_header(skb, &scratch->header, at);
	return PASS;
}

/* What a rule requests for a flow: bits. */
enum request {
	REQUEST_NONE = 0,
	REQUEST_PACKETS = 1,
	REQUEST_OBSERVED = 2, /* only once its client was seen to reach the destination */
	REQUEST_SHORT = 4,    /* only for short answers */
};

/* Whether a rule wants the flow on the packet path, and a living node serves it. */
GLOBAL int request_of(const struct packet *pkt, __u64 now)
{
	struct packet_control *control = control_of_node();
	struct verdict verdict = {};

	if (!pkt || !control || now - control->heartbeat_ns > HEARTBEAT_NS ||
	    is_draining(this_worker()))
		return REQUEST_NONE;
	if (!find_rule(pkt, &verdict) || verdict.action != ACTION_RELAY ||
	    verdict.data_path == DATA_PATH_SOCKET)
		return REQUEST_NONE;
	return REQUEST_PACKETS | (verdict.observe ? REQUEST_OBSERVED : 0) |
	       (verdict.data_path == DATA_PATH_AUTO ? REQUEST_SHORT : 0);
}

/* Whether conntrack sees the packets of an interface before this program does: then it
 * sees the client's acknowledgements in the node's numbers, and calls them invalid. */
static __always_inline bool is_tracked(__u32 ifindex)
{
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);

	return !device || device->tracked;
}

/* Whether the packet path can carry the flow of a SYN. */
static __always_inline bool is_fit(struct __sk_buff *skb, const struct packet *pkt,
				   const struct read_options *options)
{
	return !is_tracked(skb->ifindex) && !options->unknown && options->mss_at &&
	       !pkt->tcp.fin && hop_limit(pkt) >= HOPS_MIN;
}

/* Routers choose among equal paths by the flow label (RFC 6438), so what the node sends for a
 * client has that of its SYN. */
static __always_inline __be32 class_label_of(const struct packet *pkt)
{
	__be32 word;

	if (pkt->family == AF_INET)
		return bpf_htonl((__u32)pkt->ip.v4.tos << 20);
	__builtin_memcpy(&word, &pkt->ip.v6, sizeof(word));
	return word & bpf_htonl(0x0fffffff);
}

/* The entry of a SYN that is forwarded and not answered. */
static __always_inline void describe(struct __sk_buff *skb, const struct packet *pkt,
				     struct packet_scratch *scratch, __u64 now)
{
	struct packet_flow *made = &scratch->flow;

	__builtin_memset(made, 0, sizeof(*made));
	made->since_ns = made->last_ns = now;
	made->ifindex = skb->ifindex;
	made->turned = is_turned(&pkt->flow);
	made->client_isn = made->other_isn = bpf_ntohl(pkt->tcp.seq);
	made->held_next = made->server_ack = made->client_next = made->client_isn + 1;
	made->out_ifindex = made->ifindex;
	made->hop_limit = hop_limit(pkt);
	made->window = bpf_ntohs(pkt->tcp.window);
	made->class_label = class_label_of(pkt);
	made->syn_mss = scratch->options.mss;
	if (pkt->l2_bytes)
		bpf_skb_load_bytes(skb, 0, made->link, sizeof(made->link));
	made->epoch = this_epoch();
	made->promised = scratch->options.offers;
}

/* Makes it that of a flow that the node answers. */
static __always_inline void answer(struct packet_flow *made, const struct packet *pkt,
				   const struct packet_profile *profile,
				   const struct read_options *options)
{
	__u64 hash = keyed_hash(&pkt->flow, made->client_isn, made->since_ns);

	promise(made, profile, options);
	made->node_isn = hash;
	made->client_ack = made->server_next = made->node_isn + 1;
	made->node_ts = (__u32)(hash >> 32) + (__u32)(made->since_ns / 1000000);
	made->client_ts = options->ts_value;
	made->prefix = prefix_of(pkt);
	made->delay_ms = answer_delay(made, profile);
	made->state = PACKET_ANSWERED;
}

/* Whether the node has relays, or may have had some. */
static __always_inline bool has_relayed(void)
{
	__u32 only = 0;
	__u32 *relays = bpf_map_lookup_elem(&packet_relays, &only);

	return !relays || *relays;
}

/* Whether a relay that was opened under former rules has the addresses and ports of a SYN:
 * forwarding drops what belongs to a socket. A node that never had relays does without the
 * look-up, whose search among all listeners costs as much as the rest of the decision. */
static __always_inline bool has_socket(struct __sk_buff *skb, struct packet *pkt)
{
	int owner;

	if (!has_relayed())
		return false;
	owner = owner_of(skb, pkt);
	return owner != OWNER_NONE && owner != OWNER_LISTENER;
}

/* Counts a SYN that the packet path leaves to others, by the reason. */
static __always_inline int leave(__u32 reason)
{
	count(reason);
	return NEXT;
}

/* How long it counts that a destination was routed through this host from an interface. A
 * look-up in the routing table costs more than all maps that a SYN needs. If the route changes
 * meanwhile, the flow fares as one whose route changes after its SYN. */
#define ROUTED_NS 1000000000ull

/* Whether this host would forward the SYN in hand, by another interface: to a client whose packets leave
 * where they come, the kernel shows the shorter way (ICMP redirect), which the flow would take. */
static __always_inline bool is_routed(struct __sk_buff *skb, const struct packet *pkt,
				      struct packet_profile *profile, __u64 now)
{
	__u32 out;

	if (profile && profile->routed_from == skb->ifindex && now - profile->routed_ns < ROUTED_NS)
		return true;
	out = forwardable(skb, pkt);
	if (!out || out == skb->ifindex)
		return false;
	if (profile) {
		profile->routed_from = skb->ifindex;
		profile->routed_ns = now;
	}
	return true;
}

/* A SYN of a new flow; `again`: one with its addresses has ended. NEXT where the packet path
 * does not take it. */
GLOBAL int open_flow(struct __sk_buff *skb, struct packet *pkt, __u32 again)
{
	struct packet_scratch *scratch = scratch_area();
	__u64 now = bpf_ktime_get_ns();
	struct packet_profile *profile;
	struct destination service;
	struct packet_flow *made;
	int request;

	if (!pkt || !scratch)
		return NEXT;
	request = request_of(pkt, now);
	if (!request)
		return NEXT;
	/* Limits of the firewall are limits of SYNs, which the node repeats. */
	if (request & REQUEST_OBSERVED && is_blocked(now))
		return leave(STAT_PACKET_BLOCKED);
	service = service_of(&pkt->flow);
	profile = bpf_map_lookup_elem(&packet_profiles, &service);
	if (!is_fit(skb, pkt, &scratch->options))
		return leave(STAT_PACKET_UNFIT);
	if (!is_routed(skb, pkt, profile, now) || has_socket(skb, pkt))
		return leave(STAT_PACKET_LOCAL);
	if (profile && now < profile->bad_until_ns)
		return leave(STAT_PACKET_BAD);
	made = &scratch->flow;
	describe(skb, pkt, scratch, now);
	if (!profile || !has_tested(profile, scratch->options.offers, now))
		return learn(&pkt->flow, again, false);
	if (request & REQUEST_OBSERVED && !is_admitted(&pkt->flow, skb->ifindex, now)) {
		count(STAT_PACKET_CLIENT);
		return learn(&pkt->flow, again, true);
	}
	if (request & REQUEST_SHORT && profile->is_long)
		return leave(STAT_PACKET_LONG);
	if (!returns(skb, pkt))
		return leave(STAT_PACKET_CLIENT);
	answer(made, pkt, profile, &scratch->options);
	if (!enter_half_open(pkt))
		return leave(STAT_PACKET_FULL);
	if (!store_flow(scratch, again)) {
		leave_half_open(made->prefix, false);
		return leave(STAT_PACKET_FULL);
	}
	note_client(made->ifindex);
	count(STAT_PACKET_TAKEN);
	return PASS;
}

/* Whether a flow has ended, so that a SYN may use its entry. */
static __always_inline bool has_ended(const struct packet_flow *entry)
{
	return entry->state == PACKET_CLOSED || entry->state == PACKET_LEARNING ||
	       entry->ended >= (PACKET_FIN_CLIENT | PACKET_FIN_SERVER);
}

/* What the node sends for the client must not carry an older timestamp than a repeated SYN
 * (PAWS, RFC 7323 section 5). */
static __always_inline void note_client_ts(struct packet_flow *entry,
					   const struct read_options *options)
{
	if ((__s32)(options->ts_value - entry->client_ts) > 0)
		entry->client_ts = options->ts_value;
}

/* Whether it is the client's, whole, and in one piece. */
static __always_inline bool is_plain(const struct packet *pkt, __u32 at)
{
	if (pkt->family == AF_INET)
		return bpf_ntohs(pkt->ip.v4.tot_len) == at - pkt->l2_bytes + pkt->tcp.doff * 4;
	return bpf_ntohs(pkt->ip.v6.payload_len) == pkt->tcp.doff * 4;
}

/* The sum of a segment up to its payload: of the pseudo header, and of the header in the scratch
 * area. Zero where a device completes the checksum (CHECKSUM_PARTIAL), also of what the kernel has
 * joined. */
static __always_inline __u32 sum_header(const struct packet *pkt, struct packet_scratch *scratch,
					__u32 tcp_bytes)
{
	__s64 sum = pseudo_sum(&pkt->flow, tcp_bytes);
	__u32 bytes = scratch->header.bytes;

	if (pkt->tcp.check == fold(sum))
		return 0;
	if (!is_between(&bytes, sizeof(struct tcphdr), TCP_HEADER_MAX))
		return 1;
	return bpf_csum_diff(NULL, 0, (__be32 *)scratch->header.before, bytes, sum);
}

/* Whether the checksum of a segment whose header is in the scratch area is right; of one with contents that is
 * not known. */
static __always_inline bool is_whole(const struct packet *pkt, struct packet_scratch *scratch,
				     __u32 at)
{
	__u32 sum;

	if (!is_plain(pkt, at))
		return true;
	sum = sum_header(pkt, scratch, pkt->tcp.doff * 4);
	return !sum || fold(sum) == 0xffff;
}

GLOBAL int on_syn(struct __sk_buff *skb, struct packet *pkt, __u32 at)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_flow *entry;
	__u32 state, isn;
	int verdict;

	if (!pkt || !scratch)
		return NEXT;
	isn = bpf_ntohl(pkt->tcp.seq);
	entry = bpf_map_lookup_elem(&packet_flows, &scratch->key);
	if (entry && !has_ended(entry) && entry->client_isn != isn) {
		/* The server decides, and answers an ACK if it still has the flow. */
		if (entry->ifindex == skb->ifindex)
			entry->other_isn = isn;
		count(STAT_PACKET_BUSY);
		return PASS;
	}
	if (entry && entry->state == PACKET_LEARNING) {
		if (entry->client_isn == isn)
			return PASS;
		stop_learning(entry, PACKET_CLOSED);
	}
	if (!read_header(skb, scratch, at, pkt->tcp.doff * 4))
		return NEXT;
	if (!is_plain(pkt, at))
		scratch->options.unknown = true;
	if (!is_whole(pkt, scratch, at))
		/* Its numbers are not the client's, which sends it again. */
		return entry ? PASS : NEXT;
	if (!entry || has_ended(entry)) {
		verdict = open_flow(skb, pkt, !!entry);
		if (verdict == NEXT && entry && has_ended(entry))
			/* It would translate the new connection by the old numbers. */
			bpf_map_delete_elem(&packet_flows, &scratch->key);
		if (verdict != NEXT && scratch->flow.state == PACKET_ANSWERED)
			answer_syn(skb, pkt, &scratch->flow, scratch->flow.delay_ms);
		return verdict;
	}
	if (entry->ifindex != skb->ifindex)
		return PASS;
	state = entry->state;
	/* Repeated: by the client, or by the node for it. */
	note_client_ts(entry, &scratch->options);
	if (!is_half_open(state))
		return strip_syn(skb, scratch, at, entry);
	/* One that has come back in a loop of routers is not answered again. */
	if (hop_limit(pkt) < entry->hop_limit || !returns(skb, pkt))
		return PASS;
	answer_syn(skb, pkt, entry, 0);
	return state == PACKET_ACCEPTED ? DROP : PASS;
}

/* A search for room for pieces of a segment that its sender left to the device to cut. */
struct cutting {
	struct __sk_buff *skb;
	struct packet_flow *entry;
	struct packet_held_key key;
	__u32 at;    /* of the payload that is left */
	__u32 left;  /* bytes */
	__u32 piece; /* bytes of a segment */
	__u32 seq;
	__u32 flags;
	__u32 window;
	__u32 sum;   /* of what comes before the payload; 0: it needs no comparison */
	__u32 open;  /* the server has answered meanwhile */
};

/* Reads a piece, and compares the checksum of a segment that has one: the piece gets a new one,
 * which would be right for wrong data too. */
static __always_inline bool read_piece(const struct cutting *cut, struct packet_held *held,
				       __u32 bytes)
{
	held->bytes = bytes;
	if (is_between(&bytes, 1, PACKET_PAYLOAD_MAX)) {
		__builtin_memset(held->payload + bytes, 0, 4);
		if (bpf_skb_load_bytes(cut->skb, cut->at, held->payload, bytes))
			return false;
	}
	if (!cut->sum)
		return true;
	return held->bytes == cut->left && fold(payload_sum(held, cut->sum)) == 0xffff;
}

/* Holds a piece; 1 ends the search. */
static long hold_piece(__u32 index, struct cutting *cut)
{
	struct packet_scratch *scratch = scratch_area();
	struct packet_flow *entry = cut->entry;
	struct packet_held *held;
	__u32 bytes = cut->left < cut->piece ? cut->left : cut->piece;
	__u32 last = bytes == cut->left;
	__u32 flags = last ? cut->flags : cut->flags & ~TCP_FIN;
	__u32 next = cut->seq + bytes + (flags & TCP_FIN ? 1 : 0);

	(void)index;
	if (!scratch || bytes > PACKET_PAYLOAD_MAX || entry->held >= PACKET_HELD_MAX)
		return 1;
	held = &scratch->held;
	/* Only what joins on: the client repeats the rest. A reset takes no number. */
	if (cut->seq == entry->held_next && read_piece(cut, held, bytes) &&
	    __sync_val_compare_and_swap(&entry->held_next, cut->seq, next) == cut->seq) {
		note_client_ts(entry, &scratch->options);
		entry->window = cut->window;
		held->ready = 1;
		held->seq = cut->seq;
		held->flags = flags;
		cut->key.index = __sync_fetch_and_add(&entry->held, 1);
		if (cut->key.index >= PACKET_HELD_MAX)
			return 1;
		if (bpf_map_update_elem(&packet_held, &cut->key, held, BPF_ANY))
			return 1;
		count(STAT_PACKET_HELD);
		/* The releaser opens the flow, then reads what is held; so it has missed
		 * none, or this sees that the flow is open. The same holds for who closes. */
		held = bpf_map_lookup_elem(&packet_held, &cut->key);
		if (entry->state != PACKET_HELD && held &&
		    __sync_val_compare_and_swap(&held->ready, 1, 2) == 1) {
			bpf_map_delete_elem(&packet_held, &cut->key);
			cut->open = entry->state == PACKET_OPEN;
			return 1;
		}
	}
	cut->at += bytes;
	cut->left -= bytes;
	cut->seq = next;
	return last;
}

/* Holds what the client sends before its server has answered; false if the server has
 * answered meanwhile, and the segment may go on. */
GLOBAL int hold(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct cutting cut = { .skb = skb };
	__u32 whole, head;

	if (!pkt || !entry || !scratch)
		return true;
	head = pkt->tcp.doff * 4;
	whole = pkt->l2_bytes + (pkt->family == AF_INET ?
					 bpf_ntohs(pkt->ip.v4.tot_len) :
					 sizeof(struct ipv6hdr) + bpf_ntohs(pkt->ip.v6.payload_len));
	if (whole < at + head || whole > skb->len)
		return true;
	cut.left = whole - at - head;
	/* An urgent pointer would be lost: the client repeats the segment. */
	if (pkt->tcp.urg || !load_header(skb, &scratch->header, at, head))
		return true;
	cut.sum = sum_header(pkt, scratch, head + cut.left);
	if (!cut.left && !pkt->tcp.fin && !pkt->tcp.rst) {
		if (!cut.sum || fold(cut.sum) == 0xffff)
			entry->window = bpf_ntohs(pkt->tcp.window);
		return true;
	}
	read_header(skb, scratch, at, head);
	cut.key.flow = scratch->key;
	cut.entry = entry;
	cut.at = at + head;
	cut.piece = skb->gso_size ? skb->gso_size : cut.left;
	cut.seq = bpf_ntohl(pkt->tcp.seq);
	cut.flags = scratch->header.before[TCP_FLAGS_AT];
	cut.window = bpf_ntohs(pkt->tcp.window);
	bpf_loop(PACKET_HELD_MAX, hold_piece, &cut, 0);
	return !cut.open;
}

/* What a segment shows of its sender, in its receiver's view. */
struct shown {
	__u32 acked; /* by the receiver */
	__u32 *next; /* behind what was sent */
	__u32 seq;
	__u32 bytes; /* of sequence numbers */
	__u8 flags;
	__u8 fin; /* PACKET_FIN_* of the sender */
};

/* Notes what the segment in hand sends, and whether it ends the flow: only with the numbers of what is
 * in flight, as its receiver would believe it (RFC 5961 section 3.2), and as hard to guess. */
static __always_inline void note_sent(struct packet_flow *entry, const struct shown *shown)
{
	__u32 next = *shown->next, end = shown->seq + shown->bytes;
	__s32 gap = shown->seq - next;

	entry->last_ns = bpf_ktime_get_coarse_ns();
	if (gap <= GAP_MAX && (__s32)(end - next) > 0)
		*shown->next = end;
	if (!(shown->flags & TCP_RST) && entry->ended & PACKET_RESET)
		__sync_fetch_and_and(&entry->ended, ~PACKET_RESET);
	if (shown->flags & TCP_FIN && gap <= 0 && end - shown->acked <= *shown->next - shown->acked)
		__sync_fetch_and_or(&entry->ended, shown->fin);
	if (shown->flags & TCP_RST && shown->seq - shown->acked <= next - shown->acked)
		__sync_fetch_and_or(&entry->ended, PACKET_RESET);
}

/* Notes what a segment acknowledges: nothing that was not sent, so who does not see the flow has to
 * guess that too. */
static __always_inline void note_acked(__u32 *acked, __u16 *wraps, __u32 next, __u32 first, __u32 ack)
{
	if (ack - *acked > next - *acked)
		return;
	if (ack - first < *acked - first)
		*wraps += 1;
	*acked = ack;
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
	struct shown shown;

	if (!entry || !scratch)
		return PASS;
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
		return PASS;
	shown.acked = entry->server_ack;
	shown.next = &entry->client_next;
	shown.seq = how.former_seq + entry->client_seq_delta;
	shown.bytes = numbers_of(skb, at, bytes, how.flags);
	shown.flags = how.flags;
	shown.fin = PACKET_FIN_CLIENT;
	note_sent(entry, &shown);
	if (how.flags & TCP_ACK)
		note_acked(&entry->client_ack, &entry->client_wraps, entry->server_next,
			   entry->node_isn + 1, how.former_ack);
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
	/* Another number: the client or the node resets an older connection. */
	if (bpf_ntohl(pkt->tcp.seq) - entry->client_isn - 1 > FIRST_FLIGHT_MAX)
		return PASS;
	if (entry->state == PACKET_HELD)
		/* Behind the data; on its own it would have no connection in the firewall's table. */
		return hold(skb, pkt, at, entry) ? DROP :
						   translate_in(skb, entry, at, pkt->tcp.doff * 4);
	if (bpf_ntohl(pkt->tcp.seq) == entry->client_isn + 1)
		close_early(&scratch->key, entry);
	return PASS;
}

/* The first of the two ends has answered. */
static __always_inline void note_nearer(struct packet_flow *entry)
{
	entry->nearer_us = (bpf_ktime_get_ns() - entry->since_ns) / 1000;
}

/* Both have. By forwarding, the client's data would have left that much later: by the round
 * trip of the nearer end. */
static __always_inline void note_opened(const struct packet_flow *entry)
{
	count(STAT_PACKET_OPENED);
	count_by(STAT_PACKET_SAVED, entry->nearer_us);
}

/* A segment of the client, whose first was a SYN that the node answered. */
GLOBAL int from_client(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		       struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();

	if (!pkt || !entry || !scratch)
		return PASS;
	if (entry->state == PACKET_GIVEN_UP)
		return reset_client(skb, pkt, at, entry);
	if (!is_half_open(entry->state) && entry->state != PACKET_HELD)
		return PASS;
	if (pkt->tcp.rst)
		return on_early_reset(skb, pkt, at, entry, scratch);
	/* What does not fit passes untouched: a forged SYN on the tuple of a connection
	 * that is older than this program must not harm it. */
	if (!pkt->tcp.ack || pkt->tcp.syn)
		return PASS;
	if (is_half_open(entry->state) && bpf_ntohl(pkt->tcp.ack_seq) != entry->node_isn + 1)
		return PASS;
	if (change(entry, PACKET_ANSWERED, PACKET_HELD)) {
		leave_half_open(entry->prefix, true);
		note_client_rtt(entry);
		note_nearer(entry);
	} else if (change(entry, PACKET_ACCEPTED, PACKET_OPEN)) {
		leave_half_open(entry->prefix, true);
		note_client_rtt(entry);
		note_opened(entry);
	}
	if (entry->state == PACKET_HELD && hold(skb, pkt, at, entry))
		return DROP;
	return translate_in(skb, entry, at, pkt->tcp.doff * 4);
}

/* Whether one direction of a flow passes this interface: the one by which it has passed, or another
 * to which its route was moved. `since`: when segments began to pass that one alone. */
static __always_inline bool passes(__u32 *ifindex, __u8 *since, __u32 here)
{
	__u8 now;

	if (*ifindex == here) {
		if (*since)
			*since = 0;
		return true;
	}
	now = (bpf_ktime_get_coarse_ns() / STRAY_NS) | 1;
	note_client(here);
	if (!*since) {
		*since = now;
		return false;
	}
	if ((__u8)(now - *since) < MOVES_AFTER)
		return false;
	*ifindex = here;
	*since = 0;
	return true;
}

/* Whether segments of an interface are looked for among the flows: those of servers need no
 * translation where they come. Few are looked at nevertheless, since a client's may come by any
 * other interface later. */
static __always_inline bool may_have_clients(__u32 ifindex)
{
	return has_clients(ifindex) || bpf_get_prandom_u32() % LOOKS == 0;
}

/* Whether a segment is the first of a connection. */
static __always_inline bool opens(const struct view *view)
{
	return (view->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

static __always_inline int carry_in(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);
	struct packet_flow *entry;
	struct packet *pkt;
	struct view view;

	if (!device || skb->vlan_present || skb->pkt_type != PACKET_HOST)
		return NEXT;
	if (!view_segment(skb, device->l2_bytes, &view))
		return icmp_in(skb);
	if (opens(&view)) {
		pkt = parse_segment(skb, &view, 0, device->l2_bytes);
		return pkt ? on_syn(skb, pkt, view.at) : NEXT;
	}
	/* A segment of a server. Where flows may have sockets, `redirect` would search for one: PASS,
	 * for which the flow must be found, costs less. */
	if (!has_relayed() && !may_have_clients(ifindex))
		return NEXT;
	entry = bpf_map_lookup_elem(&packet_flows, &view.key);
	if (!entry || entry->state == PACKET_LEARNING)
		return NEXT;
	if (view.turned != entry->turned)
		/* The server's: translated where it leaves to the client. */
		return PASS;
	if (!passes(&entry->ifindex, &entry->strayed, ifindex))
		return NEXT;
	if (entry->state == PACKET_OPEN)
		return translate_in(skb, entry, view.at, view.bytes);
	pkt = parse_segment(skb, &view, 0, device->l2_bytes);
	return pkt ? from_client(skb, pkt, view.at, entry) : NEXT;
}

/* The programs of others see what passes too, as it goes on. */
SEC("classifier")
int packet_in(struct __sk_buff *skb)
{
	int verdict = carry_in(skb);

	skb->cb[MESSAGE_CARRIED] = verdict == PASS ? MESSAGE_IS_CARRIED : 0;
	return verdict == PASS ? NEXT : verdict;
}

/* A release of what is held. */
struct release {
	struct packet_held_key key;
	struct __sk_buff *skb;
	struct segment *segment;
	__u32 sent;
};

/* Releases one segment. */
static long release_piece(__u32 index, struct release *release)
{
	struct packet_held *held;

	release->key.index = index;
	held = bpf_map_lookup_elem(&packet_held, &release->key);
	/* There was no room for it, or it comes at this moment. */
	if (!held || __sync_val_compare_and_swap(&held->ready, 1, 2) != 1)
		return 0;
	release->segment->seq = held->seq;
	release->segment->flags = held->flags | TCP_ACK;
	if (write_segment(release->skb, release->segment, held) &&
	    !bpf_clone_redirect(release->skb, release->skb->ifindex, BPF_F_INGRESS)) {
		release->sent += 1;
		count(STAT_PACKET_RELEASED);
	}
	bpf_map_delete_elem(&packet_held, &release->key);
	return 0;
}

/* Sends the client's segments to the server, in the client's numbers and by the client's
 * way: they enter its interface once more, and are translated there as any. The packet
 * that becomes them is one of the server's. `reset`: the reset of an older connection
 * instead. */
GLOBAL int turn_round(struct __sk_buff *skb, const struct packet *pkt,
		      struct packet_flow *entry, __u32 reset)
{
	struct release release = { .skb = skb };
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;
	__u32 at;

	if (!pkt || !entry || !scratch)
		return DROP;
	segment = &scratch->segment;
	__builtin_memset(segment, 0, sizeof(*segment));
	at = tcp_at(pkt->family, pkt->l2_bytes);
	release.key.flow = scratch->key;
	segment->flow.client = pkt->flow.server;
	segment->flow.server = pkt->flow.client;
	segment->flow.client_port = pkt->flow.server_port;
	segment->flow.server_port = pkt->flow.client_port;
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	segment->hop_limit = entry->hop_limit;
	segment->class_label = entry->class_label;
	segment->window = entry->window;
	segment->ack = entry->node_isn + 1;
	segment->timestamps = !!(entry->promised & OFFERS_TIMESTAMPS);
	segment->ts_value = entry->client_ts;
	segment->ts_echo = entry->node_ts;
	segment->partial = spoil_checksum(skb, at);
	release.segment = segment;
	swap_link_addresses(skb, pkt->l2_bytes);
	if (reset) {
		segment->seq = bpf_ntohl(pkt->tcp.ack_seq);
		segment->ack = 0;
		segment->flags = TCP_RST;
		segment->timestamps = false;
	} else {
		bpf_loop(held_pieces(entry), release_piece, &release, 0);
		if (release.sent)
			return DROP;
		segment->seq = entry->client_isn + 1;
		segment->flags = TCP_ACK;
	}
	return write_segment(skb, segment, NULL) ? bpf_redirect(skb->ifindex, BPF_F_INGRESS) : DROP;
}

/* Turns a repeated SYN-ACK into a keepalive of the client, whose answer validates it
 * (RFC 9293 section 3.8.4). The server may be the first to send data. */
GLOBAL int probe_client(struct __sk_buff *skb, const struct packet *pkt,
			struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	__u32 at;

	if (!pkt || !entry || !scratch)
		return DROP;
	at = tcp_at(pkt->family, pkt->l2_bytes);
	if (!load_header(skb, &scratch->header, at, pkt->tcp.doff * 4))
		return DROP;
	write_number(scratch->header.after + 4, entry->node_isn);
	scratch->header.after[TCP_FLAGS_AT] = TCP_ACK;
	for (int i = sizeof(struct tcphdr); i < TCP_HEADER_MAX; i++)
		scratch->header.after[i] = i < (int)scratch->header.bytes ? TCP_OPTION_NOP : 0;
	store_header(skb, &scratch->header, at);
	return PASS;
}

/* Stores the contents of the server's SYN-ACK. */
static __always_inline void accept(struct packet_flow *entry, const struct packet *pkt,
				   const struct read_options *options)
{
	__u8 lost = entry->promised & ~options->offers;

	entry->granted = options->offers & entry->promised;
	entry->server_shift = options->shift;
	entry->seq_delta = entry->node_isn - bpf_ntohl(pkt->tcp.seq);
	if (entry->granted & OFFERS_TIMESTAMPS)
		entry->ts_delta = entry->node_ts - options->ts_value;
	if (lost)
		count(STAT_PACKET_MISMATCHES);
}

/* A SYN-ACK on its way to the client. */
GLOBAL int on_syn_ack(struct __sk_buff *skb, const struct packet *pkt, __u32 at,
		      struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct destination service;
	__u32 state;
	bool stays;

	if (!pkt || !entry || !scratch)
		return PASS;
	service = service_from(&pkt->flow);
	if (bpf_ntohl(pkt->tcp.ack_seq) != entry->client_isn + 1) {
		/* A new connection: the server has lost the old one. Only for a SYN that has
		 * passed, and from another interface: else anybody could end a flow with a forged
		 * SYN-ACK. */
		if (entry->state == PACKET_OPEN && skb->ingress_ifindex != entry->ifindex &&
		    bpf_ntohl(pkt->tcp.ack_seq) == entry->other_isn + 1)
			bpf_map_delete_elem(&packet_flows, &scratch->key);
		return NEXT;
	}
	if (!read_header(skb, scratch, at, pkt->tcp.doff * 4) || !is_whole(pkt, scratch, at))
		return NEXT;
	state = entry->state;
	if (state == PACKET_LEARNING) {
		stays = goes_on(&service, entry, bpf_ntohl(pkt->tcp.seq));
		learn_profile(&service, entry, bpf_ntohs(pkt->tcp.window));
		admit(&pkt->flow, entry);
		if (stays)
			return NEXT;
		stop_learning(entry, PACKET_REMOVED);
		bpf_map_delete_elem(&packet_flows, &scratch->key);
		return NEXT;
	}
	if (state == PACKET_ANSWERED || state == PACKET_HELD) {
		accept(entry, pkt, &scratch->options);
		learn_profile(&service, entry, bpf_ntohs(pkt->tcp.window));
		if (entry->promised & ~scratch->options.offers &
		    (OFFERS_SACK | OFFERS_TIMESTAMPS | OFFERS_WINDOW_SCALE))
			mark_bad(&service);
		if (change(entry, PACKET_ANSWERED, PACKET_ACCEPTED)) {
			note_nearer(entry);
			return DROP;
		}
		if (change(entry, PACKET_HELD, PACKET_OPEN))
			note_opened(entry);
		return turn_round(skb, pkt, entry, false);
	}
	if (state == PACKET_ACCEPTED)
		return probe_client(skb, pkt, entry);
	/* The node's ACK was lost. */
	return state == PACKET_OPEN ? turn_round(skb, pkt, entry, false) : DROP;
}

/* Translates a segment of the server. */
GLOBAL int translate_out(struct __sk_buff *skb, struct packet_flow *entry, __u32 at, __u32 bytes)
{
	struct packet_scratch *scratch = scratch_area();
	struct translation how = {};
	struct shown shown;

	if (!entry || !scratch)
		return PASS;
	how.header = &scratch->header;
	how.seq = entry->seq_delta;
	how.ack = -entry->client_seq_delta;
	how.ts_value = entry->ts_delta;
	how.ts_echo = -entry->client_ts_delta;
	if (entry->granted & OFFERS_WINDOW_SCALE)
		how.widen = entry->server_shift;
	how.narrow = entry->promised_shift;
	if (!translate(skb, at, bytes, &how))
		return PASS;
	shown.acked = entry->client_ack;
	shown.next = &entry->server_next;
	shown.seq = how.former_seq + entry->seq_delta;
	shown.bytes = numbers_of(skb, at, bytes, how.flags);
	shown.flags = how.flags;
	shown.fin = PACKET_FIN_SERVER;
	note_sent(entry, &shown);
	if (how.flags & TCP_ACK)
		note_acked(&entry->server_ack, &entry->server_wraps, entry->client_next,
			   entry->client_isn + 1, how.former_ack);
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
		return NEXT;
	/* The client has the node's SYN-ACK: the next number is the only one that resets it
	 * (RFC 5961 section 3.2). */
	write_number(scratch->header.after + TCP_SEQ_AT, entry->node_isn + 1);
	store_header(skb, &scratch->header, at);
	count(STAT_PACKET_REFUSED);
	service = service_from(&pkt->flow);
	mark_bad(&service);
	close_early(&scratch->key, entry);
	return NEXT;
}

/* A segment other than a SYN-ACK from a server that has not accepted the flow. */
static __always_inline int on_early_segment(struct __sk_buff *skb, const struct packet *pkt,
					    __u32 at, struct packet_flow *entry)
{
	bool fits = bpf_ntohl(pkt->tcp.ack_seq) == entry->client_isn + 1;

	if (!pkt->tcp.ack)
		return NEXT;
	if (pkt->tcp.rst)
		return fits ? on_refusal(skb, pkt, at, entry) : NEXT;
	/* The server still has an older connection with these addresses: reset it as a
	 * client in SYN-SENT would (RFC 9293 section 3.10.7.3). The SYN is sent again. */
	if (!fits && entry->state == PACKET_HELD)
		return turn_round(skb, pkt, entry, true);
	return NEXT;
}

SEC("classifier")
int packet_out(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct packet_flow *entry;
	struct device *device;
	struct packet *pkt;
	struct view view;

	/* `bypass_in` has translated it, for a pair that may be a flow by now. */
	if ((skb->mark & NODE_MARKS) == NODE_MARKS) {
		skb->mark &= ~NODE_MARKS;
		return NEXT;
	}
	if (skb->vlan_present || !may_have_clients(ifindex))
		return NEXT;
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!device)
		return NEXT;
	if (!view_segment(skb, device->l2_bytes, &view))
		return icmp_out(skb);
	entry = bpf_map_lookup_elem(&packet_flows, &view.key);
	if (!entry || view.turned == entry->turned ||
	    !passes(&entry->out_ifindex, &entry->out_strayed, ifindex))
		return NEXT;
	if (entry->state == PACKET_OPEN && !(view.flags & TCP_SYN)) {
		if (!entry->is_long && is_long(entry, view.seq))
			note_long(&view.key, entry);
		return translate_out(skb, entry, view.at, view.bytes);
	}
	if (entry->state == PACKET_LEARNING && entry->is_measured && !(view.flags & TCP_SYN))
		return measure(&view.key, entry, view.seq, view.flags);
	/* The node's own SYN-ACK is sent by a program that runs on this CPU: it leaves before
	 * the scratch area is touched. */
	if (view.flags & TCP_SYN && entry->state != PACKET_LEARNING &&
	    view.seq == entry->node_isn)
		return PASS;
	pkt = parse_segment(skb, &view, 1, device->l2_bytes);
	if (!pkt)
		return NEXT;
	if (pkt->tcp.syn && pkt->tcp.ack)
		return on_syn_ack(skb, pkt, view.at, entry);
	if (is_half_open(entry->state) || entry->state == PACKET_HELD)
		return on_early_segment(skb, pkt, view.at, entry);
	return NEXT;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
