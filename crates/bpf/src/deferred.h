/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* How the programs of deferred.bpf.c continue with a packet of `redirect`. */
#pragma once
#include "events.h"
#include "packet.h"

/* Parses the packet as `redirect` did. Returns the offset of its TCP header; 0 for a
 * packet that `redirect` would not have sent here. */
static __always_inline __u32 resume(struct __sk_buff *skb, struct packet *pkt)
{
	__u32 at;

	pkt->l2_bytes = skb->cb[MESSAGE_L2_BYTES];
	at = parse_ip(skb, pkt, pkt->l2_bytes);
	return at && parse_tcp(skb, pkt, at) ? at : 0;
}
