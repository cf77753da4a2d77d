// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The XDP program of a guarded interface: counts what arrives for consumers that are inhibited, drops it when told
 * to, and marks the handle.
 *
 * Marking: a socket learns a NAPI's id only from a packet that came through that NAPI. Without a peer's help the
 * program rewrites one UDP or TCP frame per source into a datagram for the handle's port. That frame is counted as
 * `marked`. The poller asks for it at takeover, when the ring overflows anyway.
 *
 * Work per frame: one array look-up in interrupt mode; three in poll mode; while a consumer is inhibited
 * at most one Ethernet, one VLAN, one IP and one transport header are read, with five look-ups.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include "guard.h"
#include "guard_maps.h"

#define IP_OFFSET_MASK 0x1fff
#define IP_MORE_FRAGMENTS 0x2000
#define PROTO_TCP 6
#define PROTO_UDP 17

/* First source of this interface; queue q is source first_source + q. */
const volatile __u32 first_source = 0;
const volatile __u32 sources = 1;

struct vlan_header {
	__be16 tci;
	__be16 proto;
};

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* RFC 1624: the checksum after one 16-bit word changed. */
static __always_inline __u16 csum_replace(__u16 check, __u16 from, __u16 to)
{
	return ~fold((__u16)~check + (__u32)(__u16)~from + to);
}

/* Turns an IPv4 segment into a datagram for `port`; a zero checksum means "none" there (RFC 768). */
static __always_inline void mark_v4(struct iphdr *ip, struct udphdr *udp, __u16 port)
{
	if (ip->protocol != PROTO_UDP) {
		__u16 from = bpf_htons((ip->ttl << 8) | ip->protocol);
		__u16 to = bpf_htons((ip->ttl << 8) | PROTO_UDP);

		ip->check = csum_replace(ip->check, from, to);
		ip->protocol = PROTO_UDP;
		udp->len = bpf_htons(bpf_ntohs(ip->tot_len) - sizeof(*ip));
	}
	udp->dest = bpf_htons(port);
	udp->check = 0;
}

static __always_inline void mark_v6(struct udphdr *udp, __u16 port)
{
	__u16 check = csum_replace(udp->check, udp->dest, bpf_htons(port));

	udp->check = check ? check : 0xffff;
	udp->dest = bpf_htons(port);
}

SEC("xdp")
int weir_rx(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 queue = ctx->rx_queue_index, slot, key, zero = 0;
	struct weir_guard_ctl *guard;
	struct weir_consumer_stat *consumer;
	struct weir_consumer_ctl *consumer_ctl;
	struct weir_source_ctl *ctl;
	struct weir_rx_stat *stat;
	struct ethhdr *eth = data;
	struct ipv6hdr *ip6 = NULL;
	struct iphdr *ip = NULL;
	struct udphdr *udp;
	__u8 proto, *index;
	void *cursor;
	__u16 type;

	if (queue >= sources)
		return XDP_PASS;
	slot = first_source + queue;
	ctl = bpf_map_lookup_elem(&source_ctls, &slot);
	/* In interrupt mode the kernel is left alone: one look-up, nothing is parsed or counted. */
	if (!ctl || (ctl->mode != WEIR_MODE_POLL && !ctl->marks))
		return XDP_PASS;
	stat = bpf_map_lookup_elem(&rx_stats, &slot);
	if (!stat)
		return XDP_PASS;
	stat->frames++;
	/* While no consumer is inhibited there is nothing to shed: nothing is parsed either. */
	guard = bpf_map_lookup_elem(&guard_ctl, &zero);
	if (!ctl->marks && guard && !guard->inhibited)
		return XDP_PASS;

	cursor = eth + 1;
	if (cursor > end)
		return XDP_PASS;
	type = eth->h_proto;
	if (type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD)) {
		struct vlan_header *vlan = cursor;

		cursor = vlan + 1;
		if (cursor > end)
			return XDP_PASS;
		type = vlan->proto;
	}
	if (type == bpf_htons(ETH_P_IP)) {
		ip = cursor;
		cursor = ip + 1;
		if (cursor > end || ip->ihl != 5 ||
		    (ip->frag_off & bpf_htons(IP_OFFSET_MASK | IP_MORE_FRAGMENTS)))
			return XDP_PASS;
		proto = ip->protocol;
	} else if (type == bpf_htons(ETH_P_IPV6)) {
		ip6 = cursor;
		cursor = ip6 + 1;
		if (cursor > end)
			return XDP_PASS;
		proto = ip6->nexthdr;
	} else {
		return XDP_PASS;
	}
	udp = cursor;
	if ((void *)(udp + 1) > end)
		return XDP_PASS;

	if (stat->marked < ctl->marks) {
		if (ip && (proto == PROTO_UDP || proto == PROTO_TCP)) {
			mark_v4(ip, udp, ctl->mark_port);
			stat->marked++;
			return XDP_PASS;
		}
		if (ip6 && proto == PROTO_UDP && udp->check) {
			mark_v6(udp, ctl->mark_port);
			stat->marked++;
			return XDP_PASS;
		}
	}
	if (proto != PROTO_UDP)
		return XDP_PASS;
	key = bpf_ntohs(udp->dest);
	index = bpf_map_lookup_elem(&port_consumers, &key);
	if (!index || !*index)
		return XDP_PASS;
	key = *index - 1;
	consumer_ctl = bpf_map_lookup_elem(&consumer_ctls, &key);
	if (!consumer_ctl || !consumer_ctl->inhibited)
		return XDP_PASS;
	stat->to_full++;
	if (!consumer_ctl->shed)
		return XDP_PASS;
	stat->shed++;
	consumer = bpf_map_lookup_elem(&consumer_stats, &key);
	if (consumer)
		__sync_fetch_and_add(&consumer->shed, 1); /* several queues may feed one consumer */
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
