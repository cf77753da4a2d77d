/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The gate for TCP at a port that is open, a part of rx.bpf.c; what is shed is decided in syns.h.
 *
 * Cost: of a SYN one look-up and the kernel's search for its socket, of one beyond its listener's share the look-up alone. While the
 * budget is short, or thousands of segments are refused, that search of one of WEIR_SEGMENTS_SAMPLE other segments, of all while some
 * are refused; where it finds no connection, the kernel's check for a cookie too.
 */
#ifndef WEIR_RX_TCP_H
#define WEIR_RX_TCP_H

#include "syns.h"

/* 1 if this kernel tells whether an acknowledgement is of one of its cookies (Linux 6.0 with CONFIG_SYN_COOKIES). */
const volatile __u32 cookies = 0;

enum rx_tcp { RX_TCP_PASSES = 0, RX_TCP_SYN = 1, RX_TCP_NOBODY = 2 };

/* What the kernel's own search finds for this frame: enum weir_taker. Apart, for its tuple: three calls have 512 bytes of stack, and to
 * the verifier of 6.1 each has a multiple of 32. */
__noinline __u32 weir_rx_taker(struct xdp_md *ctx, const struct weir_view *view)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 size, found = WEIR_TAKER_OTHER;
	struct bpf_sock_tuple tuple = {};
	struct sock_reuseport *group;
	void *chooser = NULL;
	struct bpf_sock *sk;
	struct sock *tcp;

	size = view ? rx_tuple(data, end, view, &tuple) : 0;
	if (!size)
		return found;
	sk = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return WEIR_TAKER_NONE;
	if (sk->state == BPF_TCP_LISTEN) {
		found = WEIR_TAKER_LISTENS;
		tcp = (struct sock *)bpf_skc_to_tcp_sock(sk);
		if (tcp) {
			group = tcp->sk_reuseport_cb;
			if (group)
				bpf_core_read(&chooser, sizeof(chooser), &group->prog);
			/* A program that chooses among several listeners was not asked: this one may not get it. */
			if (!chooser && weir_accept_full(tcp->sk_ack_backlog, tcp->sk_max_ack_backlog))
				found = WEIR_TAKER_FULL;
		}
	}
	bpf_sk_release(sk);
	return found;
}

/* True if this SYN is shed: beyond the share of its listener, or for one that is full, which only counts if the search is `exact`. A
 * port of this host without a socket has a share too: its listener may be behind a translation, and a closed one costs an answer. */
__noinline int weir_rx_syn(struct xdp_md *ctx, const struct weir_view *view, __u32 slot, __u32 admit, __u32 exact)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 now = coarse_tick(slot), key, set, way, found;
	struct weir_source_stat *source;
	struct gate_flow flow = {};
	struct weir_listener *of;
	struct weir_syns *all;

	if (!view || !rx_flow(data, end, view, &flow))
		return 0;
	all = bpf_map_lookup_elem(&syns, &slot);
	source = bpf_map_lookup_elem(&source_stats, &slot);
	if (!all || !source)
		return 0;
	/* Its lowest bit is for the choice of no set, and marks a key that is there. */
	key = weir_mix(gate_address(flow.target, flow.words), view->key[1] & 0xffff) | 1;
	set = key >> 1 & (WEIR_LISTENER_SETS - 1);
	of = &all->of[set * WEIR_LISTENER_WAYS];
	way = weir_listener_find(of, key);
	if (way < WEIR_LISTENER_WAYS &&
	    !weir_syn_fits(&of[way], weir_voter(gate_sender(&flow)), now, (__u32)source->polls + 1, admit))
		return 1;
	if (way < WEIR_LISTENER_WAYS && !exact)
		return 0;
	found = weir_rx_taker(ctx, view);
	if (found == WEIR_TAKER_OTHER)
		return 0;
	/* SYNs in transit are no listener's. */
	if (way >= WEIR_LISTENER_WAYS && weir_rx_ours(ctx, view, slot) && weir_listener_take(of, key, now))
		gate_unplaced();
	return exact && found == WEIR_TAKER_FULL && weir_rx_ours(ctx, view, slot);
}

