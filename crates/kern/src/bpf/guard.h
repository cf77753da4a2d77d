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
#define WEIR_POLLERS 64
/* The control loop hears of one source or consumer at most this often. */
#define WEIR_EVENT_EVERY_NS 1000000ULL

enum weir_mode { WEIR_MODE_NONE = 0, WEIR_MODE_INTERRUPT = 1, WEIR_MODE_POLL = 2, WEIR_MODE_THREAD = 3 };

/* Reasons a sleeping poller may be woken for; bits of poller_ctl.wait. */
enum weir_wake { WEIR_WAKE_LEVEL = 1, WEIR_WAKE_IDLE = 2 };

enum weir_event_kind { WEIR_EVENT_SATURATED = 1, WEIR_EVENT_CONSUMER = 2, WEIR_EVENT_OVERFLOW = 3 };

struct weir_source_ctl {
	__u32 mode;		/* enum weir_mode */
	__u32 poller_tid;	/* thread whose turns count as the poller's own */
	__u32 full_polls;	/* consecutive full polls that raise WEIR_EVENT_SATURATED */
	__u16 mark_port;	/* port of the handle, host order */
	__u16 marks;		/* frames that may have been rewritten in all; 0: none */
	__u32 cpu;		/* CPU of the poller */
	__u32 pad[11];
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
	__u64 pad;
};

/* Written by the XDP program: the NAPI's owner is the one writer. */
struct weir_rx_stat {
	__u64 frames;		/* seen by XDP in poll mode */
	__u64 to_full;		/* of these, for consumers that are inhibited */
	__u64 shed;		/* of these, dropped here on purpose */
	__u64 marked;		/* rewritten to the handle's port */
	__u64 pad[4];
};

struct weir_consumer_ctl {
	__u64 sk;		/* kernel address: names the socket, is never followed unchecked */
	__u64 cookie;
	__u64 inhibited;	/* bit i: poller i keeps input away, wake it at `low` */
	__u32 low;		/* permille */
	__u32 shed;		/* while inhibited XDP drops what is for this consumer */
	__u32 pad[8];
};

struct weir_consumer_stat {
	__u64 overflows;	/* datagrams the socket refused */
	__u64 recvs;		/* reads that ended an inhibit */
	__u32 level;		/* permille of the socket's receive buffer */
	__u32 rcvbuf;		/* bytes */
	__u32 gone;		/* the address holds another socket by now */
	__u32 cpu;		/* CPU of the last read seen */
	__u64 shed;
	__u64 pad[3];
};

struct weir_poller_ctl {
	__u32 wait;		/* bits of enum weir_wake; BPF clears what it answered */
	__u32 pad[15];
};

struct weir_cpu_stat {
	__u64 net_rx_ns;	/* time in the NET_RX softirq */
	__u64 net_rx_runs;
	__u64 started_ns;	/* of the run under way, 0 if none */
	__u64 overflows;	/* datagrams that sockets of this namespace refused on this CPU */
	__u64 reported;		/* `overflows` at the last WEIR_EVENT_OVERFLOW */
	__u64 reported_ns;	/* time of it */
	__u64 pad[2];
};

struct weir_guard_ctl {
	__u32 consumers;	/* slots in use: 0..consumers */
	__u32 inhibited;	/* how many consumers are inhibited */
	__u32 pollers_waiting_idle;
	__u32 overflow_step;	/* overflows on one CPU between two WEIR_EVENT_OVERFLOW; 0: none */
	__u64 only_sk;		/* the one consumer that is tracked, 0 if there are more */
	__u32 only_slot;
	__u32 pad[9];
};

struct weir_event {
	__u32 kind;		/* enum weir_event_kind */
	__u32 slot;		/* source */
	__u64 time_ns;
	__u64 sk;
	__u64 cookie;
	__u16 port;		/* local port, host order */
	__u16 family;
	__u32 cpu;
};

_Static_assert(sizeof(struct weir_source_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_source_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_rx_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_consumer_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_consumer_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_poller_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_cpu_stat) == 64, "one line");
_Static_assert(sizeof(struct weir_guard_ctl) == 64, "one line");
_Static_assert(sizeof(struct weir_event) == 40, "no holes");

#endif
