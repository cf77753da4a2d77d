/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Which packets of a poll get the room of their consumer, see fair.h.
 *
 * Cost: two look-ups and a vote's one store per frame of a tracked consumer. While its room is short, or its input was kept away lately,
 * one more and the store of the senders' vote; while it is short a hash and four loads of the sketch too, and four stores more if it
 * passes. Per poll and consumer three reads of its socket and the clock.
 */
#ifndef WEIR_RX_FAIR_H
#define WEIR_RX_FAIR_H

/* Added to an enum weir_fair_verdict: a pause would lose the frame, and it is a quiet sender's beside a loud one, or for a consumer that
 * nothing is kept away from beside one that something is, or that gets few of the source's frames beside one that gets most. */
#define WEIR_FAIR_INNOCENT 4
/* Instead of the packets that there is room for: nothing passes, and no share is counted. */
#define WEIR_FAIR_KEPT ~0U

/* The number of a consumer, below WEIR_CONSUMERS, in a register that the verifier of 6.1 sees bounded: the compiler may index with a copy
 * of the one that was checked, and to it a check of 32 bits does not bound its copies. */
static __always_inline __u64 consumer_index(__u32 consumer)
{
	__u64 index = consumer;

	asm volatile("%0 &= %1" : "+r"(index) : "i"(WEIR_CONSUMERS - 1));
	return index;
}

/* The verdict on one frame for a consumer that has room for `left` packets. */
__noinline __u32 weir_rx_fair(struct xdp_md *ctx, const struct weir_view *view, __u32 slot, __u32 consumer, __u32 left)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct weir_senders *all = bpf_map_lookup_elem(&senders, &slot);
	struct gate_flow flow = {};
	struct weir_fair *of;
	__u64 sender;
	__u32 quiet;

	if (!view || !all || consumer >= WEIR_CONSUMERS || !rx_flow(data, end, view, &flow))
		return left && left != WEIR_FAIR_KEPT ? WEIR_FAIR_PASS : WEIR_FAIR_FULL;
	of = &all->of[consumer_index(consumer)];
	/* Else fits() has told it. */
	if (left == WEIR_FAIR_KEPT)
		weir_fair_gets_few(&all->sketch, consumer);
	sender = gate_sender(&flow);
	/* The two families have places of their own. */
	consumer |= (view->key[2] & WEIR_F_V6) << 16;
	quiet = weir_is_quiet(&of->vote, weir_voter(sender)) ? WEIR_FAIR_INNOCENT : 0;
	if (left == WEIR_FAIR_KEPT)
		return WEIR_FAIR_FULL | quiet;
	if (left && !of->active)
		return WEIR_FAIR_PASS | quiet;
	if (weir_fair_leaves(of, weir_voter(sender), left))
		return WEIR_FAIR_OVER;
	return quiet | weir_fair_judge(of, &all->sketch, weir_fair_hash(gate_seed, of->now, consumer, sender), left);
}

/* The room of a consumer when a poll begins. Its buffer is read once per poll: what the poll has handed up by then is in it, and
 * what it hands up from here on is counted. `before` packets were left of the room of the poll before. */
static __always_inline __u32 room(struct weir_fair *of, struct weir_sketch *sketch, const struct weir_consumer_ctl *ctl,
				  const struct weir_consumer_stat *stat, __u32 slices, __u32 poller, __u32 poll,
				  __u32 before, __u32 now)
{
	struct weir_poller_ctl *turns = bpf_map_lookup_elem(&poller_ctls, &poller);
	__u32 left, all, whole, truesize = stat->truesize;
	struct sock *sk = (struct sock *)ctl->sk;
	int held = 0, size = 0;
	__u16 port = ctl->port;
	__s64 cookie = 0;

	if (bpf_core_read(&cookie, sizeof(cookie), &sk->__sk_common.skc_cookie.counter) ||
	    (__u64)cookie != ctl->cookie)
		return ~0U;
	/* A closed socket has no port: somebody else may have its place. */
	if (ctl->port && (bpf_core_read(&port, sizeof(port), &sk->__sk_common.skc_num) || port != (__u16)ctl->port))
		return ~0U;
	bpf_core_read(&held, sizeof(held), &sk->sk_backlog.rmem_alloc.counter);
	bpf_core_read(&size, sizeof(size), &sk->sk_rcvbuf);
	if (held < 0 || size <= 0)
		return ~0U;
	all = weir_room(size, held, truesize, slices);
	whole = weir_room(size, 0, truesize, slices);
	left = weir_room_given(all, turns && turns->admit ? turns->admit : 1000, poll, weir_fair_flooded(of));
	left = weir_fair_poll(of, sketch, before, left, all, whole, now);
	return weir_fair_within(of, left, turns ? turns->quota : 0);
}

/* What the poll under way may still hand up to this consumer of the source; NULL if nobody knows. */
static __always_inline struct weir_share *share_of(__u32 slot, __u32 consumer, const struct weir_consumer_ctl *ctl,
						   const struct weir_consumer_stat *stat, __u32 slices, __u32 poller)
{
	struct weir_source_stat *source = bpf_map_lookup_elem(&source_stats, &slot);
	struct weir_shares *all = bpf_map_lookup_elem(&shares, &slot);
	struct weir_senders *by_sender = bpf_map_lookup_elem(&senders, &slot);
	struct weir_share *share;
	__u32 poll;

	if (!source || !all || !by_sender || consumer >= WEIR_CONSUMERS)
		return NULL;
	share = &all->of[consumer_index(consumer)];
	/* The number of the poll under way; not 0, so that a new source's first poll reads too. */
	poll = (__u32)source->polls + 1;
	if (share->poll != poll) {
		share->poll = poll;
		share->left = room(&by_sender->of[consumer_index(consumer)], &by_sender->sketch, ctl, stat, slices,
				   poller, poll, share->left, coarse_tick(slot));
	}
	return share;
}

/* Whether this consumer of the source has room for one more packet of its sender, which then is taken from its share: an enum
 * weir_fair_verdict, and WEIR_FAIR_INNOCENT. Input was kept away from some consumer last at tick `any`. */
static __always_inline __u32 fits(struct xdp_md *ctx, const struct weir_view *view, __u32 slot, __u32 consumer,
				  const struct weir_consumer_ctl *ctl, const struct weir_consumer_stat *stat,
				  __u32 slices, __u32 poller, __u32 any)
{
	struct weir_share *share = share_of(slot, consumer, ctl, stat, slices, poller);
	struct weir_senders *by_sender = bpf_map_lookup_elem(&senders, &slot);
	__u32 few, verdict = WEIR_FAIR_PASS;
	struct weir_fair *of;

	if (!share || !by_sender || consumer >= WEIR_CONSUMERS)
		return WEIR_FAIR_PASS;
	of = &by_sender->of[consumer_index(consumer)];
	few = weir_fair_gets_few(&by_sender->sketch, consumer);
	if (weir_fair_asks(of, share->left, ctl->paused))
		verdict = weir_rx_fair(ctx, view, slot, consumer,
				       share->left < WEIR_FAIR_ROOM ? share->left : WEIR_FAIR_ROOM);
	weir_fair_weigh(of, (verdict & ~WEIR_FAIR_INNOCENT) == WEIR_FAIR_PASS);
	if ((verdict & ~WEIR_FAIR_INNOCENT) == WEIR_FAIR_PASS) {
		share->left--;
		if (!ctl->inhibited && (few || weir_fair_innocent(of, ctl->paused, any)))
			verdict |= WEIR_FAIR_INNOCENT;
	}
	return verdict;
}

#endif
