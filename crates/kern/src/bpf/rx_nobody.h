/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Frames for ports that no socket has, of flows that are refused, and for destinations for which nearly all is: what guard_gate.h has
 * learnt, as the XDP program asks for it.
 *
 * Cost while packets were refused lately: four look-ups; of a datagram for a destination for which they were, nine more, and two atomic
 * adds if it passes. Where places in the table of connections count, one look-up more, and for four of a poll the kernel's search there,
 * half a microsecond each if it is full.
 */

/* What was refused of what has this hash; NULL if nothing was lately. */
static __always_inline struct weir_refusal *refusal_of(__u64 hash)
{
	__u32 place = hash & (WEIR_REFUSALS - 1);
	struct weir_refusal *refusal = bpf_map_lookup_elem(&refusals, &place);

	return refusal && refusal->flow == hash >> 32 ? refusal : NULL;
}

/* True if all that has this hash is refused, and nothing has `left` since from where it goes. A frame of the `trickle` passes. */
static __always_inline int refused(__u64 hash, __u32 left, __u32 now, __u32 most, int trickle)
{
	struct weir_refusal *refusal = refusal_of(hash);
	int is;

	if (!refusal)
		return 0;
	is = weir_refused(refusal, hash >> 32, left, now, most);
	if (!is || trickle)
		__sync_fetch_and_add(&refusal->passed, 1);
	return is;
}

/* True if any flow, or anything for a foreign address, was refused since the guard began: a router that drops nothing is asked no more. */
static __always_inline int refused_any(void)
{
	struct weir_gate_stat *learnt;
	__u32 zero = 0;

	learnt = bpf_map_lookup_elem(&gate_stats, &zero);
	return learnt && learnt->refused;
}

/* A whole struct, as the kernel has: to the loader a name alone is something else. */
struct nf_conn {
	unsigned long status;
};

#define RX_ENOENT 2

/* As the kernel has it; of 16 bytes since Linux 6.10, which takes 12 too. */
struct rx_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *ctx, struct bpf_sock_tuple *tuple, __u32 size, struct rx_ct_opts *opts,
					 __u32 opts_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

/* 1 if this kernel tells whether a frame belongs to a connection (Linux 5.18). */
const volatile __u32 connections = 0;

/* A full table takes half a microsecond for each search: a poll makes so many. */
#define RX_SEARCHES 4
/* Of so many frames of a flow that was found one is looked for again. */
#define RX_PLACED_SAMPLE 16

/* True if one more search is within what this poll may make. */
static __always_inline int may_search(__u32 slot)
{
	struct weir_source_stat *source = bpf_map_lookup_elem(&source_stats, &slot);
	struct weir_shares *all = bpf_map_lookup_elem(&shares, &slot);
	__u32 poll;

	if (!source || !all)
		return 0;
	poll = (__u32)source->polls + 1;
	if (all->searches.poll != poll) {
		all->searches.poll = poll;
		all->searches.left = RX_SEARCHES;
	}
	if (!all->searches.left)
		return 0;
	all->searches.left--;
	return 1;
}

/* True if the datagram has a place in the table of connections, or the kernel cannot tell. Who was answered lately has one, guard_gate.h.
 * Who is not answered sends again: it is found by one of its frames, and passes from then on. What is not found when a poll has made its
 * searches is taken for one without a place. */
__noinline int weir_rx_connected(struct xdp_md *ctx, const struct weir_view *view)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 slot = source_of(ctx), now = coarse_tick(slot), size, place, mark;
	struct bpf_sock_tuple tuple = {};
	struct rx_ct_opts opts = {};
	struct gate_flow flow = {};
	struct weir_end *known;
	struct nf_conn *found;
	__u64 hash;

	size = connections && view && rx_flow(data, end, view, &flow) ? rx_tuple(data, end, view, &tuple) : 0;
	if (!size)
		return 1;
	hash = gate_flow_hash(&flow);
	place = hash & (WEIR_PLACED - 1);
	mark = hash >> 32;
	known = bpf_map_lookup_elem(&placed, &place);
	if (!known)
		return 1;
	if (weir_placed(known, mark, now)) {
		if (bpf_get_prandom_u32() % RX_PLACED_SAMPLE) {
			weir_ended(known, mark, now);
			return 1;
		}
	} else if (!may_search(slot)) {
		return 0;
	}
	opts.netns_id = BPF_F_CURRENT_NETNS;
	opts.l4proto = WEIR_PROTO_UDP;
	found = bpf_xdp_ct_lookup(ctx, &tuple, size, &opts, sizeof(opts));
	if (found) {
		bpf_ct_release(found);
		if (weir_placed_other(known, mark, now))
			gate_unplaced();
		weir_ended(known, mark, now);
		return 1;
	}
	if (opts.error != -RX_ENOENT)
		return 1;
	if (known->mark == mark)
		known->tick = 0;
	return 0;
}

