/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Segments of a client that are longer than its server granted: the node promised what another
 * server behind the address had granted. They would be lost on the way without a word, so the
 * client gets the ICMP error of a router in place of them (RFC 1191, RFC 8201), and sends them
 * again in smaller ones.
 */
#pragma once
#include "packet_icmp.h"

/* Every host takes such segments (RFC 9293 section 3.7.1), and no client makes smaller ones for
 * an ICMP error: in IPv6 no path is narrower (RFC 8200 section 5). */
#define MSS_LEAST_IPV4 536
#define MSS_LEAST_IPV6 1220
/* Of the TCP header, what the error quotes: without options. */
#define QUOTED_TCP_BYTES sizeof(struct tcphdr)

/* Whether a segment is longer than the server takes. Options count (RFC 6691). */
static __always_inline bool is_too_long(const struct __sk_buff *skb,
					const struct packet_flow *entry, __u32 at, __u32 bytes)
{
	__u32 least = entry->mss, payload;

	if (!(entry->granted & GRANTS_SHORT))
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP))
		least = least > MSS_LEAST_IPV4 ? least : MSS_LEAST_IPV4;
	else
		least = least > MSS_LEAST_IPV6 ? least : MSS_LEAST_IPV6;
	payload = skb->gso_size ? skb->gso_size : skb->len - at - bytes;
	return payload + bytes - sizeof(struct tcphdr) > least;
}

/* The sum of the quoted TCP header, which is the last of the message. Where the device completes
 * its checksum, which covers all from there on, it will be the inverse of what the checksum is
 * now. */
static __always_inline __s64 quoted_sum(struct __sk_buff *skb, __u32 at)
{
	__be32 quoted[QUOTED_TCP_BYTES / 4] = {};
	__be16 check, inverse;

	bpf_skb_load_bytes(skb, at, quoted, sizeof(quoted));
	bpf_skb_load_bytes(skb, at + TCP_CHECKSUM_AT, &check, sizeof(check));
	if (spoil_checksum(skb, at)) {
		inverse = ~check;
		return inverse;
	}
	bpf_skb_store_bytes(skb, at + TCP_CHECKSUM_AT, &check, sizeof(check), 0);
	return bpf_csum_diff(NULL, 0, quoted, sizeof(quoted), 0);
}

/* Makes room for the headers of the error before the quoted ones. */
static __always_inline bool quote(struct __sk_buff *skb, __u32 at, __u32 bytes)
{
	/* What the kernel has joined becomes one segment. */
	return !bpf_skb_change_tail(skb, at + QUOTED_TCP_BYTES, 0) &&
	       !bpf_skb_adjust_room(skb, bytes, BPF_ADJ_ROOM_NET, 0);
}

GLOBAL int report_ipv4(struct __sk_buff *skb, __u32 at, __u32 mtu)
{
	struct {
		struct iphdr ip;
		__u8 icmp[ICMP_HEADER_BYTES];
		struct iphdr quoted;
	} made = {};
	__u32 l2_bytes = at - sizeof(made.ip);
	__s64 sum = quoted_sum(skb, at);
	__u16 check;

	if (bpf_skb_load_bytes(skb, l2_bytes, &made.quoted, sizeof(made.quoted)) ||
	    !quote(skb, at, sizeof(made) - sizeof(made.ip)))
		return false;
	made.ip.version = 4;
	made.ip.ihl = 5;
	made.ip.tot_len = bpf_htons(sizeof(made) + QUOTED_TCP_BYTES);
	made.ip.ttl = ANSWER_HOPS;
	made.ip.protocol = IPPROTO_ICMP;
	made.ip.saddr = made.quoted.daddr;
	made.ip.daddr = made.quoted.saddr;
	made.ip.check = ~fold(bpf_csum_diff(NULL, 0, (__be32 *)&made.ip, sizeof(made.ip), 0));
	made.icmp[0] = ICMP_DEST_UNREACH;
	made.icmp[1] = ICMP_FRAG_NEEDED;
	made.icmp[ICMP_MTU_AT] = mtu >> 8;
	made.icmp[ICMP_MTU_AT + 1] = mtu;
	check = ~fold(bpf_csum_diff(NULL, 0, (__be32 *)made.icmp,
				    sizeof(made) - sizeof(made.ip), sum));
	__builtin_memcpy(made.icmp + ICMP_CHECKSUM_AT, &check, sizeof(check));
	return !bpf_skb_store_bytes(skb, l2_bytes, &made, sizeof(made), 0);
}

GLOBAL int report_ipv6(struct __sk_buff *skb, __u32 at, __u32 mtu)
{
	struct {
		struct ipv6hdr ip;
		__u8 icmp[ICMP_HEADER_BYTES];
		struct ipv6hdr quoted;
	} made = {};
	__u32 l2_bytes = at - sizeof(made.ip);
	__u32 bytes = sizeof(made) - sizeof(made.ip) + QUOTED_TCP_BYTES;
	__be32 rest[2] = { bpf_htonl(bytes), bpf_htonl(IPPROTO_ICMPV6) };
	__s64 sum = quoted_sum(skb, at);
	__u16 check;

	if (bpf_skb_load_bytes(skb, l2_bytes, &made.quoted, sizeof(made.quoted)) ||
	    !quote(skb, at, sizeof(made) - sizeof(made.ip)))
		return false;
	made.ip.version = 6;
	made.ip.payload_len = bpf_htons(bytes);
	made.ip.nexthdr = IPPROTO_ICMPV6;
	made.ip.hop_limit = ANSWER_HOPS;
	made.ip.saddr = made.quoted.daddr;
	made.ip.daddr = made.quoted.saddr;
	made.icmp[0] = ICMPV6_PACKET_TOO_BIG;
	made.icmp[ICMP_MTU_AT] = mtu >> 8;
	made.icmp[ICMP_MTU_AT + 1] = mtu;
	sum = bpf_csum_diff(NULL, 0, (__be32 *)&made.ip.saddr, 32, sum);
	sum = bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
	check = ~fold(bpf_csum_diff(NULL, 0, (__be32 *)made.icmp,
				    sizeof(made) - sizeof(made.ip), sum));
	__builtin_memcpy(made.icmp + ICMP_CHECKSUM_AT, &check, sizeof(check));
	return !bpf_skb_store_bytes(skb, l2_bytes, &made, sizeof(made), 0);
}

/* Answers a segment that is too long, in the numbers in which its client sent it. */
GLOBAL int report_narrow(struct __sk_buff *skb, const struct packet_flow *entry, __u32 at)
{
	bool v4 = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 ip_bytes = v4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u32 least, l2_bytes = at - ip_bytes;

	/* With other headers between: its client gets it at the next one. */
	if (!entry || (l2_bytes && l2_bytes != ETH_HLEN))
		return DROP;
	least = v4 ? MSS_LEAST_IPV4 : MSS_LEAST_IPV6;
	if (least < entry->mss)
		least = entry->mss;
	least += ip_bytes + sizeof(struct tcphdr);
	if (!(v4 ? report_ipv4(skb, at, least) : report_ipv6(skb, at, least)))
		return DROP;
	count(STAT_PACKET_NARROWED);
	swap_link_addresses(skb, l2_bytes);
	return bpf_redirect(skb->ifindex, 0);
}
