/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The gate for TCP at a port that is open (MR-22, MR-23). One text for two compilers, as gate.h: what the packet path decides is what the
 * properties of crates/policy/src/syns.rs hold for.
 *
 *   full     the accept queue of its listener is full: the kernel drops this SYN      shed
 *   beyond   its listener is flooded with SYNs and has had its share of this poll     shed
 *   refused  no connection has this segment, and no listener makes one of it          shed
 *   else                                                                              pass
 *
 * A listener is flooded if more than WEIR_SYNS_FREE SYNs came for it in this tick or the one before. SYNs for others always pass, and
 * all do while packet work leaves something of its budget. SYNs are counted per source, by its NAPI's owner alone. Beside one sender of
 * most of them (vote.h) the others have places of their own in each poll: a flood that is not spoofed takes nothing from them.
 *
 * Datagrams for a destination for which nearly all is refused (gate.h) are counted in the same places and have a share as SYNs have, of
 * WEIR_REFUSED_ADMIT.
 */
#ifndef WEIR_SYNS_H
#define WEIR_SYNS_H

#include "gate.h"
#include "vote.h"

/* Listeners of one source whose SYNs are counted: sets, which a hash chooses, of so many ways. */
#define WEIR_LISTENER_SETS 32
#define WEIR_LISTENER_WAYS 4
#define WEIR_LISTENERS (WEIR_LISTENER_SETS * WEIR_LISTENER_WAYS)
/* SYNs of a tick that make no flood: 3800 per second. */
#define WEIR_SYNS_FREE 64
/* Places of polls that are saved up for quiet senders, of which each poll brings one. */
#define WEIR_SYNS_QUIET 16
/* Segments are looked up for so many ticks, one second, after the budget ran out last, or after so many were refused in one tick (3800
 * per second): shedding may be why the budget lasts, and in mode shed there is none. */
#define WEIR_SHORT_TICKS 60
#define WEIR_REFUSED_FLOOD 64
/* One of so many, a power of two; all of them for so many ticks, 100 ms, after one was refused. */
#define WEIR_SEGMENTS_SAMPLE 16
#define WEIR_REFUSED_TICKS 6

#define WEIR_TCP_RST 0x04
#define WEIR_TCP_ACK 0x10

/* What the kernel's own search finds for a frame. */
enum weir_taker {
	WEIR_TAKER_NONE = 0,	/* no socket */
	WEIR_TAKER_LISTENS = 1,	/* a listener, and no connection */
	WEIR_TAKER_FULL = 2,	/* the same, and its accept queue is full */
	WEIR_TAKER_OTHER = 3,	/* a connection, one that begins or has ended, or it cannot be told */
};

/* SYNs for one listener, or datagrams for one destination. */
struct weir_listener {
	weir_u32 key;		/* hash of its address, port and protocol; 0: none */
	weir_u32 tick;		/* that `seen` goes for */
	weir_u32 seen;
	weir_u32 before;	/* in the tick before that one */
	weir_u32 poll;		/* that `left` goes for */
	weir_u16 left;		/* SYNs that may still pass in it */
	weir_u16 quiet;		/* and of quiet senders so many more */
	struct weir_vote vote;
};

/* Of one source. */
struct weir_syns {
	struct weir_listener of[WEIR_LISTENERS];
	weir_u32 short_at;	/* last tick in which the budget was short, or many segments were refused */
	weir_u32 refused_at;	/* last tick in which a segment was refused */
	weir_u32 refused;	/* how many were in it */
	weir_u32 segments;	/* those that might have been asked about */
	weir_u32 share_at;	/* last tick in which destinations that are refused had a share because the budget was short, or in mode shed */
	weir_u32 pad[11];
};

_Static_assert(sizeof(struct weir_listener) == 32, "half a line");
_Static_assert(sizeof(struct weir_syns) == 32 * WEIR_LISTENERS + 64, "whole lines");

/* sk_acceptq_is_full() of the kernel, of all versions: one more than the maximum is let in. */
WEIR_INLINE weir_u32 weir_accept_full(weir_u32 queued, weir_u32 most)
{
	return queued > most;
}

/* What a destination gets of a poll, permille, for which nearly all is refused: a packet in fifteen polls. More would be refused too. */
#define WEIR_REFUSED_ADMIT 1
/* It has no more for so many ticks, four seconds, after the budget ran out last: each time that all of it passes again the ring overflows. */
#define WEIR_REFUSED_SHORT 240

/* How much of a poll a destination gets for which nearly all is refused, while `admit` is what admission leaves. In mode shed the budget
 * lasts because of what is shed. */
WEIR_INLINE weir_u32 weir_refused_admit(struct weir_syns *syns, weir_u32 now, weir_u32 admit, weir_u32 sheds)
{
	if (((admit && admit < 1000) || sheds) && syns->share_at != now)
		syns->share_at = now;
	return weir_recent(syns->share_at, now, WEIR_REFUSED_SHORT) ? WEIR_REFUSED_ADMIT : 1000;
}

