/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Which accept queue takes a new connection (BH-17, BH-20). One text for two compilers, as classify.h: what the kernel's listeners are
 * chosen by is what the properties of crates/policy/src/accept_tests.rs hold for, and what the simulator's machines run.
 *
 *   own      the queue of the core that received the SYN is empty, or nothing below holds
 *   stalled  its oldest connection has been the oldest for `stalled`: the shortest of a few whose worker moves
 *   late     the same for `late`, and one of a few is empty: that one
 *   busy     it has reached `high` and not fallen to `low`: one of a few that is below half of it
 *   none     no worker is on this core: the shortest of a few whose worker moves
 *
 * A worker that is slow moves the head of its queue all the same, so load alone never makes it stalled, and connections stay with their
 * core while all cores are equally loaded. A choice looks at WEIR_ACCEPT_LOOKS other queues at most, however many there are.
 */
#ifndef WEIR_ACCEPT_H
#define WEIR_ACCEPT_H

#include "classify.h"

/* Queues of one group, a power of two. */
#define WEIR_ACCEPT_QUEUES 512
#define WEIR_ACCEPT_LOOKS 8
/* No queue is this core's. */
#define WEIR_ACCEPT_NONE 0xffffffffU

/* BPF reads a queue before it is judged, in functions that are verified apart; on the host the caller has done so. */
#ifndef WEIR_ACCEPT_READ
#define WEIR_ACCEPT_READ(from, queue, rules, now) ((void)(from))
#define WEIR_ACCEPT_LOOK(from, queue, rules, now) weir_accept_look(queue, rules, now)
#endif

enum weir_accept_why {
	WEIR_ACCEPT_OWN = 0,
	WEIR_ACCEPT_STALLED = 1,
	WEIR_ACCEPT_LATE = 2,
	WEIR_ACCEPT_BUSY = 3,
	WEIR_ACCEPT_NO_OWN = 4,
	WEIR_ACCEPT_WHYS = 5,
};

struct weir_accept_rules {
	weir_u64 late;		/* ns; 0: never */
	weir_u64 stalled;	/* ns; 0: never */
	weir_u32 high;		/* length at which a queue becomes busy */
	weir_u32 low;		/* at which it is no longer, below `high` */
	weir_u32 looks;		/* 1 to WEIR_ACCEPT_LOOKS */
	weir_u32 pad;
};

struct weir_accept_queue {
	weir_u64 cookie;	/* of its socket */
	weir_u64 head;		/* names its oldest connection; 0: it is empty */
	weir_u64 since;		/* when that became the oldest, ns; or before, if nobody looked */
	weir_u32 length;	/* connections that wait */
	weir_u32 busy;
	weir_u32 place;		/* of its socket in the kernel's group */
	weir_u32 placed;	/* connections that were put here; wraps */
	weir_u32 limit;		/* connections that may wait */
	weir_u32 pad;
	weir_u64 seen;		/* when it was looked at last, ns */
};

/* The queue was seen with this oldest connection, which came into it at `born`, and so many. The oldest one became so after it was born
 * and after another one was seen to be: where connections are rare, that is long before this look. */
static inline __attribute__((always_inline)) void
weir_accept_seen(struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 head, weir_u64 born,
		 weir_u32 length, weir_u64 now)
{
	if (queue->head != head) {
		queue->head = head;
		queue->since = born > queue->seen ? born : queue->seen;
	}
	queue->seen = now;
	queue->length = length;
	if (length >= rules->high)
		queue->busy = 1;
	else if (length <= rules->low)
		queue->busy = 0;
}

/* Its oldest connection has been so for `ns`. Clocks of two CPUs may differ by a little. */
static inline __attribute__((always_inline)) int
weir_accept_held(const struct weir_accept_queue *queue, weir_u64 ns, weir_u64 now)
{
	return ns && queue->length && queue->head && now > queue->since && now - queue->since >= ns;
}

/* Its length, or more than any if its worker stands. */
static inline __attribute__((always_inline)) weir_u32
weir_accept_look(const struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 now)
{
	return weir_accept_held(queue, rules->stalled, now) ? WEIR_ACCEPT_NONE : queue->length;
}

/* Places a connection: the queue, below `count`, which is 1 to WEIR_ACCEPT_QUEUES. `own` is that of the core or WEIR_ACCEPT_NONE,
 * `draw` is random. */
static inline __attribute__((always_inline)) weir_u32
weir_accept_choose(struct weir_accept_queue *queues, const struct weir_accept_rules *rules, weir_u32 count, weir_u32 own,
		   weir_u32 draw, weir_u64 now, void *from, weir_u32 *why)
{
	weir_u32 i, first, best, shortest, length = 0, looks = rules->looks < count ? rules->looks : count;
	struct weir_accept_queue *queue;
	weir_u64 found = ~0ULL;

	*why = WEIR_ACCEPT_NO_OWN;
	if (own < count) {
		queue = &queues[own & (WEIR_ACCEPT_QUEUES - 1)];
		WEIR_ACCEPT_READ(from, queue, rules, now);
		length = queue->length;
		if (!length)
			*why = WEIR_ACCEPT_OWN;
		else if (weir_accept_held(queue, rules->stalled, now))
			*why = WEIR_ACCEPT_STALLED;
		else if (queue->busy)
			*why = WEIR_ACCEPT_BUSY;
		else if (weir_accept_held(queue, rules->late, now))
			*why = WEIR_ACCEPT_LATE;
		else
			*why = WEIR_ACCEPT_OWN;
		if (*why == WEIR_ACCEPT_OWN)
			return own;
	}
	first = (weir_u32)(((weir_u64)draw * count) >> 32);
	/* Length, number of the look and queue in one number, of which the smallest is kept: the kernel verifies few ways through. */
	for (i = 0; i < WEIR_ACCEPT_LOOKS; i++) {
		weir_u32 other = (first + i) % count;
		weir_u64 seen;

		if (i >= looks)
			break;
		seen = (weir_u64)WEIR_ACCEPT_LOOK(from, &queues[other & (WEIR_ACCEPT_QUEUES - 1)], rules, now) << 32;
		seen |= i << 16 | other;
		if (other != own && seen < found)
			found = seen;
	}
	shortest = (weir_u32)(found >> 32);
	best = shortest == WEIR_ACCEPT_NONE ? WEIR_ACCEPT_NONE : (weir_u32)found & 0xffff;
	if (own >= count) /* If all stand, it is drawn. */
		return best < count ? best : first;
	if (best < count && (*why == WEIR_ACCEPT_STALLED || !shortest || (*why == WEIR_ACCEPT_BUSY && shortest < length / 2)))
		return best;
	*why = WEIR_ACCEPT_OWN;
	return own;
}

#endif
