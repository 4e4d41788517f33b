/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Types shared by the programs and their loader. The loader's structs are generated
 * from them through BTF; nothing mirrors them by hand.
 *
 * Addresses are 16 bytes in network order, v4-mapped for IPv4 (RFC 4291 section
 * 2.5.5.2), so one table serves both families. Everything not typed __be is in host
 * order.
 */
#pragma once

/* Bytes of a captured frame: Ethernet 14, IPv6 40, TCP 60, and some room. A power of
 * two. */
#define FRAME_MAX 128
/* Rules that may apply to one destination prefix. */
#define CANDIDATES_MAX 32

struct address {
	__u32 word[4];
};

/* A flow with the addresses that its client used. */
struct flow {
	struct address client;
	struct address server;
	__be16 client_port;
	__be16 server_port;
};
_Static_assert(sizeof(struct flow) == 36, "no padding");

/* An interface that the program is attached to. */
struct device {
	__u32 l2_bytes; /* bytes of its link layer header */
	__u32 strict_source; /* its reverse path filter is strict (RFC 3704) */
	__u32 tracked; /* conntrack has seen its packets before the program does */
	__u32 paced; /* its queue sends packets at the times they bear (fq) */
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

/* What a mode of acceptance does at a SYN. */
enum accept_bits {
	ACCEPT_AT_SYN = 1, /* the worker connects to the server now */
	ACCEPT_HOLDS = 2, /* the SYN is held until the server has answered */
	ACCEPT_YIELDS = 4, /* it is held where the last connection has failed */
	ACCEPT_STRICT = ACCEPT_AT_SYN | ACCEPT_HOLDS,
};

/* How segments of a flow reach the server. */
enum data_path {
	DATA_PATH_SOCKET, /* through two sockets of the node */
	DATA_PATH_PACKET, /* translated packet by packet (docs/design/0022) */
	DATA_PATH_AUTO,	  /* likewise, unless the destination's answers are long */
};

/* What happens to SYNs that request Multipath TCP (RFC 8684). */
enum multipath {
	MULTIPATH_OFF,     /* the client gets TCP */
	MULTIPATH_CONVERT, /* the node answers, its server gets TCP */
	MULTIPATH_PASS,    /* they are forwarded */
};

/* One rule as it applies to a destination prefix. */
struct candidate {
	struct address source;
	struct address source_mask;
	__u16 port_first;
	__u16 port_last;
	__u16 rule; /* index in the policy */
	__u16 window_down; /* initial windows in segments, toward the client */
	__u16 window_up;   /* and toward the server; 0: the kernel's default */
	__u16 connect_cs; /* how long a server may take to answer, in 10 ms */
	__u8 action;
	__u8 accept;
	__u8 family; /* AF_INET, AF_INET6, or 0 for both */
	__u8 observe; /* relay only after a handshake was observed */
	__u8 rounds;  /* round trips of the nearer half that a relay saves */
	__u8 data_path; /* enum data_path */
	__u8 multipath; /* enum multipath */
	__u8 pad[1];
};

/* Value of `rules`: candidates, the most specific first. */
struct candidates {
	__u32 count;
	struct candidate list[CANDIDATES_MAX];
};

/* The initial congestion window of connections with a node. */
struct peer_settings {
	__u32 segments; /* at least */
	__u32 rate; /* bytes per millisecond; the window is this times the round trip */
	__u32 rtt_us; /* for connections accepted with their SYN, which have no round trip yet */
};

#define PLACEMENT_SLOTS 16

/* The workers of the flows whose SYNs arrive on the CPU of one worker: added to its
 * number, by a hash of the flow. */
struct placement {
	__u16 shift[PLACEMENT_SLOTS];
};

/* Where a worker listens for Multipath TCP of one family. */
struct multipath_listener {
	__be32 joins; /* for MP_JOIN, on the port of the destination: the end of the address */
	__be16 port;  /* for MP_CAPABLE, on the loopback address; 0: nowhere */
	__u16 pad;
};

/* A connection with a client that further paths may join. */
struct multipath_token {
	struct address server; /* to which the client addressed it */
	__be16 port;
	__u16 worker;
};

/* What happens to the client's SYN while it has a half-open entry. */
enum half_open_syn {
	SYN_ADMITTED, /* it went to the listener */
	SYN_HELD,     /* the worker has it, until the server has answered */
	SYN_PASSED,   /* it was forwarded, the flow is not relayed */
};

/*
 * Exists from a SYN until its client is validated. Meanwhile the server's SYN-ACK goes
 * to the worker instead of the upstream socket.
 */
struct half_open {
	__u32 isn; /* of the SYN that made it */
	__u16 worker;
	__u8 syn; /* enum half_open_syn */
	__u8 pad;
};

/* Key of a profile: a client and a service. Nothing wider: a firewall may treat a
 * host's neighbour differently. */
struct profile_key {
	struct address client;
	struct address server;
	__be16 port;
	__u16 pad;
};

/* What a server offers in its SYN-ACK (RFC 9293 section 3.2, RFC 7323, RFC 2018). */
struct server_options {
	__u16 mss; /* 0: none was named */
	__u8 window_shift;
	__u8 flags; /* OFFERS_* */
};
#define OFFERS_WINDOW_SCALE 1
#define OFFERS_TIMESTAMPS 2
#define OFFERS_SACK 4

/* What happens to SYNs of a profile. */
enum profile_state {
	PROFILE_LEARNED,  /* a handshake was forwarded and observed */
	PROFILE_VALIDATED,   /* a relay's handshake with the client has worked too */
	PROFILE_DOUBTED,  /* a relay got no answer: forward, and observe whether that gets one */
	PROFILE_BYPASSED, /* forwarded flows get answers that relays do not, or NAT leads the client
			   * to the service as well */
};

/* The observations of connections of one client with one service. */
struct profile {
	__u64 learned_ns; /* CLOCK_MONOTONIC */
	__u64 until_ns;	  /* how long it is PROFILE_BYPASSED or PROFILE_DOUBTED */
	struct address source; /* of the client, as the network behind this host sees it */
	__u32 ifindex;	  /* of the client */
	__u32 epoch;	  /* in which it was learned */
	__u32 client_us;  /* round trip between this host and the client */
	__u32 server_us;  /* round trip between this host and the server */
	__u32 out_ifindex; /* by which the SYN left */
	struct server_options options;
	__u16 syn_mss;	 /* of the SYN as it left; 0: none was named */
	__u8 translated; /* TRANSLATED_* */
	__u8 state;	 /* enum profile_state */
	__u8 routed; /* a socket of this host would send by `out_ifindex` too */
	__u8 pad[3];
};
#define TRANSLATED_SOURCE 1
#define TRANSLATED_DESTINATION 2

/* A handshake that is forwarded and observed. */
struct handshake {
	__u64 syn_ns;
	__u64 syn_ack_ns; /* 0: none yet */
	struct address source; /* with which the SYN left */
	__u32 ifindex; /* of the client */
	__be32 isn;
	__be32 ack; /* the acknowledgement number of the client's ACK */
	__u32 out_ifindex;
	struct server_options options;
	__u32 epoch; /* in which its SYN arrived */
	__u16 syn_mss;
	__u8 flags; /* HANDSHAKE_* */
	__u8 translated;
	__u8 routed; /* as in a profile */
	__u8 pad[3];
};
#define HANDSHAKE_LEFT 1     /* its SYN was seen to leave this host */
#define HANDSHAKE_REPEATED 2 /* a packet was retransmitted: the times are invalid */

/* How destinations are observed. */
struct observing {
	__u64 ttl_ns;	  /* of a profile */
	__u64 bypass_ns;  /* how long a bypass or a doubt lasts */
	__u32 epoch;	  /* changes to invalidate all profiles */
	__u32 gain_min_us; /* least saving of a relay */
	__u32 filters;	   /* the firewall may drop forwarded packets */
	__u32 pad;
};

/* Where a flow of the packet path is between its SYN and its end. */
enum packet_state {
	PACKET_LEARNING, /* forwarded; its SYN-ACK makes the profile, and its answer adds to it */
	PACKET_ANSWERED, /* the client has a SYN-ACK, the server the SYN */
	PACKET_ACCEPTED, /* and the server's SYN-ACK is known */
	PACKET_HELD,     /* the client is validated, its data waits for that SYN-ACK */
	PACKET_OPEN,     /* segments are translated */
	PACKET_GIVEN_UP, /* no SYN-ACK came: the client is reset, also at its next segment */
	PACKET_CLOSED,   /* reset or refused */
	PACKET_ABORTED,  /* the packet path ends: only resets pass */
	PACKET_REMOVED,  /* the sweep has claimed it */
};

/* A connection that the server still has with the addresses and ports of a new flow. */
enum packet_older {
	OLDER_NONE,
	OLDER_SEEN,  /* the server has answered the SYN with an ACK of it */
	OLDER_RESET, /* the node has reset it, and sent the SYN again */
};

/* By what the packet path finds the flow of a segment of either direction: the end with
 * the lower port, or if they are equal with the lower address, is the first. */
struct packet_key {
	struct address first;
	struct address second;
	__be16 first_port;
	__be16 second_port;
};

/* What one end of a flow sends, by the numbers of the other, which receives it. */
struct packet_way {
	__u32 acked; /* by the receiver */
	__u32 next;  /* behind all that was sent; before the server's answer, behind what is held */
	__u32 edge;  /* of the window that the receiver has granted */
	__u32 fin;   /* behind the FIN */
	__u32 wraps; /* how often `acked` has passed the number of the SYN, after 4 GiB each */
};

/* A flow of the packet path. Sequence numbers and timestamps are in host order. */
struct packet_flow {
	__u64 since_ns; /* of its SYN (CLOCK_MONOTONIC) */
	__u64 last_ns;  /* of its last segment */
	__u32 state;    /* enum packet_state */
	__u32 ifindex;  /* by which the client's segments come */
	/* Of the SYN, and of the SYN-ACK that the client got. Of a flow that was relayed: before the
	 * first number that is counted. */
	__u32 client_isn;
	__u32 node_isn;
	__u32 seq_delta;  /* node's number less the server's */
	__u32 node_ts;    /* the newest TSval that the client got, first that of the SYN-ACK */
	__u32 ts_delta;   /* node's timestamp less the server's */
	__u32 client_ts;  /* the client's newest */
	__u32 held;       /* segments held */
	struct packet_way up;	/* what the client sends */
	struct packet_way down; /* what the server sends */
	__u32 ended;      /* PACKET_FIN_*, PACKET_RESET, PACKET_PROBED_* */
	__be32 class_label; /* of its SYN, as in the first word of an IPv6 header */
	__u32 other_isn;  /* of the last SYN that differs, which the server decides about */
	__u16 window;	   /* the client's last, in HELD */
	__u16 node_window; /* in the node's SYN-ACK */
	__u16 mss;	   /* in it; with GRANTS_SHORT, in the server's */
	__u8 promised;    /* OFFERS_* in the node's SYN-ACK */
	__u8 granted;     /* in the server's, and GRANTS_SHORT */
	__u8 client_shift;
	__u8 promised_shift;
	__u8 server_shift;
	__u8 hop_limit; /* of the client's SYN */
	__u8 turned;	/* the client is the second of the key */
	__u8 was_relayed;
	__u8 is_long; /* its server sent more than a first window */
	/* How often the node has sent the SYN again, or TRIES_RESET; then how often it has probed the ends, or
	 * reset them. */
	__u8 tries;
	__u16 syn_mss; /* in the client's SYN */
	__u8 link[12]; /* its link layer addresses */
	__u16 delay_ms; /* of the node's SYN-ACK */
	/* Of a flow that was relayed: the server's number less the client's, the same of their
	 * timestamps, and the shift by which the server reads the client's windows. */
	__u32 client_seq_delta;
	__u32 client_ts_delta;
	__u8 node_shift;
	__u8 is_measured; /* it learns how long its server's answer is */
	/* In units of STRAY_NS, or 0: when segments began to come, and to leave, by another
	 * interface. */
	__u8 strayed;
	__u8 out_strayed;
	__u32 out_ifindex; /* by which the server's segments leave */
	__u32 nearer_us; /* from its SYN until the nearer end had answered */
	__u32 of_server; /* what it acknowledges of an older connection */
	__u32 server_ifindex; /* by which its SYN-ACK came */
	__u16 connect_cs; /* how long its server may take to answer, in 10 ms */
	__u8 older;	 /* enum packet_older */
	__u8 is_sender;	 /* its client has sent much */
};
/* The server grants shorter segments than the client was promised. */
#define GRANTS_SHORT 8
#define PACKET_FIN_CLIENT 1
#define PACKET_FIN_SERVER 2
#define PACKET_FINS (PACKET_FIN_CLIENT | PACKET_FIN_SERVER)
#define PACKET_RESET 4
/* The node has probed the end, and it has not answered. */
#define PACKET_PROBED_CLIENT 8
#define PACKET_PROBED_SERVER 16
#define PACKET_PROBED (PACKET_PROBED_CLIENT | PACKET_PROBED_SERVER)

/* What a destination grants, as its SYN-ACKs show. */
struct packet_profile {
	__u64 learned_ns;
	__u64 bad_until_ns; /* no promises until then */
	__u16 mss;
	__u16 window;
	__u8 shift;
	__u8 offers; /* OFFERS_* */
	__u8 tested; /* OFFERS_* that its server was offered; the others are unknown */
	__u8 is_long; /* it sent more than a first window */
	__u32 rtt_us; /* least time from a SYN to its SYN-ACK */
	__u32 answers_from; /* interface by which its SYN-ACK came */
	__u64 received_ns; /* when a client had sent it much on one connection; 0: never */
};

/* What a client prefix has of the budgets of the packet path. */
struct packet_prefix {
	__u32 half_open;
	__s32 held; /* segments; below zero if the record was evicted and made anew */
	__u32 validated; /* a client of it has completed a handshake */
	__u32 rtt_us; /* from an answer to its acknowledgement: the longest recent time */
	__u64 parts_until_ns; /* no answers to it until then: it sends its segments in parts */
};

/* Bits for 65,536 ports. */
#define PACKET_PORT_WORDS 2048
/* The state of the packet path as a whole. */
struct packet_control {
	__u64 heartbeat_ns; /* of its node (CLOCK_MONOTONIC) */
	__u32 half_open;    /* flows */
	__u32 learning;	    /* flows */
	__u32 ports[PACKET_PORT_WORDS]; /* bit by port, in network order: a client has had it */
};

/* How long the packet path waits, beside the time that each rule has for a server's answer. */
struct packet_patience {
	__u64 idle_ns;	    /* until it probes the ends of a quiet flow */
	__u64 half_open_ns; /* for a client while many others are half-open */
};

/* Prefixes of clients at an interface, and of servers. */
struct packet_passage_key {
	struct address client;
	struct address server;
	__u32 ifindex;
};

/* An entry exists if answers from one prefix to the other come by this host. */
struct packet_passage {
	__u64 learned_ns;
	/* The most that clients were granted, and no more than one was granted less than promised; or
	 * PASSAGE_TURNS. */
	__u32 mss;
	__u32 pad;
};

/* The attempts to learn what a destination grants, or whether a client reaches it. */
struct packet_attempts {
	__u64 next_ns; /* none before (CLOCK_MONOTONIC) */
	__u32 tries;
	__u32 pad;
};

#define PACKET_HELD_MAX 16
#define PACKET_PAYLOAD_MAX 1536
/* Bytes of the pieces of a longer segment. */
#define PACKET_PIECE 1448
/* Segments held of all clients. */
#define PACKET_HELD_ALL 2048

struct packet_held_key {
	struct packet_key flow;
	__u32 index;
};

/* A segment of a client that waits for the server's SYN-ACK. */
struct packet_held {
	__u32 ready; /* 1: to send; 2: taken */
	__u32 seq;
	__u32 flags; /* byte 13 of the TCP header */
	__u32 bytes;
	__u8 payload[PACKET_PAYLOAD_MAX + 4]; /* padded with zeros to four bytes */
	__u8 pad[4];
};

/* An option of a SYN that announces a flow (docs/protocol.md). */
#define SYN_OPTION_KIND 253
#define SYN_OPTION_KIND_OTHER 254 /* is read as well */
#define SYN_OPTION_EXID 0x5048
#define SYN_OPTION_MAX 20

/* The option as it is sent. */
struct syn_option {
	__u8 option[SYN_OPTION_MAX];
	__u8 bytes; /* of the option: 16 or 20 */
	__u8 tried; /* SYNs there were */
	__u8 pad[2];
};

/* Where connections of a cgroup are redirected. */
struct capture {
	__u64 netns;   /* cookie of the network namespace with the listeners */
	__be16 port4;  /* on 127.0.0.1; 0: none */
	__be16 port6;  /* on ::1; 0: none */
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
	EVENT_SYN_OPTION,  /* a SYN for this node itself announces a flow */
	EVENT_UNAUTHORIZED, /* the same from an unauthorized sender; the SYN was not touched */
	EVENT_JOIN, /* an MP_JOIN whose token is not known yet; the SYN is held */
	EVENT_TIME_WAIT, /* a SYN of Multipath TCP that met a TIME_WAIT socket; it is held */
};

struct event_head {
	struct flow flow;
	__u32 isn;     /* of the SYN or the SYN-ACK */
	__u32 ifindex; /* at which the frame arrived */
	__u16 rule;
	__u16 frame_bytes;
	__u8 generation;
	__u8 kind;	/* enum event_kind */
	__u8 accept;	/* enum accept_bits */
	__u8 kept;	/* the half-open entry is in `half_open_reserve` */
	__u8 l2_bytes;	/* 14, or 0 on a device without link layer header */
	__u8 trial;	/* first flow relayed after one was observed */
	__u16 mss;	/* the smaller of those observed, as they left; 0: no limit */
	__u32 bind_ifindex; /* by which the upstream SYN must leave; 0: it follows the routes */
};

/* With the eight bytes that the kernel puts before it, its size divides a page, so that
 * no event wraps at the end of the ring. */
struct event {
	struct event_head head;
	__u8 frame[FRAME_MAX];
	__u8 spare[60];
};
_Static_assert(sizeof(struct event) == 256 - 8, "a slot of the ring");

/* The programs that `redirect` calls to continue with a packet. */
enum step {
	TAIL_OPEN_FLOW,      /* a SYN */
	TAIL_CHECK_COOKIE,   /* a segment without a socket */
	TAIL_HOLD_SYN_ACK,   /* a SYN-ACK for one of our sockets */
	TAIL_REDIRECT_ICMP_ERROR,    /* an ICMP error */
	TAIL_REDIRECT_FRAGMENT, /* part of a segment */
	TAIL_PARSE_SYN_OPTION,    /* a SYN with options for a listener of the node */
	TAIL_JOIN_CONNECTION, /* a SYN with MP_JOIN */
	TAIL_END_TIME_WAIT, /* a SYN of Multipath TCP that met a TIME_WAIT socket */
	TAIL_MAX,
};

/*
 * The counters: in C, in metrics, and what they count. The build makes the loader's table of
 * these rows.
 */
#define STATS(STAT) \
	STAT(REDIRECTED, "syns_redirected", "SYNs given to a listener.") \
	STAT(PLACED, "flows_placed", \
	     "Flows given to another worker than that of the CPU on which their SYN arrived.") \
	STAT(HALF_OPEN_FULL, "half_open_full", \
	     "SYNs that found no room in the half-open budget.") \
	STAT(EVENTS_LOST, "events_lost", \
	     "SYNs and SYN-ACKs whose event found the worker's ring full.") \
	STAT(COOKIES, "cookies", "Client handshakes completed by SYN cookie.") \
	STAT(TIME_WAIT_SYNS, "time_wait_syns", "SYNs that met a TIME_WAIT socket.") \
	STAT(ICMP, "icmp_errors", "ICMP errors handed to our sockets.") \
	STAT(FAILED_DESTINATIONS, "failed_destinations", \
	     "Early flows made strict by an earlier failure.") \
	STAT(SYN_OPTIONS_REFUSED, "syn_options_refused", \
	     "SYNs with a chain header from addresses that may not send one.") \
	STAT(SYN_OPTIONS_LEFT_OUT, "syn_options_left_out", \
	     "Chain headers that the SYN they were for had no room for.") \
	STAT(PORTS, "ports_forbidden", \
	     "SYNs forwarded for a source port that the node may not bind to.") \
	STAT(OBSERVED, "observed", \
	     "SYNs forwarded to observe their handshakes before others are relayed.") \
	STAT(LEARNED, "learned", "Forwarded handshakes that were observed to the end.") \
	STAT(TRANSLATED, "translated", \
	     "SYNs forwarded because this host translates their destination.") \
	STAT(NO_GAIN, "no_gain", \
	     "SYNs forwarded because a relay would save less than observe.gain_min.") \
	STAT(TRIALS, "trials", "SYNs relayed for the first time after a handshake was observed.") \
	STAT(BYPASSED, "bypassed", \
	     "SYNs forwarded because relays got no answer where forwarding did, or NAT leads their client to the service as well.") \
	STAT(BYPASSES, "bypasses", \
	     "Times that forwarding was found to get an answer where a relay did not.") \
	STAT(RETRANSLATED, "retranslated", \
	     "SYNs of trials dropped because this host gave them another source than it gave the connection that was observed.") \
	STAT(BLOCKED, "blocked", "SYNs forwarded because this host drops packets of relays.") \
	STAT(PACKET_TAKEN, "packet_taken", "SYNs answered by the packet path.") \
	STAT(PACKET_SAVED, "packet_saved_us", \
	     "Time by which flows of the packet path reached their servers earlier.") \
	STAT(PACKET_LEARNING, "packet_learning", \
	     "SYNs forwarded to learn what their destination grants.") \
	STAT(PACKET_UNFIT, "packet_unfit", \
	     "SYNs with options or data that the packet path does not carry.") \
	STAT(PACKET_LOCAL, "packet_local", \
	     "SYNs on the addresses of one of the sockets of this host, or that leave where they came.") \
	STAT(PACKET_CLIENT, "packet_client", \
	     "SYNs forwarded since no answer from their destination was seen to come this way, or their client would not get one.") \
	STAT(PACKET_BAD, "packet_bad", \
	     "SYNs left to sockets because their destination failed on the packet path lately, or has servers that grant less than others.") \
	STAT(PACKET_FULL, "packet_full", \
	     "SYNs that found no room in the half-open budget of the packet path.") \
	STAT(PACKET_BUSY, "packet_busy", \
	     "SYNs forwarded since a living flow of the packet path has their addresses.") \
	STAT(PACKET_HELD, "packet_held", \
	     "Segments held by the packet path until the server had answered.") \
	STAT(PACKET_RELEASED, "packet_released", \
	     "Held segments sent on when the server had answered.") \
	STAT(PACKET_REFUSED, "packet_refused", \
	     "Flows of the packet path that their server refused.") \
	STAT(PACKET_GIVEN_UP, "packet_given_up", \
	     "Flows of the packet path that no server answered.") \
	STAT(PACKET_MISMATCHES, "packet_mismatches", \
	     "SYN-ACKs that did not grant what the packet path had promised.") \
	STAT(PACKET_NARROWED, "packet_narrowed", \
	     "Segments of clients that were longer than their server granted, and answered by an ICMP error.") \
	STAT(PACKET_RENEWED, "packet_renewed", \
	     "Older connections of servers that the packet path reset for a new one of their client.") \
	STAT(PACKET_OPENED, "packet_opened", \
	     "Flows of the packet path that reached their server.") \
	STAT(PACKET_ICMP, "packet_icmp_errors", \
	     "ICMP errors whose quoted sequence number the packet path translated.") \
	STAT(PACKET_LONG, "packet_long", \
	     "SYNs to destinations whose answers, or what clients send them, are too long for the packet path.") \
	STAT(PACKET_RESENT, "packet_resent", \
	     "SYNs that the node sent again for clients that it had answered.") \
	STAT(PACKET_PROBED, "packet_probed", \
	     "Keepalives that the node sent to the ends of quiet flows of the packet path.") \
	STAT(PACKET_DEAD, "packet_dead", \
	     "Quiet flows of the packet path that the node reset since an end did not answer.") \
	STAT(PACKET_UNLEARNED, "packet_unlearned", \
	     "SYNs forwarded since their destination is not known, and it was not its turn to be learned.") \
	STAT(MULTIPATH_CONVERTED, "multipath_converted", \
	     "SYNs of Multipath TCP given to a listener.") \
	STAT(MULTIPATH_PASSED, "multipath_passed", "SYNs of Multipath TCP left to their server.") \
	STAT(JOINS, "multipath_joins", \
	     "SYNs of further paths given to the listener of their connection.") \
	STAT(JOINS_HELD, "multipath_joins_held", \
	     "SYNs of further paths held, since their connection may be about to be accepted.") \
	STAT(JOINS_UNKNOWN, "multipath_joins_unknown", \
	     "SYNs of further paths forwarded, since no connection of the node has their token.") \
	STAT(JOINS_REFUSED, "multipath_joins_refused", \
	     "SYNs of further paths forwarded, since the node cannot listen on their port.")

#define STAT_NUMBER(number, name, what) STAT_##number,
enum stat {
	STATS(STAT_NUMBER)
	STAT_MAX
};
