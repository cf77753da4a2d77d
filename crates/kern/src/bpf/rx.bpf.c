// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The XDP program of a guarded interface: finds the class of each frame, counts what arrives for consumers that are
 * inhibited, drops it when told to, and marks the handle. A protected frame is neither dropped nor rewritten, whatever
 * it is for, as long as protected frames keep to their bound.
 *
 * Marking: a socket learns a NAPI's id only from a packet that came through that NAPI. Without a peer's help the
 * program rewrites one UDP or TCP frame per source, which no rule protects, into a datagram for the handle's port. A
 * frame in transit is for another host: it gets the interface's own address too. That frame is counted as `marked`.
 * It is asked for when the guard starts, and then the first `spare` frames that somebody would miss are spared: a bare
 * TCP acknowledgement is missed by nobody.
 *
 * The gate: what is for a consumer without room, or for nobody, is shed before a buffer exists for it, see gate.h. In mode shed
 * the kernel polls as always, and there is no bound of protected frames, since no poller has a budget then.
 *
 * Work per frame: one array look-up in interrupt mode, nothing is read; as in poll mode while a frame is to be marked.
 * In poll mode four look-ups and what classify.h states; two more and the clock for a protected frame; seven for one of a
 * tracked consumer, one more if it is shed, and what rx_fair.h states; for others two, and what rx_nobody.h states while
 * packets were refused lately. Calls are what costs: none is made for a plain frame that no rule asks for, but those of rx_fair.h, or of
 * rx_nobody.h; the clock of the last tick is one load, and a call once a tick. The kernel's search for the socket is made where several
 * share its port, where a socket has the port and does not take all that is for it, and over TCP as rx_tcp.h says.
 * While consumers behind the host are tracked, one look-up more for each datagram, and for those that are for one of them
 * what rx_behind.h states. Where packets for this host's addresses may end elsewhere, one look-up more for those of a tracked consumer.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "guard.h"
#include "guard_maps.h"
#include "guard_kernel.h"

/* Header lengths without options: Ethernet, two VLAN tags. */
#define L3_MAX 22

/* Of linux/socket.h, which BPF programs cannot include. */
#define FAMILY_V4 2
#define FAMILY_V6 10

/* First source of this interface; queue q is source first_source + q. */
const volatile __u32 first_source = 0;
const volatile __u32 sources = 1;

#include "guard_flow.h"

/* The clock of the last tick, as a source read it; each has a line of its own. */
struct rx_clock {
	__u64 tick;		/* its number, of which the kernel makes one load */
	__u64 ns;
	__u64 pad[6];
};

struct rx_clock rx_clocks[WEIR_SOURCES] = {};

/* Coarse CLOCK_MONOTONIC, ns, at most a tick behind the kernel's, which counts its ticks first. It is asked for once a tick: the call
 * takes half as long as all else that is done for a frame. */
static __always_inline __u64 coarse_ns(__u32 slot)
{
	struct rx_clock *clock = &rx_clocks[slot & (WEIR_SOURCES - 1)];
	__u64 tick = bpf_jiffies64();

	if (clock->tick != tick) {
		clock->ns = bpf_ktime_get_coarse_ns();
		clock->tick = tick;
	}
	return clock->ns;
}

static __always_inline __u32 coarse_tick(__u32 slot)
{
	return coarse_ns(slot) >> WEIR_TICK_SHIFT;
}

/* The source whose frame it is. */
static __always_inline __u32 source_of(const struct xdp_md *ctx)
{
	return first_source + ctx->rx_queue_index;
}

/* What is held back ends by itself, should nobody renew it. */
static __always_inline int in_force(const struct weir_source_ctl *ctl, __u32 slot)
{
	return ctl->lease >= coarse_ns(slot);
}

#include "rx_mark.h"

