// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* gate.h for the host; the mirror is crates/policy/src/gate.rs. */
#include "gate.h"

weir_u32 weir_host_recent(weir_u32 tick, weir_u32 now, weir_u32 most)
{
	return weir_recent(tick, now, most);
}

weir_u32 weir_host_size_learnt(weir_u32 size, weir_u32 seen)
{
	return weir_size_learnt(size, seen);
}

weir_u32 weir_host_nobodys(const struct weir_port *port, weir_u32 address, weir_u32 now, weir_u32 most)
{
	return weir_nobodys(port, address, now, most);
}

weir_u32 weir_host_learns(const struct weir_port *port, weir_u32 used, weir_u32 listed, weir_u32 now, weir_u32 most)
{
	return weir_learns(port, used, listed, now, most);
}

weir_u32 weir_host_learn(struct weir_port *port, weir_u32 address, weir_u32 now)
{
	return weir_learn(port, address, now);
}

weir_u32 weir_host_whose(const struct weir_port *port, weir_u32 address, weir_u32 used, weir_u32 listed, weir_u32 now, weir_u32 most,
			 weir_u32 listed_most)
{
	return weir_whose(port, address, used, listed, now, most, listed_most);
}

weir_u32 weir_host_port_ticks(weir_u32 key, weir_u32 most)
{
	return weir_port_ticks(key, most);
}

weir_u32 weir_host_whose_refused(const struct weir_port *port, weir_u32 listed, weir_u32 now, weir_u32 most, weir_u32 listed_most)
{
	return weir_whose_refused(port, listed, now, most, listed_most);
}

weir_u32 weir_host_refuse(struct weir_refusal *refusal, weir_u32 flow, weir_u32 now)
{
	return weir_refuse(refusal, flow, now);
}

weir_u32 weir_host_refused(const struct weir_refusal *refusal, weir_u32 flow, weir_u32 left, weir_u32 now, weir_u32 most)
{
	return weir_refused(refusal, flow, left, now, most);
}

weir_u32 weir_host_refuse_for(struct weir_refusal *refusal, weir_u32 destination, weir_u32 now)
{
	return weir_refuse_for(refusal, destination, now);
}

weir_u32 weir_host_mostly_refused(const struct weir_refusal *refusal, weir_u32 destination, weir_u32 now, weir_u32 most)
{
	return weir_mostly_refused(refusal, destination, now, most);
}

weir_u32 weir_host_beyond(weir_u32 port, weir_u32 full, weir_u32 translated, weir_u32 told)
{
	return weir_beyond(port, full, translated, told);
}

weir_u32 weir_host_refusals_tell(weir_u32 spoken, weir_u32 full, weir_u32 told)
{
	return weir_refusals_tell(spoken, full, told);
}

void weir_host_ended(struct weir_end *end, weir_u32 mark, weir_u32 now)
{
	weir_ended(end, mark, now);
}

weir_u32 weir_host_ends(const struct weir_end *end, weir_u32 mark, weir_u32 now)
{
	return weir_ends(end, mark, now);
}

weir_u32 weir_host_room(weir_u32 size, weir_u32 held, weir_u32 truesize, weir_u32 slices)
{
	return weir_room(size, held, truesize, slices);
}

weir_u32 weir_host_room_given(weir_u32 room, weir_u32 admit, weir_u32 poll, weir_u32 flooded)
{
	return weir_room_given(room, admit, poll, flooded);
}

weir_u32 weir_host_fragments(weir_u32 admit)
{
	return weir_fragments(admit);
}
