/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the guard's BPF programs and its threads tell each other. Each struct fills whole cache lines. A `_ctl` is
 * written by user space, a `_stat` by BPF: by one CPU at a time, or, what is counted wherever a packet ends, atomically.
 * crates/kern/src/guard/abi.rs mirrors this file; both sides assert the sizes.
 */
#ifndef WEIR_GUARD_H
#define WEIR_GUARD_H

#define WEIR_SOURCES 64
#define WEIR_CONSUMERS 64
/* In the place of a port's consumer: several sockets share the port, the kernel tells which gets a datagram. */
#define WEIR_PORT_SHARED 255
#define WEIR_POLLERS 64
/* Guarded interfaces, and those that stand on them. */
#define WEIR_GUARDED 256
/* Credit that protected frames may save up, ns, and what one ICMP packet costs: 1000 of them per second. */
#define WEIR_BURST_NS 100000000ULL
#define WEIR_ICMP_NS 1000000ULL
/* The control loop hears of one source or consumer at most this often. */
#define WEIR_EVENT_EVERY_NS 1000000ULL

/* A socket that is not tracked is told to the control loop this often, with what it has lost since the last time. */
#define WEIR_ASK_NS 1000000000ULL
/* Of one CPU the control loop hears of so many sockets per window at most. */
#define WEIR_TELL_WINDOW_NS 50000000ULL
#define WEIR_TELL_MOST 16

enum weir_mode { WEIR_MODE_NONE = 0, WEIR_MODE_INTERRUPT = 1, WEIR_MODE_POLL = 2, WEIR_MODE_THREAD = 3,
		 WEIR_MODE_SHED = 4 };

/* In mode shed so many times as many full polls in a row are evidence. */
#define WEIR_SHED_POLLS 4

/* Full polls are quiet for no longer than so many ticks, 34 s: a tick that is further ahead has wrapped. */
#define WEIR_QUIET_TICKS 2048

/* Window in which softirq is held against the budget. */
#define WEIR_WINDOW_NS 10000000ULL

/* Reasons a sleeping poller may be woken for; bits of poller_ctl.wait. */
enum weir_wake { WEIR_WAKE_LEVEL = 1, WEIR_WAKE_IDLE = 2 };

enum weir_event_kind { WEIR_EVENT_SATURATED = 1, WEIR_EVENT_CONSUMER = 2, WEIR_EVENT_OVERFLOW = 3,
		       WEIR_EVENT_FILTER = 4, WEIR_EVENT_BUDGET = 5 };

/* Addresses by which frames are this host's; where there are more none is told. */
#define WEIR_MACS 8

struct weir_source_ctl {
	__u32 mode;		/* enum weir_mode */
	__u32 poller_tid;	/* thread whose turns count as the poller's own */
	__u32 full_polls;	/* consecutive full polls that raise WEIR_EVENT_SATURATED */
	__u16 mark_port;	/* port of the handle, host order */
	__u16 pad16;
	__u32 marks;		/* frames that may have been rewritten in all; 0: none */
	__u16 mark_v4[2];	/* an address of the interface, network order; 0: none */
	__u16 mark_v6[8];
	__u32 poller;		/* its index: whose bound for protected frames counts */
	__u32 spare;		/* `spared` up to which a frame that somebody would miss is not rewritten */
	__u64 lease;		/* until then frames may be shed or rewritten; coarse CLOCK_MONOTONIC, ns */
	__u32 exact;	/* 1: who gets a TCP frame, or a datagram, is who the kernel's search finds where XDP runs */
	__u32 quiet;		/* tick up to which full polls are no evidence, and not told */
	__u64 mac[WEIR_MACS];	/* of the interface and of those on it, in memory order, 0 after the last; [0] == 0: not told */
};

struct weir_source_stat {
	__u64 polls;		/* every call of the driver's poll function */
	__u64 packets;		/* handed up by them */
	__u64 own_polls;	/* of these, in the poller's turns */
	__u64 own_packets;
	__u64 full_polls;	/* work == budget */
	__u32 streak;		/* full polls in a row */
	__u32 softirq_cpu;	/* CPU of the last poll that was not the poller's */
	__u64 reported_ns;	/* last WEIR_EVENT_SATURATED */
	__u32 napi_id;		/* learnt from a packet; user space clears it before it asks */
	__u32 foreign;		/* polls that were not the poller's, in poll mode */
};