/* True if the frame is for another host, as far as the one address says that is known here. */
static __always_inline int in_transit(void *data, void *end, const struct weir_view *view,
				      const struct weir_source_ctl *ctl)
{
	__u32 l3 = view->l3;
	const __u16 *address;
	int differs = 0;

	if (l3 > L3_MAX)
		return 0;
	if (view->key[2] & WEIR_F_V4) {
		struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > end)
			return 0;
		address = (const __u16 *)&ip->daddr;
		return address[0] != ctl->mark_v4[0] || address[1] != ctl->mark_v4[1];
	}
	if (view->key[2] & WEIR_F_V6) {
		struct ipv6hdr *ip6 = data + l3;

		if ((void *)(ip6 + 1) > end)
			return 0;
		address = (const __u16 *)&ip6->daddr;
#pragma unroll
		for (int i = 0; i < 8; i++)
			differs |= address[i] != ctl->mark_v6[i];
	}
	return differs;
}

/* True if the frame has the link address of a group, or of all. */
static __always_inline int to_group(void *data, void *end)
{
	return data + 1 <= end && *(__u8 *)data & 1;
}

/* True if the frame is only bridged by this host, or taken by a device on this interface whose sockets are elsewhere: it has another
 * unicast address than those that are told. */
static __always_inline int for_others(void *data, void *end, const struct weir_source_ctl *ctl)
{
	__u64 mac = 0;
	int own = 0;

	if (data + 6 > end)
		return 0;
	/* What is for a group is for others too, unless nobody but this host's sockets can have it. */
	if (to_group(data, end))
		return !ctl->exact;
	if (!ctl->mac[0])
		return 0;
	__builtin_memcpy(&mac, data, 6);
#pragma unroll
	for (int i = 0; i < WEIR_MACS; i++)
		own |= mac == ctl->mac[i];
	return !own;
}

/* Modes in which classes are told, and surplus is dropped. */
static __always_inline int sheds(const struct weir_source_ctl *ctl)
{
	return ctl->mode == WEIR_MODE_POLL || ctl->mode == WEIR_MODE_SHED;
}

/* The poller whose budget counts: no map has one for a source that the kernel polls, which then hands up all that there is room for. */
static __always_inline __u32 poller_of(const struct weir_source_ctl *ctl)
{
	return ctl->mode == WEIR_MODE_POLL ? ctl->poller : ~0U;
}

/* True if one more frame that a rule protects is within the bound of protected frames. */
static __always_inline int within_bound(const struct weir_source_ctl *ctl, const struct weir_rules *rules,
					__u32 rule)
{
	__u32 poller = ctl->poller;
	struct weir_poller_ctl *bounds_ctl = bpf_map_lookup_elem(&poller_ctls, &poller);
	struct weir_bound *bound = bpf_map_lookup_elem(&bounds, &poller);
	__u64 own;

	if (!bounds_ctl || !bound)
		return 1;
	own = rules->rule[rule & (WEIR_RULES - 1)].bounded ? WEIR_ICMP_NS : 0;
	return weir_may_pass(bound, rule, bpf_ktime_get_ns(), bounds_ctl->protected_ns, own, WEIR_BURST_NS);
}

/* Functions of their own, so that the verifier walks each of them once; pointers of such may be NULL to it. */
__noinline int weir_rx_parse(struct xdp_md *ctx, __u32 addresses, struct weir_view *view)
{
	if (!view)
		return 0;
	weir_parse((void *)(long)ctx->data, (void *)(long)ctx->data_end, addresses, view);
	return 0;
}

__noinline int weir_rx_protector(const struct weir_rules *rules, const struct weir_view *view)
{
	return rules && view ? weir_protector(rules, view) : 0;
}

/*
 * True if the frame is for a socket of this host. The kernel's routes tell, and are asked only for frames that are not
 * for the one address that is known here: on a host that does not forward, everything that arrives is for itself.
 */
