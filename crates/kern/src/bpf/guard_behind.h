/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the guard learns of consumers behind the host, see behind.h: from packets that leave it and that a guarded interface brought,
 * and from those that sockets of other network namespaces refuse. Neither program is attached unless a source is polled or sheds.
 *
 * Cost: two reads for each packet that leaves, and a look-up if it was not made here and leaves by a virtual device; for a datagram
 * of a guarded interface that leaves by a veth six reads of it and its device and one look-up, and while a consumer behind the host is
 * known three more look-ups and four reads of the connection's entry.
 */
#ifndef WEIR_GUARD_BEHIND_H
#define WEIR_GUARD_BEHIND_H

union nf_inet_addr {
	__u32 all[4];
} __attribute__((preserve_access_index));

union nf_conntrack_man_proto {
	__u16 all;
} __attribute__((preserve_access_index));

struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__u16 all;
		} __attribute__((preserve_access_index)) u;
	} __attribute__((preserve_access_index)) dst;
} __attribute__((preserve_access_index));

struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} __attribute__((preserve_access_index));

struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
} __attribute__((preserve_access_index));

/* How a packet belongs to its connection, see GATE_CT_INFO: from REPLY on it goes back. */
#define BEHIND_CT_REPLY 3
#define BEHIND_NO_HEADER 0xffff

struct { /* what guarded interfaces brought */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_INNERS);
	__type(key, __u32);
	__type(value, struct weir_carried);
} inners SEC(".maps");

struct { /* inner destination -> consumer; user space alone writes it */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_CONSUMERS);
	__type(key, __u64);
	__type(value, __u32);
} inner_consumers SEC(".maps");

/* Where a packet ends that goes `to` an address and port of this namespace: others may have the same address. Never 0. */
static __always_inline __u64 behind_inner_at(__u64 to, __u32 netns)
{
	return weir_mix64(to, netns) | 1ULL << 63;
}

/*
 * The network namespace at the other end of the veth by which a packet leaves; 0 for another device. The word of the kernel, not that
 * of the packet: whoever makes a namespace may give it any address, and send to himself there what he likes.
 */
static __always_inline __u32 behind_netns(struct sk_buff *skb)
{
	struct net_device *dev = NULL, *peer = NULL;
	char kind[8] = {};

	bpf_core_read(&dev, sizeof(dev), &skb->dev);
	bpf_probe_read_kernel_str(kind, sizeof(kind), BPF_CORE_READ(dev, rtnl_link_ops, kind));
	if (kind[0] != 'v' || kind[1] != 'e' || kind[2] != 't' || kind[3] != 'h' || kind[4])
		return 0;
	/* What a veth keeps begins with its peer, and lies behind the device, aligned. */
	if (bpf_probe_read_kernel(&peer, sizeof(peer),
				  (char *)dev + ((bpf_core_type_size(struct net_device) + 31) & ~31ULL)) ||
	    !peer || BPF_CORE_READ(peer, rtnl_link_ops) != BPF_CORE_READ(dev, rtnl_link_ops))
		return 0;
	return BPF_CORE_READ(peer, nd_net.net, ns.inum);
}

/* A frame for a group ends in several namespaces. */
static __always_inline _Bool behind_group(struct sk_buff *skb)
{
	__u8 first = 1;

	if (skb->mac_header != BEHIND_NO_HEADER)
		bpf_probe_read_kernel(&first, sizeof(first), skb->head + skb->mac_header);
	return first & 1;
}

/* The hash of where a datagram has gone that a socket refused, but for namespace and socket; 0 for anything else. */
static __always_inline __u64 behind_refused(struct sk_buff *skb, __u32 *address)
{
	struct weir_guard_ctl *guard = the_guard();
	struct gate_flow flow = {};
	_Bool whole;

	/* Nobody learns what is carried, nor asks where it has ended. */
	if (!guard || !(guard->nobody_ticks | guard->by_end) || !gate_read(skb, &flow, &whole) || !whole || flow.tcp)
		return 0;
	*address = flow.words == 1 ? flow.target[0] : 0;
	return gate_destination_hash(&flow);
}

