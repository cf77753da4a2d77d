/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the guard's BPF programs and its threads tell each other. Each struct fills whole cache lines and has
 * one writer: a `_ctl` is written by user space, a `_stat` by BPF. crates/kern/src/guard/abi.rs mirrors this
 * file; both sides assert the sizes.
 */
#ifndef WEIR_GUARD_H
#define WEIR_GUARD_H

#define WEIR_SOURCES 64
#define WEIR_CONSUMERS 64
/* In the place of a port's consumer: several sockets share the port, the kernel tells which gets a datagram. */
#define WEIR_PORT_SHARED 255
#define WEIR_POLLERS 64
/* Credit that protected frames may save up, ns, and what one ICMP packet costs: 1000 of them per second. */
#define WEIR_BURST_NS 100000000ULL
#define WEIR_ICMP_NS 1000000ULL
/* The control loop hears of one source or consumer at most this often. */
#define WEIR_EVENT_EVERY_NS 1000000ULL

enum weir_mode { WEIR_MODE_NONE = 0, WEIR_MODE_INTERRUPT = 1, WEIR_MODE_POLL = 2, WEIR_MODE_THREAD = 3,
		 WEIR_MODE_SHED = 4 };

/* Window in which softirq is held against the budget. */
#define WEIR_WINDOW_NS 10000000ULL

/* Reasons a sleeping poller may be woken for; bits of poller_ctl.wait. */
enum weir_wake { WEIR_WAKE_LEVEL = 1, WEIR_WAKE_IDLE = 2 };

enum weir_event_kind { WEIR_EVENT_SATURATED = 1, WEIR_EVENT_CONSUMER = 2, WEIR_EVENT_OVERFLOW = 3,
		       WEIR_EVENT_FILTER = 4, WEIR_EVENT_BUDGET = 5, WEIR_EVENT_NEAR = 6 };

struct weir_source_ctl {
	__u32 mode;		/* enum weir_mode */
	__u32 poller_tid;	/* thread whose turns count as the poller's own */
	__u32 full_polls;	/* consecutive full polls that raise WEIR_EVENT_SATURATED */
	__u16 mark_port;	/* port of the handle, host order */
	__u16 marks;		/* frames that may have been rewritten in all; 0: none */
	__u32 cpu;		/* CPU of the poller */
	__u16 mark_v4[2];	/* an address of the interface, network order; 0: none */
	__u16 mark_v6[8];
	__u32 poller;		/* its index: whose bound for protected frames counts */
	__u32 spare;		/* `spared` up to which a frame that somebody would miss is not rewritten */
	__u64 lease;		/* until then frames may be shed or rewritten; coarse CLOCK_MONOTONIC, ns */
	__u32 pad[2];
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
	__u32 pad;
};

/* Written by the XDP program: the NAPI's owner is the one writer. */
struct weir_rx_stat {
	__u64 frames;		/* seen by XDP in poll mode and in WEIR_MODE_SHED */
	__u64 to_full;		/* of these, for consumers that are inhibited, and not protected */
	__u64 shed;		/* of these, dropped here on purpose */
	__u64 marked;		/* rewritten to the handle's port */
	__u64 by_class[3];	/* frames by enum weir_class; sums up to `frames` */
	__u64 over_bound;	/* of the normal ones, those that a rule protects, but not that many of them */
	__u64 shed_class[3];	/* shed by class; sums up to `shed` */
	__u32 spared;		/* frames that were not rewritten because somebody would miss them */
	__u32 pad32;
	__u64 tcp;		/* of `frames`, TCP segments of connections that stand */
	__u64 pad[3];
};

struct weir_consumer_ctl {
	__u64 sk;		/* kernel address: names the socket, is never followed unchecked */
	__u64 cookie;
	__u64 inhibited;	/* bit i: poller i keeps input away, wake it at `low` */
	__u32 low;		/* permille */
	__u32 shed;		/* while inhibited XDP drops what is for this consumer */
	__u32 maxlen;		/* of a packet filter's queue, packets; 0: only the buffer counts */
	__u32 high;		/* permille; in WEIR_MODE_SHED level, high and low say what is dropped */
	__u32 pad[6];
};

struct weir_consumer_stat {
	__u64 overflows;	/* datagrams the socket refused */
	__u64 recvs;		/* reads that ended an inhibit */
	__u32 level;		/* permille of the socket's receive buffer */
	__u32 rcvbuf;		/* bytes */
	__u32 gone;		/* the address holds another socket by now */
	__u32 cpu;		/* CPU of the last read seen */
	__u64 shed;
	__u32 full;		/* in WEIR_MODE_SHED: above `high`, and not at `low` since */
	__u32 pad32;
	__u64 pad[2];
};

struct weir_poller_ctl {
	__u32 wait;		/* bits of enum weir_wake; BPF clears what it answered */
	__u32 pad;
	__u64 protected_ns;	/* the bound: one protected packet per that many ns; 0: none */
	__u64 pad2[6];
};

/* Credit for protected frames, of one poller; written by the XDP program in its turns. */
struct weir_bound {
	__u64 all;		/* of all rules together */
	__u64 rule[64];		/* of each, twice as dear: no rule can take what the others need */
	__u64 pad[7];
};

struct weir_cpu_stat {
	__u64 net_rx_ns;	/* time in the NET_RX softirq */
	__u64 net_rx_runs;
	__u64 started_ns;	/* of the run under way, 0 if none */
	__u64 overflows;	/* datagrams that sockets of this namespace refused on this CPU */
	__u64 reported;		/* `overflows` at the last WEIR_EVENT_OVERFLOW */
	__u64 reported_ns;	/* time of it */
	__u64 elsewhere;	/* datagrams that sockets of other namespaces refused on this CPU */
	__u32 metered;		/* written by the poller here: 1 if every run counts, 0 if a sample will do */
	__u32 weight;		/* runs that the one under way stands for */
};

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
	__u32 near;		/* permille from which on that is to be watched; 0: it is, or shall not be */
	__u32 pad[5];
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

_Static_assert(sizeof(struct weir_source_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_source_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_rx_stat) == 128, "two lines");
_Static_assert(sizeof(struct weir_bound) == 576, "whole lines");
_Static_assert(sizeof(struct weir_consumer_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_consumer_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_poller_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_cpu_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_guard_ctl) == 64, "one line");
_Static_assert(WEIR_CONSUMERS < WEIR_PORT_SHARED, "no consumer's number");
_Static_assert(sizeof(struct weir_steer) == 64, "one line");
_Static_assert(sizeof(struct weir_event) == 48, "no holes");

#endif
