/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Fairness inside a flooded port: whose packets get the room of a consumer that has too little (MR-34). One text for two
 * compilers, as gate.h; the properties are those of crates/policy/src/fair.rs.
 *
 * Time is counted in packets that were let through while room was short. A sender's share is one of `spacing` of them. What it
 * has had so far moves its mark ahead of this clock: by `spacing` for each of its packets. Within its share is who is no further
 * ahead than WEIR_FAIR_BURST packets; who is further ahead passes only where room is to spare, the more of it the further it is:
 * at WEIR_FAIR_FAR packets all that is held for those within their share.
 *
 * `spacing` and what is held are learnt, in rounds of some packets for each share. Senders within their share that found no
 * room ask for both; without them shares grow again. Room that was not used while the consumer had nothing to do is given up:
 * elsewhere it is none that was lost, since the consumer had work all the time. So shares settle where they fill the room.
 *
 * Marks stand in a sketch of WEIR_FAIR_ROWS x WEIR_FAIR_CELLS cells, which no packet that is shed writes to. A mark is never
 * too low, and too high only if the sender shares its cell with one that is ahead in every row. Each packet that passes puts one
 * sender ahead, by `spacing`: on average one sender for each packet of a spacing is ahead, whatever arrives. Of 50 of these
 * (50 / 1024) ^ 4, 1 of 170,000, are taken for another; of WEIR_FAIR_MOST 1 of 4,000. Places are drawn anew once a second.
 *
 * Where more than twice WEIR_FAIR_MOST senders find no room, as in a flood from spoofed addresses, nobody is trimmed.
 *
 * Shares are kept only while frames are looked at. So it is also told whether there is anybody to be kept from a loud sender, by a
 * vote of all frames that come while room is short (vote.h).
 *
 * What is held is learnt from how often senders find no room, and one that sends little never does so often. So the one loud sender
 * leaves the last places of the room to others at all times: at most WEIR_FAIR_LAST, and of a small buffer none.
 */
#ifndef WEIR_FAIR_H
#define WEIR_FAIR_H

#include "gate.h"
#include "vote.h"

#define WEIR_FAIR_ROWS 4
#define WEIR_FAIR_CELLS 1024
/* A packet, in the units of clock, marks and spacing. */
#define WEIR_FAIR_ONE 16
/* Packets that a sender within its share may be ahead of it. */
#define WEIR_FAIR_BURST 2
/* How far a sender can be ahead, in packets. */
#define WEIR_FAIR_FAR 8
/* Senders among which a consumer's room is divided at most. */
#define WEIR_FAIR_MOST 128
/* No mark is further ahead. */
#define WEIR_FAIR_FURTHEST (WEIR_FAIR_FAR * WEIR_FAIR_MOST * WEIR_FAIR_ONE)
/* Room was short lately: in the last so many ticks, 50 ms. */
#define WEIR_FAIR_TICKS 3
/* Packets of each share in a round, at least. */
#define WEIR_FAIR_ROUND 4
/* One of so many packets that pass may find a sender refused before shares get smaller: where the consumer has work all the
 * time, and where it runs empty, so that what is not used is lost. */
#define WEIR_FAIR_REFUSED 512
#define WEIR_FAIR_REFUSED_DRY 8
/* Polls whose room may be saved up, where a poll is given less than there is. */
#define WEIR_FAIR_SAVED 16
/* Places are drawn anew each 2^6 ticks. */
#define WEIR_FAIR_PLACES_SHIFT 6
/* Larger room is as good as this; no product of it overflows. */
#define WEIR_FAIR_ROOM 65535

/* Input was kept away lately: in the last second. */
#define WEIR_FAIR_PAUSED_TICKS 60
/* A flooded consumer has input kept away from it every few ms; after so many ticks without, a seventh of a second, it is none. With 12
 * a look, which lasts 0.2 s, ends before a server that was full for a moment is an innocent again. */
#define WEIR_FAIR_KEPT_TICKS 8
/* Frames shed beyond those that passed that are remembered; with half of them a consumer is flooded. */
#define WEIR_FAIR_PRESSED 64

/* Places that the one loud sender leaves, and of how many there is one. */
#define WEIR_FAIR_LAST 8
#define WEIR_FAIR_LAST_OF 16

