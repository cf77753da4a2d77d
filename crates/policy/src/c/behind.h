/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Consumers behind the host: programs in other network namespaces, which the host forwards to, with or without translation. One text
 * for two compilers, as gate.h.
 *
 *   inner    where a packet ends: address, port and the network namespace that a veth leads to
 *   outer    what it was sent to: address and port as it came in. Without translation both are the same
 *   member   an inner destination that packets for one outer one have gone to lately: a service has several
 *   route    the member that the packets of one flow go to
 *
 * All of it is learnt from packets that a guarded interface brought and the host sends on. What is learnt ends by time unless more of
 * them pass, so a rule or a container that is gone is forgotten. Where anything is not known, the frame passes.
 *
 * Times are ticks, see gate.h.
 */
#ifndef WEIR_BEHIND_H
#define WEIR_BEHIND_H

#include "gate.h"

/* A packet that an inner destination refused is evidence for so many ticks after a guarded interface brought one for it: 100 ms. The
 * route of a flow is known for as long. */
#define WEIR_CARRIED_TICKS 6
/* Packets for one inner destination that are counted in that time: enough for any evidence, and then no line is written any more. */
#define WEIR_CARRIED_MOST 1024

/* Members of one outer destination; with more the set is not known. */
#define WEIR_MEMBERS 8
/* A member that no packet goes to is one for so many ticks more: 10 s. Who reads little may get little. */
#define WEIR_MEMBER_TICKS 600
/* An outer destination that no packet comes for is forgotten after a second. */
#define WEIR_OUTER_TICKS 60
/* Frames of unknown flows that pass in each tick although all members are full: where they go tells whether there is another one. */
#define WEIR_STRAY_MOST 16
/* So long after a socket of another namespace refused a datagram all that leaves is looked at, two seconds: it may tell who that is. */
#define WEIR_ELSEWHERE_TICKS 120
/* No consumer is known. */
#define WEIR_NO_MEMBER 0xffffffffu

/* What guarded interfaces brought for an inner destination, in the present window. */
struct weir_carried {
	weir_u32 mark;		/* of the destination: half of its hash */
	weir_u32 begun;		/* of the window */
	weir_u32 carried;
	weir_u32 claimed;	/* of these, packets whose loss was taken as evidence */
};

struct weir_member {
	weir_u32 inner;		/* mark */
	weir_u32 seen;		/* last packet for it */
	weir_u32 consumer;	/* 1 + its number; 0: not tracked */
};

struct weir_outer {
	weir_u32 mark;
	weir_u32 born;		/* since when it is known without a gap */
	weir_u32 seen;
	weir_u32 crowded;	/* last packet for a member that found no place */
	weir_u32 tick;		/* of `strays` */
	weir_u32 strays;	/* frames of unknown flows that passed in it although all members were full */
	weir_u32 pad[2];
	struct weir_member member[WEIR_MEMBERS];
};

struct weir_route {
	weir_u32 mark;		/* of the flow as it comes in */
	weir_u32 seen;
	weir_u32 inner;		/* mark */
	weir_u32 consumer;	/* 1 + its number */
};

_Static_assert(sizeof(struct weir_outer) == 128, "two lines");
_Static_assert(sizeof(struct weir_carried) == 16 && sizeof(struct weir_route) == 16, "a quarter of a line");

/* A guarded interface brought a packet for this destination. False if another one has the place. */
WEIR_INLINE weir_u32 weir_carry(struct weir_carried *carried, weir_u32 mark, weir_u32 now)
{
	weir_u32 recent = weir_recent(carried->begun, now, WEIR_CARRIED_TICKS);

	if (carried->mark != mark && recent)
		return 0;
	/* All of a window is claimed: the next one begins at once, so that a flood that is refused is evidence without a gap. */
	if (!recent || carried->claimed >= WEIR_CARRIED_MOST) {
		carried->mark = mark;
		carried->begun = now;
		carried->carried = 0;
		carried->claimed = 0;
	}
	if (carried->carried < WEIR_CARRIED_MOST)
		carried->carried++;
	return 1;
}

/* True if a packet that this destination refused may be one of those: no more of them are than were brought, so that what others
 * send there is no evidence. */
WEIR_INLINE weir_u32 weir_claim(struct weir_carried *carried, weir_u32 mark, weir_u32 now)
{
	if (carried->mark != mark || !weir_recent(carried->begun, now, WEIR_CARRIED_TICKS) ||
	    carried->claimed >= carried->carried)
		return 0;
	carried->claimed++;
	return 1;
}

