/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Which accept queue takes a new connection (BH-17, BH-20). One text for two compilers, as classify.h: what the kernel's listeners are
 * chosen by is what the properties of crates/policy/src/accept/queues.rs hold for, and what the simulator's machines run.
 *
 *   own      the queue of the core that received the SYN, if nothing below holds
 *   stalled  its oldest connection has been the oldest for `stalled`: the shortest of a few whose worker moves
 *   away     its worker sleeps elsewhere than where it waits for events, and one of a few is empty; or it has been at work for `away`
 *            without a rest and without taking one, and one of a few that is empty has a worker that waits for events (after `late`: one
 *            that has not gone): that one. While it sleeps, or after `late`, one whose worker has not gone and in which no more wait
 *            than in it, or than it has been so for milliseconds
 *   late     its oldest connection has been the oldest for `late`, and one of a few is empty: that one
 *   busy     it has reached `high`, or half of its limit, and not fallen to `low`: one of a few that is below half of it; once it is full,
 *            the best of a few that is not, whatever its worker does: who waits there is served late, who comes here is lost
 *   share    its core brings more than its share of all connections, a quarter more than the mean of a few and WEIR_ACCEPT_MORE: what is
 *            beyond the mean, to the best of a few. One receive queue, or one client of this host, would give all to one worker, which
 *            is good as long as they are short and bad once they stay
 *   none     no worker is on this core: the shortest of a few whose worker moves
 *
 * A worker that is slow moves the head of its queue all the same, so load alone never makes it stalled, and connections stay with their
 * core while all cores are equally loaded. Only `away` holds before a connection has waited: where the worker stands cannot be seen in an
 * empty queue. A choice looks at WEIR_ACCEPT_LOOKS other queues at most, however many there are.
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
#define WEIR_ACCEPT_LOOK(from, queue, rules, now) ((void)(from), weir_accept_look(queue, rules, now))
#endif
#ifndef WEIR_ACCEPT_COUNT
#define WEIR_ACCEPT_COUNT(queues, count, own, first, looks, now) weir_accept_count(queues, count, own, first, looks, now)
#endif
#ifndef WEIR_ACCEPT_BEST
#define WEIR_ACCEPT_BEST(queues, rules, count, own, first, looks, now, from) \
	weir_accept_best(queues, rules, count, own, first, looks, now, from)
#endif

enum weir_accept_why {
	WEIR_ACCEPT_OWN = 0,
	WEIR_ACCEPT_STALLED = 1,
	WEIR_ACCEPT_LATE = 2,
	WEIR_ACCEPT_BUSY = 3,
	WEIR_ACCEPT_NO_OWN = 4,
	WEIR_ACCEPT_AWAY = 5,
	WEIR_ACCEPT_SHARE = 6,
	WEIR_ACCEPT_WHYS = 7,
};

/* What the worker of a queue does. */
enum weir_accept_worker {
	WEIR_ACCEPT_UNKNOWN = 0,	/* it cannot be told */
	WEIR_ACCEPT_WAITS = 1,		/* for events of its listener: it takes the next connection at once */
	WEIR_ACCEPT_RUNS = 2,		/* or wants to */
	WEIR_ACCEPT_SLEEPS = 3,		/* somewhere else, or is stopped */
};

struct weir_accept_rules {
	weir_u64 late;		/* ns; 0: never */
	weir_u64 stalled;	/* ns; 0: never */
	weir_u32 high;		/* length at which a queue becomes busy */
	weir_u32 low;		/* at which it is no longer, below `high` */
	weir_u32 looks;		/* 1 to WEIR_ACCEPT_LOOKS */
	weir_u32 pad;
	weir_u64 away;		/* ns; 0: never */
};