enum weir_fair_verdict { WEIR_FAIR_FULL = 0, WEIR_FAIR_PASS = 1, WEIR_FAIR_OVER = 2 };

/* Of one consumer at one source. */
struct weir_fair {
	weir_u32 spacing;	/* WEIR_FAIR_ONE: all senders together get no more than one may have */
	weir_u32 held;		/* room for senders within their share, WEIR_FAIR_ONE per packet */
	weir_u32 shortage;	/* tick at which a frame was shed last */
	weir_u32 now;		/* tick of the poll under way */
	weir_u32 active;	/* room was short lately; else everything passes and nothing is counted */
	weir_u32 round;		/* its number, of those of the source */
	weir_u32 since;		/* clock at which it began */
	weir_u32 passed;	/* packets let through in the poll under way */
	weir_u32 over;		/* of the round, those of senders over their share */
	weir_u32 refused;	/* senders within their share that found no room in the round */
	weir_u32 dry;		/* the consumer has run empty in it */
	weir_u32 crowd;		/* there are too many senders to tell them apart */
	struct weir_vote vote;
	weir_u32 last;		/* places that the loudest leaves */
	weir_u32 pressed;	/* frames shed beyond those that passed, at most WEIR_FAIR_PRESSED */
};

/* Of one source. */
struct weir_sketch {
	weir_u32 clock;		/* WEIR_FAIR_ONE for each packet let through */
	weir_u32 rounds;
	struct weir_vote consumers;	/* of tracked ones: who gets most of the source's frames */
	weir_u32 pad[12];
	weir_u32 cell[WEIR_FAIR_ROWS][WEIR_FAIR_CELLS];	/* the furthest mark of those who share it */
	weir_u32 refused[WEIR_FAIR_CELLS];	/* round in which one of them was counted as refused */
};

_Static_assert(sizeof(struct weir_fair) == 64, "no holes");
_Static_assert(sizeof(struct weir_sketch) == 64 + 4 * WEIR_FAIR_CELLS * (WEIR_FAIR_ROWS + 1), "no holes");

/* What a sender is found by: its address, or prefix, and the consumer that it sends to. */
WEIR_INLINE weir_u64 weir_fair_hash(weir_u64 seed, weir_u32 now, weir_u32 consumer, weir_u64 sender)
{
	weir_u64 hash = weir_mix64(seed, (weir_u64)(now >> WEIR_FAIR_PLACES_SHIFT) << 32 | consumer);

	/* Once more, so that each bit of the sender tells in each place. */
	return weir_mix64(weir_mix64(hash, sender), seed);
}

WEIR_INLINE weir_u32 weir_fair_place(weir_u64 hash, weir_u32 row)
{
	return hash >> (24 + 10 * row) & (WEIR_FAIR_CELLS - 1);
}

/* How far the sender is ahead of the clock: the least that its cells say. */
WEIR_INLINE weir_u32 weir_fair_lead(const struct weir_sketch *sketch, weir_u64 hash)
{
	weir_u32 clock = sketch->clock, least = WEIR_FAIR_FURTHEST;

WEIR_UNROLL
	for (int row = 0; row < WEIR_FAIR_ROWS; row++) {
		weir_u32 lead = sketch->cell[row][weir_fair_place(hash, row)] - clock;

		/* The clock has passed it, or it is older than the clock's range. */
		if (lead > WEIR_FAIR_FURTHEST)
			lead = 0;
		if (lead < least)
			least = lead;
	}
	return least;
}

WEIR_INLINE void weir_fair_advance(struct weir_sketch *sketch, weir_u64 hash, weir_u32 lead)
{
	weir_u32 clock = sketch->clock;

WEIR_UNROLL
	for (int row = 0; row < WEIR_FAIR_ROWS; row++) {
		weir_u32 *cell = &sketch->cell[row][weir_fair_place(hash, row)];
		weir_u32 has = *cell - clock;

		if (has > WEIR_FAIR_FURTHEST || has < lead)
			*cell = clock + lead;
	}
}

