/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Frames for consumers behind the host: guard_behind.h learns where they go, behind.h decides. */
#ifndef WEIR_RX_BEHIND_H
#define WEIR_RX_BEHIND_H

/* A frame for a known outer destination that passes unjudged. */
#define WEIR_BEHIND_PASSES (WEIR_CONSUMERS + 1)

/* What consumer `number` - 1, if it is the one at `inner`, has room for in the poll under way; WEIR_NO_MEMBER if that is not known.
 * Functions of their own for the verifier. */
__noinline __u32 weir_rx_left(__u32 slot, __u32 number, __u32 inner)
{
	struct weir_source_ctl *source_ctl = bpf_map_lookup_elem(&source_ctls, &slot);
	__u32 consumer = number - 1, zero = 0;
	struct weir_guard_ctl *guard = bpf_map_lookup_elem(&guard_ctl, &zero);
	struct weir_consumer_stat *stat;
	struct weir_consumer_ctl *ctl;
	struct weir_share *share;

	if (!source_ctl || !guard || consumer >= WEIR_CONSUMERS)
		return WEIR_NO_MEMBER;
	ctl = bpf_map_lookup_elem(&consumer_ctls, &consumer);
	stat = bpf_map_lookup_elem(&consumer_stats, &consumer);
	if (!ctl || !stat || !ctl->sk || !ctl->inner || ctl->inner >> 32 != inner)
		return WEIR_NO_MEMBER;
	/* Input for it is held back, until its program has read. */
	if (ctl->inhibited && !feeds(poller_of(source_ctl)))
		return 0;
	share = share_of(slot, consumer, ctl, stat, guard->slices, poller_of(source_ctl));
	return share ? share->left : WEIR_NO_MEMBER;
}

/* True unless it is known that no socket of the guard's own namespace has this UDP port: a translation may be for some senders only,
 * and then the others' datagrams are for that socket. */
static __always_inline int own_socket(const struct weir_guard_ctl *guard, __u32 key, __u32 now)
{
	struct weir_port *port = bpf_map_lookup_elem(&ports, &key);

	return !port || gate_used(key) || !weir_recent(guard->listed[0], now, WEIR_LISTED_TICKS) ||
	       !weir_after(guard->listed[0], port->bound);
}

/* The consumer whose room decides on this datagram; WEIR_CONSUMERS: it is for nobody behind the host, as far as is known. */
__noinline __u32 weir_rx_behind(struct xdp_md *ctx, const struct weir_view *view, __u32 slot)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 now = coarse_tick(slot), left[WEIR_MEMBERS], place, member, zero = 0;
	struct weir_guard_ctl *guard = bpf_map_lookup_elem(&guard_ctl, &zero);
	struct gate_flow flow = {};
	struct weir_outer *outer;
	struct weir_route *route;
	__u64 hash;

	if (!view || !guard || !rx_flow(data, end, view, &flow))
		return WEIR_CONSUMERS;
	hash = gate_destination_hash(&flow);
	place = hash & (WEIR_OUTERS - 1);
	outer = bpf_map_lookup_elem(&outers, &place);
	if (!outer || !weir_outer_known(outer, hash >> 32, now))
		return WEIR_CONSUMERS;
	hash = gate_flow_hash(&flow);
	place = hash & (WEIR_ROUTES - 1);
	route = bpf_map_lookup_elem(&routes, &place);
	if (route && weir_routed(route, hash >> 32, now)) {
		member = weir_rx_left(slot, route->consumer, route->inner);
		return member == WEIR_NO_MEMBER ? WEIR_BEHIND_PASSES : route->consumer - 1;
	}
	if (own_socket(guard, flow.ports & 0xffff, now))
		return WEIR_BEHIND_PASSES;
#pragma unroll
	for (int i = 0; i < WEIR_MEMBERS; i++)
		left[i] = outer->member[i].seen ? weir_rx_left(slot, outer->member[i].consumer, outer->member[i].inner) : 0;
	member = weir_outer_member(outer, left, now);
	if (member >= WEIR_MEMBERS)
		return WEIR_BEHIND_PASSES;
	return outer->member[member & (WEIR_MEMBERS - 1)].consumer - 1;
}

#endif
