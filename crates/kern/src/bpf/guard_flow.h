/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* What a packet is remembered by: guard_gate.h learns under it what rx.bpf.c looks for. */
#ifndef WEIR_GUARD_FLOW_H
#define WEIR_GUARD_FLOW_H

/* Hashes of one guard alone; both objects have the same. */
const volatile __u32 gate_seed = 0;

/* Addresses, ports and protocol of a packet with its headers in place. */
struct gate_flow {
	__u32 source[4];
	__u32 target[4];
	__u32 words;		/* of each address: 1 or 4 */
	__u32 ports;		/* source << 16 | target, host order */
	__u32 tcp;
};

static __always_inline __u32 gate_address(const __u32 *address, __u32 words)
{
	__u32 hash = weir_mix(gate_seed, address[0]);

	if (words == 4)
#pragma unroll
		for (int i = 1; i < 4; i++)
			hash = weir_mix(hash, address[i]);
	return hash;
}

/* Whose packet it is: an IPv4 address, or the first half of an IPv6 one. */
static __always_inline __u64 gate_sender(const struct gate_flow *flow)
{
	return flow->words == 1 ? flow->source[0] : (__u64)flow->source[1] << 32 | flow->source[0];
}

static __always_inline __u64 gate_flow_hash(const struct gate_flow *flow)
{
	__u64 hash = weir_mix64(gate_seed, flow->source[0]);

	hash = weir_mix64(hash, flow->target[0]);
	if (flow->words == 4)
#pragma unroll
		for (int i = 1; i < 4; i++)
			hash = weir_mix64(hash, (__u64)flow->source[i] << 32 | flow->target[i]);
	hash = weir_mix64(hash, flow->ports);
	return weir_mix64(hash, flow->tcp);
}

/* Where the packets of the flow are for, whoever sends them. */
static __always_inline __u64 gate_destination_hash(const struct gate_flow *flow)
{
	__u64 hash = weir_mix64((__u64)gate_seed << 32, flow->target[0]);

	if (flow->words == 4)
#pragma unroll
		for (int i = 1; i < 4; i++)
			hash = weir_mix64(hash, flow->target[i]);
	return weir_mix64(hash, (flow->ports & 0xffff) | flow->tcp << 16);
}

/* Packets for this destination that were refused for want of a place in the table of connections. */
static __always_inline __u64 gate_want_hash(__u64 destination)
{
	return weir_mix64(destination, ~0ULL);
}

/* That packets for this destination end in this consumer. */
static __always_inline __u64 gate_end_hash(__u64 destination, __u32 consumer)
{
	return weir_mix64(destination, consumer);
}

/* What is for an IPv4 address that this host does not have. */
static __always_inline __u64 gate_target_hash(__u32 target)
{
	return weir_mix64(~(__u64)gate_seed, target);
}

/* A listener, a destination or a flow has made room for another one, or has found none. */
static __always_inline void gate_unplaced(void)
{
	struct weir_gate_stat *stat;
	__u32 zero = 0;

	stat = bpf_map_lookup_elem(&gate_stats, &zero);
	if (stat)
		__sync_fetch_and_add(&stat->listeners, 1);
}

/* A socket has this port, by the last list. */
static __always_inline _Bool gate_used(__u32 key)
{
	struct weir_ports_used *used;
	__u32 zero = 0;

	used = bpf_map_lookup_elem(&ports_used, &zero);
	key &= 2 * WEIR_TCP_PORTS - 1;
	return !used || used->word[key / 64] >> (key & 63) & 1;
}

/* True if what a filter drops is counted by where it was to go, whoever sent it: by the last list no socket has the port, nothing is sent
 * on or translated, and no socket of another interface may have it. Else only the very flow is. */
static __always_inline _Bool gate_by_port(const struct weir_guard_ctl *guard, __u32 key, __u32 now)
{
	return !guard->by_flow && !guard->by_end && !gate_used(key) &&
	       weir_recent(guard->listed[key >> 16 & 1], now, WEIR_LISTED_TICKS);
}

#endif
