// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* classify.h for the host; the mirror is crates/policy/src/classes/table.rs. */
#include "classify.h"

weir_u32 weir_host_protector(const struct weir_rules *rules, const weir_u8 *data, __SIZE_TYPE__ length,
			     struct weir_view *view)
{
	weir_parse(data, data + length, rules->addresses, view);
	return weir_protector(rules, view);
}

/* What the packet path tells without a look at the whole frame, and at the rules: bit 0, the view is complete; bit 1, no rule protects
 * it. */
weir_u32 weir_host_short(const struct weir_rules *rules, const weir_u8 *data, __SIZE_TYPE__ length,
			 struct weir_view *view)
{
	weir_u32 plain = weir_parse_plain(data, data + length, rules->addresses, view);

	if (!plain)
		weir_parse(data, data + length, rules->addresses, view);
	return plain | weir_none_protects(rules, view) << 1;
}

weir_u32 weir_host_may_pass(struct weir_bound *bound, weir_u32 rule, weir_u64 now, weir_u64 per_packet, weir_u64 own,
			    weir_u64 burst)
{
	return weir_may_pass(bound, rule, now, per_packet, own, burst);
}
