// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The choice of a listener in a group of SO_REUSEPORT sockets, attached to an unmodified server from outside. The decision itself is
 * accept.h of policy; this file reads the queues for it.
 *
 * The kernel asks for each SYN. It chooses itself, as without weir, once the lease has ended, and while the group has members that the
 * loader has not seen: a new worker must not be left out.
 *
 * Work per connection: the own queue is read, unless it was a moment ago, and at most WEIR_ACCEPT_LOOKS more when it is not good. One other
 * is read where the timer does not get to all of them in a millisecond, or does not run.
 *
 * What a worker does is read from where it waits for events: its listener's list of who is to be told has its epoll, and that one's list
 * of waiters has the worker while it waits; or it is in the first list itself, while it is in accept() or poll(). A timer looks at
 * WEIR_ACCEPT_TICK queues every WEIR_ACCEPT_TICK_NS while connections come, since how long a worker has been at work can be seen by looking
 * twice only; and more slowly while one waits that nobody takes, so that who watches sees it go. It ends by itself, and with the loader.
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
	possible_net_t skc_net;
	atomic64_t skc_cookie;
} __attribute__((preserve_access_index));

struct sock_reuseport {
	__u16 num_socks;
	struct sock *socks[];
} __attribute__((preserve_access_index));

struct list_head {
	struct list_head *next;
};

struct wait_queue_head {
	struct list_head head;
} __attribute__((preserve_access_index));

struct wait_queue_entry {
	void *private;
	void *func;
	struct list_head entry;
} __attribute__((preserve_access_index));

struct socket_wq {
	struct wait_queue_head wait;
} __attribute__((preserve_access_index));

struct eventpoll {
	struct wait_queue_head wq;
} __attribute__((preserve_access_index));

struct epitem {
	struct eventpoll *ep;
} __attribute__((preserve_access_index));

struct eppoll_entry {
	struct epitem *base;
	struct wait_queue_entry wait;
} __attribute__((preserve_access_index));

struct poll_wqueues {
	struct task_struct *polling_task;
} __attribute__((preserve_access_index));

struct sched_entity {
	__u64 sum_exec_runtime;
} __attribute__((preserve_access_index));

struct task_struct {
	unsigned int __state;
	struct sched_entity se;
	unsigned long nvcsw;
} __attribute__((preserve_access_index));

struct sk_buff_head {
	void *next;	/* the head itself, if it is empty */
	__u32 qlen;
} __attribute__((preserve_access_index));

struct udp_sock {
	struct sk_buff_head reader_queue;	/* what was moved out of the socket's queue, to be read first */
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
	struct sk_buff_head sk_receive_queue;
	struct {
		struct {
			int counter;
		} rmem_alloc;
	} sk_backlog;
	int sk_rcvbuf;
	struct socket_wq *sk_wq;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	struct sock_reuseport *sk_reuseport_cb;
} __attribute__((preserve_access_index));

struct weir_accept_queue;
struct weir_accept_rules;
int weir_read(__u64 group, struct weir_accept_queue *queue, const struct weir_accept_rules *rules, __u64 now);
int weir_look(__u64 group, struct weir_accept_queue *queue, const struct weir_accept_rules *rules, __u64 now);
#define WEIR_ACCEPT_READ(from, queue, rules, now) weir_read((__u64)(from), queue, rules, now)
#define WEIR_ACCEPT_LOOK(from, queue, rules, now) weir_look((__u64)(from), queue, rules, now)
int weir_count(__u32 count, __u32 own, __u32 first, __u32 looks, __u64 now);
#define WEIR_ACCEPT_COUNT(queues, count, own, first, looks, now) weir_count(count, own, first, looks, now)
__u64 weir_best(__u64 group, __u32 count, __u32 own, __u32 first, __u64 now);
#define WEIR_ACCEPT_BEST(queues, rules, count, own, first, looks, now, from) weir_best((__u64)(from), count, own, first, now)
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

struct ticking {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct ticking);
} accept_timer SEC(".maps");