__noinline int weir_rx_ours(struct xdp_md *ctx, const struct weir_view *view, __u32 slot)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct weir_source_ctl *ctl = bpf_map_lookup_elem(&source_ctls, &slot);
	struct bpf_fib_lookup fib = { .ifindex = ctx->ingress_ifindex };
	long answer;
	__u32 l3;

	if (!view || !ctl)
		return 0;
	l3 = view->l3;
	if (!in_transit(data, end, view, ctl))
		return 1;
	if (l3 > L3_MAX)
		return 1;
	if (view->key[2] & WEIR_F_V4) {
		struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > end)
			return 1;
		fib.family = FAMILY_V4;
		fib.ipv4_src = ip->saddr;
		fib.ipv4_dst = ip->daddr;
	} else {
		struct ipv6hdr *ip6 = data + l3;

		if ((void *)(ip6 + 1) > end)
			return 1;
		fib.family = FAMILY_V6;
		__builtin_memcpy(fib.ipv6_src, &ip6->saddr, sizeof(fib.ipv6_src));
		__builtin_memcpy(fib.ipv6_dst, &ip6->daddr, sizeof(fib.ipv6_dst));
	}
	answer = bpf_fib_lookup(ctx, &fib, sizeof(fib), 0);
	return answer < 0 || answer == BPF_FIB_LKUP_RET_NOT_FWDED || answer == BPF_FIB_LKUP_RET_FWD_DISABLED;
}

/* Addresses and ports of a frame as the gate knows them; 0 for what is not whole. */
static __always_inline int rx_flow(void *data, void *end, const struct weir_view *view, struct gate_flow *flow)
{
	__u32 l3 = view->l3;

	if (l3 > L3_MAX)
		return 0;
	if (view->key[2] & WEIR_F_V4) {
		struct iphdr *ip = data + l3;

		if ((void *)(ip + 1) > end)
			return 0;
		flow->words = 1;
		flow->source[0] = ip->saddr;
		flow->target[0] = ip->daddr;
	} else if (view->key[2] & WEIR_F_V6) {
		struct ipv6hdr *ip6 = data + l3;

		if ((void *)(ip6 + 1) > end)
			return 0;
		flow->words = 4;
		__builtin_memcpy(flow->source, &ip6->saddr, sizeof(flow->source));
		__builtin_memcpy(flow->target, &ip6->daddr, sizeof(flow->target));
	} else {
		return 0;
	}
	flow->ports = view->key[1];
	flow->tcp = view->lane == WEIR_LANE_TCP;
	return 1;
}

/*
 * True if the frame may be judged by this consumer, whose port it has: packets for its destination have lately ended in that one. They
 * need not, where addresses are translated, where a proxy takes what is for others, or where sockets are bound to an interface that
 * stands on this one.
 */
__noinline int weir_rx_ends(struct xdp_md *ctx, const struct weir_view *view, __u32 consumer)
{
	void *data = (void *)(long)ctx->data, *data_end = (void *)(long)ctx->data_end;
	__u32 now = coarse_tick(source_of(ctx)), place;
	struct gate_flow flow = {};
	struct weir_end *end;
	__u64 hash;

	if (!view || !rx_flow(data, data_end, view, &flow))
		return 0;
	hash = gate_end_hash(gate_destination_hash(&flow), consumer);
	place = hash & (WEIR_ENDS - 1);
	end = bpf_map_lookup_elem(&ends, &place);
	return end && weir_ends(end, hash >> 32, now);
}

/* The same for the kernel's search for a socket: bytes of the tuple, 0 for what is not whole. */
static __always_inline __u32 rx_tuple(void *data, void *end, const struct weir_view *view, struct bpf_sock_tuple *tuple)
{
	struct gate_flow flow = {};

	if (!rx_flow(data, end, view, &flow))
		return 0;
	if (flow.words == 1) {
		tuple->ipv4.saddr = flow.source[0];
		tuple->ipv4.daddr = flow.target[0];
		tuple->ipv4.sport = bpf_htons(flow.ports >> 16);
		tuple->ipv4.dport = bpf_htons(flow.ports);
		return sizeof(tuple->ipv4);
	}
	__builtin_memcpy(tuple->ipv6.saddr, flow.source, sizeof(tuple->ipv6.saddr));
	__builtin_memcpy(tuple->ipv6.daddr, flow.target, sizeof(tuple->ipv6.daddr));
	tuple->ipv6.sport = bpf_htons(flow.ports >> 16);
	tuple->ipv6.dport = bpf_htons(flow.ports);
	return sizeof(tuple->ipv6);
}

