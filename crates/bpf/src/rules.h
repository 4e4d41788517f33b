/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The look-up of a flow's rule. */
#pragma once
#include "packet.h"

/* Written at run time: the current generation of the policy. */
volatile __u32 generation;

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_key);
	__type(value, struct candidates);
} rules SEC(".maps");

/* The result of the rule look-up for a flow. */
struct verdict {
	__u16 rule;
	__u16 window_down;
	__u16 window_up;
	__u16 connect_cs;
	__u8 action;
	__u8 accept;
	__u8 observe;
	__u8 rounds;
	__u8 data_path;
	__u8 multipath;
	/* From the observed flow between the same hosts. */
	__u8 trial;
	__u16 mss;
	__u32 bind_ifindex;
	__u32 generation;
};

GLOBAL int rule_matches(const struct candidate *rule, const struct packet *pkt)
{
	const __u32 *client;
	__u16 port;

	if (!rule || !pkt)
		return false;
	client = pkt->flow.client.word;
	port = bpf_ntohs(pkt->flow.server_port);
	if (port < rule->port_first || port > rule->port_last)
		return false;
	if (rule->family && rule->family != pkt->family)
		return false;
	for (int i = 0; i < 4; i++)
		if ((client[i] & rule->source_mask.word[i]) != rule->source.word[i])
			return false;
	return true;
}

/* State of the search for a flow's rule. */
struct search {
	const struct packet *pkt;
	const struct candidates *found;
	struct verdict *verdict;
	bool matched;
};

/* Checks one candidate; 1 ends the search. */
static long match_candidate(__u32 index, struct search *search)
{
	const struct candidate *rule;

	if (index >= CANDIDATES_MAX || index >= search->found->count)
		return 1;
	rule = &search->found->list[index];
	if (!rule_matches(rule, search->pkt))
		return 0;
	search->verdict->rule = rule->rule;
	search->verdict->window_down = rule->window_down;
	search->verdict->window_up = rule->window_up;
	search->verdict->connect_cs = rule->connect_cs;
	search->verdict->action = rule->action;
	search->verdict->accept = rule->accept;
	search->verdict->observe = rule->observe;
	search->verdict->rounds = rule->rounds;
	search->verdict->data_path = rule->data_path;
	search->verdict->multipath = rule->multipath;
	search->matched = true;
	return 1;
}

/* Finds the rule for a flow; false when there is none. The trie finds the
 * longest destination prefix; its candidates include those of every shorter
 * prefix. */
GLOBAL int find_rule(const struct packet *pkt, struct verdict *verdict)
{
	struct search search = { .pkt = pkt, .verdict = verdict };
	struct rule_key key = {
		.prefix_bits = 32 + 128,
		.generation = generation,
	};

	if (!pkt || !verdict)
		return false;
	key.ip = pkt->flow.server;
	verdict->generation = key.generation;
	search.found = bpf_map_lookup_elem(&rules, &key);
	if (!search.found)
		return false;
	bpf_loop(CANDIDATES_MAX, match_candidate, &search, 0);
	return search.matched;
}