/* What was refused for the destination that has this hash; NULL if nothing was lately. */
static __always_inline struct weir_refusal *refused_for(__u64 hash)
{
	__u32 place = hash & (WEIR_DESTINATIONS - 1);
	struct weir_refusal *refusal = bpf_map_lookup_elem(&destinations, &place);

	return refusal && refusal->flow == hash >> 32 ? refusal : NULL;
}

/* Whose a datagram is that is not known to be nobody's: where nearly all for its destination is refused, that has a share of each poll, as
 * a listener has of its SYNs. Where somebody may take the rest (`spoken`) only what is refused for want of a place counts, and only while
 * the table of connections is full: who has a place there passes, weir_rx_connected(). */
static __always_inline __u32 of_refused(const struct gate_flow *flow, __u32 slot, __u32 now, const struct weir_guard_ctl *guard, __u32 spoken)
{
	__u64 all_of = gate_destination_hash(flow), want = gate_want_hash(all_of), hash = spoken ? want : all_of;
	struct weir_refusal *all_refused = refused_for(all_of), *wanting = refused_for(want), *judged = spoken ? wanting : all_refused;
	__u32 mark = hash >> 32, key, way, poller, admit = 1000, fits = 1, any;
	struct weir_source_ctl *ctl = bpf_map_lookup_elem(&source_ctls, &slot);
	struct weir_source_stat *source;
	struct weir_poller_ctl *turns;
	struct weir_listener *of;
	struct weir_syns *all;

	any = all_refused != NULL;
	/* Else the compiler joins two pointers, which the verifier forbids. */
	asm volatile("" : "+r"(any));
	if (!any && !wanting)
		return WEIR_SOMEBODYS;
	source = bpf_map_lookup_elem(&source_stats, &slot);
	all = bpf_map_lookup_elem(&syns, &slot);
	if (ctl && source && all && judged && weir_refusals_tell(spoken, guard->table == WEIR_TABLE_FULL, connections) &&
	    weir_mostly_refused(judged, mark, now, guard->nobody_ticks)) {
		/* In mode shed there is no poller. */
		poller = poller_of(ctl);
		turns = bpf_map_lookup_elem(&poller_ctls, &poller);
		admit = weir_refused_admit(all, now, turns ? turns->admit : 0, ctl->mode == WEIR_MODE_SHED);
		/* Its lowest bit marks a key that is there. */
		key = mark | 1;
		of = &all->of[(hash >> 10 & (WEIR_LISTENER_SETS - 1)) * WEIR_LISTENER_WAYS];
		way = weir_listener_find(of, key);
		if (way < WEIR_LISTENER_WAYS)
			fits = weir_syn_fits(&of[way], weir_voter(gate_sender(flow)), now, (__u32)source->polls + 1, admit);
		else if (weir_listener_take(of, key, now))
			gate_unplaced();
		if (!fits)
			return WEIR_BEYOND;
	}
	/* What quiet senders send beside a loud one may be what is taken. */
	if (fits != WEIR_SYN_QUIET) {
		if (all_refused)
			__sync_fetch_and_add(&all_refused->passed, 1);
		if (wanting)
			__sync_fetch_and_add(&wanting->passed, 1);
	}
	return admit < 1000 ? WEIR_WITHIN : WEIR_SOMEBODYS;
}

/* Whose the frame is, by what has become of those before it: enum weir_whose. The kernel is asked only if its search is `exact`; one
 * that is nobody's passes all the same if it is the `trickle`. */
