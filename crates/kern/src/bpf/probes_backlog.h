/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The wait in a CPU's backlog: from its tracepoints before the queue to the stack's entry behind it. */
#ifndef WEIR_PROBES_BACKLOG_H
#define WEIR_PROBES_BACKLOG_H

#include "probes_common.h"

struct netdev_rx_queue {
	void *rps_map;
} __attribute__((preserve_access_index));

struct net_device___queues {
	struct netdev_rx_queue *_rx;
	unsigned int real_num_rx_queues;
} __attribute__((preserve_access_index));

struct { /* before the backlog, until it leaves it */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_PASSING);
	__type(key, __u32);
	__type(value, struct passing);
} queued SEC(".maps");

/* Whether there ever was one: hosts without them look for none. */
__u32 any_queued = 0;

/* True if packets of its queue are spread over CPUs (RPS). */
static __always_inline _Bool steered(struct sk_buff *skb)
{
	struct net_device___queues *dev = (struct net_device___queues *)skb->dev;
	__u32 queue = skb->queue_mapping, queues = 0;
	void *rx = 0, *map = 0;

	if (!bpf_core_field_exists(struct netdev_rx_queue, rps_map))
		return 0;
	bpf_core_read(&rx, sizeof(rx), &dev->_rx);
	bpf_core_read(&queues, sizeof(queues), &dev->real_num_rx_queues);
	/* Counted from 1; 0 is not known, which the kernel takes for the first. */
	queue = queue && queue <= queues ? queue - 1 : 0;
	rx += queue * bpf_core_type_size(struct netdev_rx_queue);
	bpf_probe_read_kernel(&map, sizeof(map), rx + bpf_core_field_offset(struct netdev_rx_queue, rps_map));
	return map != 0;
}

static __always_inline int queue(struct sk_buff *skb, _Bool certain)
{
	struct weir_probe_cpu *cpu = here();
	__u32 weight, protocol, at = 0;
	__u64 now;

	if (!cpu)
		return 0;
	if (cpu->backlog.left) {
		cpu->backlog.left--;
		return 0;
	}
	now = bpf_ktime_get_ns();
	weight = looked(&cpu->backlog, now);
	if (skb->dev->nd_net.net->ns.inum != netns_inode || (!certain && !steered(skb)))
		return 0;
	protocol = transport(skb, &at);
	if (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP)
		return 0;
	pass(&queued, number(cpu, skb), now, print(skb, at), weight);
	if (!any_queued)
		any_queued = 1;
	return 0;
}

/* Devices without NAPI: always by a backlog. */
SEC("tp_btf/netif_rx")
int BPF_PROG(weir_queue, struct sk_buff *skb)
{
	return queue(skb, 1);
}

/* The others if there is RPS: user space attaches these then. */
SEC("tp_btf/napi_gro_receive_entry")
int BPF_PROG(weir_rps_gro, struct sk_buff *skb)
{
	return queue(skb, 0);
}

SEC("tp_btf/napi_gro_frags_entry")
int BPF_PROG(weir_rps_frags, struct sk_buff *skb)
{
	return queue(skb, 0);
}

SEC("tp_btf/netif_receive_skb_entry")
int BPF_PROG(weir_rps_single, struct sk_buff *skb)
{
	return queue(skb, 0);
}

SEC("tp_btf/netif_receive_skb_list_entry")
int BPF_PROG(weir_rps_list, struct sk_buff *skb)
{
	return queue(skb, 0);
}

static __always_inline void unqueued(struct weir_probe_cpu *cpu, struct sk_buff *skb)
{
	__u64 since = 0, was = 0;
	__u32 weight = passed(&queued, number(cpu, skb), &since, &was), at = 0;

	if (weight && transport(skb, &at) && print(skb, at) == was)
		record(cpu, WEIR_WAIT_BACKLOG, bpf_ktime_get_ns() - since, weight);
}

#endif
