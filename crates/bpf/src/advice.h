/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What earlier handshakes between the same hosts showed about a SYN. */
#pragma once
#include "half_open.h"
#include "observe.h"
#include "packet.h"
#include "rules.h"

/* The advice of a profile on a SYN. */
enum advice {
	ADVICE_FORWARD,
	ADVICE_TRY, /* relay it, and see whether that works */
	ADVICE_RELAY,
};

/* Whether a profile is valid. */
static __always_inline bool is_current(const struct profile *profile,
				       const struct observing *how, __u64 now)
{
	if (profile->epoch != how->epoch || profile->state == PROFILE_DOUBTED)
		return false;
	if (profile->state == PROFILE_BYPASSED)
		return now < profile->until_ns;
	return now - profile->learned_ns < how->ttl_ns;
}

/* The advice of a valid profile. */
static __always_inline int advice_of(const struct profile *profile, const struct observing *how,
				     struct verdict *verdict)
{
	__u32 nearer = profile->client_us < profile->server_us ? profile->client_us :
								 profile->server_us;

	if (profile->state == PROFILE_BYPASSED) {
		count(STAT_BYPASSED);
		return ADVICE_FORWARD;
	}
	/* Each connection may reach another server behind the address. */
	if (profile->translated & TRANSLATED_DESTINATION) {
		count(STAT_TRANSLATED);
		return ADVICE_FORWARD;
	}
	/* Each round trip over the whole path becomes one over its longer half. */
	if ((__u64)nearer * verdict->rounds < how->gain_min_us) {
		count(STAT_NO_GAIN);
		return ADVICE_FORWARD;
	}
	verdict->bind_ifindex = profile->routed ? 0 : profile->out_ifindex;
	verdict->mss = profile->syn_mss;
	if (profile->options.mss && (!verdict->mss || profile->options.mss < verdict->mss))
		verdict->mss = profile->options.mss;
	return profile->state == PROFILE_VALIDATED ? ADVICE_RELAY : ADVICE_TRY;
}

/* Forwards a SYN and observes its handshake. */
static __always_inline void observe_handshake(struct __sk_buff *skb, const struct flow *flow,
					      __be32 isn, __u64 now, __u32 epoch)
{
	struct handshake made = {
		.syn_ns = now,
		.ifindex = skb->ifindex,
		.isn = isn,
		.epoch = epoch,
	};

	bpf_map_update_elem(&handshakes, flow, &made, BPF_ANY);
	bpf_map_update_elem(&leaving, &isn, flow, BPF_ANY);
}

/* A SYN that its rule would relay. Without a profile that allows relaying, it is
 * forwarded, with every retransmission of it. */
GLOBAL int advise(struct __sk_buff *skb, const struct packet *pkt, struct verdict *verdict)
{
	const struct observing *how = how_to_observe();
	__u64 now = bpf_ktime_get_ns();
	struct handshake *handshake;
	struct profile *profile;
	struct half_open *half_open;
	struct flow flow;
	__be32 isn;
	int advice;

	if (!pkt || !verdict || !how)
		return ADVICE_FORWARD;
	flow = pkt->flow;
	isn = pkt->tcp.seq;
	handshake = bpf_map_lookup_elem(&handshakes, &flow);
	if (handshake && handshake->isn == isn) {
		handshake->flags |= HANDSHAKE_REPEATED;
		return ADVICE_FORWARD;
	}
	/* A retransmission of a SYN that is being relayed. */
	half_open = find_half_open(&flow);
	if (half_open && half_open->isn == isn)
		return ADVICE_RELAY;
	if (is_blocked(now)) {
		count(STAT_BLOCKED);
		return ADVICE_FORWARD;
	}
	profile = find_profile(&flow, skb->ifindex);
	if (profile && is_current(profile, how, now)) {
		if (bpf_map_lookup_elem(&forwarded, &flow))
			return ADVICE_FORWARD;
		if (profile->translated & TRANSLATED_DESTINATION)
			bpf_map_update_elem(&leaving, &isn, &flow, BPF_ANY);
		advice = advice_of(profile, how, verdict);
		if (advice == ADVICE_TRY)
			bpf_map_update_elem(&trials, &flow, &profile->state, BPF_ANY);
		if (advice != ADVICE_FORWARD && profile->translated)
			bpf_map_update_elem(&hidden, &flow, &profile->translated, BPF_ANY);
		return advice;
	}
	observe_handshake(skb, &flow, isn, now, how->epoch);
	return ADVICE_FORWARD;
}

/* Applies the advice on a SYN that its rule would relay; returns the action. A trial
 * waits for the server's answer: only then can it still be forwarded. */
static __always_inline int apply_advice(struct __sk_buff *skb, const struct packet *pkt,
				struct verdict *verdict)
{
	switch (advise(skb, pkt, verdict)) {
	case ADVICE_RELAY:
		return ACTION_RELAY;
	case ADVICE_TRY:
		verdict->accept = ACCEPT_STRICT;
		verdict->trial = true;
		count(STAT_TRIALS);
		return ACTION_RELAY;
	}
	return ACTION_FORWARD;
}

/* Whether an earlier handshake showed that this host lets the client's connections through
 * from this interface. Otherwise this one is observed. */
GLOBAL int is_let_through(struct __sk_buff *skb, const struct packet *pkt)
{
	const struct observing *how = how_to_observe();
	__u64 now = bpf_ktime_get_ns();
	struct handshake *handshake;
	struct profile *profile;
	struct flow flow;
	__be32 isn;

	if (!pkt || !how || is_blocked(now))
		return false;
	flow = pkt->flow;
	profile = find_profile(&flow, skb->ifindex);
	/* Without that interface no handshake was observed: see `bypass_direct`. */
	if (profile && profile->out_ifindex && is_current(profile, how, now)) {
		isn = pkt->tcp.seq;
		if (profile->translated & TRANSLATED_DESTINATION)
			bpf_map_update_elem(&leaving, &isn, &flow, BPF_ANY);
		return true;
	}
	handshake = bpf_map_lookup_elem(&handshakes, &flow);
	if (handshake && handshake->isn == pkt->tcp.seq)
		handshake->flags |= HANDSHAKE_REPEATED;
	else
		observe_handshake(skb, &flow, pkt->tcp.seq, now, how->epoch);
	return false;
}