/* True if each socket that has joined gets a copy of the frame: it is for a group, or for all. */
static __always_inline int for_group(void *data, void *end, const struct bpf_sock_tuple *tuple, __u32 size)
{
	if (to_group(data, end))
		return 1;
	if (size == sizeof(tuple->ipv4))
		return (tuple->ipv4.daddr & bpf_htonl(0xf0000000)) == bpf_htonl(0xe0000000) || tuple->ipv4.daddr == ~0U;
	return (tuple->ipv6.daddr[0] & bpf_htonl(0xff000000)) == bpf_htonl(0xff000000);
}

/* The tracked socket that gets this datagram, by the kernel's own search; WEIR_CONSUMERS if it is not tracked, if others get it
 * too, or if a program chooses among several, which the search does not ask. */
__noinline __u32 weir_rx_socket(struct xdp_md *ctx, const struct weir_view *view)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 found = WEIR_CONSUMERS, size, *slot;
	struct sock_reuseport *group = NULL;
	struct bpf_sock_tuple tuple = {};
	struct weir_consumer_ctl *ctl;
	struct sock *full;
	void *chooser = NULL;
	struct bpf_sock *sk;
	__u64 key = 0;

	size = view ? rx_tuple(data, end, view, &tuple) : 0;
	if (size && for_group(data, end, &tuple, size))
		return found;
	sk = size ? bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0) : NULL;
	if (!sk)
		return found;
	*(struct bpf_sock **)&key = sk;
	slot = bpf_map_lookup_elem(&consumer_slots, &key);
	ctl = slot ? bpf_map_lookup_elem(&consumer_ctls, slot) : NULL;
	if (ctl) {
		found = *slot;
		full = (struct sock *)ctl->sk;
		bpf_core_read(&group, sizeof(group), &full->sk_reuseport_cb);
		if (group)
			bpf_core_read(&chooser, sizeof(chooser), &group->prog);
		if (chooser)
			found = WEIR_CONSUMERS;
	}
	bpf_sk_release(sk);
	return found;
}

/* True if no socket takes this datagram, by the kernel's own search. */
__noinline int weir_rx_untaken(struct xdp_md *ctx, const struct weir_view *view)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *sk;
	__u32 size;

	size = view ? rx_tuple(data, end, view, &tuple) : 0;
	if (!size)
		return 0;
	sk = bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return 1;
	bpf_sk_release(sk);
	return 0;
}

#include "rx_tcp.h"
#include "rx_nobody.h"
#include "rx_fair.h"

/* True if one more fragment is within what a poll may hand up while shedding needs the CPU: whose it is nobody can tell, and each
 * waits for others in the kernel's memory. */
static __always_inline int fragment_fits(__u32 slot, __u32 poller)
{
	struct weir_poller_ctl *turns = bpf_map_lookup_elem(&poller_ctls, &poller);
	struct weir_source_stat *source = bpf_map_lookup_elem(&source_stats, &slot);
	struct weir_shares *all = bpf_map_lookup_elem(&shares, &slot);
	__u32 admit = turns ? turns->admit : 0, poll;

	if (!source || !all || !admit || admit >= 1000)
		return 1;
	poll = (__u32)source->polls + 1;
	if (all->fragments.poll != poll) {
		all->fragments.poll = poll;
		all->fragments.left = weir_fragments(admit);
	}
	if (!all->fragments.left)
		return 0;
	all->fragments.left--;
	return 1;
}

/* True if the poller feeds consumers that it inhibits. */
static __always_inline int feeds(__u32 poller)
{
	struct weir_poller_ctl *turns = bpf_map_lookup_elem(&poller_ctls, &poller);

	return turns && turns->feeds;
}

