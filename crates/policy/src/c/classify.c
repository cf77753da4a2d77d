// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* classify.h for the host; the mirror is crates/policy/src/classes/table.rs. */
#include "classify.h"

weir_u32 weir_host_protector(const struct weir_rules *rules, const weir_u8 *data, __SIZE_TYPE__ length,
			     struct weir_view *view)
{
	weir_parse(data, data + length, rules->addresses, view);
	return weir_protector(rules, view);
}

weir_u32 weir_host_may_pass(struct weir_bound *bound, weir_u32 rule, weir_u64 now, weir_u64 per_packet, weir_u64 own,
			    weir_u64 burst)
{
	return weir_may_pass(bound, rule, now, per_packet, own, burst);
}