#define PROTO_UDP 17

#define WEIR_ACCEPT_TICK 16
#define WEIR_ACCEPT_TICK_NS 1000000
/* Without a connection for so long the timer slows down, and ends once nobody has waited for WEIR_ACCEPT_TICK_HELD. */
#define WEIR_ACCEPT_TICK_IDLE 20000000
#define WEIR_ACCEPT_TICK_SLOW 10000000
#define WEIR_ACCEPT_TICK_HELD 500000000

extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym;
/* How who waits in epoll, poll(), accept() and recvmsg() is told. Where one has another name, what workers do is not known. */
extern const void ep_poll_callback __ksym __weak;
extern const void pollwake __ksym __weak;
extern const void autoremove_wake_function __ksym __weak;
extern const void receiver_wake_function __ksym __weak;

#define AS(type, address) ((struct type *)bpf_rdonly_cast((const void *)(__u64)(address), bpf_core_type_id_kernel(struct type)))

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

/* Who waits in the listener's own list, in weir_accept_queue.waits_in. */
#define DIRECTLY 1

/* What the worker does that waits for events of `sk`, alone. Lists are only read, without their locks: what is read while one changes is
 * wrong for one look at most. */
static __always_inline void look_at_worker(struct sock *sk, struct weir_accept_queue *queue, __u64 now)
{
	__u64 list, entry, first, func, task = 0, waits_in = 0, rests = 0, ran = 0;
	__u32 does = WEIR_ACCEPT_UNKNOWN;
	struct task_struct *worker;

	list = (__u64)sk->sk_wq;
	if (!list)
		goto seen;
	list += bpf_core_field_offset(struct socket_wq, wait.head);
	first = (__u64)AS(list_head, list)->next;
	if (first == list) { /* One that waits there itself has left. */
		waits_in = DIRECTLY;
		goto known;
	}
	if ((__u64)AS(list_head, first)->next != list)
		goto seen; /* Several, among which it cannot be told who takes it. */
	entry = first - bpf_core_field_offset(struct wait_queue_entry, entry);
	func = (__u64)AS(wait_queue_entry, entry)->func;
	if (!func)
		goto seen;
	if (func == (__u64)&ep_poll_callback) {
		entry -= bpf_core_field_offset(struct eppoll_entry, wait);
		waits_in = (__u64)AS(epitem, AS(eppoll_entry, entry)->base)->ep;
		list = waits_in + bpf_core_field_offset(struct eventpoll, wq.head);
		first = (__u64)AS(list_head, list)->next;
		if (first != list) {
			entry = first - bpf_core_field_offset(struct wait_queue_entry, entry);
			task = (__u64)AS(wait_queue_entry, entry)->private;
		}
	} else if (func == (__u64)&autoremove_wake_function || func == (__u64)&receiver_wake_function) {
		waits_in = DIRECTLY;
		task = (__u64)AS(wait_queue_entry, entry)->private;
	} else if (func == (__u64)&pollwake) {
		waits_in = DIRECTLY;
		task = (__u64)AS(poll_wqueues, AS(wait_queue_entry, entry)->private)->polling_task;
	} else {
		goto seen;
	}
known:
	if (queue->waits_in != waits_in) {
		queue->waits_in = waits_in;
		queue->task = 0;
	}
	if (task)
		queue->task = task;
	if (queue->task) {
		/* If it has ended, its listener or epoll is closed; where another process keeps that, the loader fills the group anew. */
		worker = AS(task_struct, queue->task);
		does = task ? WEIR_ACCEPT_WAITS : worker->__state ? WEIR_ACCEPT_SLEEPS : WEIR_ACCEPT_RUNS;
		rests = worker->nvcsw;
		/* While it runs it is brought up to date when another thread comes in between, and at each tick of the scheduler. */
		ran = worker->se.sum_exec_runtime;
	}
seen:
	weir_accept_worker(queue, does, rests, ran, now);
}

/* The datagram that is read next, and how many wait: first those that the reader has moved to a queue of its own. When it came is not
 * kept. */
