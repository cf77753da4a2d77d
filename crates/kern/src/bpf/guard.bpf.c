// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Gauges of the guard: NAPI work per source, NET_RX softirq time per CPU, levels of UDP sockets that overflowed,
 * and the wake-ups of a sleeping poller. The programs observe; the one that acts on packets is in rx.bpf.c.
 *
 * Cost: napi_poll one hash look-up per poll, and in poll mode three reads per known consumer, in mode shed once a tick;
 * sock_recv_length and sched_switch one array read while nothing waits. Only weir_learn runs per packet, and only until
 * each source's id is known.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "guard.h"
#include "guard_maps.h"
#include "guard_kernel.h"

#define NET_RX_SOFTIRQ 3
/* One of so many softirqs is measured while nothing is polled; a power of two. */
#define SAMPLE 8

/* The kernel's number is put in by the loader. */
enum skb_drop_reason {
	SKB_DROP_REASON_NO_SOCKET = 3,
	SKB_DROP_REASON_SOCKET_RCVBUFF = 6,
	SKB_DROP_REASON_NETFILTER_DROP = 8,
	SKB_DROP_REASON_IP_INADDRERRORS = 61,
};

/* A packet that this host sent to a group and hears itself: its interface is that which it left by. */
#define PACKET_LOOPBACK 5

struct socket {
	struct file *file;
} __attribute__((preserve_access_index));

struct netlink_sock {
	struct sock sk;
	__u32 portid;
} __attribute__((preserve_access_index));

#define AF_NETLINK 16
#define NETLINK_NETFILTER 12
/* Level from which a packet filter's queue is as good as full: its input is overloaded although polls are not full. */
#define FILTER_FULL 900

#define PF_KTHREAD 0x00200000

struct rt_rq {
	unsigned int rt_nr_running;
} __attribute__((preserve_access_index));

struct task_struct;

struct rq {
	unsigned int nr_running;
	struct rt_rq rt;
	struct task_struct *idle;
	__u64 nr_switches;
} __attribute__((preserve_access_index));

struct cfs_rq {
	struct rq *rq;
} __attribute__((preserve_access_index));

struct sched_entity {
	struct cfs_rq *cfs_rq;
} __attribute__((preserve_access_index));

struct task_struct {
	int pid;
	unsigned int flags;
	struct sched_entity se;
	unsigned long nvcsw;
	unsigned long nivcsw;
} __attribute__((preserve_access_index));

/* Cookie of this network namespace; 0: the kernel does not tell. */
const volatile __u64 netns_cookie = 0;
/* Only sockets of this network namespace can be consumers; inode of /proc/self/ns/net. */
const volatile __u32 netns_inode = 0;
/* PID namespace in which the pollers' thread ids are numbers; inode 0: the initial one. */
const volatile __u32 pidns_inode = 0;
const volatile __u32 pidns_dev = 0;
/* 1: weir_dropped says by which interface the packet came that a socket refused. */
const volatile __u32 told_by_drop = 0;

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

struct { /* NAPI id -> source */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * WEIR_SOURCES);
	__type(key, __u32);
	__type(value, __u32);
} napi_slots SEC(".maps");

struct { /* interface index -> its sources whose ids are to be learnt */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_SOURCES);
	__type(key, __u32);
	__type(value, struct weir_learn);
} learn_slots SEC(".maps");

struct { /* indices of guarded interfaces, and of those that stand on them */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_GUARDED);
	__type(key, __u32);
	__type(value, __u8);
} guarded_interfaces SEC(".maps");

struct asked {
	__u64 since_ns; /* when the control loop was told last */
	__u64 lost; /* since then */
};

struct { /* sockets that the control loop was told of and did not track, by address: the oldest make room */
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4 * WEIR_CONSUMERS);
	__type(key, __u64);
	__type(value, struct asked);
} asked SEC(".maps");

struct { /* resized to the number of CPUs */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct weir_overflow_stat);
} overflow_stats SEC(".maps");

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

