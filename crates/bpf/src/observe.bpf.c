// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Observes handshakes that leave by an interface: SYNs toward servers, with the
 * addresses that NAT gave them, and SYN-ACKs toward clients. Changes no packet. Drops the
 * SYN of a trial that would leave with an address that was not observed, and an error of
 * this host toward the client of a trial.
 *
 * observe        tc egress on every interface, once a rule observes
 */
#include "observe.h"
#include "packet.h"

/* Most bytes of options in a TCP header. */
#define TCP_OPTIONS_MAX 40
#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_MSS 2	  /* RFC 9293 section 3.7.1 */
#define TCP_OPTION_WINDOW_SCALE 3 /* RFC 7323 section 2 */
#define TCP_OPTION_SACK 4	  /* RFC 2018 section 2 */
#define TCP_OPTION_TIMESTAMPS 8	  /* RFC 7323 section 3 */
#define TCP_FLAGS_AT 13
/* The first byte of an IPv4 header without options. */
#define IPV4_WITHOUT_OPTIONS 0x45
#define TCP_SYN 2
#define TCP_RST 4
/* Outside TCP's flags: an ICMP message. */
#define ICMP_MESSAGE 0x100
#define ICMP_DEST_UNREACH 3
#define ICMPV6_DEST_UNREACH 1
/* The interface of what this host sends itself. */
#define LOOPBACK_IFINDEX 1

/* A walk over the options of a SYN-ACK. */
struct walk {
	struct __sk_buff *skb;
	__u32 at;
	__u32 end;
	struct server_options found;
};

/* Reads one option; 1 ends the walk. */
static long read_option(__u32 index, struct walk *walk)
{
	struct {
		__u8 kind;
		__u8 bytes;
		__u8 value[2];
	} option = {};

	(void)index;
	if (walk->at >= walk->end ||
	    bpf_skb_load_bytes(walk->skb, walk->at, &option.kind, sizeof(option.kind)) ||
	    option.kind == TCP_OPTION_END)
		return 1;
	if (option.kind == TCP_OPTION_NOP) {
		walk->at += 1;
		return 0;
	}
	if (bpf_skb_load_bytes(walk->skb, walk->at + 1, &option.bytes, sizeof(option.bytes)) ||
	    option.bytes < 2 || walk->at + option.bytes > walk->end)
		return 1;
	/* It ends in the packet where the options do, or the next iteration will detect
	 * it. */
	bpf_skb_load_bytes(walk->skb, walk->at + 2, option.value, sizeof(option.value));
	if (option.kind == TCP_OPTION_MSS && option.bytes == 4)
		walk->found.mss = option.value[0] << 8 | option.value[1];
	if (option.kind == TCP_OPTION_WINDOW_SCALE && option.bytes == 3) {
		walk->found.window_shift = option.value[0];
		walk->found.flags |= OFFERS_WINDOW_SCALE;
	}
	if (option.kind == TCP_OPTION_SACK)
		walk->found.flags |= OFFERS_SACK;
	if (option.kind == TCP_OPTION_TIMESTAMPS)
		walk->found.flags |= OFFERS_TIMESTAMPS;
	walk->at += option.bytes;
	return 0;
}

/* The upstream sockets of trials. Ends with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, int);
} trial_sockets SEC(".maps");

/* A SYN of the node itself leaves. For an observed flow it has the observed source. That of a trial must
 * not leave with another one. Once NAT is known
 * to keep the source, it changes it only where the port is taken, as it would for the client. */
static __always_inline int check_own_syn(struct __sk_buff *skb, const struct packet *pkt)
{
	const __u32 *source = pkt->flow.client.word;
	struct bpf_sock *sk = skb->sk;

	if (!sk)
		return TC_ACT_UNSPEC;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return TC_ACT_UNSPEC;
	if (pkt->family == AF_INET ? sk->src_ip4 == source[3] :
				     sk->src_ip6[0] == source[0] && sk->src_ip6[1] == source[1] &&
					     sk->src_ip6[2] == source[2] &&
					     sk->src_ip6[3] == source[3])
		return TC_ACT_UNSPEC;
	if (!bpf_sk_storage_get(&trial_sockets, sk, NULL, 0))
		return TC_ACT_UNSPEC;
	count(STAT_RETRANSLATED);
	return TC_ACT_SHOT;
}