static __always_inline __u64 first_datagram(struct sock *sk, __u32 *length)
{
	struct udp_sock *udp = AS(udp_sock, sk);
	__u64 first = 0;

	*length = udp->reader_queue.qlen + sk->sk_receive_queue.qlen;
	/* As a number, which a name may be made of. */
	bpf_core_read(&first, sizeof(first), &udp->reader_queue.next);
	if (first == (__u64)sk + bpf_core_field_offset(struct udp_sock, reader_queue))
		bpf_core_read(&first, sizeof(first), &sk->sk_receive_queue.next);
	return first == (__u64)sk + bpf_core_field_offset(struct sock, sk_receive_queue) ? 0 : first;
}

/* How many of datagrams like those that wait a socket takes, known once they fill half of its buffer. */
static __always_inline __u32 datagrams(struct sock *sk, __u32 length)
{
	__u32 size = sk->sk_rcvbuf, held = sk->sk_backlog.rmem_alloc.counter;

	return length && size < 1U << 31 && held > size / 2 && held < 1U << 31 ? (__u64)size * length / held : 0;
}

/* Verified once, for all places that call it: inlined into the loop it would take the kernel seconds to verify. */
__attribute__((noinline)) int
weir_read(__u64 group, struct weir_accept_queue *queue, const struct weir_accept_rules *rules, __u64 now)
{
	struct inet_connection_sock *listener;
	struct request_sock *head;
	struct tcp_sock *oldest;
	__u64 born = 0, name;
	__u32 length, limit;
	struct sock *sk;

	if (!queue || !rules)
		return 0;
	sk = member(bpf_rdonly_cast((void *)group, bpf_core_type_id_kernel(struct sock_reuseport)), queue->place, queue->cookie);
	if (!sk) /* It has moved: what was known of it stays. */
		return 0;
	if (rules->away)
		look_at_worker(sk, queue, now);
	if (sk->sk_protocol == PROTO_UDP) {
		name = first_datagram(sk, &length);
		/* A datagram often gets the memory of the one before it: a reader that has slept meanwhile has read that. */
		if (name)
			name ^= queue->rests << 16;
		limit = datagrams(sk, length);
	} else {
		listener = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct inet_connection_sock));
		head = listener->icsk_accept_queue.rskq_accept_head;
		if (head) {
			oldest = bpf_rdonly_cast(head->sk, bpf_core_type_id_kernel(struct tcp_sock));
			born = oldest->rcvq_space.time * 1000;
		}
		name = (__u64)head;
		length = sk->sk_ack_backlog;
		/* The kernel refuses the one after it. */
		limit = sk->sk_max_ack_backlog + 1;
	}
	weir_accept_seen(queue, rules, name, born > now ? now : born, length, limit, now);
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

/* Apart as well, so that the ways through it do not multiply those through the choice: older verifiers give up there. */
__attribute__((noinline)) int weir_count(__u32 count, __u32 own, __u32 first, __u32 looks, __u64 now)
{
	__u32 key = 0;
	struct weir_accept *of = bpf_map_lookup_elem(&accept_state, &key);

	if (of && count)
		weir_accept_count(of->queues, count, own, first, looks, now);
	return 0;
}