struct weir_accept_queue {
	weir_u64 cookie;	/* of its socket */
	weir_u64 head;		/* names its oldest connection; 0: it is empty */
	weir_u64 since;		/* when that became the oldest, ns; or before, if nobody looked */
	weir_u32 length;	/* connections that wait */
	weir_u32 busy;
	weir_u32 place;		/* of its socket in the kernel's group */
	weir_u32 placed;	/* connections that were put here; wraps */
	weir_u32 affine;	/* of these, those that its own core received */
	weir_u32 worker;	/* enum weir_accept_worker */
	weir_u64 seen;		/* when it was looked at last, ns */
	weir_u64 born;		/* when its oldest connection came into it, ns */
	weir_u64 away;		/* while its worker neither waits nor is unknown: since when it was seen so without a rest, ns */
	weir_u64 rests;		/* how often the worker had slept then */
	weir_u64 ran;		/* its CPU time at the last look, ns */
	weir_u64 waits_in;	/* the reader's: where the worker waits, and who it is */
	weir_u64 task;
	weir_u32 came;		/* connections that its own core received, half as many of each epoch before */
	weir_u32 epoch;
	weir_u32 gives;		/* of 1024 of these, to others */
	weir_u32 limit;		/* how many may wait; 0: not known, or far away */
};

/* An epoch, 69 s: connections that stay may come by a few a second. */
#define WEIR_ACCEPT_EPOCH 36
/* Connections in which a core's share is looked at anew, and by how many it may be beyond a quarter more than the mean. */
#define WEIR_ACCEPT_ANEW 32
#define WEIR_ACCEPT_MORE 128

/* The queue was seen with this oldest connection, which came into it at `born`, so many, and this limit. The oldest one became so after it
 * was born and after another one was seen to be: where connections are rare, that is long before this look. */
static inline __attribute__((always_inline)) void
weir_accept_seen(struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 head, weir_u64 born,
		 weir_u32 length, weir_u32 limit, weir_u64 now)
{
	weir_u32 half = limit / 2 + (limit & 1), high = limit && half < rules->high ? half : rules->high;

	if (queue->head != head) {
		if (queue->head) /* The worker has taken it. */
			queue->away = now;
		queue->head = head;
		queue->since = born > queue->seen ? born : queue->seen;
	}
	queue->born = born;
	queue->seen = now;
	queue->length = length;
	queue->limit = limit;
	if (length >= high)
		queue->busy = 1;
	else if (length <= rules->low)
		queue->busy = 0;
}

/* A quarter of it or less is left, for handshakes under way. */
static inline __attribute__((always_inline)) int
weir_accept_near_full(const struct weir_accept_queue *queue)
{
	return queue->limit && queue->length >= queue->limit - queue->limit / 4;
}

/* CPU time that a worker used between two looks tells how long it has been at work only while they are so close, ns. */
#define WEIR_ACCEPT_CLOSE 4000000ULL

/* The worker was seen to do this; `rests` is any number that changes when it sleeps, `ran` its CPU time in ns or 0. To be called before
 * weir_accept_seen. */
static inline __attribute__((always_inline)) void
weir_accept_worker(struct weir_accept_queue *queue, weir_u32 does, weir_u64 rests, weir_u64 ran, weir_u64 now)
{
	weir_u64 used = queue->ran && ran > queue->ran ? ran - queue->ran : 0;

	if (does < WEIR_ACCEPT_RUNS || queue->worker < WEIR_ACCEPT_RUNS || queue->rests != rests) {
		queue->away = now;
		if (does == WEIR_ACCEPT_RUNS && now - queue->seen < WEIR_ACCEPT_CLOSE && used < now - queue->seen)
			queue->away -= used;
	}
	queue->worker = does;
	queue->rests = rests;
	queue->ran = ran;
}

/* A queue that was read so short a time ago is not read again for a connection of its own core: what is looked for lasts longer. One whose
 * worker slept may have gone on meanwhile, and one with room for few more may be full. */
#define WEIR_ACCEPT_FRESH 100000ULL
#define WEIR_ACCEPT_FEW 32
static inline __attribute__((always_inline)) int
weir_accept_fresh(const struct weir_accept_queue *queue, weir_u64 now)
{
	return now - queue->seen < WEIR_ACCEPT_FRESH && queue->worker != WEIR_ACCEPT_SLEEPS &&
	       (!queue->limit || queue->length + WEIR_ACCEPT_FEW < queue->limit);
}

