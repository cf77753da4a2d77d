// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The choice of a listener in a group of SO_REUSEPORT sockets, attached to an unmodified server from outside. The decision itself is
 * accept.h of policy; this file reads the queues for it.
 *
 * The kernel asks for each SYN. It chooses itself, as without weir, once the lease has ended, and while the group has members that the
 * loader has not seen: a new worker must not be left out.
 *
 * Work per connection: the own queue and one other are read, at most WEIR_ACCEPT_LOOKS more when the own one is not good.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "kernel.h"

typedef struct { __s64 counter; } atomic64_t;

struct sock;

struct request_sock {
	struct sock *sk;
} __attribute__((preserve_access_index));

struct request_sock_queue {
	struct request_sock *rskq_accept_head;
} __attribute__((preserve_access_index));

struct inet_connection_sock {
	struct request_sock_queue icsk_accept_queue;
} __attribute__((preserve_access_index));

struct tcp_sock {
	struct {
		__u64 time;	/* us; until its program reads from it, when it was established */
	} rcvq_space;
} __attribute__((preserve_access_index));

struct sock_common {
	atomic64_t skc_cookie;
} __attribute__((preserve_access_index));

struct sock_reuseport {
	__u16 num_socks;
	struct sock *socks[];
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u32 sk_ack_backlog;
	struct sock_reuseport *sk_reuseport_cb;
} __attribute__((preserve_access_index));

struct weir_accept_queue;
struct weir_accept_rules;
int weir_read(__u64 group, struct weir_accept_queue *queue, const struct weir_accept_rules *rules, __u64 now);
int weir_look(__u64 group, struct weir_accept_queue *queue, const struct weir_accept_rules *rules, __u64 now);
#define WEIR_ACCEPT_READ(from, queue, rules, now) weir_read((__u64)(from), queue, rules, now)
#define WEIR_ACCEPT_LOOK(from, queue, rules, now) weir_look((__u64)(from), queue, rules, now)
#include "listeners.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_accept);
} accept_state SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
	__uint(max_entries, WEIR_ACCEPT_QUEUES);
	__type(key, __u32);
	__type(value, __u64);
} accept_sockets SEC(".maps");

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;

/* The member at `place` of the group, if it has this cookie. The group is only read: a member that leaves meanwhile is freed after a grace
 * period, and this runs inside one. */
static __always_inline struct sock *member(const struct sock_reuseport *group, __u32 place, __u64 cookie)
{
	struct sock *sk = 0;

	if (place >= group->num_socks ||
	    bpf_probe_read_kernel(&sk, sizeof(sk), (const void *)&group->socks[place & (WEIR_ACCEPT_QUEUES - 1)]) || !sk)
		return 0;
	sk = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct sock));
	return (__u64)sk->__sk_common.skc_cookie.counter == cookie ? sk : 0;
}

/* Verified once, for all places that call it: inlined into the loop it would take the kernel seconds to verify. */
__attribute__((noinline)) int
weir_read(__u64 group, struct weir_accept_queue *queue, const struct weir_accept_rules *rules, __u64 now)
{
	struct inet_connection_sock *listener;
	struct request_sock *head;
	struct tcp_sock *oldest;
	__u64 born = 0;
	struct sock *sk;

	if (!queue || !rules)
		return 0;
	sk = member(bpf_rdonly_cast((void *)group, bpf_core_type_id_kernel(struct sock_reuseport)), queue->place, queue->cookie);
	if (!sk) /* It has moved: what was known of it stays. */
		return 0;
	listener = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct inet_connection_sock));
	head = listener->icsk_accept_queue.rskq_accept_head;
	if (head) {
		oldest = bpf_rdonly_cast(head->sk, bpf_core_type_id_kernel(struct tcp_sock));
		born = oldest->rcvq_space.time * 1000;
	}
	weir_accept_seen(queue, rules, (__u64)head, born > now ? now : born, sk->sk_ack_backlog, now);
	return 0;
}

__attribute__((noinline)) int
weir_look(__u64 group, struct weir_accept_queue *queue, const struct weir_accept_rules *rules, __u64 now)
{
	if (!queue || !rules)
		return 0;
	weir_read(group, queue, rules, now);
	return weir_accept_look(queue, rules, now);
}

/* The kernel moves its last member to the place of one that leaves: find this queue's again, a few places a call. */
__attribute__((noinline)) int weir_find_place(__u64 of, struct weir_accept_queue *queue)
{
	const struct sock_reuseport *group = bpf_rdonly_cast((void *)of, bpf_core_type_id_kernel(struct sock_reuseport));
	__u32 i, place;

	if (!queue)
		return 0;
	place = queue->place;

	if (member(group, place, queue->cookie))
		return 0;
	for (i = 0; i < 4; i++) {
		place = place + 1 >= group->num_socks ? 0 : place + 1;
		if (member(group, place, queue->cookie))
			break;
	}
	queue->place = place;
	return 0;
}

SEC("sk_reuseport")
int weir_accept(struct sk_reuseport_md *ctx)
{
	const struct sock_reuseport *group;
	__u32 key = 0, core, own, first, many, count, why, draw, slot;
	struct weir_accept *of = bpf_map_lookup_elem(&accept_state, &key);
	__u64 now, at = 0;
	struct sock *sk;

	if (!of)
		return SK_PASS;
	now = bpf_ktime_get_ns();
	count = of->count;
	if (!count || count > WEIR_ACCEPT_QUEUES || of->lease < now) {
		__sync_fetch_and_add(&of->chosen[WEIR_ACCEPT_LEASE], 1);
		return SK_PASS;
	}
	sk = bpf_rdonly_cast(ctx->sk, bpf_core_type_id_kernel(struct sock));
	/* As a number, which the parts that are verified apart take. */
	if (bpf_core_read(&at, sizeof(at), &sk->sk_reuseport_cb) || !at)
		return SK_PASS;
	group = bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct sock_reuseport));
	of->sockets = group->num_socks;
	if (of->sockets != count) {
		__sync_fetch_and_add(&of->chosen[WEIR_ACCEPT_MEMBERS], 1);
		return SK_PASS;
	}
	draw = bpf_get_prandom_u32();
	core = bpf_get_smp_processor_id();
	own = of->own[core & (WEIR_ACCEPT_CORES - 1)];
	first = own >> 16;
	many = own & 0xffff;
	slot = of->cursor + 1 >= count ? 0 : of->cursor + 1;
	of->cursor = slot;
	weir_find_place(at, &of->queues[slot & (WEIR_ACCEPT_QUEUES - 1)]);
	weir_read(at, &of->queues[slot & (WEIR_ACCEPT_QUEUES - 1)], &of->rules, now);
	own = many ? first + (__u32)(((__u64)draw * many) >> 32) : WEIR_ACCEPT_NONE;
	slot = weir_accept_choose(of->queues, &of->rules, count, own, bpf_get_prandom_u32(), now, (void *)at, &why);
	slot &= WEIR_ACCEPT_QUEUES - 1;
	if (bpf_sk_select_reuseport(ctx, &accept_sockets, &slot, 0)) {
		__sync_fetch_and_add(&of->chosen[WEIR_ACCEPT_REFUSED], 1);
		return SK_PASS;
	}
	__sync_fetch_and_add(&of->chosen[why & 7], 1);
	__sync_fetch_and_add(&of->queues[slot].placed, 1);
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
