/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Where the time of guarded CPUs goes: softirq against the budget, and whether a CPU idles while the reserve could be lent. */

/* The window in which softirq of a CPU is held against the budget. */
struct window {
	__u64 begin_ns;
	__u64 used; /* `net_rx_ns` at that time */
	__u64 idle_ns; /* time in it in which the CPU had nothing to run, softirqs neither; only if it is `hot` */
	__u64 idle_at; /* it has nothing to run since then; 0: it has, or is not looked at */
	__u64 softirq_ns; /* time of softirqs while it is `hot`, of which each is measured */
	__u64 softirq_at; /* the same when it began to idle */
	__u32 starved; /* windows over the budget, while a program wanted the CPU at their ends, less the others since */
	__u32 hot; /* softirqs took more than half of the budget in the one before */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct window);
} windows SEC(".maps");

/* The CPU has had nothing to run until `now`, but for softirqs. */
static __always_inline void idled(struct window *window, __u64 now)
{
	__u64 spent = now - window->idle_at, softirq = window->softirq_ns - window->softirq_at;

	if (window->idle_at && spent > softirq)
		window->idle_ns += spent - softirq;
	window->idle_at = 0;
}

static __always_inline void idles(struct window *window, __u64 now)
{
	window->idle_at = now;
	window->softirq_at = window->softirq_ns;
}

/* The CPU has nothing else to run: the reserve is lent, and an empty consumer waits for input (M&R's idle rule). */
SEC("tp_btf/sched_switch")
int BPF_PROG(weir_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id(), *poller, zero = 0;
	struct weir_guard_ctl *guard;
	struct window *window;

	if (next->pid && prev->pid)
		return 0;
	window = bpf_map_lookup_elem(&windows, &zero);
	if (window && window->hot && next->pid)
		idled(window, bpf_ktime_get_ns());
	else if (window && window->hot)
		idles(window, bpf_ktime_get_ns());
	if (next->pid)
		return 0;
	guard = the_guard();
	if (!guard || !guard->pollers_waiting_idle)
		return 0;
	poller = bpf_map_lookup_elem(&cpu_pollers, &cpu);
	if (poller && *poller)
		wake(*poller - 1, WEIR_WAKE_IDLE);
	return 0;
}

/*
 * Softirqs are measured one by one only where a poller accounts for them, or idle time is told from them; elsewhere one of SAMPLE
 * stands for all, which saves a busy server two clock readings for most of them.
 */
SEC("tp_btf/softirq_entry")
int BPF_PROG(weir_softirq_entry, unsigned int vec)
{
	__u32 cpu = bpf_get_smp_processor_id(), zero = 0;
	struct weir_cpu_stat *stat;
	struct window *window;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	stat = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (!stat)
		return 0;
	stat->net_rx_runs++;
	window = bpf_map_lookup_elem(&windows, &zero);
	stat->weight = stat->metered ? 1 : stat->net_rx_runs % SAMPLE ? 0 : SAMPLE;
	if (stat->weight || (window && window->hot)) {
		stat->started_ns = bpf_ktime_get_ns();
	} else {
		stat->started_ns = 0;
	}
	return 0;
}

/* The current task is the guard's or its keeper's. */
static __always_inline _Bool is_weirs(const struct weir_guard_ctl *guard)
{
	struct bpf_pidns_info id = {};

	if (bpf_get_ns_current_pid_tgid(guard->pidns_device, guard->pidns_inode, &id, sizeof(id)))
		return 0;
	return id.tgid && (id.tgid == guard->process[0] || id.tgid == guard->process[1]);
}

/* A program runs or waits on this CPU at the end of a softirq. What the softirq itself has woken on an idle CPU waits for nothing
 * else: it is next. The guard's own threads are no programs: a look of theirs that softirqs stretch would be taken for starvation. */
static __always_inline _Bool programs_want(const struct weir_guard_ctl *guard, __u32 cpu)
{
	struct task_struct *here = bpf_get_current_task_btf();
	struct rq *rq;
	__u32 own = (guard->own[0] == cpu + 1) + (guard->own[1] == cpu + 1);

	if (!here->pid)
		return 0;
	/* A kernel without groups of tasks does not lead from a task to its CPU's queue. */
	if (!bpf_core_field_exists(here->se.cfs_rq))
		return 1;
	if (!(here->flags & PF_KTHREAD)) {
		if (!is_weirs(guard))
			return 1;
		own += !own;
	}
	/* Beside these and ksoftirqd, which takes what softirqs leave over. Who has real-time priority, as the guard's other threads, is
	 * next when the softirq ends. */
	rq = here->se.cfs_rq->rq;
	return rq->nr_running > 1 + own + rq->rt.rt_nr_running;
}

/* The end of a window: softirq that takes more than the budget from programs that want the CPU is overload (MR-27), also
 * while no poll is full. A program that was just woken looks as if it wanted, and any host has some that run now and then: so many
 * windows more than others tell. While the CPU had nothing to run for a part in WEIR_IDLE_PART of the window, every
 * program got what it wanted. */
#define STARVED_WINDOWS 3
#define WEIR_IDLE_PART 16

static __always_inline void judge(struct weir_cpu_stat *stat, struct window *window, __u32 cpu, __u64 now)
{
	struct weir_event event = { .kind = WEIR_EVENT_BUDGET, .cpu = cpu, .time_ns = now };
	__u64 used = stat->net_rx_ns - window->used, length = now - window->begin_ns;
	struct weir_guard_ctl *guard = the_guard();
	__u32 budget = guard ? guard->budget : 0;

	if (window->idle_at) {
		idled(window, now);
		idles(window, now);
	}
	if (budget && window->hot && used * 1000 > length * budget && window->idle_ns * WEIR_IDLE_PART < length &&
	    programs_want(guard, cpu))
		window->starved += window->starved < STARVED_WINDOWS;
	else
		window->starved -= window->starved > 0;
	if (window->starved >= STARVED_WINDOWS)
		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	window->hot = budget && window->begin_ns && used * 2000 > length * budget;
	if (!window->hot)
		window->idle_at = 0;
	window->begin_ns = now;
	window->idle_ns = 0;
	window->used = stat->net_rx_ns;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(weir_softirq_exit, unsigned int vec)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_cpu_stat *stat;
	struct window *window;
	__u64 now, took;
	__u32 zero = 0;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	stat = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (!stat || !stat->started_ns)
		return 0;
	now = bpf_ktime_get_ns();
	took = now - stat->started_ns;
	stat->net_rx_ns += took * stat->weight;
	stat->started_ns = 0;
	window = bpf_map_lookup_elem(&windows, &zero);
	if (!window)
		return 0;
	window->softirq_ns += took;
	if (now - window->begin_ns >= WEIR_WINDOW_NS)
		judge(stat, window, cpu, now);
	return 0;
}