#include "guard_gate.h"

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
	__u16 port = ctl->port;

	/* A closed socket has no port; of the guard's own namespace the list of sockets tells. */
	if (ctl->port)
		bpf_core_read(&port, sizeof(port), &sk->__sk_common.skc_num);
	if (bpf_core_read(&cookie, sizeof(cookie), &sk->__sk_common.skc_cookie.counter) ||
	    (__u64)cookie != ctl->cookie || port != (__u16)ctl->port) {
		stat->gone = 1;
		stat->level = 0;
		return;
	}
	bpf_core_read(&rmem, sizeof(rmem), &sk->sk_backlog.rmem_alloc.counter);
	bpf_core_read(&rcvbuf, sizeof(rcvbuf), &sk->sk_rcvbuf);
	stat->rcvbuf = rcvbuf;
	if (rmem > 0 && rcvbuf > 0) {
		__u64 level = (__u64)rmem * 1000 / (__u32)rcvbuf;

		/* What the program has read and not judged yet is a packet or a batch: what waits in its socket counts. */
		if (ctl->maxlen) {
			__u32 waiting = 0;
			__u64 packets;

			bpf_core_read(&waiting, sizeof(waiting), &sk->sk_receive_queue.qlen);
			packets = (__u64)waiting * 1000 / ctl->maxlen;
			if (packets > level)
				level = packets;
		}
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

/* The kernel's tick in which levels were read last in mode shed. */
__u64 sampled_at = 0;

/* Once a tick, for who looks at the guard: what is shed is judged by what rx_fair.h reads itself. */
static __always_inline void sample_now_and_then(void)
{
	__u64 tick = bpf_jiffies64();

	if (sampled_at == tick)
		return;
	sampled_at = tick;
	sample_all();
}

/* Thread id of the caller as the guard knows it; 0 for a thread that its namespace does not have. */
static __always_inline __u32 the_thread(void)
{
	struct bpf_pidns_info ids = {};

	if (!pidns_inode)
		return bpf_get_current_pid_tgid();
	if (bpf_get_ns_current_pid_tgid(pidns_dev, pidns_inode, &ids, sizeof(ids)))
		return 0;
	return ids.pid;
}

/* Frames in transit end in a packet filter whose queue is full. */
static __always_inline _Bool filter_full(void)
{
	struct weir_guard_ctl *guard = the_guard();
	struct weir_consumer_ctl *ctl;
	struct weir_consumer_stat *stat;
	__u32 slot;

	if (!guard || !guard->transit)
		return 0;
	slot = guard->transit - 1;
	ctl = bpf_map_lookup_elem(&consumer_ctls, &slot);
	stat = bpf_map_lookup_elem(&consumer_stats, &slot);
	if (!ctl || !stat || !ctl->sk || stat->gone)
		return 0;
	sample(ctl, stat);
	return stat->level >= FILTER_FULL;
}

/* A softirq may run in the poller's context, between two of its system calls: such a poll is not its own. */
static __always_inline _Bool in_net_rx(void)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_cpu_stat *stat = bpf_map_lookup_elem(&cpu_stats, &cpu);

	return stat && stat->started_ns;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(weir_napi_poll, struct napi_struct *napi, int work, int budget)
{
	__u32 id = napi->napi_id, *slot, most;
	struct weir_source_stat *stat;
	struct weir_source_ctl *ctl;

	/* A CPU's backlog has no id: it is polled most on a host without a NIC. */
	if (!id)
		return 0;
	slot = bpf_map_lookup_elem(&napi_slots, &id);
	if (!slot)
		return 0;
	stat = bpf_map_lookup_elem(&source_stats, slot);
	ctl = bpf_map_lookup_elem(&source_ctls, slot);
	if (!stat || !ctl)
		return 0;
	stat->polls++;
	stat->packets += work;
	if (ctl->mode == WEIR_MODE_POLL && the_thread() == ctl->poller_tid && !in_net_rx()) {
		stat->own_polls++;
		stat->own_packets += work;
		/* What was counted before says nothing of what comes when the kernel polls again. */
		stat->streak = 0;
		/* Polled on another CPU than its interrupt's, some drivers say one less than they took. */
		if (work >= budget || (budget > 1 && work == budget - 1))
			stat->full_polls++;
		if (work)
			sample_all();
		return 0;
	}
	if (ctl->mode == WEIR_MODE_POLL) {
		stat->foreign++;
		stat->streak = 0;
	}
	stat->softirq_cpu = bpf_get_smp_processor_id();
	if (ctl->mode == WEIR_MODE_SHED && work)
		sample_now_and_then();
	if (work < budget && !(work && filter_full())) {
		stat->streak = 0;
		return 0;
	}
	stat->full_polls++;
	stat->streak++;
	/* Frames that are shed fill polls too, at little cost: it takes more of them to say that the ring is never empty. */
	most = ctl->mode == WEIR_MODE_SHED ? ctl->full_polls * WEIR_SHED_POLLS : ctl->full_polls;
	if ((ctl->mode == WEIR_MODE_INTERRUPT || ctl->mode == WEIR_MODE_SHED) && most && stat->streak >= most) {
		struct weir_event event = {
			.kind = WEIR_EVENT_SATURATED,
			.slot = *slot,
			.time_ns = bpf_ktime_get_ns(),
			.cpu = stat->softirq_cpu,
		};

		stat->streak = 0;
		if (event.time_ns - stat->reported_ns < WEIR_EVENT_EVERY_NS)
			return 0;
		/* Whoever is told of them comes to run on this CPU, before the programs. */
		if (ctl->quiet - (__u32)(event.time_ns >> WEIR_TICK_SHIFT) - 1 < WEIR_QUIET_TICKS)
			return 0;
		stat->reported_ns = event.time_ns;
		bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
	}
	return 0;
}

/*
 * Kernels that do not tell which NAPI serves a queue tell it with each packet: the driver records the queue, and
 * napi_gro_receive() its NAPI's id. A driver that records no queue has one.
 */
SEC("tp_btf/napi_gro_receive_entry")
int BPF_PROG(weir_learn_id, struct sk_buff *skb)
{
	__u32 ifindex = skb->dev->ifindex, queue = skb->queue_mapping, id = skb->napi_id, slot;
	struct weir_learn *learn = bpf_map_lookup_elem(&learn_slots, &ifindex);
	struct weir_source_stat *stat;

	if (!learn || !id || skb->dev->nd_net.net->ns.inum != netns_inode)
		return 0;
	queue = queue ? queue - 1 : 0;
	if (queue >= learn->sources)
		return 0;
	slot = learn->first_source + queue;
	stat = bpf_map_lookup_elem(&source_stats, &slot);
	/* An id that is another source's already is not taken away from it. */
	if (stat && !stat->napi_id && !bpf_map_update_elem(&napi_slots, &id, &slot, BPF_NOEXIST))
		stat->napi_id = id;
	return 0;
}

/* By which /proc lists the socket; 0 for one that no program holds. */
static __always_inline __u64 inode_of(struct sock *sk)
{
	struct socket *socket = NULL;
	struct inode *inode = NULL;
	struct file *file = NULL;
	unsigned long number = 0;

	bpf_core_read(&socket, sizeof(socket), &sk->sk_socket);
	if (socket)
		bpf_core_read(&file, sizeof(file), &socket->file);
	if (file)
		bpf_core_read(&inode, sizeof(inode), &file->f_inode);
	if (inode)
		bpf_core_read(&number, sizeof(number), &inode->i_ino);
	return number;
}

/* Whether a guarded interface has carried this packet. Its device is not known any more: UDP keeps its own notes in
 * skb->dev. What is left is the index of the last interface, which is one that stands on the guarded one (VLAN, bond, bridge,
 * VRF) or itself, and the id of its NAPI, which neither RPS nor such an interface takes away; a local sender can set neither. */
static __always_inline _Bool by_guarded(struct sk_buff *skb)
{
	__u32 key = skb->skb_iif;

	if (BPF_CORE_READ_BITFIELD(skb, pkt_type) == PACKET_LOOPBACK)
		return 0;
	if (bpf_map_lookup_elem(&guarded_interfaces, &key))
		return 1;
	key = skb->napi_id;
	return key && bpf_map_lookup_elem(&napi_slots, &key);
}

/* Tells the control loop of a socket that it does not track, once a second at most; false if it was not told now. */
static __always_inline _Bool tell(struct sock *sk, struct weir_event *event, struct weir_overflow_stat *here)
{
	__u64 key = (__u64)sk;
	struct asked *known = bpf_map_lookup_elem(&asked, &key), fresh = {};

	event->time_ns = bpf_ktime_get_ns();
	event->lost = 1;
	if (known) {
		__u64 since = event->time_ns - known->since_ns;

		__sync_fetch_and_add(&known->lost, 1);
		if (since < WEIR_ASK_NS)
			return 0;
		/* What it lost long ago says nothing about what it loses now. */
		if (since < 4 * WEIR_ASK_NS)
			event->lost = known->lost;
	}
	if (event->time_ns - here->window_ns >= WEIR_TELL_WINDOW_NS) {
		here->window_ns = event->time_ns;
		here->told = 0;
	}
	if (here->told >= WEIR_TELL_MOST) {
		here->untold++;
		return 0;
	}
	event->sk = key;
	event->cookie = bpf_get_socket_cookie((void *)sk);
	bpf_core_read(&event->uid, sizeof(event->uid), &sk->sk_uid.val);
	if (bpf_ringbuf_output(&events, event, sizeof(*event), BPF_RB_FORCE_WAKEUP)) {
		here->untold++;
		return 0;
	}
	here->told++;
	if (known) {
		known->since_ns = event->time_ns;
		known->lost = 0;
	} else {
		fresh.since_ns = event->time_ns;
		bpf_map_update_elem(&asked, &key, &fresh, BPF_ANY);
	}
	return 1;
}

/* True if the kernel takes some datagrams of this socket before its buffer does, as those of a tunnel (ESP, L2TP, GTP): it is no
 * consumer, since its level says nothing about them. */
static __always_inline _Bool is_tunnel(struct sock *sk)
{
	struct udp_sock *udp = (struct udp_sock *)sk;
	void *receives = NULL;

	bpf_core_read(&receives, sizeof(receives), &udp->encap_rcv);
	return receives;
}

/* More losses that are evidence: the control loop hears of every so many. */
static __always_inline void overflowed(const struct weir_guard_ctl *guard, __u32 cpu, __u32 packets)
{
	struct weir_event event = { .kind = WEIR_EVENT_OVERFLOW, .cpu = cpu };
	struct weir_cpu_stat *here = bpf_map_lookup_elem(&cpu_stats, &cpu);

	if (!here)
		return;
	here->overflows += packets;
	if (!guard->overflow_step || here->overflows - here->reported < guard->overflow_step)
		return;
	here->reported = here->overflows;
	event.time_ns = bpf_ktime_get_ns();
	/* Ahead of now where the guard knows what explains them. */
	if ((__s64)(event.time_ns - here->reported_ns) < (__s64)WEIR_EVENT_EVERY_NS)
		return;
	here->reported_ns = event.time_ns;
	bpf_ringbuf_output(&events, &event, sizeof(event), BPF_RB_FORCE_WAKEUP);
}

/* The largest frame that there is. */
#define FRAME_MOST 9216

/* Bytes that one frame of this packet takes of a buffer; 0: it was put together of several, and nobody knows of how many. */
static __always_inline __u32 frame_size(struct sk_buff *skb)
{
	struct skb_shared_info *info = (struct skb_shared_info *)(skb->head + skb->end);
	struct sk_buff *list = NULL;
	__u16 segments = 0;

	bpf_core_read(&segments, sizeof(segments), &info->gso_segs);
	if (segments > 1)
		return skb->truesize / segments;
	bpf_core_read(&list, sizeof(list), &info->frag_list);
	return list || skb->len > FRAME_MOST ? 0 : skb->truesize;
}

/* A socket of another network namespace has refused a datagram that went `to` there. It is evidence only if a guarded interface has
 * brought one for the same place lately: what local programs and other containers send to it is not. */
static __always_inline int refuses_behind(struct sock *sk, struct weir_overflow_stat *drops, __u32 cpu, __u64 to,
					  __u32 address, __u32 truesize)
{
	struct weir_event event = { .kind = WEIR_EVENT_CONSUMER, .cpu = cpu, .address = address };
	struct weir_guard_ctl *guard = the_guard();
	struct weir_consumer_stat *stat;
	struct weir_gate_stat *gate;
	struct weir_cpu_stat *here;
	__u32 *slot, zero = 0, now;
	__u64 key = (__u64)sk;
	_Bool evident = 0;

	event.netns = sk->__sk_common.skc_net.net->ns.inum;
	if (to) {
		event.inner = behind_inner_at(to, event.netns);
		evident = behind_claims(event.inner);
	}
	/* The poller looks how much of its turns ends like this. */
	here = bpf_map_lookup_elem(&cpu_stats, &cpu);
	if (here)
		here->elsewhere++;
	gate = bpf_map_lookup_elem(&gate_stats, &zero);
	now = bpf_ktime_get_ns() >> WEIR_TICK_SHIFT;
	if (gate && gate->elsewhere != now)
		gate->elsewhere = now;
	slot = bpf_map_lookup_elem(&consumer_slots, &key);
	if (slot) {
		stat = bpf_map_lookup_elem(&consumer_stats, slot);
		if (stat && evident && truesize)
			stat->truesize = weir_size_learnt(stat->truesize, truesize);
		if (stat && evident)
			__sync_fetch_and_add(&stat->overflows, 1);
		else if (stat)
			__sync_fetch_and_add(&stat->foreign, 1);
		/* Made one since: its place is given up. */
		if (stat && is_tunnel(sk))
			stat->gone = 1;
	}
	if (!evident || !guard)
		return 0;
	overflowed(guard, cpu, 1);
	if (slot || is_tunnel(sk))
		return 0;
	event.port = sk->__sk_common.skc_num;
	event.inode = inode_of(sk);
	event.family = sk->__sk_common.skc_family;
	tell(sk, &event, drops);
	return 0;
}

static __always_inline _Bool is_behind(struct sock *sk)
{
	return sk->__sk_common.skc_net.net->ns.inum != netns_inode;
}

/* A packet has ended in a socket of this namespace. */
static __always_inline void ended(__u64 hash)
{
	__u32 place = hash & (WEIR_ENDS - 1), now = bpf_ktime_get_ns() >> WEIR_TICK_SHIFT;
	struct weir_end *end = bpf_map_lookup_elem(&ends, &place);

	if (end)
		weir_ended(end, hash >> 32, now);
}

/* A socket has refused a datagram, and others before that were only counted. They are evidence only if a guarded interface has carried
 * them: what a local program sends to itself makes no interface's packets too many. True if the socket is tracked. */
static __always_inline int refuses(struct sock *sk, struct weir_overflow_stat *drops, __u32 cpu, _Bool guarded,
				   __u32 packets, __u64 to, __u32 truesize)
{
	struct weir_event event = { .kind = WEIR_EVENT_CONSUMER, .cpu = cpu };
	struct weir_guard_ctl *guard = the_guard();
	struct weir_consumer_stat *stat;
	__u64 key = (__u64)sk;
	__u32 *slot;

	if (!guard)
		return 0;
	slot = bpf_map_lookup_elem(&consumer_slots, &key);
	if (slot) {
		stat = bpf_map_lookup_elem(&consumer_stats, slot);
		if (stat && guarded && truesize)
			stat->truesize = weir_size_learnt(stat->truesize, truesize);
		if (stat && guarded)
			__sync_fetch_and_add(&stat->overflows, packets);
		else if (stat)
			__sync_fetch_and_add(&stat->foreign, packets);
		if (guarded && to && guard->by_end)
			ended(gate_end_hash(to, *slot));
		if (stat && is_tunnel(sk))
			stat->gone = 1;
	}
	if (!guarded) {
		drops->foreign++;
		return 0;
	}
	if (!slot && !is_tunnel(sk)) {
		event.port = sk->__sk_common.skc_num;
		event.inode = inode_of(sk);
		event.family = sk->__sk_common.skc_family;
		tell(sk, &event, drops);
	}

	overflowed(guard, cpu, packets);
	return slot != NULL;
}

/* Counts what a socket has refused again, since another one refuses now, or the same one by another interface. */
static __always_inline void settle(struct weir_overflow_stat *drops, __u32 cpu)
{
	struct weir_guard_ctl *guard = the_guard();
	struct weir_consumer_stat *stat;
	__u32 *slot;

	slot = bpf_map_lookup_elem(&consumer_slots, &drops->again_sk);
	stat = slot ? bpf_map_lookup_elem(&consumer_stats, slot) : NULL;
	if (stat)
		__sync_fetch_and_add(&stat->overflows, drops->pending);
	if (guard)
		overflowed(guard, cpu, drops->pending);
	drops->pending = 0;
}

/* Since 6.10 the tracepoint has the packet. */
SEC("tp_btf/udp_fail_queue_rcv_skb")
int BPF_PROG(weir_udp_full, int rc, struct sock *sk, struct sk_buff *skb)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_overflow_stat *drops = bpf_map_lookup_elem(&overflow_stats, &cpu);
	struct weir_guard_ctl *guard = the_guard();
	__u32 address = 0, packets = 1, iif = skb->skb_iif;
	__u64 to = 0;

	if (!drops)
		return 0;
	/* What was sent from here by multicast comes back by the same interface. */
	if (drops->again_sk == (__u64)sk && drops->again_iif == iif &&
	    BPF_CORE_READ_BITFIELD(skb, pkt_type) != PACKET_LOOPBACK) {
		if (++drops->pending < WEIR_AGAIN)
			return 0;
		packets = drops->pending;
		drops->pending = 0;
	} else if (drops->pending) {
		settle(drops, cpu);
	}
	drops->again_sk = 0;
	if (is_behind(sk)) {
		to = behind_refused(skb, &address);
		return refuses_behind(sk, drops, cpu, to, address, frame_size(skb));
	}
	if (guard && guard->by_end)
		to = behind_refused(skb, &address);
	if (refuses(sk, drops, cpu, by_guarded(skb), packets, to, frame_size(skb)) &&
	    bpf_map_lookup_elem(&guarded_interfaces, &iif)) {
		drops->again_sk = (__u64)sk;
		drops->again_iif = iif;
	}
	return 0;
}

