/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What probes.bpf.c and crates/kern/src/probes/abi.rs share. */
#ifndef WEIR_PROBES_H
#define WEIR_PROBES_H

#include <linux/types.h>

/* What was waited for; order of `enum Wait` in abi.rs. */
enum weir_wait {
	WEIR_WAIT_SOFTIRQ, /* NET_RX: raised until it runs */
	WEIR_WAIT_BACKLOG, /* a packet: queued for a CPU's backlog until handed to the stack there */
	WEIR_WAIT_STACK,   /* a datagram: handed to the stack until it is in its socket */
	WEIR_WAIT_SOCKET,  /* then until the program has it */
	WEIR_WAIT_WHOLE,   /* both together */
	WEIR_WAIT_TCP,     /* a segment: handed to the stack until the program has read it to its end */
	WEIR_WAIT_WAKEUP,  /* the reader of a datagram: woken until it runs */
	WEIR_WAITS,
};

/* Log-linear: below 16 ns exact, then 16 buckets per power of two up to 2^36 ns = 69 s; the last one has all above. */
#define WEIR_BUCKETS 528
/* Reasons of the kernel (subsystem 0) and of three more subsystems, 256 of each; what does not fit counts as number 0. */
#define WEIR_REASONS 1024
/* UDP sockets whose reads are counted, a power of two; a socket whose place is taken has no rate. */
#define WEIR_SOCKETS 16384
/* Datagrams that are followed to their programs at one time, a power of two; one more is not followed. */
#define WEIR_FOLLOWED 4096
/* Readers that are followed from being woken to running, a power of two. */
#define WEIR_WOKEN 1024
/* Packets between two probes, by the place of the packet's memory, a power of two; the older one is lost. */
#define WEIR_PASSING 256
/* TCP sockets with followed segments, a power of two, and segments that are followed at one time. */
#define WEIR_STREAMS 1024
#define WEIR_SEGMENTS 4096

/* When the next packet is looked at. */
struct weir_looks {
	__u32 left;      /* packets until then */
	__u32 gap;       /* mean packets from look to look, 1 to 64 */
	__u64 looked_ns; /* the last look */
};

struct weir_probe_cpu {
	struct weir_looks stack;   /* at the stack's entry */
	struct weir_looks backlog; /* before the backlog */
	__u64 pointer;   /* as a number: the verifier lets nothing be computed with pointers */
	__u64 skb;       /* the packet that is followed through the stack; 0: none */
	__u64 entry_ns;  /* when it was handed to the stack */
	__u32 weight;    /* packets that it stands for */
	__u32 waking;    /* the same, while what is woken next is its reader */
	__u64 raised_ns; /* NET_RX raised, if this time is measured; 0: not */
	__u32 raises;
	__u32 pending;
	__u32 lost;      /* looks that found no room to follow a packet */
	__u32 samples[WEIR_WAITS];
	__u32 wait[WEIR_WAITS][WEIR_BUCKETS];
	__u32 drops[WEIR_REASONS];    /* of this network namespace */
	__u32 unplaced[WEIR_REASONS]; /* of packets that do not tell their namespace */
} __attribute__((aligned(64)));

struct weir_probe_socket {
	__u32 inode; /* 0: free */
	__u32 reads;
};

#endif