/* True if a segment, which is no SYN, is looked up: the search is not free, and most hosts get few that no connection has. */
WEIR_INLINE weir_u32 weir_segment_asked(struct weir_syns *syns, weir_u32 now, weir_u32 admit)
{
	if (admit && admit < 1000 && syns->short_at != now)
		syns->short_at = now;
	if (!weir_recent(syns->short_at, now, WEIR_SHORT_TICKS))
		return 0;
	return weir_recent(syns->refused_at, now, WEIR_REFUSED_TICKS) ||
	       !(++syns->segments & (WEIR_SEGMENTS_SAMPLE - 1));
}

/* A segment was refused. */
WEIR_INLINE void weir_segment_was_refused(struct weir_syns *syns, weir_u32 now)
{
	if (syns->refused_at != now) {
		syns->refused_at = now;
		syns->refused = 0;
	}
	if (++syns->refused == WEIR_REFUSED_FLOOD)
		syns->short_at = now;
}

/* Which of the ways of a set counts the SYNs of a listener; WEIR_LISTENER_WAYS if none does. */
WEIR_INLINE weir_u32 weir_listener_find(const struct weir_listener *set, weir_u32 key)
{
	weir_u32 found = WEIR_LISTENER_WAYS;

WEIR_UNROLL
	for (int i = 0; i < WEIR_LISTENER_WAYS; i++)
		if (set[i].key == key)
			found = i;
	return found;
}

/* SYNs of a listener in a tick, by the last two; 0 if none came lately. */
WEIR_INLINE weir_u32 weir_listener_rate(const struct weir_listener *listener, weir_u32 now)
{
	if (!listener->key || now - listener->tick > 1)
		return 0;
	return listener->seen > listener->before ? listener->seen : listener->before;
}

/* The way that a new listener takes: the one with the fewest SYNs. So what is flooded stays known. True if that one was counted lately. */
WEIR_INLINE weir_u32 weir_listener_take(struct weir_listener *set, weir_u32 key, weir_u32 now)
{
	weir_u32 least = 0xffffffffu, taken = 0;

WEIR_UNROLL
	for (int i = 0; i < WEIR_LISTENER_WAYS; i++) {
		weir_u32 rate = weir_listener_rate(&set[i], now);

		if (rate < least) {
			least = rate;
			taken = i;
		}
	}
	/* Each one by its constant number, as in gate.h. */
WEIR_UNROLL
	for (int i = 0; i < WEIR_LISTENER_WAYS; i++)
		if (taken == (weir_u32)i) {
			set[i].key = key;
			set[i].tick = now;
			set[i].seen = 1;
			set[i].before = 0;
			set[i].poll = 0;
			set[i].left = set[i].quiet = 0;
			set[i].vote.loudest = set[i].vote.votes = 0;
		}
	return least != 0;
}

/* It passes in a place that is kept for quiet senders. */
#define WEIR_SYN_QUIET 2

/*
 * One more SYN of `voter` for a listener, in `poll` of its source: true if it passes. Of one that is flooded the first ones of each poll
 * do, as many as `admit` permille leave of a full consumer's room, and of senders that are quiet beside a loud one some more.
 */
WEIR_INLINE weir_u32 weir_syn_fits(struct weir_listener *listener, weir_u32 voter, weir_u32 now, weir_u32 poll, weir_u32 admit)
{
	weir_u32 quiet;

	if (listener->tick != now) {
		listener->before = now - listener->tick == 1 ? listener->seen : 0;
		listener->seen = 0;
		listener->tick = now;
	}
	listener->seen++;
	if (!admit || admit >= 1000 || (listener->seen <= WEIR_SYNS_FREE && listener->before <= WEIR_SYNS_FREE))
		return 1;
	quiet = weir_is_quiet(&listener->vote, voter);
	if (listener->poll != poll) {
		listener->poll = poll;
		listener->left = weir_room_given(WEIR_POLL, admit, poll, 1);
		listener->quiet += listener->quiet < WEIR_SYNS_QUIET;
	}
	if (quiet && listener->quiet) {
		listener->quiet--;
		return WEIR_SYN_QUIET;
	}
	if (!listener->left)
		return 0;
	listener->left--;
	return 1;
}

/*
 * True if the kernel can only refuse this segment, which is no SYN: `taker` is what its search finds, `flags` are the segment's. `cookie`
 * says that it acknowledges a number that this host may have sent as a cookie: then it makes a connection. Where no socket is found, the
 * list of sockets must have the port (`used`): for others gate.h learns.
 */
WEIR_INLINE weir_u32 weir_segment_refused(weir_u32 taker, weir_u32 flags, weir_u32 cookie, weir_u32 used)
{
	if (taker == WEIR_TAKER_OTHER || (taker == WEIR_TAKER_NONE && !used))
		return 0;
	return !(cookie && (flags & (WEIR_TCP_ACK | WEIR_TCP_RST)) == WEIR_TCP_ACK);
}

#endif
