/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the packet path reads of each segment, by direct packet access: most belong to an
 * open flow, or to none. */
#pragma once
#include "packet.h"
#include "translate.h"

/* The first byte of an IPv4 header without options. */
#define IPV4_WITHOUT_OPTIONS 0x45

/* A segment, and by what its flow is found. */
struct view {
	struct packet_key key;
	__u16 at;     /* of the TCP header in the frame */
	__u16 bytes;  /* of it */
	__u32 end;    /* of the packet in the frame, by its IP header; 0: not read */
	__u32 seq;
	__u32 flags;  /* byte 13 of it */
	__u32 turned; /* its source is the second of the key */
	__u32 rare;   /* RARE_* */
};
/* It has other headers before that of TCP. */
#define RARE_HEADERS 1
/* It is the first fragment, on a source route or signed (RFC 4302): these headers cannot be taken out. */
#define RARE_PART 2

static __always_inline __be16 source_port(const struct view *view)
{
	return view->turned ? view->key.second_port : view->key.first_port;
}

static __always_inline __be16 destination_port(const struct view *view)
{
	return view->turned ? view->key.first_port : view->key.second_port;
}

static __always_inline bool is_before(const __u32 *one, const __u32 *other)
{
	for (int i = 0; i < 4; i++)
		if (one[i] != other[i])
			return one[i] < other[i];
	return false;
}

/* Whether the source of a segment is the second of its flow's key. */
static __always_inline bool is_turned(const struct flow *flow)
{
	if (flow->client_port != flow->server_port)
		return flow->client_port > flow->server_port;
	return is_before(flow->server.word, flow->client.word);
}

static __always_inline struct packet_key key_of(const struct flow *flow)
{
	if (is_turned(flow))
		return (struct packet_key){ flow->server, flow->client, flow->server_port,
					    flow->client_port };
	return (struct packet_key){ flow->client, flow->server, flow->client_port,
				    flow->server_port };
}

/* The flow of an entry, from its client. */
static __always_inline struct flow flow_of(const struct packet_key *key, bool turned)
{
	struct flow flow = { key->first, key->second, key->first_port, key->second_port };

	return turned ? reversed(&flow) : flow;
}

/* `descends`: the source has the higher address. */
static __always_inline void view_tcp(struct view *view, const __u8 *tcp, bool descends)
{
	__be16 from = *(const __be16 *)tcp, to = *(const __be16 *)(tcp + 2);

	view->bytes = (tcp[12] >> 4) * 4;
	view->seq = bpf_ntohl(*(const __be32 *)(tcp + TCP_SEQ_AT));
	view->flags = tcp[TCP_FLAGS_AT];
	view->turned = from == to ? descends : from > to;
	view->key.first_port = view->turned ? to : from;
	view->key.second_port = view->turned ? from : to;
}

static __always_inline bool view_ipv4(const __u8 *ip, const __u8 *end, struct view *view)
{
	const struct iphdr *header = (const struct iphdr *)ip;
	const __u8 *tcp = ip + sizeof(*header);

	if (tcp + sizeof(struct tcphdr) > end || ip[0] != IPV4_WITHOUT_OPTIONS ||
	    header->protocol != IPPROTO_TCP || header->frag_off & bpf_htons(IP_OFFSET | IP_MF))
		return false;
	view_tcp(view, tcp, header->saddr > header->daddr);
	view->end = bpf_ntohs(header->tot_len);
	view->key.first = mapped(view->turned ? header->daddr : header->saddr);
	view->key.second = mapped(view->turned ? header->saddr : header->daddr);
	return true;
}

static __always_inline bool view_ipv6(const __u8 *ip, const __u8 *end, struct view *view)
{
	const struct ipv6hdr *header = (const struct ipv6hdr *)ip;
	const __u8 *tcp = ip + sizeof(*header);

	if (tcp + sizeof(struct tcphdr) > end || header->nexthdr != IPPROTO_TCP)
		return false;
	view_tcp(view, tcp,
		 is_before(header->daddr.in6_u.u6_addr32, header->saddr.in6_u.u6_addr32));
	view->end = sizeof(*header) + bpf_ntohs(header->payload_len);
	view->key.first = address_of(view->turned ? &header->daddr : &header->saddr);
	view->key.second = address_of(view->turned ? &header->saddr : &header->daddr);
	return !is_mapped(&view->key.first) && !is_mapped(&view->key.second);
}

/* Reads the segment whose IP header is at `at`, if it is whole and has no IP options;
 * false for any other packet, and where a header is not in the linear part. */
static __always_inline bool view_headers(struct __sk_buff *skb, __u32 at, struct view *view)
{
	const __u8 *end = (const __u8 *)(unsigned long)skb->data_end;
	const __u8 *ip = (const __u8 *)(unsigned long)skb->data;
	bool seen;

	/* No supported link layer has a longer header; the verifier needs a bound. */
	if (at > ETH_HLEN)
		return false;
	ip += at;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		seen = view_ipv4(ip, end, view);
		view->at = at + sizeof(struct iphdr);
	} else {
		seen = skb->protocol == bpf_htons(ETH_P_IPV6) && view_ipv6(ip, end, view);
		view->at = at + sizeof(struct ipv6hdr);
	}
	view->end += at;
	return seen && view->bytes >= sizeof(struct tcphdr);
}

/* Reads a segment; false for any other packet, and for segments that are rare. */
static __always_inline bool view_segment(struct __sk_buff *skb, __u32 at, struct view *view)
{
	__u32 most = at + sizeof(struct ipv6hdr) + sizeof(struct tcphdr);

	view->rare = 0;
	if (view_headers(skb, at, view))
		return true;
	/* A device may leave the headers outside the linear part. */
	if ((long)skb->data_end - (long)skb->data >= most || skb->len <= skb->data_end - skb->data ||
	    bpf_skb_pull_data(skb, skb->len < most ? skb->len : most))
		return false;
	return view_headers(skb, at, view);
}