/* A packet for `outer` went to `inner`, whose consumer has this number plus one, or 0. False if nothing was learnt from it. */
WEIR_INLINE weir_u32 weir_outer_learn(struct weir_outer *outer, weir_u32 mark, weir_u32 inner, weir_u32 consumer,
				      weir_u32 now)
{
	weir_u32 recent = weir_recent(outer->seen, now, WEIR_OUTER_TICKS), oldest = 0, age = 0;

	if (outer->mark != mark || !recent) {
		/* While none of its members has a level nothing is judged, so it takes no place. */
		if (recent || !consumer)
			return 0;
		outer->born = now;
		outer->mark = mark;
		outer->crowded = 0;
WEIR_UNROLL
		for (int i = 0; i < WEIR_MEMBERS; i++)
			outer->member[i].seen = 0;
	}
	if (outer->seen != now)
		outer->seen = now;
WEIR_UNROLL
	for (int i = 0; i < WEIR_MEMBERS; i++) {
		struct weir_member *member = &outer->member[i];
		weir_u32 since = weir_age(member->seen, now);

		if (member->seen && member->inner == inner) {
			if (since)
				member->seen = now;
			if (member->consumer != consumer)
				member->consumer = consumer;
			return 1;
		}
		if (since > age) {
			age = since;
			oldest = i;
		}
	}
	if (age <= WEIR_MEMBER_TICKS) {
		if (outer->crowded != now)
			outer->crowded = now;
		return 1;
	}
	/* By constant numbers, for the verifier. */
WEIR_UNROLL
	for (int i = 0; i < WEIR_MEMBERS; i++)
		if (oldest == (weir_u32)i) {
			outer->member[i].inner = inner;
			outer->member[i].consumer = consumer;
			outer->member[i].seen = now;
		}
	return 1;
}

/* True if frames for this destination are judged. */
WEIR_INLINE weir_u32 weir_outer_known(const struct weir_outer *outer, weir_u32 mark, weir_u32 now)
{
	return outer->mark == mark && weir_recent(outer->seen, now, WEIR_OUTER_TICKS);
}

/* The packets of a flow go to `inner` from here on; of one that has no consumer nothing is known. */
WEIR_INLINE void weir_route_learn(struct weir_route *route, weir_u32 mark, weir_u32 inner, weir_u32 consumer,
				  weir_u32 now)
{
	if (!consumer) {
		if (route->mark == mark && route->seen)
			route->seen = 0;
		return;
	}
	if (route->mark == mark && route->seen == now && route->inner == inner && route->consumer == consumer)
		return;
	route->mark = mark;
	route->inner = inner;
	route->consumer = consumer;
	route->seen = now;
}

/* True if it is known where the flow goes. */
WEIR_INLINE weir_u32 weir_routed(const struct weir_route *route, weir_u32 mark, weir_u32 now)
{
	return route->mark == mark && weir_recent(route->seen, now, WEIR_CARRIED_TICKS);
}

/*
 * The member that a frame of an unknown flow is charged to, by what each of them has room for (`left`; WEIR_NO_MEMBER: nobody knows):
 * one with room, or if all are full one of these. WEIR_NO_MEMBER: it passes, since it may be for somebody whose level is not known,
 * since the set is not known well, or as one of the few that tell whether there is another member by now.
 */
WEIR_INLINE weir_u32 weir_outer_member(struct weir_outer *outer, const weir_u32 *left, weir_u32 now)
{
	weir_u32 fits = WEIR_NO_MEMBER, full = WEIR_NO_MEMBER, unknown = 0;

WEIR_UNROLL
	for (int i = 0; i < WEIR_MEMBERS; i++) {
		if (!weir_recent(outer->member[i].seen, now, WEIR_MEMBER_TICKS))
			continue;
		if (left[i] == WEIR_NO_MEMBER)
			unknown = 1;
		else if (left[i])
			fits = i;
		else
			full = i;
	}
	if (unknown)
		return WEIR_NO_MEMBER;
	if (fits != WEIR_NO_MEMBER)
		return fits;
	if (full == WEIR_NO_MEMBER || weir_recent(outer->born, now, WEIR_CARRIED_TICKS) ||
	    weir_recent(outer->crowded, now, WEIR_MEMBER_TICKS))
		return WEIR_NO_MEMBER;
	if (outer->tick != now) {
		outer->tick = now;
		outer->strays = 0;
	}
	if (outer->strays < WEIR_STRAY_MOST) {
		outer->strays++;
		return WEIR_NO_MEMBER;
	}
	return full;
}

#endif