/* The consumer that a whole datagram is for, if it is tracked; else WEIR_CONSUMERS or more. */
static __always_inline __u32 consumer_of(struct xdp_md *ctx, const struct weir_view *view)
{
	__u32 key = view->key[1] & 0xffff, consumer;
	__u8 *index = bpf_map_lookup_elem(&port_consumers, &key);
	struct weir_consumer_ctl *only;
	struct weir_port *port;

	if (!index || !*index)
		return WEIR_CONSUMERS;
	if (*index == WEIR_PORT_SHARED)
		return weir_rx_socket(ctx, view);
	consumer = *index - 1;
	/* Another socket may have the port since. */
	port = bpf_map_lookup_elem(&ports, &key);
	only = bpf_map_lookup_elem(&consumer_ctls, &consumer);
	if (port && only && port->bound && !weir_after(only->alone, port->bound))
		return weir_rx_socket(ctx, view);
	return consumer;
}

#include "rx_behind.h"

SEC("xdp")
int weir_rx(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 queue = ctx->rx_queue_index, slot, key, zero = 0, protector, trickle, whose_is, tcp, segment;
	struct weir_consumer_stat *consumer;
	struct weir_consumer_ctl *consumer_ctl;
	struct weir_guard_ctl *guard;
	struct weir_source_ctl *ctl;
	struct weir_sheds *shed;
	struct weir_rules *rules;
	struct weir_rx_stat *stat;
	struct weir_view view = {};
	__u32 fit;
	int behind;

	if (queue >= sources)
		return XDP_PASS;
	slot = source_of(ctx);
	ctl = bpf_map_lookup_elem(&source_ctls, &slot);
	/* In interrupt mode the kernel is left alone: one look-up, nothing is parsed or counted. */
	if (!ctl || (!sheds(ctl) && !ctl->marks))
		return XDP_PASS;
	stat = bpf_map_lookup_elem(&rx_stats, &slot);
	guard = bpf_map_lookup_elem(&guard_ctl, &zero);
	if (!stat || !guard || (!sheds(ctl) && stat->marked >= ctl->marks))
		return XDP_PASS;
	key = guard->rules & 1;
	rules = bpf_map_lookup_elem(&class_rules, &key);
	if (!rules)
		return XDP_PASS;

	/* The class comes before any level: what protects a host must not hang on what a consumer does. */
	if (!weir_parse_plain(data, end, rules->addresses, &view))
		weir_rx_parse(ctx, rules->addresses, &view);
	protector = weir_none_protects(rules, &view) ? 0 : weir_rx_protector(rules, &view);
	if (!sheds(ctl)) {
		if (!protector && !for_others(data, end, ctl))
			marks(data, end, &view, ctl, stat, slot);
		return XDP_PASS;
	}
	if (protector && ctl->mode == WEIR_MODE_POLL && !within_bound(ctl, rules, protector - 1)) {
		stat->over_bound++;
		stat->over_rule = protector;
		protector = 0;
	}
	segment = view.lane == WEIR_LANE_TCP &&
		  (view.key[2] & (WEIR_F_ESTABLISHED | WEIR_F_FRAGMENT)) == WEIR_F_ESTABLISHED;
	stat->tcp += segment;
	if (protector) {
		stat->protected++;
		return XDP_PASS;
	}
	stat->normal++;
	if (for_others(data, end, ctl)) {
		stat->guests += segment;
		/* What is for a group is for sockets of this host too, as far as is known. */
		stat->opaque += !segment && !to_group(data, end);
		return XDP_PASS;
	}
	if (marks(data, end, &view, ctl, stat, slot)) {
		/* It is the handle's now, and nobody else's. */
		stat->known++;
		return XDP_PASS;
	}
	if (guard->transit && in_transit(data, end, &view, ctl)) {
		/* Which of them the filter is asked about is not known here: counted, never dropped. */
		stat->known++;
		key = guard->transit - 1;
		consumer_ctl = bpf_map_lookup_elem(&consumer_ctls, &key);
		if (consumer_ctl && consumer_ctl->inhibited)
			stat->to_full++;
		return XDP_PASS;
	}
	/* A fragment may be part of a datagram that is protected, or for somebody else: no consumer's level sheds it. */
	if (guard->consumers && view.lane == WEIR_LANE_UDP &&
	    (view.key[2] & (WEIR_F_PORTS | WEIR_F_FRAGMENT)) == WEIR_F_PORTS) {
		key = guard->behind ? weir_rx_behind(ctx, &view, slot) : WEIR_CONSUMERS;
		behind = key != WEIR_CONSUMERS;
		if (!behind)
			key = consumer_of(ctx, &view);
		consumer_ctl = bpf_map_lookup_elem(&consumer_ctls, &key);
		consumer = bpf_map_lookup_elem(&consumer_stats, &key);
		/* Another host's datagram to the same port is not its. */
		if (consumer_ctl && consumer && consumer_ctl->sk &&
		    (behind || ((!in_transit(data, end, &view, ctl) || weir_rx_ours(ctx, &view, slot)) &&
				(!guard->by_end || weir_rx_ends(ctx, &view, key))))) {
			fit = consumer_ctl->inhibited && !feeds(poller_of(ctl)) ?
			      weir_rx_fair(ctx, &view, slot, key, WEIR_FAIR_KEPT) :
			      fits(ctx, &view, slot, key, consumer_ctl, consumer, guard->slices, poller_of(ctl),
				   guard->paused);
			stat->innocents += !!(fit & WEIR_FAIR_INNOCENT);
			fit &= ~WEIR_FAIR_INNOCENT;
			stat->to_full += consumer_ctl->inhibited || fit != WEIR_FAIR_PASS;
			if (fit == WEIR_FAIR_PASS || !consumer_ctl->shed || !in_force(ctl, slot)) {
				whose_is = weir_rx_passes(ctx, &view);
				if (whose_is == WEIR_BEYOND && in_force(ctl, slot) && !weir_rx_connected(ctx, &view)) {
					stat->nobody++;
					stat->shed++;
					return XDP_DROP;
				}
				/* Where a part of it alone passes, others may be among it. */
				stat->known += whose_is != WEIR_WITHIN;
				return XDP_PASS;
			}
			stat->over_share += fit == WEIR_FAIR_OVER;
			stat->shed++;
			shed = bpf_map_lookup_elem(&consumer_sheds, &slot);
			if (shed && key < WEIR_CONSUMERS)
				shed->of[consumer_index(key)]++;
			return XDP_DROP;
		}
	}
	trickle = weir_trickle(stat->normal);
	if (guard->nobody_ticks && (!guard->by_flow || refused_any()) && in_force(ctl, slot)) {
		whose_is = whose(ctx, &view, guard, ctl, slot, trickle);
		/* A trickle passes that says whether what is known still holds: it is nobody else's. */
		if (whose_is == WEIR_NOBODYS && trickle) {
			stat->known++;
			return XDP_PASS;
		}
		if (whose_is == WEIR_NOBODYS || whose_is == WEIR_BEYOND) {
			/* A flood of segments without a connection is no bulk transfer. */
			stat->tcp -= segment;
			stat->nobody++;
			stat->shed++;
			return XDP_DROP;
		}
		if (whose_is == WEIR_WITHIN)
			return XDP_PASS;
	}
	tcp = rx_tcp(ctx, &view, slot, ctl, guard);
	if (tcp != RX_TCP_PASSES) {
		stat->tcp -= tcp == RX_TCP_NOBODY;
		if (trickle) {
			stat->known++;
			return XDP_PASS;
		}
		stat->syns += tcp == RX_TCP_SYN;
		stat->nobody += tcp == RX_TCP_NOBODY;
		stat->shed++;
		return XDP_DROP;
	}
	if (!(view.key[2] & WEIR_F_FRAGMENT)) {
		stat->unknown += view.lane == WEIR_LANE_UDP;
		stat->opaque += view.lane == WEIR_LANE_OTHER || view.lane == WEIR_LANE_LINK;
		return XDP_PASS;
	}
	if (ctl->mode == WEIR_MODE_POLL && in_force(ctl, slot) && !fragment_fits(slot, poller_of(ctl))) {
		stat->cut++;
		stat->shed++;
		return XDP_DROP;
	}
	stat->fragments++;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