/* Written by the XDP program: the NAPI's owner is the one writer. */
struct weir_rx_stat {
	/* Frames are those that XDP saw in poll mode and in WEIR_MODE_SHED: `normal` and `protected`. */
	__u64 normal;		/* frames that no rule protects, or not that many of them */
	__u64 protected;	/* frames that a rule protects, within their bound */
	__u64 to_full;		/* of `normal`, for consumers that are inhibited */
	__u64 shed;		/* of `normal`, dropped here on purpose */
	__u64 marked;		/* rewritten to the handle's port */
	__u64 over_bound;	/* of `normal`, those that a rule protects, but not that many of them */
	__u32 spared;		/* frames that were not rewritten because somebody would miss them */
	__u32 over_rule;	/* of the last frame in `over_bound`: its rule, + 1 */
	__u64 tcp;		/* of the frames, TCP segments of connections that stand */
	__u64 nobody;		/* of `shed`, for a port that no socket has or that is refused, or of a flow that was refused */
	__u64 known;		/* passed, for consumers that are tracked: all others are somebody else's */
	__u64 syns;		/* of `shed`, SYNs: for listeners that accept nothing more, or that have had their share */
	__u64 over_share;	/* of `shed`, with room for them, which is held for senders that have had less */
	__u64 innocents;	/* of the frames, those that a pause would lose, passed or shed: of quiet senders beside a loud one, and
				 * for tracked consumers that nothing is kept away from, or that get few beside another one */
	__u64 unknown;		/* of the frames, datagrams in one piece that passed since nothing is known of where they end */
	__u64 fragments;	/* of the frames, fragments that passed: where they end nobody knows either */
	__u64 cut;		/* of `shed`, fragments, since the budget did not last for them */
	__u64 opaque;		/* of the frames, those that no socket's room can be asked for: bridged, or of another protocol (ESP, GRE) */
	__u64 guests;		/* of `tcp`, bridged: not in `opaque` */
	__u64 pad[6];
};

struct weir_consumer_ctl {
	__u64 sk;		/* kernel address: names the socket, is never followed unchecked */
	__u64 cookie;
	__u64 inhibited;	/* bit i: poller i keeps input away, wake it at `low` */
	__u32 low;		/* permille */
	__u32 shed;		/* XDP drops what this consumer has no room for */
	__u32 maxlen;		/* of a packet filter's queue, packets; 0: only the buffer counts */
	__u32 port;		/* of a consumer behind the host, host order; a socket that has another one by now is closed */
	__u64 inner;		/* where its packets go, by hash; 0: it is in the guard's namespace, or nothing is judged by it */
	__u32 paused;		/* tick in which input was kept away last */
	__u32 alone;		/* tick at which the list was begun by which no other socket has its port */
	__u32 pad[2];
};

struct weir_consumer_stat {
	__u64 overflows;	/* datagrams the socket refused, of those that guarded interfaces carried */
	__u32 level;		/* permille of the socket's receive buffer */
	__u32 rcvbuf;		/* bytes */
	__u32 gone;		/* the address holds another socket by now */
	__u32 truesize;		/* bytes that a packet takes of its buffer, by those that it refused; 0: none yet */
	__u64 foreign;		/* datagrams the socket refused, of others */
	__u64 pad[4];
};

/* Of one source, frames that were shed for each consumer, or for one that had its place before. Several queues may feed one consumer:
 * a count of their own, whose one writer is the NAPI's owner, is no line that all their CPUs write. Under the generic hook with RPS
 * several CPUs are the owner, and may miss one another's frames. */
struct weir_sheds {
	__u64 of[WEIR_CONSUMERS];
};

struct weir_poller_ctl {
	__u32 wait;		/* bits of enum weir_wake; BPF clears what it answered */
	__u32 admit;		/* permille of a poll that one consumer may get of it */
	__u64 protected_ns;	/* the bound: one protected packet per that many ns; 0: none */
	__u32 quota;		/* packets that one poll may hand up to one consumer; 0: no limit */
	__u32 feeds;		/* 1: it looks for others' packets, and consumers that it inhibits get what fits meanwhile */
	__u64 pad2[5];
};