/* It will not take a connection now. */
static inline __attribute__((always_inline)) int
weir_accept_gone(const struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 now)
{
	if (!rules->away || queue->worker < WEIR_ACCEPT_RUNS)
		return 0;
	return queue->worker == WEIR_ACCEPT_SLEEPS || (now > queue->away && now - queue->away >= rules->away);
}

/* How many may wait elsewhere so that one is better off there, at most `high`: how long the worker has been away is the best guess of how
 * long it will be yet, and one that waits elsewhere is counted as about a millisecond. */
static inline __attribute__((always_inline)) weir_u32
weir_accept_worth(const struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 now)
{
	weir_u64 ms = now > queue->away ? (now - queue->away) >> 20 : 0;

	return ms < rules->high ? (weir_u32)ms : rules->high;
}

/* Its oldest connection has been so for `ns`. Clocks of two CPUs may differ by a little. */
static inline __attribute__((always_inline)) int
weir_accept_held(const struct weir_accept_queue *queue, weir_u64 ns, weir_u64 now)
{
	return ns && queue->length && queue->head && now > queue->since && now - queue->since >= ns;
}

/* How good it is, small is good: twice its length, and 1 unless its worker is known to wait; behind all these one whose worker has gone,
 * and behind these one whose worker stands; WEIR_ACCEPT_NONE if it is full. */
#define WEIR_ACCEPT_GONE 0x1000000U
#define WEIR_ACCEPT_STANDS 0x2000000U
static inline __attribute__((always_inline)) weir_u32
weir_accept_look(const struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 now)
{
	weir_u32 length = queue->length < 0x7fffff ? queue->length : 0x7fffff;

	if (weir_accept_near_full(queue))
		return WEIR_ACCEPT_NONE;
	if (weir_accept_held(queue, rules->stalled, now))
		return WEIR_ACCEPT_STANDS + length;
	if (weir_accept_gone(queue, rules, now))
		return WEIR_ACCEPT_GONE + length;
	return length * 2 + (queue->worker != WEIR_ACCEPT_WAITS);
}

/* How good it is for one that is moved from a listener that was closed, by how good it is for others: WEIR_ACCEPT_NONE where that one might
 * wait in vain, which is worse than the reset that it gets else. A worker that was never seen to wait may be stopped. */
static inline __attribute__((always_inline)) weir_u32
weir_accept_moved(const struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u32 good)
{
	return good >= WEIR_ACCEPT_GONE || (rules->away && queue->worker == WEIR_ACCEPT_UNKNOWN) ? WEIR_ACCEPT_NONE : good;
}

/* How many have come to the core of this queue lately. */
static inline __attribute__((always_inline)) weir_u32
weir_accept_came(const struct weir_accept_queue *queue, weir_u32 epoch)
{
	weir_u32 past = epoch - queue->epoch;

	return past < 32 ? queue->came >> past : 0;
}

/* One more has come to the core of the queue `own`: what it gives to others, of 1024, is looked at now and then. Its core alone writes. */
static inline __attribute__((always_inline)) void
weir_accept_count(struct weir_accept_queue *queues, weir_u32 count, weir_u32 own, weir_u32 first, weir_u32 looks, weir_u64 now)
{
	struct weir_accept_queue *queue = &queues[own & (WEIR_ACCEPT_QUEUES - 1)];
	weir_u32 i, epoch = (weir_u32)(now >> WEIR_ACCEPT_EPOCH), came = weir_accept_came(queue, epoch) + 1, mean, of = 0;
	weir_u64 sum = 0;

	queue->came = came;
	if (queue->epoch == epoch && came % WEIR_ACCEPT_ANEW)
		return;
	queue->epoch = epoch;
	for (i = 0; i < WEIR_ACCEPT_LOOKS; i++) {
		weir_u32 other = (first + i) % count;

		if (i < looks && other != own) {
			sum += weir_accept_came(&queues[other & (WEIR_ACCEPT_QUEUES - 1)], epoch);
			of++;
		}
	}
	/* Those that were looked at stand for all others. */
	mean = of ? (weir_u32)((came + sum * (count - 1) / of) / count) : came;
	queue->gives = came > mean + mean / 4 + WEIR_ACCEPT_MORE ? (weir_u32)((weir_u64)(came - mean) * 1024 / came) : 0;
}

