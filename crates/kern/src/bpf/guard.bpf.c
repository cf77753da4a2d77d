// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Gauges of the guard: NAPI work per source, NET_RX softirq time per CPU, levels of UDP sockets that overflowed,
 * and the wake-ups of a sleeping poller. The programs observe; the one that acts on packets is in rx.bpf.c.
 *
 * Cost: napi_poll one hash look-up per poll, and in poll mode three reads per known consumer; sock_recv_length and
 * sched_switch one array read while nothing waits. Nothing here runs per packet.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "guard.h"
#include "guard_maps.h"

#define NET_RX_SOFTIRQ 3

typedef struct { int counter; } atomic_t;
typedef struct { __s64 counter; } atomic64_t;

struct napi_struct {
	unsigned int napi_id;
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct sock_common {
	unsigned short skc_family;
	__u16 skc_num;
	possible_net_t skc_net;
	atomic64_t skc_cookie;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	struct {
		atomic_t rmem_alloc;
	} __attribute__((preserve_access_index)) sk_backlog;
	int sk_rcvbuf;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

/* Only sockets of this network namespace can be consumers; inode of /proc/self/ns/net. */
const volatile __u32 netns_inode = 0;

struct { /* events for the control loop */
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

struct wake_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
};

struct { /* one ring per poller: what it sleeps on */
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, WEIR_POLLERS);
	__type(key, __u32);
	__array(values, struct wake_ring);
} wakes SEC(".maps");

struct { /* socket address -> slot; WEIR_CONSUMERS means: reported, not yet given a slot */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_CONSUMERS);
	__type(key, __u64);
	__type(value, __u32);
} consumer_slots SEC(".maps");

struct { /* NAPI id -> source */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * WEIR_SOURCES);
	__type(key, __u32);
	__type(value, __u32);
} napi_slots SEC(".maps");

struct { /* CPU -> 1 + poller that sleeps there */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} cpu_pollers SEC(".maps");

struct { /* resized to the number of CPUs */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_cpu_stat);
} cpu_stats SEC(".maps");

static __always_inline struct weir_guard_ctl *the_guard(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&guard_ctl, &zero);
}

static __always_inline void wake(__u32 poller, __u32 reason)
{
	struct weir_poller_ctl *ctl = bpf_map_lookup_elem(&poller_ctls, &poller);
	void *ring;

	if (!ctl || !(ctl->wait & reason))
		return;
	/* One wake per sleep: the poller sets the bits anew before it sleeps again. */
	ctl->wait = 0;
	ring = bpf_map_lookup_elem(&wakes, &poller);
	if (ring)
		bpf_ringbuf_output(ring, &reason, sizeof(reason), BPF_RB_FORCE_WAKEUP);
}

/* Reads the level of one consumer. A freed socket's memory may hold anything: the cookie tells. */
static __always_inline void sample(struct weir_consumer_ctl *ctl, struct weir_consumer_stat *stat)
{
	struct sock *sk = (struct sock *)ctl->sk;
	__s64 cookie = 0;
	int rmem = 0, rcvbuf = 0;

	if (bpf_core_read(&cookie, sizeof(cookie), &sk->__sk_common.skc_cookie.counter) ||
	    (__u64)cookie != ctl->cookie) {
		stat->gone = 1;
		stat->level = 0;
		return;
	}
	bpf_core_read(&rmem, sizeof(rmem), &sk->sk_backlog.rmem_alloc.counter);
	bpf_core_read(&rcvbuf, sizeof(rcvbuf), &sk->sk_rcvbuf);
	stat->rcvbuf = rcvbuf;
	if (rmem > 0 && rcvbuf > 0) {
		__u64 level = (__u64)rmem * 1000 / (__u32)rcvbuf;

		stat->level = level > 1000 ? 1000 : level;
	} else {
		stat->level = 0;
	}
}

static __always_inline void sample_all(void)
{
	struct weir_guard_ctl *guard = the_guard();

	if (!guard || !guard->consumers)
		return;
	for (__u32 i = 0; i < WEIR_CONSUMERS; i++) {
		struct weir_consumer_ctl *ctl;
		struct weir_consumer_stat *stat;
		__u32 slot = i;

		if (i >= guard->consumers)
			break;
		ctl = bpf_map_lookup_elem(&consumer_ctls, &slot);
		stat = bpf_map_lookup_elem(&consumer_stats, &slot);
		if (ctl && stat && ctl->sk && !stat->gone)
			sample(ctl, stat);
	}
}