/* What the round that ends has taught; `passed` packets were let through in it, an empty buffer has room for `whole`. */
WEIR_INLINE void weir_fair_learn(struct weir_fair *of, weir_u32 passed, weir_u32 whole)
{
	/* What passed over the share is all that could have been held. */
	weir_u32 more = of->refused < 4 * of->over ? of->refused * WEIR_FAIR_ONE / 4 : of->over * WEIR_FAIR_ONE;

	of->held += more;
	if (of->held > whole * WEIR_FAIR_ONE)
		of->held = whole * WEIR_FAIR_ONE;
	of->crowd = of->refused > 2 * WEIR_FAIR_MOST;
	if (of->refused * (of->dry ? WEIR_FAIR_REFUSED_DRY : WEIR_FAIR_REFUSED) > passed) {
		of->spacing += of->spacing / 8 + 1;
		if (of->spacing > WEIR_FAIR_MOST * WEIR_FAIR_ONE)
			of->spacing = WEIR_FAIR_MOST * WEIR_FAIR_ONE;
	} else {
		of->spacing -= of->spacing / 32;
		if (of->spacing < WEIR_FAIR_ONE)
			of->spacing = WEIR_FAIR_ONE;
	}
	of->over = of->refused = of->dry = 0;
}

/* True if most of the consumer's frames are shed: one that a poll may give nothing. */
WEIR_INLINE weir_u32 weir_fair_flooded(const struct weir_fair *of)
{
	return of->active && of->pressed >= WEIR_FAIR_PRESSED / 2;
}

/*
 * A poll begins at tick `now`. The one before has left room for `before` packets; now there is room for `room`, of which a poll is
 * given `left`; if the consumer's buffer were empty there would be room for `whole`. The room that this poll has: while packets
 * are shed, what the polls before did not use is saved up.
 */
WEIR_INLINE weir_u32 weir_fair_poll(struct weir_fair *of, struct weir_sketch *sketch, weir_u32 before, weir_u32 left,
				    weir_u32 room, weir_u32 whole, weir_u32 now)
{
	weir_u32 passed = of->passed, most = left, less;

	of->now = now;
	of->last = whole / WEIR_FAIR_LAST_OF < WEIR_FAIR_LAST ? whole / WEIR_FAIR_LAST_OF : WEIR_FAIR_LAST;
	if (!of->active)
		return left;
	of->passed = 0;
	if (!weir_recent(of->shortage, now, WEIR_FAIR_TICKS)) {
		of->active = 0;
		return left;
	}
	if (left < room && left < WEIR_FAIR_ROOM) {
		most = WEIR_FAIR_SAVED * (left ? left : 1);
		left += before < most - left ? before : most - left;
		if (left > room)
			left = room;
	}
	/* No room came free. If it is not used either, those who might use it must not wait for those who do not come. */
	if (left <= before && (!before || passed))
		return left;
	if (before > WEIR_FAIR_ROOM)
		before = WEIR_FAIR_ROOM;
	if (whole > WEIR_FAIR_ROOM)
		whole = WEIR_FAIR_ROOM;
	/* What was left over is lost: the consumer has read all it had, and no more can be saved up. */
	if (left >= whole || (room >= whole && left == most)) {
		less = before * WEIR_FAIR_ONE;
		of->held = of->held > less ? of->held - less : 0;
		of->dry = 1;
	}
	passed = sketch->clock - of->since;
	if (passed >= WEIR_FAIR_ROUND * of->spacing) {
		weir_fair_learn(of, passed / WEIR_FAIR_ONE, whole);
		of->since = sketch->clock;
		of->round = ++sketch->rounds;
	}
	return left;
}

/* True if a sender `lead` ahead is over its share, and what is left is held for others. */
WEIR_INLINE weir_u32 weir_fair_trims(const struct weir_fair *of, weir_u32 lead, weir_u32 left)
{
	weir_u32 most = WEIR_FAIR_BURST * of->spacing, range = WEIR_FAIR_FAR * of->spacing - most, ahead = lead - most;

	if (lead <= most || of->crowd)
		return 0;
	if (ahead > range)
		ahead = range;
	return (weir_u64)left * WEIR_FAIR_ONE * range <= (weir_u64)of->held * ahead;
}

/*
 * True if a frame for a consumer with room for `left` packets is asked about; else it passes. While room is short, and while input is
 * kept away, last at tick `paused`: such pauses keep room from getting short, and whether they harm anybody the vote must tell.
 */
