/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * parse_syn_option: a SYN with the option of another node, which announces a flow.
 */
#pragma once
#include "deferred.h"
#include "half_open.h"

/* State of the search for a SYN option. */
struct option_search {
	struct __sk_buff *skb;
	__u32 at;
	__u32 end;
	bool found;
};

/* Checks one option; 1 ends the search. The worker validates the content. */
static long match_option(__u32 index, struct option_search *search)
{
	struct {
		__u8 kind;
		__u8 bytes;
		__be16 experiment;
	} option;

	(void)index;
	/* Shorter ones are not SYN options of nodes. */
	if (search->at + sizeof(option) > search->end ||
	    bpf_skb_load_bytes(search->skb, search->at, &option, sizeof(option)) || !option.kind)
		return 1;
	if (option.kind == 1) {
		search->at += 1;
		return 0;
	}
	if ((option.kind == SYN_OPTION_KIND || option.kind == SYN_OPTION_KIND_OTHER) &&
	    option.experiment == bpf_htons(SYN_OPTION_EXID)) {
		search->found = true;
		return 1;
	}
	search->at += option.bytes;
	return option.bytes < 2;
}

/* Whether a SYN whose TCP header is at `at` announces a flow. */
static __always_inline bool syn_options(struct __sk_buff *skb, const struct packet *pkt, __u32 at)
{
	struct option_search search = {
		.skb = skb,
		.at = at + sizeof(struct tcphdr),
		.end = at + pkt->tcp.doff * 4,
	};

	bpf_loop(TCP_OPTIONS_MAX, match_option, &search, 0);
	return search.found;
}

/*
 * A SYN with options for an explicit listener. A SYN option from a peer opens a flow as
 * a transparent SYN does: an event, a half-open entry, and the worker's own listener in
 * place of the explicit one, for which the kernel may pick another worker's. If that
 * fails for any reason, the request behind the SYN has the same content, and reaches
 * the explicit listener.
 */
SEC("classifier")
int parse_syn_option(struct __sk_buff *skb)
{
	struct event_head event = { .kind = EVENT_SYN_OPTION };
	__u32 worker = this_worker();
	struct half_open made = {};
	struct packet pkt = {};
	struct half_open *half_open;
	struct flow flow;
	__u32 at;

	pkt.l2_bytes = skb->cb[MESSAGE_L2_BYTES];
	at = parse_ip(skb, &pkt, pkt.l2_bytes);
	if (!at || !parse_tcp(skb, &pkt, at) || !syn_options(skb, &pkt, at))
		return TC_ACT_UNSPEC;
	flow = pkt.flow;
	event.flow = flow;
	if (!bpf_map_lookup_elem(&syn_option_peers, &flow.client)) {
		count(STAT_SYN_OPTIONS_REFUSED);
		event.kind = EVENT_UNAUTHORIZED;
		if (is_idle(worker))
			report(skb, &pkt, &event, worker, NULL);
		return TC_ACT_UNSPEC;
	}
	half_open = find_half_open(&flow);
	if (half_open)
		worker = half_open->worker;
	if (half_open && half_open->isn == pkt.tcp.seq)
		return give(skb, listener_key(worker, &pkt));
	made.worker = worker;
	made.isn = pkt.tcp.seq;
	made.syn = SYN_ADMITTED;
	if (is_draining(worker) || !report(skb, &pkt, &event, worker, &made))
		return TC_ACT_UNSPEC;
	return give(skb, listener_key(worker, &pkt));
}