/* The best of the others that are looked at, from `first` on: how good, number of the look and queue in one number, of which the smallest
 * is kept, so that the kernel verifies few ways through. */
static inline __attribute__((always_inline)) weir_u64
weir_accept_best(struct weir_accept_queue *queues, const struct weir_accept_rules *rules, weir_u32 count, weir_u32 own,
		 weir_u32 first, weir_u32 looks, weir_u64 now, void *from)
{
	weir_u64 found = ~0ULL;
	weir_u32 i;

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
	return found;
}

/* Places a connection: the queue, below `count`, which is 1 to WEIR_ACCEPT_QUEUES. `own` is that of the core or WEIR_ACCEPT_NONE,
 * `draw` is random. */
static inline __attribute__((always_inline)) weir_u32
weir_accept_choose(struct weir_accept_queue *queues, const struct weir_accept_rules *rules, weir_u32 count, weir_u32 own,
		   weir_u32 draw, weir_u64 now, void *from, weir_u32 *why)
{
	weir_u32 first, best, good, length = 0, late = 0, worth = 0, full = 0, looks = rules->looks < count ? rules->looks : count;
	struct weir_accept_queue *queue;
	weir_u64 found;

	*why = WEIR_ACCEPT_NO_OWN;
	first = (weir_u32)(((weir_u64)draw * count) >> 32);
	if (own < count) {
		WEIR_ACCEPT_COUNT(queues, count, own, first, looks, now);
		queue = &queues[own & (WEIR_ACCEPT_QUEUES - 1)];
		if (!weir_accept_fresh(queue, now))
			WEIR_ACCEPT_READ(from, queue, rules, now);
		late = weir_accept_held(queue, rules->late, now);
		full = weir_accept_near_full(queue);
		/* One that sleeps will not move at once, whatever the others do; nor one that has been at work for so long. Then one is
		 * better off where no more wait. */
		if (weir_accept_gone(queue, rules, now)) {
			worth = weir_accept_worth(queue, rules, now);
			if (queue->worker == WEIR_ACCEPT_SLEEPS || now - queue->away >= rules->late) {
				late = 1;
				if (worth < queue->length)
					worth = queue->length < rules->high ? queue->length : rules->high;
			}
		}
		/* 0 means that it is not busy. */
		length = queue->busy ? queue->length : 0;
		if (weir_accept_held(queue, rules->stalled, now))
			*why = WEIR_ACCEPT_STALLED;
		else if (weir_accept_gone(queue, rules, now))
			*why = WEIR_ACCEPT_AWAY;
		else if (length)
			*why = WEIR_ACCEPT_BUSY;
		else if (late)
			*why = WEIR_ACCEPT_LATE;
		else if ((draw & 1023) < queue->gives) {
			*why = WEIR_ACCEPT_SHARE;
			/* Drawn among the others, so that the one behind this one is not the first of two draws. */
			first = own + 1 + (weir_u32)(((weir_u64)draw * (count - 1)) >> 32);
		} else
			*why = WEIR_ACCEPT_OWN;
		if (*why == WEIR_ACCEPT_OWN)
			return own;
	}
	found = WEIR_ACCEPT_BEST(queues, rules, count, own, first, looks, now, from);
	good = (weir_u32)(found >> 32);
	best = good == WEIR_ACCEPT_NONE ? WEIR_ACCEPT_NONE : (weir_u32)found & 0xffff;
	if (own >= count) /* If all are full, it is drawn. */
		return best < count ? best : first;
	if (best < count && (full || (*why == WEIR_ACCEPT_STALLED && good < WEIR_ACCEPT_STANDS) ||
			     (*why == WEIR_ACCEPT_SHARE && good < WEIR_ACCEPT_GONE) || !good || (late && good < 2) ||
			     (worth && good / 2 <= worth) || good / 2 < length / 2))
		return best;
	*why = WEIR_ACCEPT_OWN;
	return own;
}

#endif