/* Before, it comes right after the packet was freed, on the same CPU, with softirqs held off: weir_dropped has seen it, or
 * where the kernel gives no reasons (before 5.17) nobody has, and each counts. */
SEC("tp_btf/udp_fail_queue_rcv_skb")
int BPF_PROG(weir_udp_full_old, int rc, struct sock *sk)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_overflow_stat *drops = bpf_map_lookup_elem(&overflow_stats, &cpu);
	_Bool guarded = 1;
	__u32 truesize = 0;

	if (!drops)
		return 0;
	if (told_by_drop) {
		guarded = drops->dropped == WEIR_DROPPED_GUARDED;
		truesize = drops->truesize;
		drops->dropped = WEIR_DROPPED_NONE;
	}
	if (is_behind(sk))
		return refuses_behind(sk, drops, cpu, told_by_drop ? drops->inner : 0, drops->address, truesize);
	refuses(sk, drops, cpu, guarded, 1, told_by_drop ? drops->inner : 0, truesize);
	return 0;
}

/* Runs for each packet that the kernel drops anywhere: one comparison for those that no full socket has refused. */
SEC("tp_btf/kfree_skb")
int BPF_PROG(weir_dropped, struct sk_buff *skb, void *location, enum skb_drop_reason reason)
{
	struct weir_overflow_stat *drops;
	__u32 cpu, address = 0;

	if (reason != bpf_core_enum_value(enum skb_drop_reason, SKB_DROP_REASON_SOCKET_RCVBUFF))
		return 0;
	cpu = bpf_get_smp_processor_id();
	drops = bpf_map_lookup_elem(&overflow_stats, &cpu);
	if (!drops)
		return 0;
	drops->dropped = by_guarded(skb) ? WEIR_DROPPED_GUARDED : WEIR_DROPPED_FOREIGN;
	drops->truesize = frame_size(skb);
	drops->inner = behind_refused(skb, &address);
	drops->address = address;
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
	if (ctl->maxlen && (__u64)sk->sk_receive_queue.qlen * 1000 > (__u64)ctl->low * ctl->maxlen)
		return 0;
	stat = bpf_map_lookup_elem(&consumer_stats, &slot);
	if (!stat)
		return 0;
	stat->level = rmem > 0 ? (__u64)rmem * 1000 / (__u32)(sk->sk_rcvbuf | 1) : 0;
	for (__u32 i = 0; i < WEIR_POLLERS; i++)
		if (ctl->inhibited & (1ULL << i))
			wake(i, WEIR_WAKE_LEVEL);
	return 0;
}

/* Tells sockets that read from netfilter: packet filters, and others that the control loop knows by their port. Attached
 * only while a queue is there whose reader is not known. */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(weir_find_filter, struct sock *sk, int ret, int flags)
{
	struct weir_event event = { .kind = WEIR_EVENT_FILTER, .family = AF_NETLINK };
	__u32 cpu = bpf_get_smp_processor_id();
	struct weir_overflow_stat *here;
	__u64 key = (__u64)sk;

	if (sk->__sk_common.skc_family != AF_NETLINK || sk->sk_protocol != NETLINK_NETFILTER ||
	    sk->__sk_common.skc_net.net->ns.inum != netns_inode)
		return 0;
	here = bpf_map_lookup_elem(&overflow_stats, &cpu);
	if (!here || bpf_map_lookup_elem(&consumer_slots, &key))
		return 0;
	bpf_core_read(&event.slot, sizeof(event.slot), &((struct netlink_sock *)sk)->portid);
	tell(sk, &event, here);
	return 0;
}

#include "guard_softirq.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";