/* The options of a SYN or SYN-ACK whose TCP header is at `at`. */
static __always_inline struct server_options options_of(struct __sk_buff *skb,
							const struct packet *pkt, __u32 at)
{
	struct walk walk = {
		.skb = skb,
		.at = at + sizeof(struct tcphdr),
		.end = at + pkt->tcp.doff * 4,
	};

	bpf_loop(TCP_OPTIONS_MAX, read_option, &walk, 0);
	return walk.found;
}

/* What NAT changed of a SYN that arrived as one of `flow`. */
static __always_inline __u8 translated(const struct packet *pkt, const struct flow *flow)
{
	__u8 what = 0;

	if (!is_same(&flow->client, &pkt->flow.client) ||
	    flow->client_port != pkt->flow.client_port)
		what |= TRANSLATED_SOURCE;
	if (!is_same(&flow->server, &pkt->flow.server) ||
	    flow->server_port != pkt->flow.server_port)
		what |= TRANSLATED_DESTINATION;
	return what;
}

/* NAT leads a client to a service that it can reach directly too. From now on no relay takes
 * its direct connections: both may have the same port, and to conntrack and early
 * demultiplexing one would be the other. */
static __always_inline void bypass_direct(const struct flow *flow, const struct packet *pkt,
					  __u32 ifindex)
{
	const struct observing *how = how_to_observe();
	struct profile made = { .state = PROFILE_BYPASSED, .ifindex = ifindex };
	struct profile_key key = {
		.client = flow->client,
		.server = pkt->flow.server,
		.port = pkt->flow.server_port,
	};
	struct profile *profile;

	if (!how)
		return;
	made.epoch = how->epoch;
	made.learned_ns = bpf_ktime_get_ns();
	made.until_ns = made.learned_ns + how->bypass_ns;
	profile = bpf_map_lookup_elem(&profiles, &key);
	if (!profile || profile->ifindex != ifindex || profile->epoch != how->epoch) {
		bpf_map_update_elem(&profiles, &key, &made, BPF_ANY);
		return;
	}
	profile->until_ns = made.until_ns;
	profile->state = PROFILE_BYPASSED;
}

/* Whether the routes of this host lead a socket with the addresses of an observed SYN to the interface by
 * which it leaves. Then a relay may follow them, as the flow does: unless the firewall filters what is
 * forwarded, which it might not let leave by another interface. */
GLOBAL int follows_routes(struct __sk_buff *skb, const struct packet *pkt)
{
	const struct observing *how = how_to_observe();
	struct bpf_fib_lookup fib;
	long found;

	if (!pkt || !how || how->filters)
		return false;
	fib = route_from(LOOPBACK_IFINDEX, pkt->family);
	fib.dport = pkt->flow.server_port;
	if (pkt->family == AF_INET) {
		fib.ipv4_src = pkt->flow.client.word[3];
		fib.ipv4_dst = pkt->flow.server.word[3];
	} else {
		__builtin_memcpy(fib.ipv6_src, &pkt->flow.client, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &pkt->flow.server, sizeof(fib.ipv6_dst));
	}
	found = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (found != BPF_FIB_LKUP_RET_SUCCESS && found != BPF_FIB_LKUP_RET_NO_NEIGH)
		return false;
	return fib.ifindex == skb->ifindex;
}

/* A SYN leaves; its TCP header is at `at`. For an observed handshake it shows the
 * results of NAT and MSS clamping, and the interface. */
