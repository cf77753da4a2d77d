// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* syns.h for the host; the mirror is crates/policy/src/syns.rs. */
#include "syns.h"

weir_u32 weir_host_accept_full(weir_u32 queued, weir_u32 most)
{
	return weir_accept_full(queued, most);
}

weir_u32 weir_host_segment_asked(struct weir_syns *syns, weir_u32 now, weir_u32 admit)
{
	return weir_segment_asked(syns, now, admit);
}

void weir_host_segment_was_refused(struct weir_syns *syns, weir_u32 now)
{
	weir_segment_was_refused(syns, now);
}

weir_u32 weir_host_listener_find(const struct weir_listener *set, weir_u32 key)
{
	return weir_listener_find(set, key);
}

weir_u32 weir_host_listener_take(struct weir_listener *set, weir_u32 key, weir_u32 now)
{
	return weir_listener_take(set, key, now);
}

weir_u32 weir_host_syn_fits(struct weir_listener *listener, weir_u64 sender, weir_u32 now, weir_u32 poll, weir_u32 admit)
{
	return weir_syn_fits(listener, weir_voter(sender), now, poll, admit);
}

weir_u32 weir_host_refused_admit(struct weir_syns *syns, weir_u32 now, weir_u32 admit, weir_u32 sheds)
{
	return weir_refused_admit(syns, now, admit, sheds);
}

weir_u32 weir_host_segment_refused(weir_u32 taker, weir_u32 flags, weir_u32 cookie, weir_u32 used)
{
	return weir_segment_refused(taker, flags, cookie, used);
}
