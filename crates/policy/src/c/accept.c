// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* accept.h for the host; the mirror is crates/policy/src/accept/queues.rs. */
#include "accept.h"

void weir_host_accept_seen(struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 head, weir_u64 born,
			   weir_u32 length, weir_u32 limit, weir_u64 now)
{
	weir_accept_seen(queue, rules, head, born, length, limit, now);
}

void weir_host_accept_worker(struct weir_accept_queue *queue, weir_u32 does, weir_u64 rests, weir_u64 ran, weir_u64 now)
{
	weir_accept_worker(queue, does, rests, ran, now);
}

int weir_host_accept_gone(const struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 now)
{
	return weir_accept_gone(queue, rules, now);
}

weir_u32 weir_host_accept_moved(const struct weir_accept_queue *queue, const struct weir_accept_rules *rules, weir_u64 now)
{
	return weir_accept_moved(queue, rules, weir_accept_look(queue, rules, now));
}

weir_u32 weir_host_accept_choose(struct weir_accept_queue *queues, const struct weir_accept_rules *rules, weir_u32 count,
				 weir_u32 own, weir_u32 draw, weir_u64 now, weir_u32 *why)
{
	return weir_accept_choose(queues, rules, count, own, draw, now, 0, why);
}
