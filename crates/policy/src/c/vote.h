/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The one loud sender: a vote of all frames of a stream knows the sender of more than eight in nine of them, if there is one. The
 * others are quiet. A sender alone has no vote against it, and where several are alike none gets that many. The properties are
 * those of crates/policy/src/vote.rs.
 */
#ifndef WEIR_VOTE_H
#define WEIR_VOTE_H

#include "gate.h"

/* Votes that the loudest sender may have, for how many its own frames count one each, and what another's frame takes from them. */
#define WEIR_VOTES 256
#define WEIR_VOTES_AGAINST 8

struct weir_vote {
	weir_u32 loudest;	/* the sender of most frames, if `votes` are many */
	weir_u32 votes;
};

/* A sender as the vote knows it: an IPv4 address, or the first half of an IPv6 one. */
WEIR_INLINE weir_u32 weir_voter(weir_u64 sender)
{
	return weir_mix((weir_u32)sender, sender >> 32);
}

/* True if `voter` is the one loud sender. */
WEIR_INLINE weir_u32 weir_is_loud(const struct weir_vote *vote, weir_u32 voter)
{
	return voter == vote->loudest && vote->votes >= WEIR_VOTES / 2;
}

/* A frame of `voter` has come: true if it is a quiet one beside a loud one. */
WEIR_INLINE weir_u32 weir_is_quiet(struct weir_vote *vote, weir_u32 voter)
{
	weir_u32 votes = vote->votes;

	if (voter == vote->loudest) {
		vote->votes = votes < WEIR_VOTES ? votes + 1 : WEIR_VOTES;
		return 0;
	}
	if (votes < WEIR_VOTES_AGAINST) {
		vote->loudest = voter;
		vote->votes = 1;
		return 0;
	}
	vote->votes = votes - WEIR_VOTES_AGAINST;
	return votes >= WEIR_VOTES / 2;
}

#endif
