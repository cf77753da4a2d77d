/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Marks a handle where no datagram can be steered to it: one frame becomes a datagram for the handle's port (see guard::marking). Each
 * costs its sender one frame, so first a bare TCP acknowledgement is looked for, which nobody misses.
 */

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

/* Turns an IPv4 segment into a datagram for the handle; a zero checksum means "none" there (RFC 768). */
static __always_inline void mark_v4(struct iphdr *ip, struct udphdr *udp, const struct weir_source_ctl *ctl)
{
	__u16 *address = (__u16 *)&ip->daddr;

	if (ip->protocol != WEIR_PROTO_UDP) {
		__u16 from = bpf_htons((ip->ttl << 8) | ip->protocol);
		__u16 to = bpf_htons((ip->ttl << 8) | WEIR_PROTO_UDP);

		ip->check = csum_replace(ip->check, from, to);
		ip->protocol = WEIR_PROTO_UDP;
		udp->len = bpf_htons(bpf_ntohs(ip->tot_len) - sizeof(*ip));
	}
	if (ctl->mark_v4[0] | ctl->mark_v4[1]) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			ip->check = csum_replace(ip->check, address[i], ctl->mark_v4[i]);
			address[i] = ctl->mark_v4[i];
		}
	}
	udp->dest = bpf_htons(ctl->mark_port);
	udp->check = 0;
}

static __always_inline void mark_v6(struct ipv6hdr *ip6, struct udphdr *udp, const struct weir_source_ctl *ctl)
{
	__u16 *address = (__u16 *)&ip6->daddr;
	__u16 check = csum_replace(udp->check, udp->dest, bpf_htons(ctl->mark_port));

	if (ctl->mark_v6[0]) {
#pragma unroll
		for (int i = 0; i < 8; i++) {
			check = csum_replace(check, address[i], ctl->mark_v6[i]);
			address[i] = ctl->mark_v6[i];
		}
	}
	udp->check = check ? check : 0xffff;
	udp->dest = bpf_htons(ctl->mark_port);
}

/* True if the frame was made a datagram for the handle: whole, without options, UDP or TCP over IPv4, UDP over IPv6. */
static __always_inline int mark(void *data, void *end, const struct weir_view *view,
				const struct weir_source_ctl *ctl)
{
	__u32 l3 = view->l3;
	struct ipv6hdr *ip6;
	struct udphdr *udp;

	if (!(view->key[2] & WEIR_F_PORTS) || (view->key[2] & WEIR_F_FRAGMENT) || l3 > L3_MAX)
		return 0;
	if (view->key[2] & WEIR_F_V4) {
		struct iphdr *ip = data + l3;

		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end || ip->ihl != 5)
			return 0;
		mark_v4(ip, udp, ctl);
		return 1;
	}
	ip6 = data + l3;
	udp = (void *)(ip6 + 1);
	if ((void *)(udp + 1) > end || view->l4 != l3 + sizeof(*ip6) ||
	    view->lane != WEIR_LANE_UDP || !udp->check)
		return 0;
	mark_v6(ip6, udp, ctl);
	return 1;
}

/* True if the frame is a TCP segment over IPv4 without data, options of IP and flags but ACK: the next one says it all. */
static __always_inline int bare_ack(void *data, void *end, const struct weir_view *view)
{
	__u32 l3 = view->l3;
	struct tcphdr *tcp;
	struct iphdr *ip;

	if (view->lane != WEIR_LANE_TCP || !(view->key[2] & WEIR_F_V4) || l3 > L3_MAX)
		return 0;
	ip = data + l3;
	tcp = (void *)(ip + 1);
	return (void *)(tcp + 1) <= end && ((__u8 *)tcp)[13] == 0x10 &&
	       bpf_ntohs(ip->tot_len) == sizeof(*ip) + 4 * tcp->doff;
}

/* True if this frame was made the handle's; one that somebody would miss only after `spare` others. */
static __always_inline int marks(void *data, void *end, const struct weir_view *view,
				 const struct weir_source_ctl *ctl, struct weir_rx_stat *stat, __u32 slot)
{
	if (stat->marked >= ctl->marks)
		return 0;
	if (stat->spared < ctl->spare && !bare_ack(data, end, view)) {
		stat->spared++;
		return 0;
	}
	if (!in_force(ctl, slot) || !mark(data, end, view, ctl))
		return 0;
	stat->marked++;
	return 1;
}
