/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the gate learns, and what ends it. Attached only while a source is polled or sheds.
 *
 * Cost: weir_nobody one comparison per packet that the kernel drops, and two reads of the packet for those that nobody took;
 * weir_left three reads per packet that leaves, one write more where places in the table of connections count, and what guard_behind.h
 * says;
 * weir_bound one write per bind.
 */
#ifndef WEIR_GUARD_GATE_H
#define WEIR_GUARD_GATE_H

#include "guard_flow.h"

#define GATE_IPV6_BYTES 40
#define GATE_TCP_RST 4
/* In the word of a packet that names its connection: how the packet belongs to it. */
#define GATE_CT_INFO 7UL

/* The kernel's number of a reason is put in by the loader; one that this kernel does not have is none. */
#define GATE_IS(reason, name)                                                                  \
	(bpf_core_enum_value_exists(enum skb_drop_reason, SKB_DROP_REASON_##name) &&           \
	 (reason) == bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_##name))

/* The packet's device is a guarded one of this namespace, or stands on one. */
static __always_inline _Bool from_guarded(struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;
	__u32 index = dev->ifindex;

	return dev->nd_net.net->ns.inum == netns_inode && bpf_map_lookup_elem(&guarded_interfaces, &index);
}

/* True if it is an IP packet, whose addresses are there then; `whole` if its ports are too: UDP or TCP without extension headers, and
 * no later fragment. A request that leaves in fragments tells its port by the first one. */
static __always_inline _Bool gate_read(struct sk_buff *skb, struct gate_flow *flow, _Bool *whole)
{
	unsigned char *head = skb->head;
	__u8 ip[GATE_IPV6_BYTES] = {};
	__u8 protocol, ports[4];

	*whole = 0;
	if (bpf_probe_read_kernel(ip, sizeof(ip), head + skb->network_header))
		return 0;
	if (ip[0] >> 4 == 4) {
		flow->words = 1;
		__builtin_memcpy(flow->source, ip + 12, 4);
		__builtin_memcpy(flow->target, ip + 16, 4);
		protocol = ip[9];
		if (((ip[6] & 0x1f) | ip[7]) != 0)
			return 1;
	} else if (ip[0] >> 4 == 6) {
		flow->words = 4;
		__builtin_memcpy(flow->source, ip + 8, 16);
		__builtin_memcpy(flow->target, ip + 24, 16);
		protocol = ip[6];
	} else {
		return 0;
	}
	if (protocol != WEIR_PROTO_UDP && protocol != WEIR_PROTO_TCP)
		return 1;
	if (bpf_probe_read_kernel(ports, sizeof(ports), head + skb->transport_header))
		return 1;
	flow->tcp = protocol == WEIR_PROTO_TCP;
	flow->ports = (__u32)ports[0] << 24 | ports[1] << 16 | ports[2] << 8 | ports[3];
	*whole = 1;
	return 1;
}

/* True unless the packet came by a source whose frames pass uncounted, in interrupt mode: of its flow nobody knows how many were taken. */
static __always_inline _Bool is_judged(struct sk_buff *skb)
{
	__u32 id = skb->napi_id, *slot = id ? bpf_map_lookup_elem(&napi_slots, &id) : NULL;
	struct weir_source_ctl *ctl = slot ? bpf_map_lookup_elem(&source_ctls, slot) : NULL;

	return !ctl || ctl->mode == WEIR_MODE_POLL || ctl->mode == WEIR_MODE_SHED;
}

/* One more refusal. */
static __always_inline void gate_refuse(struct sk_buff *skb, __u64 hash, __u32 now, struct weir_gate_stat *stat)
{
	__u32 place = hash & (WEIR_REFUSALS - 1), mark = hash >> 32;
	struct weir_refusal *refusal = bpf_map_lookup_elem(&refusals, &place);

	if (!refusal || !is_judged(skb))
		return;
	if (weir_refuse(refusal, mark, now))
		__sync_fetch_and_add(&stat->flows, 1);
	if (stat->refused != now)
		stat->refused = now;
}

/* One more datagram for a destination was refused, whoever sent it: what is learnt of nobody alone still costs what the kernel does before
 * it refuses it. */
static __always_inline void gate_refuse_for(struct sk_buff *skb, __u64 hash, __u32 now, struct weir_gate_stat *stat)
{
	__u32 place = hash & (WEIR_DESTINATIONS - 1);
	struct weir_refusal *refusal = bpf_map_lookup_elem(&destinations, &place);

	if (!refusal || !is_judged(skb))
		return;
	if (!weir_refuse_for(refusal, hash >> 32, now))
		gate_unplaced();
	if (stat->refused != now)
		stat->refused = now;
}

/*
 * A packet that nobody took. The reasons are a closed list: no socket, refused by a filter, an address that is not this host's.
 * What any other drop says hangs on the packet, not on where it was to go.
 */
SEC("tp_btf/kfree_skb")
int BPF_PROG(weir_nobody, struct sk_buff *skb, void *location, enum skb_drop_reason reason)
{
	struct weir_guard_ctl *guard;
	struct gate_flow flow = {};
	struct weir_gate_stat *stat;
	struct weir_port *port;
	__u32 key, now, learns, zero = 0;
	_Bool whole, placeless;
	__u64 hash;

	if (!GATE_IS(reason, NO_SOCKET) && !GATE_IS(reason, NETFILTER_DROP) && !GATE_IS(reason, IP_INADDRERRORS))
		return 0;
	guard = the_guard();
	/* What nothing judges by is not learnt. */
	if (!guard || !guard->nobody_ticks || !guard->slices || !from_guarded(skb) || !gate_read(skb, &flow, &whole))
		return 0;
	stat = bpf_map_lookup_elem(&gate_stats, &zero);
	if (!stat)
		return 0;
	now = bpf_ktime_get_ns() >> WEIR_TICK_SHIFT;
	if (GATE_IS(reason, IP_INADDRERRORS)) {
		/* Of IPv6 other drops have this reason too, of packets for addresses of this host. */
		if (flow.words == 1)
			gate_refuse(skb, gate_target_hash(flow.target[0]), now, stat);
		return 0;
	}
	if (!whole)
		return 0;
	key = flow.tcp << 16 | (flow.ports & 0xffff);
	port = bpf_map_lookup_elem(&ports, &key);
	if (!port)
		return 0;
	if (GATE_IS(reason, NO_SOCKET) && !guard->by_flow) {
		learns = weir_learns(port, gate_used(key), guard->listed[flow.tcp & 1], now, WEIR_LISTED_TICKS);
		if (!learns) {
			__sync_fetch_and_add(&stat->spoken_for, 1);
			/* Of segments the search for their connection tells in any case. */
			if (flow.tcp)
				return 0;
		}
		if (weir_learn(port, gate_address(flow.target, flow.words), now) && learns)
			__sync_fetch_and_add(&stat->ports, 1);
		return 0;
	}
	placeless = GATE_IS(reason, NETFILTER_DROP) && guard->table && bpf_core_field_exists(skb->_nfct) &&
		    !(skb->_nfct & ~GATE_CT_INFO);
	if (!flow.tcp && (guard->table == WEIR_TABLE_FULL || !gate_by_port(guard, key, now))) {
		hash = gate_destination_hash(&flow);
		gate_refuse_for(skb, hash, now, stat);
		/* The table itself refuses before the routes. */
		if (placeless && guard->table == WEIR_TABLE_FULL && !skb->_skb_refdst)
			gate_refuse_for(skb, gate_want_hash(hash), now, stat);
	}
	/* The table of connections drops what it has no place for as a filter does; what a rule drops it has seen before. And what is
	 * dropped behind the routes without a connection may be invalid (a bad checksum, out of the window): whoever made it up may have
	 * used the addresses of a flow that is fine. Before the routes a blocklist drops what no table has seen, unless there are
	 * rules that may drop what is invalid. */
	if (placeless && (guard->table >= WEIR_TABLE_SILENT || skb->_skb_refdst))
		return 0;
	/* What a translation or a filter does with another flow says nothing of one that somebody may take. */
	gate_refuse(skb, gate_by_port(guard, key, now) ? gate_destination_hash(&flow) : gate_flow_hash(&flow), now, stat);
	return 0;
}

#include "guard_behind.h"

/* True if a packet that leaves tells anything. Where only the very flow that was refused is nobody's it ends what was refused
 * lately, and says who is behind this host while sockets there lose, or are tracked. Else it says nothing: a router is asked this
 * for each packet that it forwards. */
static __always_inline _Bool gate_hears(const struct weir_guard_ctl *guard)
{
	struct weir_gate_stat *stat;
	__u32 zero = 0, now;

	if (!guard->by_flow || guard->behind)
		return 1;
	stat = bpf_map_lookup_elem(&gate_stats, &zero);
	if (!stat || !(stat->refused | stat->elsewhere))
		return 0;
	now = bpf_ktime_get_ns() >> WEIR_TICK_SHIFT;
	return weir_recent(stat->refused, now, guard->nobody_ticks) ||
	       weir_recent(stat->elsewhere, now, WEIR_ELSEWHERE_TICKS);
}

/* A datagram has left while places in the table of connections count: what comes back has one. */
static __always_inline void gate_placed(const struct gate_flow *left, __u32 now)
{
	struct gate_flow back = { .words = left->words, .ports = left->ports << 16 | left->ports >> 16 };
	struct weir_end *end;
	__u32 place;
	__u64 hash;

	__builtin_memcpy(back.source, left->target, sizeof(back.source));
	__builtin_memcpy(back.target, left->source, sizeof(back.target));
	hash = gate_flow_hash(&back);
	place = hash & (WEIR_PLACED - 1);
	end = bpf_map_lookup_elem(&placed, &place);
	if (!end)
		return;
	if (weir_placed_other(end, hash >> 32, now))
		gate_unplaced();
	weir_ended(end, hash >> 32, now);
}

/* Something leaves from a port: whoever sent it waits for the answer. */
SEC("tp_btf/net_dev_queue")
int BPF_PROG(weir_left, struct sk_buff *skb)
{
	struct gate_flow flow = {};
	struct weir_guard_ctl *guard = the_guard();
	struct weir_port *port;
	__u32 key, now;
	_Bool whole;
	__u8 flags;

	if (!guard || !gate_hears(guard))
		return 0;
	/* By whichever interface: the answer may come by another one. */
	if (skb->dev->nd_net.net->ns.inum != netns_inode || !gate_read(skb, &flow, &whole) || !whole)
		return 0;
	/* A reset that answers what is nobody's is sent by no socket. */
	if (flow.tcp && (bpf_probe_read_kernel(&flags, sizeof(flags), skb->head + skb->transport_header + 13) ||
			 flags & GATE_TCP_RST))
		return 0;
	key = flow.tcp << 16 | flow.ports >> 16;
	port = bpf_map_lookup_elem(&ports, &key);
	now = bpf_ktime_get_ns() >> WEIR_TICK_SHIFT;
	if (port && port->left != now)
		port->left = now;
	if (!flow.tcp && (guard->by_flow || guard->table == WEIR_TABLE_FULL))
		gate_placed(&flow, now);
	if (!flow.tcp)
		behind_carry(skb, &flow, now);
	return 0;
}

/* A socket has a port from here on. One of another namespace counts only where packets may go there: whoever makes a namespace of his
 * own may bind there what he likes. */
static __always_inline int bound_to(struct bpf_sock *sk)
{
	__u32 key = (sk->protocol == WEIR_PROTO_TCP) << 16 | (sk->src_port & 0xffff);
	struct weir_guard_ctl *guard = the_guard();
	struct weir_port *port;

	if (netns_cookie && guard && !guard->by_end && bpf_get_netns_cookie(sk) != netns_cookie)
		return 1;
	port = bpf_map_lookup_elem(&ports, &key);
	if (port)
		port->left = port->bound = bpf_ktime_get_ns() >> WEIR_TICK_SHIFT;
	return 1;
}

SEC("cgroup/post_bind4")
int weir_bound4(struct bpf_sock *sk)
{
	return bound_to(sk);
}

SEC("cgroup/post_bind6")
int weir_bound6(struct bpf_sock *sk)
{
	return bound_to(sk);
}

#endif