struct weir_cpu_stat {
	__u64 net_rx_ns;	/* time in the NET_RX softirq */
	__u64 net_rx_runs;
	__u64 started_ns;	/* of the run under way, 0 if none */
	__u64 overflows;	/* datagrams that sockets of this namespace refused on this CPU */
	__u64 reported;		/* `overflows` at the last WEIR_EVENT_OVERFLOW */
	__u64 reported_ns;	/* time of it, or until when none is told; written by the guard too */
	__u64 elsewhere;	/* datagrams that sockets of other namespaces refused on this CPU */
	__u32 metered;		/* written by the poller here: 1 if every run counts, 0 if a sample will do */
	__u32 weight;		/* runs that the one under way stands for */
};

/* Packets that sockets of this namespace refused, of one CPU. */
struct weir_overflow_stat {
	__u64 foreign;		/* came in by no guarded interface: no evidence of anything */
	__u64 untold;		/* of sockets that the control loop did not hear of: too many at once */
	__u64 window_ns;	/* begin of the present window */
	__u32 told;		/* sockets told in it */
	__u32 dropped;		/* enum weir_dropped: of the packet that was freed last; read once */
	__u32 truesize;		/* of the same packet, bytes */
	__u32 address;		/* its IPv4 address; 0: it has none */
	__u64 inner;		/* where it went, by hash, but for the namespace; 0: not looked for */
	__u64 again_sk;		/* a tracked socket that has refused a packet of the guarded interface again_iif */
	__u32 again_iif;
	__u32 pending;		/* packets of that interface that it has refused since, counted nowhere else yet */
};

/* So many refusals of one socket in a row are counted, and learnt from, at once: in a flood each of them costs. */
#define WEIR_AGAIN 16

enum weir_dropped { WEIR_DROPPED_NONE = 0, WEIR_DROPPED_FOREIGN = 1, WEIR_DROPPED_GUARDED = 2 };

struct weir_guard_ctl {
	__u32 consumers;	/* slots in use: 0..consumers */
	__u32 inhibited;	/* how many consumers are inhibited */
	__u32 pollers_waiting_idle;
	__u32 overflow_step;	/* overflows on one CPU between two WEIR_EVENT_OVERFLOW; 0: none */
	__u64 only_sk;		/* the one consumer that is tracked, 0 if there are more */
	__u32 only_slot;
	__u32 rules;		/* which of the two tables of rules is in force */
	__u32 transit;		/* 1 + the consumer that (nearly) all frames in transit end in; 0: none */
	__u32 budget;		/* permille of a CPU that softirq may take from programs; 0: not watched */
	__u32 listed[2];	/* tick at which the last list of sockets was begun, of UDP and of TCP; 0: none */
	__u32 nobody_ticks;	/* what no socket took in so many ticks is somebody's; 0: nothing is nobody's */
	__u32 by_flow;		/* this host translates addresses: only the very flow that was refused is nobody's */
	__u32 slices;		/* sources that may feed one consumer at once */
	__u32 behind;		/* consumers behind the host by which frames are judged; 0: none is looked for */
	__u32 table;		/* enum weir_table: what packets without a connection say that were dropped */
	__u32 own[2];		/* the guard's ordinary threads: 1 + the CPU on which each runs or waits to run; 0: it sleeps */
	__u32 process[2];	/* guard and keeper, as the PID namespace of the guard numbers them; 0: there is none */
	__u32 pidns_inode;
	__u32 pidns_device;	/* of the file system that has the inode */
	__u32 paused;		/* tick in which input was kept away from any consumer last */
	__u32 by_end;		/* what is for an address and port here may end elsewhere: it is judged by what has ended here */
	__u32 pad[7];
};

/* The table of connections of this namespace. */
enum weir_table {
	WEIR_TABLE_EMPTY = 0,	/* or there is none */
	WEIR_TABLE_USED = 1,	/* what has no connection behind the routes is invalid, or is not tracked */
	WEIR_TABLE_SILENT = 2,	/* it is nearly full, or what has none may be invalid wherever it was dropped */
	WEIR_TABLE_FULL = 3,	/* what has none had no place */
};

/* A list of sockets counts for so many ticks: two minutes. */
#define WEIR_LISTED_TICKS 7200