/* Apart too: inside the choice it would be verified anew for each way to it, which takes half a second for each group. */
__attribute__((noinline)) __u64 weir_best(__u64 group, __u32 count, __u32 own, __u32 first, __u64 now)
{
	__u32 key = 0, looks;
	struct weir_accept *of = bpf_map_lookup_elem(&accept_state, &key);

	if (!of || !count)
		return ~0ULL;
	looks = of->rules.looks < count ? of->rules.looks : count;
	return weir_accept_best(of->queues, &of->rules, count, own, first, looks, now, (void *)group);
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

static int tick(void *map, __u32 *slot, struct ticking *ticking)
{
	__u32 key = 0, i, at;
	struct weir_accept *of = bpf_map_lookup_elem(&accept_state, &key);
	__u64 now = bpf_ktime_get_ns();
	struct weir_accept_queue *queue;
	int idle;

	if (!of)
		return 0;
	idle = now > of->asked + WEIR_ACCEPT_TICK_IDLE;
	if (now > of->lease || (idle && now > of->held + WEIR_ACCEPT_TICK_HELD)) {
		of->ticks = 0;
		return 0;
	}
	at = of->cursor;
	for (i = 0; i < WEIR_ACCEPT_TICK && i < of->count; i++) {
		at = at + 1 >= of->count ? 0 : at + 1;
		queue = &of->queues[at & (WEIR_ACCEPT_QUEUES - 1)];
		weir_find_place(of->group, queue);
		weir_read(of->group, queue, &of->rules, now);
		if (queue->length)
			of->held = now;
	}
	of->cursor = at;
	of->looks++;
	bpf_timer_start(&ticking->timer, idle ? WEIR_ACCEPT_TICK_SLOW : WEIR_ACCEPT_TICK_NS, 0);
	return 0;
}

/* Starts the timer unless it runs. */
static __always_inline void keep_ticking(struct weir_accept *of)
{
	struct ticking *ticking;
	__u32 key = 0;

	if (!of->rules.away || of->ticks || __sync_val_compare_and_swap(&of->ticks, 0, 1))
		return;
	ticking = bpf_map_lookup_elem(&accept_timer, &key);
	if (!ticking)
		return;
	/* Refused if it is there already. */
	bpf_timer_init(&ticking->timer, &accept_timer, 1 /* CLOCK_MONOTONIC */);
	if (bpf_timer_set_callback(&ticking->timer, tick) || bpf_timer_start(&ticking->timer, WEIR_ACCEPT_TICK_NS, 0))
		of->ticks = 0;
}

static __always_inline void add(struct weir_accept *of, __u32 core, __u32 why)
{
	__sync_fetch_and_add(&of->chosen[core & (WEIR_ACCEPT_SHARDS - 1)].of[why], 1);
}

/* Where one goes that waits at a listener that was closed: how good that queue is, and the queue. Those that are still there count, whose
 * places have changed. */
__attribute__((noinline)) __u64 weir_target(__u64 group, __u32 count, __u32 first, __u64 now)
{
	__u32 key = 0, i, slot;
	struct weir_accept *of = bpf_map_lookup_elem(&accept_state, &key);
	struct weir_accept_queue *queue;
	__u64 found = ~0ULL, seen;
	__u32 good;

	if (!of || !count)
		return found;
	for (i = 0; i < WEIR_ACCEPT_LOOKS; i++) {
		slot = (first + i) % count;
		queue = &of->queues[slot & (WEIR_ACCEPT_QUEUES - 1)];
		if (i >= count)
			break;
		weir_find_place(group, queue);
		if (!member(bpf_rdonly_cast((void *)group, bpf_core_type_id_kernel(struct sock_reuseport)), queue->place,
			    queue->cookie))
			continue;
		good = weir_look(group, queue, &of->rules, now);
		seen = (__u64)weir_accept_moved(queue, &of->rules, good) << 32 | slot;
		if (seen < found)
			found = seen;
	}
	return found;
}

/* True if the kernel moves by its hash without any program. */
static __always_inline _Bool moves_anyway(struct sock *sk)
{
	struct net *net = sk->__sk_common.skc_net.net;

	return bpf_core_field_exists(net->ipv4.sysctl_tcp_migrate_req) && net->ipv4.sysctl_tcp_migrate_req;
}

/* Moves one that waits at the listener of `ctx`, which is closed. It is reset, as without weir, where there is no good place, and once
 * the lease has ended. */
static __always_inline int moved(struct sk_reuseport_md *ctx, struct weir_accept *of, __u32 core)
{
	__u64 now = bpf_ktime_get_ns(), at = 0, found = ~0ULL;
	__u32 count = of->count, slot;
	struct sock *sk;

	sk = bpf_rdonly_cast(ctx->sk, bpf_core_type_id_kernel(struct sock));
	if (count && count <= WEIR_ACCEPT_QUEUES && of->lease >= now &&
	    !bpf_core_read(&at, sizeof(at), &sk->sk_reuseport_cb) && at)
		found = weir_target(at, count, ((__u64)bpf_get_prandom_u32() * count) >> 32, now);
	slot = found & (WEIR_ACCEPT_QUEUES - 1);
	if (found >> 32 != WEIR_ACCEPT_NONE && !bpf_sk_select_reuseport(ctx, &accept_sockets, &slot, 0)) {
		add(of, core, WEIR_ACCEPT_MIGRATED);
		return SK_PASS;
	}
	add(of, core, WEIR_ACCEPT_UNMOVED);
	return moves_anyway(sk) ? SK_PASS : SK_DROP;
}

/* Of this kind a program has the kernel move what waits at a listener that is closed, and is asked where to. Where the kernel does not
 * wake who gets it, the loader makes it one of the other kind. */
SEC("sk_reuseport/migrate")
int weir_accept(struct sk_reuseport_md *ctx)
{
	const struct sock_reuseport *group;
	__u32 key = 0, core, own, first, many, count, members, why, draw, slot;
	struct weir_accept *of = bpf_map_lookup_elem(&accept_state, &key);
	__u64 now, at = 0;
	struct sock *sk;

	if (!of)
		return SK_PASS;
	core = bpf_get_smp_processor_id();
	if (ctx->migrating_sk)
		return moved(ctx, of, core);
	now = bpf_ktime_get_ns();
	count = of->count;
	if (!count || count > WEIR_ACCEPT_QUEUES || of->lease < now) {
		add(of, core, WEIR_ACCEPT_LEASE);
		return SK_PASS;
	}
	sk = bpf_rdonly_cast(ctx->sk, bpf_core_type_id_kernel(struct sock));
	/* As a number, which the parts that are verified apart take. */
	if (bpf_core_read(&at, sizeof(at), &sk->sk_reuseport_cb) || !at)
		return SK_PASS;
	group = bpf_rdonly_cast((void *)at, bpf_core_type_id_kernel(struct sock_reuseport));
	members = group->num_socks;
	if (of->sockets != members)
		of->sockets = members;
	if (members != count) {
		add(of, core, WEIR_ACCEPT_MEMBERS);
		return SK_PASS;
	}
	if (of->group != at)
		of->group = at;
	if (now - of->asked > WEIR_ACCEPT_TICK_NS)
		of->asked = now;
	keep_ticking(of);
	draw = bpf_get_prandom_u32();
	own = of->own[core & (WEIR_ACCEPT_CORES - 1)];
	first = own >> 16;
	many = own & 0xffff;
	if (!of->rules.away || count > WEIR_ACCEPT_TICK) {
		slot = of->cursor + 1 >= count ? 0 : of->cursor + 1;
		of->cursor = slot;
		weir_find_place(at, &of->queues[slot & (WEIR_ACCEPT_QUEUES - 1)]);
		weir_read(at, &of->queues[slot & (WEIR_ACCEPT_QUEUES - 1)], &of->rules, now);
	}
	own = many ? first + (__u32)(((__u64)draw * many) >> 32) : WEIR_ACCEPT_NONE;
	slot = weir_accept_choose(of->queues, &of->rules, count, own, bpf_get_prandom_u32(), now, (void *)at, &why);
	slot &= WEIR_ACCEPT_QUEUES - 1;
	if (bpf_sk_select_reuseport(ctx, &accept_sockets, &slot, 0)) {
		add(of, core, WEIR_ACCEPT_REFUSED);
		return SK_PASS;
	}
	add(of, core, why < WEIR_ACCEPT_WHYS ? why : 0);
	__sync_fetch_and_add(&of->queues[slot & (WEIR_ACCEPT_QUEUES - 1)].placed, 1);
	if (slot - first < many)
		__sync_fetch_and_add(&of->queues[slot & (WEIR_ACCEPT_QUEUES - 1)].affine, 1);
	return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
