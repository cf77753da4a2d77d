/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What accept.bpf.c and listeners.bpf.c share with their loader; the mirror is crates/kern/src/accept/abi.rs. */
#ifndef WEIR_LISTENERS_H
#define WEIR_LISTENERS_H

#include <linux/types.h>
#include <accept.h>

#define WEIR_ACCEPT_CORES 4096
/* Counters that a core shares with few others or none; a power of two. */
#define WEIR_ACCEPT_SHARDS 64

/* By enum weir_accept_why; then: the kernel chose, lease over, other members, refused. Two cache lines. */
struct weir_accept_counts {
	__u64 of[12];
	__u64 pad[4];
};

/* One group of listeners. Written by the loader but for `queues` (shared), `sockets` and what follows it, without `own`. What all cores
 * would write for each connection is written when it changes, or once a millisecond. */
struct weir_accept {
	struct weir_accept_rules rules;
	__u64 lease;		/* CLOCK_MONOTONIC, ns: beyond it the choice is the kernel's */
	__u32 count;		/* queues; 0: the choice is the kernel's */
	__u32 sockets;		/* members of the kernel's group, as last seen */
	__u32 cursor;		/* the queue that was read last for itself */
	__u32 ticks;		/* 1: the timer runs */
	__u64 group;		/* the kernel's, at the last connection; only ever read as what it may no longer be */
	__u64 asked;		/* when that was, ns, or up to a millisecond before */
	__u64 looks;		/* of the timer */
	__u64 held;		/* when the timer saw somebody wait last, ns */
	struct weir_accept_queue queues[WEIR_ACCEPT_QUEUES];
	__u32 own[WEIR_ACCEPT_CORES];	/* by core: first queue << 16 | how many; 0: none */
	struct weir_accept_counts chosen[WEIR_ACCEPT_SHARDS];
};

enum weir_accept_kernel {
	WEIR_ACCEPT_LEASE = WEIR_ACCEPT_WHYS,
	WEIR_ACCEPT_MEMBERS,
	WEIR_ACCEPT_REFUSED,
	WEIR_ACCEPT_MIGRATED,
	WEIR_ACCEPT_UNMOVED,
};

/* A socket in the descriptors of one process: a listener of TCP, a connection that was accepted, or one of UDP in a group. */
struct weir_held {
	__u64 inode;
	__u32 pid;		/* in the initial namespace of processes */
	__u32 fd;
	__u32 netns;
	__u32 device;		/* index of the interface that it is bound to; 0: none */
	__u32 program;		/* id of the one that chooses in its group; 0: none */
	__u32 waiting;
	__u32 limit;
	__u32 core;		/* that received last of it, of a connection */
	__u32 sockets;		/* members of its group; 0: it is in none */
	__u16 port;
	__u16 family;
	__u8 state;
	__u8 reuseport;
	__u8 udp;
	__u8 pad[5];
	__u8 address[16];
};
_Static_assert(sizeof(struct weir_held) == 72, "no holes");

#endif