GLOBAL int see_syn(struct __sk_buff *skb, const struct packet *pkt, __u32 at)
{
	struct handshake *handshake;
	struct server_options options;
	struct flow *flow;
	__be32 isn;
	__u8 what;

	if (!pkt)
		return TC_ACT_UNSPEC;
	if (skb->mark & socket_mark)
		return check_own_syn(skb, pkt);
	isn = pkt->tcp.seq;
	flow = bpf_map_lookup_elem(&leaving, &isn);
	if (!flow)
		return TC_ACT_UNSPEC;
	what = translated(pkt, flow);
	if (what & TRANSLATED_DESTINATION)
		bypass_direct(flow, pkt, skb->ingress_ifindex);
	handshake = bpf_map_lookup_elem(&handshakes, flow);
	if (!handshake || handshake->isn != isn)
		return TC_ACT_UNSPEC;
	/* What does not leave, as what is for this host, is not forwarded. */
	if (!(handshake->flags & HANDSHAKE_LEFT))
		count(STAT_OBSERVED);
	/* With its source translated, a connection ends when its route is moved anyway. */
	handshake->routed = what & TRANSLATED_SOURCE ? false : follows_routes(skb, pkt);
	handshake->source = pkt->flow.client;
	handshake->translated |= what;
	options = options_of(skb, pkt, at);
	handshake->syn_mss = options.mss;
	handshake->out_ifindex = skb->ifindex;
	handshake->flags |= HANDSHAKE_LEFT;
	return TC_ACT_UNSPEC;
}

/* A SYN-ACK of the node's listener leaves: this host allows what a relay needs. */
static __always_inline void see_own_syn_ack(const struct flow *flow, __u32 ifindex)
{
	struct profile *profile = find_profile(flow, ifindex);

	if (profile && profile->state == PROFILE_LEARNED)
		profile->state = PROFILE_VALIDATED;
	bpf_map_delete_elem(&trials, flow);
}

/* A SYN-ACK leaves toward a client; its TCP header is at `at`. */
GLOBAL int see_syn_ack(struct __sk_buff *skb, const struct packet *pkt, __u32 at)
{
	struct handshake *handshake;
	struct flow flow;

	if (!pkt)
		return 0;
	flow = reversed(&pkt->flow);
	if (skb->mark & socket_mark) {
		see_own_syn_ack(&flow, skb->ifindex);
		return 0;
	}
	handshake = bpf_map_lookup_elem(&handshakes, &flow);
	if (!handshake || handshake->ifindex != skb->ifindex ||
	    bpf_ntohl(pkt->tcp.ack_seq) != bpf_ntohl(handshake->isn) + 1)
		return 0;
	if (handshake->syn_ack_ns) {
		handshake->flags |= HANDSHAKE_REPEATED;
		return 0;
	}
	handshake->options = options_of(skb, pkt, at);
	handshake->ack = bpf_htonl(bpf_ntohl(pkt->tcp.seq) + 1);
	handshake->syn_ack_ns = bpf_ktime_get_ns();
	return 0;
}

/* A reset leaves toward the client of a trial. The server's resets are sent by the node
 * itself: this one is from the host, which rejects packets delivered to it. */