/* True if the kernel can only refuse this segment, which is no SYN. */
__noinline int weir_rx_segment(struct xdp_md *ctx, const struct weir_view *view)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 l3, found, flags, cookie = 1;
	struct tcphdr *tcp;

	if (!view || view->l3 > L3_MAX)
		return 0;
	l3 = view->l3;
	if (view->key[2] & WEIR_F_V4) {
		struct iphdr *ip = data + l3;

		tcp = (void *)(ip + 1);
		if ((void *)(tcp + 1) > end || view->l4 != l3 + sizeof(*ip))
			return 0;
	} else {
		struct ipv6hdr *ip6 = data + l3;

		tcp = (void *)(ip6 + 1);
		if ((void *)(tcp + 1) > end || view->l4 != l3 + sizeof(*ip6))
			return 0;
	}
	flags = ((__u8 *)tcp)[13];
	found = weir_rx_taker(ctx, view);
	if (found == WEIR_TAKER_OTHER)
		return 0;
	if (cookies && flags & WEIR_TCP_ACK) {
		if (view->key[2] & WEIR_F_V4) {
			struct iphdr *ip = data + l3;

			tcp = (void *)(ip + 1);
			if ((void *)(tcp + 1) > end)
				return 0;
			cookie = !bpf_tcp_raw_check_syncookie_ipv4(ip, tcp);
		} else {
			struct ipv6hdr *ip6 = data + l3;

			tcp = (void *)(ip6 + 1);
			if ((void *)(tcp + 1) > end)
				return 0;
			cookie = !bpf_tcp_raw_check_syncookie_ipv6(ip6, tcp);
		}
	}
	return weir_segment_refused(found, flags, cookie, gate_used(WEIR_TCP_PORTS | (view->key[1] & 0xffff)));
}

/* What becomes of a frame over TCP that no rule protects: enum rx_tcp. */
static __always_inline __u32 rx_tcp(struct xdp_md *ctx, const struct weir_view *view, __u32 slot,
				    const struct weir_source_ctl *ctl, const struct weir_guard_ctl *guard)
{
	__u32 admit, exact, now, poller = poller_of(ctl);
	struct weir_poller_ctl *turns;
	struct weir_syns *all;

	if (view->lane != WEIR_LANE_TCP || (view->key[2] & (WEIR_F_PORTS | WEIR_F_FRAGMENT)) != WEIR_F_PORTS ||
	    !in_force(ctl, slot))
		return RX_TCP_PASSES;
	turns = bpf_map_lookup_elem(&poller_ctls, &poller);
	admit = turns ? turns->admit : 0;
	now = coarse_tick(slot);
	/* A raw socket may want segments that no connection has: then the list has every port, 0 too, which no other socket has. Raw ones
	 * are in the list of UDP sockets as well, which is there first. */
	exact = ctl->exact && !gate_used(WEIR_TCP_PORTS) &&
		(weir_recent(guard->listed[0], now, WEIR_LISTED_TICKS) ||
		 weir_recent(guard->listed[1], now, WEIR_LISTED_TICKS));
	if (!(view->key[2] & WEIR_F_ESTABLISHED))
		return weir_rx_syn(ctx, view, slot, admit, exact) ? RX_TCP_SYN : RX_TCP_PASSES;
	all = bpf_map_lookup_elem(&syns, &slot);
	/* What is in transit has its connection elsewhere, and a listener for all addresses is found all the same. */
	if (!exact || !all || !weir_segment_asked(all, now, admit) || !weir_rx_segment(ctx, view) ||
	    !weir_rx_ours(ctx, view, slot))
		return RX_TCP_PASSES;
	weir_segment_was_refused(all, now);
	return RX_TCP_NOBODY;
}

#endif