__noinline int weir_rx_nobodys(struct xdp_md *ctx, const struct weir_view *view, __u32 most, __u32 trickle, __u32 exact)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 slot = source_of(ctx), now = coarse_tick(slot), key, zero = 0, left = 0;
	struct weir_gate_stat *learnt;
	struct weir_guard_ctl *guard;
	struct gate_flow flow = {};
	struct weir_port *port = NULL;
	__u32 listed = 0, whose;
	_Bool by_port = 0;

	if (!view || !rx_flow(data, end, view, &flow))
		return 0;
	if ((view->lane == WEIR_LANE_UDP || view->lane == WEIR_LANE_TCP) &&
	    (view->key[2] & (WEIR_F_PORTS | WEIR_F_FRAGMENT)) == WEIR_F_PORTS) {
		key = flow.tcp << 16 | (flow.ports & 0xffff);
		port = bpf_map_lookup_elem(&ports, &key);
		if (!port)
			return 0;
		guard = bpf_map_lookup_elem(&guard_ctl, &zero);
		listed = guard ? guard->listed[flow.tcp & 1] : 0;
		whose = weir_whose(port, gate_address(flow.target, flow.words), gate_used(key), listed, now,
				   weir_port_ticks(key, most), WEIR_LISTED_TICKS);
		/* A raw socket may want datagrams that no other has: then the list has every port, 0 too, which no other has. */
		if (whose == WEIR_ASK)
			return !flow.tcp && exact && weir_recent(listed, now, WEIR_LISTED_TICKS) && !gate_used(0) ?
			       WEIR_ASK : WEIR_SOMEBODYS;
		if (whose == WEIR_NOBODYS)
			return WEIR_NOBODYS;
		left = port->left;
		by_port = exact && guard && gate_by_port(guard, key, now);
	} else {
		flow.ports = 0;
	}
	learnt = bpf_map_lookup_elem(&gate_stats, &zero);
	if (!learnt || !weir_recent(learnt->refused, now, WEIR_REFUSAL_KEPT))
		return 0;
	if (flow.words == 1 && refused(gate_target_hash(flow.target[0]), 0, now, most, trickle))
		return WEIR_NOBODYS;
	if (!flow.ports)
		return WEIR_SOMEBODYS;
	if (!by_port && refused(gate_flow_hash(&flow), left, now, most, trickle))
		return WEIR_NOBODYS;
	if (by_port && port && refused(gate_destination_hash(&flow), left, now, most, trickle))
		return weir_whose_refused(port, listed, now, most, WEIR_LISTED_TICKS);
	if (flow.tcp || !guard || !port)
		return WEIR_SOMEBODYS;
	return of_refused(&flow, slot, now, guard, !weir_learns(port, gate_used(key), listed, now, WEIR_LISTED_TICKS));
}

/* A frame for a tracked consumer that has room: enum weir_whose. A filter may refuse it all the same, or the table of connections: counted
 * is how many of its flow and its destination pass. */
__noinline __u32 weir_rx_passes(struct xdp_md *ctx, const struct weir_view *view)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 slot = source_of(ctx), now = coarse_tick(slot), zero = 0;
	struct weir_gate_stat *learnt = bpf_map_lookup_elem(&gate_stats, &zero);
	struct weir_guard_ctl *guard = bpf_map_lookup_elem(&guard_ctl, &zero);
	struct weir_refusal *refusal;
	struct gate_flow flow = {};
	__u32 whose;

	if (!guard || !learnt || !weir_recent(learnt->refused, now, WEIR_REFUSAL_KEPT))
		return WEIR_SOMEBODYS;
	if (!view || !rx_flow(data, end, view, &flow))
		return WEIR_SOMEBODYS;
	whose = of_refused(&flow, slot, now, guard, 1);
	refusal = whose == WEIR_BEYOND ? NULL : refusal_of(gate_flow_hash(&flow));
	if (refusal)
		__sync_fetch_and_add(&refusal->passed, 1);
	return whose;
}

/* The same, with the kernel's answer where it is asked. */
static __always_inline __u32 whose(struct xdp_md *ctx, const struct weir_view *view, const struct weir_guard_ctl *guard,
				   const struct weir_source_ctl *ctl, __u32 slot, __u32 trickle)
{
	__u32 whose = weir_rx_nobodys(ctx, view, guard->nobody_ticks, trickle, ctl->exact), none, by;

	if (whose == WEIR_BEYOND) {
		by = weir_beyond(view->key[1] & 0xffff, guard->table == WEIR_TABLE_FULL, guard->by_flow, connections);
		if (by & WEIR_PASSES_ANY || (by & WEIR_PASSES_PLACED && weir_rx_connected(ctx, view)) ||
		    (by & WEIR_PASSES_FOREIGN && !weir_rx_ours(ctx, view, slot)))
			return WEIR_SOMEBODYS;
		return WEIR_BEYOND;
	}
	if (whose != WEIR_ASK)
		return whose;
	none = view->lane == WEIR_LANE_TCP ? weir_rx_taker(ctx, view) == WEIR_TAKER_NONE : weir_rx_untaken(ctx, view);
	return none ? WEIR_NOBODYS : WEIR_SOMEBODYS;
}