GLOBAL int check_reset(struct __sk_buff *skb, const struct packet *pkt)
{
	struct flow flow;

	if (!pkt || (skb->mark & socket_mark))
		return TC_ACT_UNSPEC;
	flow = reversed(&pkt->flow);
	return bpf_map_lookup_elem(&trials, &flow) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* The same for an ICMP error, whose message is at `at`. */
GLOBAL int check_unreachable(struct __sk_buff *skb, const struct packet *pkt, __u32 at)
{
	struct packet quoted = {};
	__be16 ports[2];
	__u8 type;

	if (!pkt || (skb->mark & socket_mark) || bpf_skb_load_bytes(skb, at, &type, sizeof(type)) ||
	    type != (pkt->family == AF_INET ? ICMP_DEST_UNREACH : ICMPV6_DEST_UNREACH))
		return TC_ACT_UNSPEC;
	at = parse_ip(skb, &quoted, at + 8);
	if (!at || quoted.protocol != IPPROTO_TCP || quoted.fragment ||
	    bpf_skb_load_bytes(skb, at, ports, sizeof(ports)))
		return TC_ACT_UNSPEC;
	quoted.flow.client_port = ports[0];
	quoted.flow.server_port = ports[1];
	return bpf_map_lookup_elem(&trials, &quoted.flow) ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}

/* Whether a packet is a segment that neither opens nor resets a connection, by direct
 * packet access: most are, and pass without a helper call. False where more checks are
 * needed. */
static __always_inline bool is_of_open_connection(const struct __sk_buff *skb, __u32 at)
{
	const __u8 *end = (const __u8 *)(unsigned long)skb->data_end;
	const __u8 *ip = (const __u8 *)(unsigned long)skb->data;
	const __u8 *tcp;

	/* No supported link layer has a longer header; the verifier needs a bound. */
	if (at > ETH_HLEN)
		return false;
	ip += at;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		tcp = ip + sizeof(struct iphdr);
		return tcp + sizeof(struct tcphdr) <= end && ip[0] == IPV4_WITHOUT_OPTIONS &&
		       ip[offsetof(struct iphdr, protocol)] == IPPROTO_TCP &&
		       !(tcp[TCP_FLAGS_AT] & (TCP_SYN | TCP_RST));
	}
	tcp = ip + sizeof(struct ipv6hdr);
	return skb->protocol == bpf_htons(ETH_P_IPV6) && tcp + sizeof(struct tcphdr) <= end &&
	       ip[offsetof(struct ipv6hdr, nexthdr)] == IPPROTO_TCP &&
	       !(tcp[TCP_FLAGS_AT] & (TCP_SYN | TCP_RST));
}

/* The flags of a TCP segment, ICMP_MESSAGE, or 0 for anything else. */
static __always_inline __u32 kind_of(struct __sk_buff *skb, __u32 at)
{
	__u8 flags = 0, protocol = 0, version_and_length = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at, &version_and_length, 1) ||
		    bpf_skb_load_bytes(skb, at + offsetof(struct iphdr, protocol), &protocol, 1))
			return 0;
		at += (version_and_length & 0xf) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &protocol, 1))
			return 0;
		at += sizeof(struct ipv6hdr);
	}
	if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
		return ICMP_MESSAGE;
	if (protocol != IPPROTO_TCP || bpf_skb_load_bytes(skb, at + TCP_FLAGS_AT, &flags, 1))
		return 0;
	return flags;
}

/* Handles a packet that is not a segment of an open connection; its IP header is at
 * `at`. */
GLOBAL int look_at(struct __sk_buff *skb, __u32 at)
{
	__u32 kind = kind_of(skb, at);
	struct packet pkt = {};

	if (!(kind & (TCP_SYN | TCP_RST | ICMP_MESSAGE)))
		return TC_ACT_UNSPEC;
	at = parse_ip(skb, &pkt, at);
	if (!at || pkt.fragment)
		return TC_ACT_UNSPEC;
	if (kind == ICMP_MESSAGE)
		return check_unreachable(skb, &pkt, at);
	if (!parse_tcp(skb, &pkt, at))
		return TC_ACT_UNSPEC;
	if (pkt.tcp.rst)
		return check_reset(skb, &pkt);
	if (!pkt.tcp.ack)
		return see_syn(skb, &pkt, at);
	see_syn_ack(skb, &pkt, at);
	return TC_ACT_UNSPEC;
}

SEC("classifier")
int observe(struct __sk_buff *skb)
{
	__u32 ifindex = skb->ifindex;
	struct device *device = bpf_map_lookup_elem(&devices, &ifindex);

	/* A tagged frame is observed on its VLAN device. */
	if (!device || skb->vlan_present || is_of_open_connection(skb, device->l2_bytes))
		return TC_ACT_UNSPEC;
	return look_at(skb, device->l2_bytes);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
