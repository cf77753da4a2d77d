// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* behind.h for the host; the mirror is crates/policy/src/behind.rs. */
#include "behind.h"

weir_u32 weir_host_carry(struct weir_carried *carried, weir_u32 mark, weir_u32 now)
{
	return weir_carry(carried, mark, now);
}

weir_u32 weir_host_claim(struct weir_carried *carried, weir_u32 mark, weir_u32 now)
{
	return weir_claim(carried, mark, now);
}

weir_u32 weir_host_outer_learn(struct weir_outer *outer, weir_u32 mark, weir_u32 inner, weir_u32 consumer, weir_u32 now)
{
	return weir_outer_learn(outer, mark, inner, consumer, now);
}

weir_u32 weir_host_outer_known(const struct weir_outer *outer, weir_u32 mark, weir_u32 now)
{
	return weir_outer_known(outer, mark, now);
}

void weir_host_route_learn(struct weir_route *route, weir_u32 mark, weir_u32 inner, weir_u32 consumer, weir_u32 now)
{
	weir_route_learn(route, mark, inner, consumer, now);
}

weir_u32 weir_host_routed(const struct weir_route *route, weir_u32 mark, weir_u32 now)
{
	return weir_routed(route, mark, now);
}

weir_u32 weir_host_outer_member(struct weir_outer *outer, const weir_u32 *left, weir_u32 now)
{
	return weir_outer_member(outer, left, now);
}
