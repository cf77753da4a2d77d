/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Where the time of guarded CPUs goes: softirq against the budget, and whether a CPU idles while the reserve could be lent. */

/* The window in which softirq of a CPU is held against the budget. */
struct window {
	__u64 begin_ns;
	__u64 used; /* `net_rx_ns` at that time */
	__u64 idled; /* how often the CPU had left its idle task then */
	__u64 switches; /* how often it had changed from one task to another then */
	__u64 waited; /* the time between two changes, on average; ~0 where that is not told */
	__u64 starved; /* windows over the budget, while a program wanted the CPU at their ends, less the others since: of those told last none */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct window);
} windows SEC(".maps");

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

/*
 * Softirqs are measured one by one only where a poller accounts for them; elsewhere one of SAMPLE stands for all, which
 * saves a busy server two clock readings for most of them.
 */
SEC("tp_btf/softirq_entry")
int BPF_PROG(weir_softirq_entry, unsigned int vec)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_cpu_stat *stat;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	stat = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (!stat)
		return 0;
	stat->net_rx_runs++;
	if (stat->metered || !(stat->net_rx_runs % SAMPLE)) {
		stat->weight = stat->metered ? 1 : SAMPLE;
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

/* How often this CPU has left its idle task so far; 0 where the kernel does not lead there. */
static __always_inline __u64 idled(void)
{
	struct task_struct *here = bpf_get_current_task_btf(), *idle;

	if (!bpf_core_field_exists(here->se.cfs_rq))
		return 0;
	idle = here->se.cfs_rq->rq->idle;
	return idle->nvcsw + idle->nivcsw;
}

/* One window of so many makes the average. */
#define WAITED_WINDOWS 8

/* How long a task waits that wants this CPU, at least: as long as another runs before it. A window in which the CPU has not changed counts whole,
 * and one in which it `idled` not at all: nobody waited. */
static __always_inline void wait_for(struct window *window, __u64 now, _Bool idled)
{
	struct task_struct *here = bpf_get_current_task_btf();
	__u64 switches, waited;

	if (!bpf_core_field_exists(here->se.cfs_rq)) {
		window->waited = ~0ULL;
		return;
	}
	switches = here->se.cfs_rq->rq->nr_switches;
	waited = now - window->begin_ns;
	/* One that softirqs of minutes ago began tells no more than another. */
	if (waited > 2 * WEIR_WINDOW_NS)
		waited = 2 * WEIR_WINDOW_NS;
	if (switches - window->switches)
		waited /= switches - window->switches;
	if (idled)
		waited = 0;
	window->waited = window->begin_ns ? (window->waited * (WAITED_WINDOWS - 1) + waited) / WAITED_WINDOWS : 0;
	window->switches = switches;
}

/* The end of a window: softirq that takes more than the budget from programs that want the CPU is overload (MR-27), also
 * while no poll is full. On a CPU that idled meanwhile, for however short, nobody waited. A program that was just woken looks as if it
 * wanted, and any host has some that run now and then: so many windows more than others tell. */
#define STARVED_WINDOWS 4

static __always_inline void judge(struct weir_cpu_stat *stat, struct window *window, __u32 cpu, __u64 now)
{
	struct weir_event event = { .kind = WEIR_EVENT_BUDGET, .cpu = cpu, .time_ns = now };
	__u64 used = stat->net_rx_ns - window->used, idle = idled();
	struct weir_guard_ctl *guard = the_guard();

	if (guard && guard->budget && window->begin_ns && used * 1000 > (now - window->begin_ns) * guard->budget &&
	    idle == window->idled && programs_want(guard, cpu))
		window->starved++;
	else
		window->starved -= window->starved > 0;
	wait_for(window, now, idle != window->idled);
	event.waited = window->waited;
	if (window->starved >= STARVED_WINDOWS) {
		window->starved = 0;
		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
	window->begin_ns = now;
	window->used = stat->net_rx_ns;
	window->idled = idle;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(weir_softirq_exit, unsigned int vec)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_cpu_stat *stat;
	struct window *window;
	__u32 zero = 0;
	__u64 now;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	stat = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (!stat || !stat->started_ns)
		return 0;
	now = bpf_ktime_get_ns();
	stat->net_rx_ns += (now - stat->started_ns) * stat->weight;
	stat->started_ns = 0;
	window = bpf_map_lookup_elem(&windows, &zero);
	if (window && now - window->begin_ns >= WEIR_WINDOW_NS)
		judge(stat, window, cpu, now);
	return 0;
}
