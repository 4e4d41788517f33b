/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the redirect program and its loader share. The loader's structs are
 * generated from here by way of BTF; nothing mirrors them by hand.
 *
 * Addresses are 16 bytes in network order, v4-mapped for IPv4 (RFC 4291
 * section 2.5.5.2), so one table serves both families. Everything not typed
 * __be is in host order.
 */
#pragma once

/* A frame kept for later: Ethernet 14, IPv6 40, TCP 60, and some room. A power
 * of two. */
#define FRAME_MAX 128
/* Rules that may apply to one destination prefix. */
#define CANDIDATES_MAX 32

struct address {
	__u32 word[4];
};

/* A flow as its client addressed it. */
struct flow {
	struct address client;
	struct address server;
	__be16 client_port;
	__be16 server_port;
};
_Static_assert(sizeof(struct flow) == 36, "no padding");

/* An interface that the program is attached to. */
struct device {
	__u32 l2_bytes; /* of its link layer header */
	__u32 strict_source; /* its reverse path filter is strict (RFC 3704) */
};

/* A destination that failed, or the destination part of a rule look-up. */
struct destination {
	struct address ip;
	__be16 port;
	__u16 pad;
};

/* Key of `rules`: one generation of the policy, then a destination prefix. */
struct rule_key {
	__u32 prefix_bits; /* 32 for the generation + those of the prefix */
	__u32 generation;
	struct address ip;
};

enum action {
	ACTION_RELAY,
	ACTION_FORWARD,
	ACTION_REJECT,
};

enum accept_mode {
	ACCEPT_EARLY,
	ACCEPT_STRICT,
	ACCEPT_LATE,
};

/* One rule as it applies to a destination prefix. */
struct candidate {
	struct address source;
	struct address source_mask;
	__u16 port_first;
	__u16 port_last;
	__u16 rule; /* index in the policy */
	__u16 window_down; /* initial windows in segments, toward the client */
	__u16 window_up;   /* and toward the server; 0: the kernel's own */
	__u8 action;
	__u8 accept;
	__u8 family; /* AF_INET, AF_INET6, or 0 for both */
	__u8 pad[3];
};

/* Value of `rules`: candidates, the narrowest first. */
struct candidates {
	__u32 count;
	struct candidate list[CANDIDATES_MAX];
};

/* With which congestion window connections with a node start. */
struct peer_start {
	__u32 segments; /* no less */
	__u32 rate; /* bytes per millisecond: what a round trip takes at it */
	__u32 rtt_us; /* for one that is accepted with its SYN, before it has a round trip */
};

/* What may happen to the client's SYN while its gate stands. */
enum gate_syn {
	SYN_ADMITTED, /* it went to the listener */
	SYN_HELD,     /* the worker has it, until the server answered */
	SYN_PASSED,   /* it was forwarded, the flow is not ours */
};

/*
 * Stands from a SYN until its client proved itself. While it stands, the
 * server's SYN-ACK goes to the worker instead of the upstream socket.
 */
struct gate {
	__u32 isn; /* of the SYN that made it */
	__u16 worker;
	__u8 syn; /* enum gate_syn */
	__u8 pad;
};

/* An option of a SYN that heralds a flow (docs/protocol.md). */
#define HERALD_KIND 253
#define HERALD_KIND_OTHER 254 /* is read as well */
#define HERALD_EXPERIMENT 0x5048
#define HERALD_MAX 20

/* The option as it is sent. */
struct herald {
	__u8 option[HERALD_MAX];
	__u8 bytes; /* of the option: 16 or 20 */
	__u8 tried; /* SYNs there were */
	__u8 pad[2];
};

/* Where connections of a cgroup are led to. */
struct capture {
	__u64 netns;   /* cookie of the network namespace with the listeners */
	__be16 port4;  /* on 127.0.0.1; 0: there is none */
	__be16 port6;  /* on ::1, likewise */
	__u32 pad;
};

/* Key of `exempt`. */
struct exempt_key {
	__u32 prefix_bits;
	struct address ip;
};

enum event_kind {
	EVENT_SYN,     /* a flow to relay begins */
	EVENT_SYN_ACK, /* its server answered; the segment is held here */
	EVENT_REJECT,  /* a SYN to answer with a reset */
	EVENT_HERALD,  /* a SYN for this node itself heralds a flow */
	EVENT_STRANGER, /* the same from whom nothing is taken so; it went its way */
};

struct event_head {
	struct flow flow;
	__u32 isn;     /* of the SYN or the SYN-ACK */
	__u32 ifindex; /* where the frame came in */
	__u16 rule;
	__u16 frame_bytes;
	__u8 generation;
	__u8 kind;	/* enum event_kind */
	__u8 accept;	/* enum accept_mode */
	__u8 kept;	/* the gate is in `gates_kept` */
	__u8 l2_bytes;	/* 14, or 0 on a device without link layer header */
	__u8 pad[3];
};

/* With the eight bytes that the kernel puts before it, a part of a page: none is
 * torn at the end of the ring. */
struct event {
	struct event_head head;
	__u8 frame[FRAME_MAX];
	__u8 spare[64];
};
_Static_assert(sizeof(struct event) == 256 - 8, "a slot of the ring");

/* The programs that `redirect` calls to go on with a packet. */
enum step {
	STEP_OPEN_FLOW,      /* a SYN */
	STEP_CHECK_COOKIE,   /* an ACK that no socket knows */
	STEP_HOLD_SYN_ACK,   /* a SYN-ACK for one of our sockets */
	STEP_CLAIM_ERROR,    /* an ICMP error */
	STEP_CLAIM_FRAGMENT, /* part of a segment */
	STEP_HEAR_HERALD,    /* a SYN with options for a listener of ours */
	STEP_MAX,
};

enum stat {
	STAT_REDIRECTED,    /* SYNs given to a listener */
	STAT_GATES_FULL,    /* no room for a gate: late, or forwarded if strict */
	STAT_EVENTS_LOST,   /* ring full: late, or forwarded if strict */
	STAT_COOKIES,       /* handshakes completed by SYN cookie */
	STAT_RENEWALS,      /* SYNs that found a TIME_WAIT socket */
	STAT_ICMP,          /* ICMP errors handed to our sockets */
	STAT_SUSPECTS,      /* early flows made strict by an earlier failure */
	STAT_HERALDS_REFUSED, /* heralds from who may send none */
	STAT_HERALDS_LEFT_OUT, /* heralds that their SYN had no room for */
	STAT_PORTS,         /* SYNs forwarded for a port that the node may not bind to */
	STAT_MAX,
};