/* Ports that some socket has: TCP from WEIR_TCP_PORTS on. */
#define WEIR_TCP_PORTS 65536
struct weir_ports_used {
	__u64 word[2 * WEIR_TCP_PORTS / 64];
};

/* Flows that were refused, by hash; a power of two. */
#define WEIR_REFUSALS 131072

/* Destinations for which packets were refused, whoever sent them, by hash; a power of two. */
#define WEIR_DESTINATIONS 1024

/* Flows that have a place in a full table of connections, by hash; a power of two. */
#define WEIR_PLACED 16384

/* Destinations, as the socket saw them, whose packets a consumer of this namespace has refused, by hash; a power of two. */
#define WEIR_ENDS 1024

/* Places for what is behind the host, by hash; powers of two: inner destinations, outer ones, flows. */
#define WEIR_INNERS 4096
#define WEIR_OUTERS 1024
#define WEIR_ROUTES 16384

/* What the gate has learnt. */
struct weir_gate_stat {
	__u64 ports;		/* destinations found to be nobody's */
	__u64 flows;		/* flows found to be refused */
	__u64 spoken_for;	/* drops that nothing was learnt from: a socket has the port, or had it lately */
	__u32 refused;		/* tick of the last refusal that was learnt */
	__u32 elsewhere;	/* tick of the last datagram that a socket of another namespace refused */
	__u64 evidence;		/* losses of other namespaces that were taken as evidence */
	__u64 crowded;		/* packets for consumers behind the host that found a place taken */
	__u64 untranslated;	/* of these packets, those whose translation this kernel does not tell */
	__u64 listeners;	/* those that made room for another one while their SYNs were counted; destinations and flows as well */
};

/* What one poll may still hand up to one consumer. */
struct weir_share {
	__u32 poll;		/* of the source, as far as `left` goes */
	__u32 left;
};

struct weir_shares {
	struct weir_share of[WEIR_CONSUMERS];
	struct weir_share fragments;
	struct weir_share searches;	/* of the table of connections */
};

struct weir_event {
	__u32 kind;		/* enum weir_event_kind */
	__u32 slot;		/* source; netlink port of a packet filter */
	__u64 time_ns;
	__u64 sk;
	__u64 cookie;
	__u64 inode;		/* of the socket; 0: not known */
	__u16 port;		/* local port, host order */
	__u16 family;
	__u32 cpu;
	__u32 uid;		/* of the socket, in the initial user namespace */
	__u32 lost;		/* packets that it refused since it was told last, or ever */
	__u64 inner;		/* of a socket behind the host: where its packets go, by hash */
	__u32 netns;		/* its network namespace; 0: the guard's */
	__u32 address;		/* IPv4 address of the packet that it refused; 0: another one */
	__u64 waited;		/* how long a task waits for the CPU, ns; ~0: not known */
};

/* A handle that waits for a datagram of its interface; written by user space, but for the three that say so. */
struct weir_steer {
	__u64 lease;		/* until then one may be taken; coarse CLOCK_MONOTONIC, ns */
	__u64 taken;		/* datagrams taken so far; written by BPF */
	__u32 wanted;		/* BPF clears it */
	__u32 spare;		/* datagrams that are let go before one is taken; counted down by BPF */
	__u32 port;		/* of the handle, host order: rewritten frames are for it */
	__u32 pad[9];
};

/* Sources of an interface whose ids are to be learnt: queue q is source first_source + q. */
struct weir_learn {
	__u32 first_source;
	__u32 sources;
};

_Static_assert(sizeof(struct weir_source_ctl) == 128, "two lines");
_Static_assert(sizeof(struct weir_source_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_rx_stat) == 192, "three lines");
_Static_assert(sizeof(struct weir_consumer_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_consumer_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_sheds) == 512, "whole lines");
_Static_assert(sizeof(struct weir_poller_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_cpu_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_guard_ctl) == 128, "two lines");
_Static_assert(WEIR_CONSUMERS < WEIR_PORT_SHARED, "no consumer's number");
_Static_assert(sizeof(struct weir_overflow_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_steer) == 64, "one line");
_Static_assert(sizeof(struct weir_gate_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_ports_used) == 16384, "whole pages");
_Static_assert(sizeof(struct weir_event) == 80, "no holes");

#endif