/* The inner destination refused a datagram. True if a guarded interface has brought it, as far as one can tell. */
static __always_inline _Bool behind_claims(__u64 inner)
{
	__u32 place = inner & (WEIR_INNERS - 1), zero = 0;
	struct weir_carried *carried = bpf_map_lookup_elem(&inners, &place);
	struct weir_gate_stat *stat = bpf_map_lookup_elem(&gate_stats, &zero);

	if (!carried || !stat ||
	    !weir_claim(carried, inner >> 32, bpf_ktime_get_ns() >> WEIR_TICK_SHIFT))
		return 0;
	__sync_fetch_and_add(&stat->evidence, 1);
	return 1;
}

/* How the packet came in, before anything was translated: the connection's entry has both directions. False if that is not told. */
static __always_inline _Bool behind_came(struct sk_buff *skb, const struct gate_flow *flow, struct gate_flow *came)
{
	const __u32 bytes = sizeof(came->source);
	unsigned long word;
	struct nf_conn *ct;
	__u16 source = 0, target = 0;
	int failed;

	*came = *flow;
	if (!bpf_core_field_exists(skb->_nfct))
		return 1;
	word = skb->_nfct;
	ct = (struct nf_conn *)(word & ~GATE_CT_INFO);
	if (!ct)
		return 1;
	if (!bpf_core_field_exists(ct->tuplehash))
		return 0;
	if ((word & GATE_CT_INFO) >= BEHIND_CT_REPLY) {
		failed = bpf_core_read(came->source, bytes, &ct->tuplehash[1].tuple.src.u3) ||
			 bpf_core_read(came->target, bytes, &ct->tuplehash[1].tuple.dst.u3) ||
			 bpf_core_read(&source, sizeof(source), &ct->tuplehash[1].tuple.src.u.all) ||
			 bpf_core_read(&target, sizeof(target), &ct->tuplehash[1].tuple.dst.u.all);
	} else {
		failed = bpf_core_read(came->source, bytes, &ct->tuplehash[0].tuple.src.u3) ||
			 bpf_core_read(came->target, bytes, &ct->tuplehash[0].tuple.dst.u3) ||
			 bpf_core_read(&source, sizeof(source), &ct->tuplehash[0].tuple.src.u.all) ||
			 bpf_core_read(&target, sizeof(target), &ct->tuplehash[0].tuple.dst.u.all);
	}
	came->ports = (__u32)bpf_ntohs(source) << 16 | bpf_ntohs(target);
	return !failed;
}

/* A datagram leaves the host. If a guarded interface brought it and it leaves by a veth, it is for somebody behind the host. */
static __always_inline void behind_carry(struct sk_buff *skb, const struct gate_flow *flow, __u32 now)
{
	__u32 by = skb->skb_iif, place, zero = 0, consumer, netns, *slot;
	struct weir_guard_ctl *guard;
	struct weir_carried *carried;
	struct weir_gate_stat *stat;
	struct weir_outer *outer;
	struct weir_route *route;
	struct gate_flow came;
	__u64 inner, hash;

	if (!by || !skb->dev->rtnl_link_ops || !bpf_map_lookup_elem(&guarded_interfaces, &by))
		return;
	netns = behind_netns(skb);
	if (!netns || netns == netns_inode || behind_group(skb))
		return;
	stat = bpf_map_lookup_elem(&gate_stats, &zero);
	inner = behind_inner_at(gate_destination_hash(flow), netns);
	place = inner & (WEIR_INNERS - 1);
	carried = bpf_map_lookup_elem(&inners, &place);
	if (!carried || !stat)
		return;
	if (!weir_carry(carried, inner >> 32, now))
		__sync_fetch_and_add(&stat->crowded, 1);
	guard = the_guard();
	if (!guard || !guard->behind)
		return;
	slot = bpf_map_lookup_elem(&inner_consumers, &inner);
	consumer = slot ? *slot + 1 : 0;
	if (!behind_came(skb, flow, &came)) {
		__sync_fetch_and_add(&stat->untranslated, 1);
		return;
	}
	hash = gate_destination_hash(&came);
	place = hash & (WEIR_OUTERS - 1);
	outer = bpf_map_lookup_elem(&outers, &place);
	if (!outer || !weir_outer_learn(outer, hash >> 32, inner >> 32, consumer, now)) {
		if (consumer)
			__sync_fetch_and_add(&stat->crowded, 1);
		return;
	}
	hash = gate_flow_hash(&came);
	place = hash & (WEIR_ROUTES - 1);
	route = bpf_map_lookup_elem(&routes, &place);
	if (route)
		weir_route_learn(route, hash >> 32, inner >> 32, consumer, now);
}

#endif
