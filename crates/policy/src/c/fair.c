// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* fair.h for the host; the mirror is crates/policy/src/fair.rs. */
#include "fair.h"

weir_u64 weir_host_fair_hash(weir_u64 seed, weir_u32 now, weir_u32 consumer, weir_u64 sender)
{
	return weir_fair_hash(seed, now, consumer, sender);
}

weir_u32 weir_host_fair_poll(struct weir_fair *of, struct weir_sketch *sketch, weir_u32 before, weir_u32 left, weir_u32 room,
			     weir_u32 whole, weir_u32 now)
{
	return weir_fair_poll(of, sketch, before, left, room, whole, now);
}

weir_u32 weir_host_fair_judge(struct weir_fair *of, struct weir_sketch *sketch, weir_u64 hash, weir_u32 left)
{
	return weir_fair_judge(of, sketch, hash, left);
}

weir_u32 weir_host_fair_lead(const struct weir_sketch *sketch, weir_u64 hash)
{
	return weir_fair_lead(sketch, hash);
}

weir_u32 weir_host_fair_leaves(struct weir_fair *of, weir_u64 sender, weir_u32 left)
{
	return weir_fair_leaves(of, weir_voter(sender), left);
}

weir_u32 weir_host_is_quiet(struct weir_vote *vote, weir_u64 sender)
{
	return weir_is_quiet(vote, weir_voter(sender));
}

weir_u32 weir_host_fair_asks(const struct weir_fair *of, weir_u32 left, weir_u32 paused)
{
	return weir_fair_asks(of, left, paused);
}

weir_u32 weir_host_fair_flooded(const struct weir_fair *of)
{
	return weir_fair_flooded(of);
}

weir_u32 weir_host_fair_innocent(const struct weir_fair *of, weir_u32 paused, weir_u32 any)
{
	return weir_fair_innocent(of, paused, any);
}

void weir_host_fair_weigh(struct weir_fair *of, weir_u32 passes)
{
	weir_fair_weigh(of, passes);
}

weir_u32 weir_host_fair_gets_few(struct weir_sketch *sketch, weir_u32 consumer)
{
	return weir_fair_gets_few(sketch, consumer);
}

weir_u32 weir_host_fair_within(const struct weir_fair *of, weir_u32 left, weir_u32 quota)
{
	return weir_fair_within(of, left, quota);
}
