/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * ICMP errors that quote a segment of the packet path (RFC 792, RFC 4443).
 *
 * from the client's side   quotes a segment of the server in the node's numbers: the
 *                          quoted sequence number becomes the server's again, or the
 *                          server would ignore the error (RFC 5927 section 4)
 * toward the client        quotes a SYN whose client has the node's SYN-ACK: to an
 *                          established connection such an error is a soft one (RFC 1122
 *                          section 4.2.3.9), so it becomes the reset that it means; or a
 *                          segment of a flow that was relayed, in the numbers of the
 *                          server's connection, which become the client's
 */
#pragma once
#include "packet_path.h"
#include "packet_segment.h"

#define ICMP_DEST_UNREACH 3
#define ICMP_FRAG_NEEDED 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETERPROB 12
#define ICMPV6_DEST_UNREACH 1
#define ICMPV6_PACKET_TOO_BIG 2
#define ICMPV6_PARAMPROB 4
/* Type, code, checksum, and four bytes that depend on the type. */
#define ICMP_HEADER_BYTES 8
#define ICMP_CHECKSUM_AT 2
/* The lower half of the MTU of the next link (RFC 1191 section 4, RFC 4443 section 3.2). */
#define ICMP_MTU_AT 6

/* An ICMP error and the TCP header that it quotes. */
struct icmp_error {
	__u32 at;     /* of the ICMP header */
	__u32 tcp_at; /* of the quoted TCP header, of which eight bytes are there */
	__u32 seq;    /* quoted */
	__u8 type;
	__u8 code;
};

/* The packet that an ICMP error quotes, of either direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet);
} packet_quoted SEC(".maps");

static __always_inline struct packet *quoted_packet(void)
{
	__u32 only = 0;

	return bpf_map_lookup_elem(&packet_quoted, &only);
}

static __always_inline bool is_error(__u32 family, __u8 type)
{
	if (family == AF_INET6)
		return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED ||
	       type == ICMP_PARAMETERPROB;
}

/* Whether the packet is of ICMP. Most that come here are not, so this reads one byte. */
static __always_inline bool is_icmp(struct __sk_buff *skb, __u32 at)
{
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u8 protocol;

	at += v4 ? offsetof(struct iphdr, protocol) : offsetof(struct ipv6hdr, nexthdr);
	if (bpf_skb_load_bytes(skb, at, &protocol, sizeof(protocol)))
		return false;
	return protocol == (v4 ? IPPROTO_ICMP : IPPROTO_ICMPV6);
}

/* Parses an ICMP error that quotes a TCP segment into `pkt`, whose flow becomes the
 * quoted one. False for all other packets. */
GLOBAL int parse_error(struct __sk_buff *skb, struct packet *pkt, struct icmp_error *error)
{
	__u32 ifindex = skb->ifindex;
	struct device *device;
	struct quote {
		__be16 ports[2];
		__be32 seq;
	} quote;
	__u8 kind[2];

	if (!pkt || !error)
		return false;
	device = bpf_map_lookup_elem(&devices, &ifindex);
	if (!device)
		return false;
	pkt->fragment = FRAGMENT_NONE;
	pkt->l2_bytes = device->l2_bytes ? ETH_HLEN : 0;
	if (!is_icmp(skb, pkt->l2_bytes))
		return false;
	error->at = parse_ip(skb, pkt, pkt->l2_bytes);
	if (!error->at || pkt->fragment || bpf_skb_load_bytes(skb, error->at, kind, sizeof(kind)) ||
	    !is_error(pkt->family, kind[0]))
		return false;
	error->type = kind[0];
	error->code = kind[1];
	error->tcp_at = parse_ip(skb, pkt, error->at + ICMP_HEADER_BYTES);
	if (!error->tcp_at || pkt->protocol != IPPROTO_TCP || pkt->fragment == FRAGMENT_LATER ||
	    bpf_skb_load_bytes(skb, error->tcp_at, &quote, sizeof(quote)))
		return false;
	pkt->flow.client_port = quote.ports[0];
	pkt->flow.server_port = quote.ports[1];
	error->seq = bpf_ntohl(quote.seq);
	return true;
}

/* Replaces the quoted sequence number. */
static __always_inline void requote(struct __sk_buff *skb, const struct icmp_error *error,
				    __u32 seq)
{
	__u32 check_at = error->tcp_at + TCP_CHECKSUM_AT;
	__be32 from = bpf_htonl(error->seq), to = bpf_htonl(seq);
	__be16 check;

	/* A quoted checksum that follows the number keeps the sum of the whole message. A
	 * router may quote no more than eight bytes: then the message's own follows. */
	if (bpf_skb_load_bytes(skb, check_at, &check, sizeof(check)))
		check_at = error->at + ICMP_CHECKSUM_AT;
	bpf_skb_store_bytes(skb, error->tcp_at + TCP_SEQ_AT, &to, sizeof(to), 0);
	bpf_l4_csum_replace(skb, check_at, from, to, sizeof(to));
}

