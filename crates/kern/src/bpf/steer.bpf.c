// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Marks a handle behind any firewall: one datagram that the firewall has let through, from an interface that is
 * guarded, is given to the handle instead of its socket. Attached to the network namespace only while a handle waits.
 *
 * The kernel asks here after it has looked for a connected socket, so datagrams of connected sockets and frames in
 * transit are not seen: for those rx.bpf.c rewrites a frame into a datagram for the handle's port, which is taken here
 * too. A datagram that was taken is counted, and lost to its socket.
 *
 * Work per datagram that has no connected socket: one hash look-up by interface, two reads.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "guard.h"

#define PROTO_UDP 17

struct { /* interface index, also of those that stand on a guarded one -> request */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4 * WEIR_SOURCES);
	__type(key, __u32);
	__type(value, __u32);
} steer_interfaces SEC(".maps");

struct { /* one request per interface, by its first source */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_SOURCES);
	__type(key, __u32);
	__type(value, struct weir_steer);
} steers SEC(".maps");

struct { /* request -> the handle that waits */
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, WEIR_SOURCES);
	__type(key, __u32);
	__type(value, __u64);
} steer_handles SEC(".maps");

SEC("sk_lookup")
int weir_steer(struct bpf_sk_lookup *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex, *request;
	struct weir_steer *steer;
	struct bpf_sock *handle;

	if (ctx->protocol != PROTO_UDP)
		return SK_PASS;
	request = bpf_map_lookup_elem(&steer_interfaces, &ifindex);
	if (!request)
		return SK_PASS;
	steer = bpf_map_lookup_elem(&steers, request);
	/* What is held back ends by itself: nobody takes datagrams for a guard that has stopped. */
	if (!steer || !steer->wanted || steer->lease < bpf_ktime_get_coarse_ns())
		return SK_PASS;
	/* A rewritten frame is nobody's; others are missed by somebody. */
	if (ctx->local_port != steer->port && steer->spare) {
		steer->spare--;
		return SK_PASS;
	}
	handle = bpf_map_lookup_elem(&steer_handles, request);
	if (!handle)
		return SK_PASS;
	if (!bpf_sk_assign(ctx, handle, 0)) {
		/* Two CPUs may take one each: the second is counted as well. A rewritten frame is counted where that was done. */
		steer->wanted = 0;
		if (ctx->local_port != steer->port)
			__sync_fetch_and_add(&steer->taken, 1);
	}
	bpf_sk_release(handle);
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