SEC("tp_btf/napi_poll")
int BPF_PROG(weir_napi_poll, struct napi_struct *napi, int work, int budget)
{
	__u32 id = napi->napi_id;
	__u32 *slot = bpf_map_lookup_elem(&napi_slots, &id);
	struct weir_source_stat *stat;
	struct weir_source_ctl *ctl;

	if (!slot)
		return 0;
	stat = bpf_map_lookup_elem(&source_stats, slot);
	ctl = bpf_map_lookup_elem(&source_ctls, slot);
	if (!stat || !ctl)
		return 0;
	stat->polls++;
	stat->packets += work;
	if (ctl->mode == WEIR_MODE_POLL && (__u32)bpf_get_current_pid_tgid() == ctl->poller_tid) {
		stat->own_polls++;
		stat->own_packets += work;
		if (work >= budget)
			stat->full_polls++;
		if (work)
			sample_all();
		return 0;
	}
	stat->softirq_cpu = bpf_get_smp_processor_id();
	if (work < budget) {
		stat->streak = 0;
		return 0;
	}
	stat->full_polls++;
	stat->streak++;
	if (ctl->mode == WEIR_MODE_INTERRUPT && ctl->full_polls && stat->streak >= ctl->full_polls) {
		struct weir_event event = {
			.kind = WEIR_EVENT_SATURATED,
			.slot = *slot,
			.time_ns = bpf_ktime_get_ns(),
			.cpu = stat->softirq_cpu,
		};

		stat->streak = 0;
		if (event.time_ns - stat->reported_ns < WEIR_EVENT_EVERY_NS)
			return 0;
		stat->reported_ns = event.time_ns;
		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
	return 0;
}

SEC("tp_btf/udp_fail_queue_rcv_skb")
int BPF_PROG(weir_udp_full, int rc, struct sock *sk)
{
	__u32 cpu = bpf_get_smp_processor_id(), pending = WEIR_CONSUMERS, *slot;
	struct weir_event event = { .kind = WEIR_EVENT_CONSUMER, .cpu = cpu };
	struct weir_guard_ctl *guard = the_guard();
	struct weir_consumer_stat *stat;
	struct weir_cpu_stat *here;
	__u64 key = (__u64)sk;

	if (!guard || sk->__sk_common.skc_net.net->ns.inum != netns_inode)
		return 0;
	slot = bpf_map_lookup_elem(&consumer_slots, &key);
	if (slot) {
		stat = bpf_map_lookup_elem(&consumer_stats, slot);
		if (stat)
			stat->overflows++;
	} else if (!bpf_map_update_elem(&consumer_slots, &key, &pending, BPF_NOEXIST)) {
		/* A full table degrades to "not tracked": no feedback for this socket. */
		event.cookie = bpf_get_socket_cookie((void *)sk);
		event.time_ns = bpf_ktime_get_ns();
		event.sk = key;
		event.port = sk->__sk_common.skc_num;
		event.family = sk->__sk_common.skc_family;
		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}

	here = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (!here)
		return 0;
	here->overflows++;
	if (!guard->overflow_step || here->overflows - here->reported < guard->overflow_step)
		return 0;
	here->reported = here->overflows;
	event.time_ns = bpf_ktime_get_ns();
	if (event.time_ns - here->reported_ns < WEIR_EVENT_EVERY_NS)
		return 0;
	here->reported_ns = event.time_ns;
	event.kind = WEIR_EVENT_OVERFLOW;
	bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	return 0;
}

/*
 * The consumer has read: the low-water mark is met here, in its own context. This runs once per read of every socket
 * on the machine, so it decides on two words and follows only the pointer it was given.
 */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(weir_recv, struct sock *sk, int ret, int flags)
{
	struct weir_guard_ctl *guard = the_guard();
	__u64 key = (__u64)sk;
	struct weir_consumer_stat *stat;
	struct weir_consumer_ctl *ctl;
	__u32 slot;
	int rmem;

	if (!guard || !guard->inhibited)
		return 0;
	if (guard->only_sk) {
		if (guard->only_sk != key)
			return 0;
		slot = guard->only_slot;
	} else {
		__u32 *found = bpf_map_lookup_elem(&consumer_slots, &key);

		if (!found)
			return 0;
		slot = *found;
	}
	ctl = bpf_map_lookup_elem(&consumer_ctls, &slot);
	if (!ctl || !ctl->inhibited)
		return 0;
	rmem = sk->sk_backlog.rmem_alloc.counter;
	if (rmem > 0 && (__u64)rmem * 1000 > (__u64)ctl->low * (__u32)sk->sk_rcvbuf)
		return 0;
	stat = bpf_map_lookup_elem(&consumer_stats, &slot);
	if (!stat)
		return 0;
	stat->recvs++;
	stat->cpu = bpf_get_smp_processor_id();
	stat->level = rmem > 0 ? (__u64)rmem * 1000 / (__u32)(sk->sk_rcvbuf | 1) : 0;
	for (__u32 i = 0; i < WEIR_POLLERS; i++)
		if (ctl->inhibited & (1ULL << i))
			wake(i, WEIR_WAKE_LEVEL);
	return 0;
}

/* The CPU has nothing else to run: the reserve is lent, and an empty consumer waits for input (M&R's idle rule). */
SEC("tp_btf/sched_switch")
int BPF_PROG(weir_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct weir_guard_ctl *guard;
	__u32 cpu, *poller;

	if (next->pid)
		return 0;
	guard = the_guard();
	if (!guard || !guard->pollers_waiting_idle)
		return 0;
	cpu = bpf_get_smp_processor_id();
	poller = bpf_map_lookup_elem(&cpu_pollers, &cpu);
	if (poller && *poller)
		wake(*poller - 1, WEIR_WAKE_IDLE);
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(weir_softirq_entry, unsigned int vec)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_cpu_stat *stat;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	stat = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (stat)
		stat->started_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(weir_softirq_exit, unsigned int vec)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_cpu_stat *stat;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	stat = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (!stat || !stat->started_ns)
		return 0;
	stat->net_rx_ns += bpf_ktime_get_ns() - stat->started_ns;
	stat->net_rx_runs++;
	stat->started_ns = 0;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