/* The MTU that a router reports of a segment to which the node has added its timestamps: without
 * them it must be that much smaller. */
static __always_inline void leave_room(struct __sk_buff *skb, __u32 family,
				       const struct icmp_error *error)
{
	bool v4 = family == AF_INET;
	__u32 at = error->at + ICMP_MTU_AT;
	__be16 from, to;

	if (v4 ? error->type != ICMP_DEST_UNREACH || error->code != ICMP_FRAG_NEEDED :
		 error->type != ICMPV6_PACKET_TOO_BIG)
		return;
	/* The lower half of the field; in IPv4 the upper one is unused. */
	if (bpf_skb_load_bytes(skb, at, &from, sizeof(from)) || bpf_ntohs(from) < STAMP_BYTES)
		return;
	to = bpf_htons(bpf_ntohs(from) - STAMP_BYTES);
	bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
	bpf_l4_csum_replace(skb, error->at + ICMP_CHECKSUM_AT, from, to, sizeof(to));
}

/* An ICMP error, or any other packet but a segment, at ingress. */
GLOBAL int icmp_in(struct __sk_buff *skb)
{
	struct icmp_error error = {};
	struct packet_flow *entry;
	struct packet_key key;
	struct packet *pkt;

	pkt = quoted_packet();
	if (!pkt || !parse_error(skb, pkt, &error))
		return NEXT;
	key = key_of(&pkt->flow);
	entry = bpf_map_lookup_elem(&packet_flows, &key);
	if (!entry || entry->ifindex != skb->ifindex || entry->state != PACKET_OPEN ||
	    is_turned(&pkt->flow) == entry->turned)
		return NEXT;
	requote(skb, &error, error.seq - entry->seq_delta);
	if (is_stamped(entry))
		leave_room(skb, pkt->family, &error);
	count(STAT_PACKET_ICMP);
	return NEXT;
}

/* Whether the error means that the server cannot be reached. A packet that is too big
 * (RFC 1191) does not. */
static __always_inline bool is_refusal(__u32 family, const struct icmp_error *error)
{
	if (family == AF_INET6)
		return error->type == ICMPV6_DEST_UNREACH;
	return error->type == ICMP_DEST_UNREACH && error->code != ICMP_FRAG_NEEDED;
}

/* Makes the error a reset of the client by the server that it tried to reach. */
GLOBAL int write_refusal(struct __sk_buff *skb, const struct packet *pkt,
			 const struct packet_flow *entry)
{
	struct packet_scratch *scratch = scratch_area();
	struct segment *segment;

	if (!pkt || !entry || !scratch)
		return false;
	segment = &scratch->segment;
	__builtin_memset(segment, 0, sizeof(*segment));
	segment->flow = reversed(&pkt->flow);
	segment->family = pkt->family;
	segment->l2_bytes = pkt->l2_bytes;
	segment->hop_limit = ANSWER_HOPS;
	/* The next number is the only one that resets a client with the node's SYN-ACK (RFC
	 * 5961 section 3.2), the acknowledgement the only one that resets a client without
	 * it (RFC 9293 section 3.10.7.3). */
	segment->seq = entry->node_isn + 1;
	segment->ack = entry->client_isn + 1;
	segment->flags = TCP_RST | TCP_ACK;
	return write_segment(skb, segment, NULL);
}

/* An ICMP error, or any other packet but a segment, at egress. It was made by this host
 * or has passed its NAT, so it quotes the addresses that the client used. */
GLOBAL int icmp_out(struct __sk_buff *skb)
{
	struct icmp_error error = {};
	struct destination service;
	struct packet_flow *entry;
	struct packet_key key;
	struct packet *pkt;

	pkt = quoted_packet();
	if (!pkt || !parse_error(skb, pkt, &error))
		return NEXT;
	key = key_of(&pkt->flow);
	entry = bpf_map_lookup_elem(&packet_flows, &key);
	if (!entry || entry->ifindex != skb->ifindex || is_turned(&pkt->flow) != entry->turned)
		return NEXT;
	/* From where the client is: any client can forge it. */
	if (skb->ingress_ifindex == entry->ifindex)
		return NEXT;
	if (entry->state == PACKET_OPEN && entry->was_relayed) {
		requote(skb, &error, error.seq - entry->client_seq_delta);
		count(STAT_PACKET_ICMP);
		return NEXT;
	}
	/* Only the exact number: who is not on the path must guess it (RFC 5927). */
	if (!is_refusal(pkt->family, &error) || error.seq != entry->client_isn)
		return NEXT;
	if (entry->state != PACKET_ANSWERED && entry->state != PACKET_HELD)
		return NEXT;
	if (!write_refusal(skb, pkt, entry))
		return DROP;
	count(STAT_PACKET_REFUSED);
	service = service_of(&pkt->flow);
	mark_bad(&service, BAD_NS);
	close_early(&key, entry);
	return NEXT;
}