WEIR_INLINE weir_u32 weir_fair_asks(const struct weir_fair *of, weir_u32 left, weir_u32 paused)
{
	return !left || of->active || weir_recent(paused, of->now, WEIR_FAIR_PAUSED_TICKS);
}

/*
 * True if a pause would lose this frame although its consumer is an innocent: input was kept away lately, at tick `any`, but not from
 * this consumer, whose own last such tick is `paused`. Who fills a socket once makes its program no part of a flood for longer. Nor is
 * one an innocent most of whose frames are shed: a second flooded program that shedding keeps from being full would be looked for beside
 * the first.
 */
WEIR_INLINE weir_u32 weir_fair_innocent(const struct weir_fair *of, weir_u32 paused, weir_u32 any)
{
	return weir_recent(any, of->now, WEIR_FAIR_KEPT_TICKS) && !weir_recent(paused, of->now, WEIR_FAIR_KEPT_TICKS) &&
	       of->pressed < WEIR_FAIR_PRESSED / 2;
}

/*
 * A frame for the tracked `consumer` has come: true if that one gets few beside another that gets most of the source's. While that one
 * keeps up with what its budget lets in, input is kept away from nobody, and the ring loses what is for either.
 */
WEIR_INLINE weir_u32 weir_fair_gets_few(struct weir_sketch *sketch, weir_u32 consumer)
{
	return weir_is_quiet(&sketch->consumers, weir_voter(consumer));
}

/* A frame for the consumer passes, or is shed. */
WEIR_INLINE void weir_fair_weigh(struct weir_fair *of, weir_u32 passes)
{
	if (passes && of->pressed)
		of->pressed--;
	else if (!passes && of->pressed < WEIR_FAIR_PRESSED)
		of->pressed++;
}

/* Of the room that a poll has, `left`, what it may use where the turn is to be short: `quota` packets, and beside them the places that the
 * loudest leaves. Without these it would get what is left of the quota, however much room there is. 0: no quota. */
WEIR_INLINE weir_u32 weir_fair_within(const struct weir_fair *of, weir_u32 left, weir_u32 quota)
{
	return quota && left > quota + of->last ? quota + of->last : left;
}

/* True if `voter` is the one loud sender, and what is `left` is for others. */
WEIR_INLINE weir_u32 weir_fair_leaves(struct weir_fair *of, weir_u32 voter, weir_u32 left)
{
	if (!of->active || left > of->last || !left || !weir_is_loud(&of->vote, voter))
		return 0;
	of->shortage = of->now;
	return 1;
}

/*
 * The verdict on a frame of the sender `hash` for a consumer that has room for `left` packets. Need not be asked for while there
 * is room and the consumer is not active.
 */
WEIR_INLINE weir_u32 weir_fair_judge(struct weir_fair *of, struct weir_sketch *sketch, weir_u64 hash, weir_u32 left)
{
	weir_u32 lead, next, most;

	if (!of->active) {
		if (left)
			return WEIR_FAIR_PASS;
		of->active = 1;
		of->spacing = WEIR_FAIR_ONE;
		of->held = of->passed = of->over = of->refused = of->dry = of->crowd = 0;
		of->since = sketch->clock;
		of->round = ++sketch->rounds;
	}
	lead = weir_fair_lead(sketch, hash);
	most = WEIR_FAIR_BURST * of->spacing;
	if (!left) {
		weir_u32 *counted = &sketch->refused[weir_fair_place(hash, 0)];

		of->shortage = of->now;
		/* Each sender counts once a round, however much it sends. */
		if (lead <= most && *counted != of->round) {
			*counted = of->round;
			of->refused++;
		}
		return WEIR_FAIR_FULL;
	}
	if (weir_fair_trims(of, lead, left)) {
		of->shortage = of->now;
		return WEIR_FAIR_OVER;
	}
	of->over += lead > most;
	next = lead + of->spacing;
	if (next > WEIR_FAIR_FAR * of->spacing)
		next = lead > WEIR_FAIR_FAR * of->spacing ? lead : WEIR_FAIR_FAR * of->spacing;
	weir_fair_advance(sketch, hash, next);
	sketch->clock += WEIR_FAIR_ONE;
	of->passed++;
	return WEIR_FAIR_PASS;
}

#endif
