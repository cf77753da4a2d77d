/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What all probes use: the kernel's structs, what a CPU counts, samples, packets between two probes. */
#ifndef WEIR_PROBES_COMMON_H
#define WEIR_PROBES_COMMON_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "probes.h"
#include "kernel.h"

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

/* Looks at packets are made rarer when they come faster than this, and denser when slower: 1000 to 5000 per second and CPU
 * as long as the gap is within its bounds. */
#define FAST_NS 200000
#define SLOW_NS 1000000
#define GAP_MAX 64
/* One that was not read in this time never will be: its socket is gone. */
#define FORGOTTEN_NS (1ULL << 36)

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	__be16 protocol;
	__u16 queue_mapping;
	char cb[48];
	unsigned char *data;
} __attribute__((preserve_access_index));

struct sk_buff_head {
	struct sk_buff *prev;
	__u32 qlen;
} __attribute__((preserve_access_index));

struct socket {
	struct file *file;
} __attribute__((preserve_access_index));

struct sock_common {
	unsigned short skc_family;
	possible_net_t skc_net;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	struct socket *sk_socket;
	__u16 sk_protocol;
} __attribute__((preserve_access_index));

struct udp_sock {
	struct sk_buff_head reader_queue;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

/* Inode of /proc/self/ns/net. */
const volatile __u32 netns_inode = 0;

struct { /* resized to the number of CPUs */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_probe_cpu);
} probe_cpus SEC(".maps");

/* A packet between two probes. */
struct passing {
	__u64 skb; /* 0: free; taken and given with an exchange */
	__u64 since_ns;
	__u64 print;
	__u32 weight;
	__u32 unused;
};

static __always_inline struct weir_probe_cpu *here(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&probe_cpus, &cpu);
}

/* Global, so that the verifier looks at it once and not for each path that leads here. */
__noinline __u32 weir_bucket(__u64 ns)
{
	__u32 high = 0, at;
	__u64 rest = ns;

	if (ns < 16)
		return ns;
	if (ns >= 1ULL << 36)
		return WEIR_BUCKETS - 1;
	if (rest >> 32) {
		rest >>= 32;
		high += 32;
	}
	if (rest >> 16) {
		rest >>= 16;
		high += 16;
	}
	if (rest >> 8) {
		rest >>= 8;
		high += 8;
	}
	if (rest >> 4) {
		rest >>= 4;
		high += 4;
	}
	if (rest >> 2) {
		rest >>= 2;
		high += 2;
	}
	if (rest >> 1)
		high += 1;
	at = 16 * (high - 3) + ((ns >> (high - 4)) & 15);
	/* The verifier needs to see the bound that the arithmetic has. */
	asm volatile("" : "+r"(at));
	return at < WEIR_BUCKETS ? at : WEIR_BUCKETS - 1;
}

static __always_inline void record(struct weir_probe_cpu *cpu, enum weir_wait wait, __u64 ns, __u32 weight)
{
	__u32 at = weir_bucket(ns);

	if (at < WEIR_BUCKETS)
		cpu->wait[wait][at] += weight;
	cpu->samples[wait]++;
}

/* The protocol above IP, and where its header begins; 0: not IP. */
static __always_inline __u32 transport(struct sk_buff *skb, __u32 *at)
{
	__u8 head[10] = {};

	if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
		return 0;
	if (bpf_probe_read_kernel(head, sizeof(head), skb->data))
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		*at = 40;
		return head[6];
	}
	*at = (head[0] & 15) * 4;
	return head[9];
}

/* What tells packets of the same place apart: the first 8 bytes of the header at `at`. */
static __always_inline __u64 print(struct sk_buff *skb, __u32 at)
{
	__u64 print = 0;

	bpf_probe_read_kernel(&print, sizeof(print), skb->data + at);
	return print;
}

static __always_inline __u64 number(struct weir_probe_cpu *cpu, void *pointer)
{
	*(volatile __u64 *)&cpu->pointer = (__u64)pointer;
	return *(volatile __u64 *)&cpu->pointer;
}

static __always_inline struct passing *passing(void *map, __u64 skb)
{
	__u32 at = (skb * 0x9e3779b97f4a7c15ULL) >> 32;

	at &= WEIR_PASSING - 1;
	return bpf_map_lookup_elem(map, &at);
}

static __always_inline void pass(void *map, __u64 skb, __u64 now, __u64 print, __u32 weight)
{
	struct passing *one = passing(map, skb);

	if (!one)
		return;
	__sync_lock_test_and_set(&one->skb, 0);
	one->since_ns = now;
	one->print = print;
	one->weight = weight;
	__sync_lock_test_and_set(&one->skb, skb);
}

/* Takes the packet out; its weight, 0 if it is not there. */
static __always_inline __u32 passed(void *map, __u64 skb, __u64 *since, __u64 *print)
{
	struct passing *one = passing(map, skb);
	__u32 weight;

	if (!one || one->skb != skb)
		return 0;
	*since = one->since_ns;
	*print = one->print;
	weight = one->weight;
	if (__sync_val_compare_and_swap(&one->skb, skb, 0) != skb)
		return 0;
	return weight;
}

/* Decides when the next packet is looked at; packets that this one stands for. */
static __always_inline __u32 looked(struct weir_looks *looks, __u64 now)
{
	__u64 since = now - looks->looked_ns;
	__u32 gap = looks->gap, weight;

	if (since < FAST_NS)
		gap *= 2;
	else if (since > SLOW_NS)
		gap /= 2;
	if (gap < 1)
		gap = 1;
	if (gap > GAP_MAX)
		gap = GAP_MAX;
	weight = looks->gap ? looks->gap : 1;
	looks->looked_ns = now;
	looks->gap = gap;
	/* At random, so that flows that take turns are all seen. */
	looks->left = gap > 1 ? bpf_get_prandom_u32() % (2 * gap - 1) : 0;
	return weight;
}

#endif
