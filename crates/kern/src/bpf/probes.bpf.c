// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * The probes of weir watch: waiting times of sampled datagrams, drops by the kernel's reason, reads per UDP socket. They
 * only observe, from tracepoints, and each CPU writes its own counters, so that none of them is atomic.
 *
 * No tracepoint tells which datagram a program has read. A socket's queue is first in, first out: a datagram behind which
 * nothing waits is the one that the program gets with as many reads as the queue is long then. A segment of TCP is read when
 * the socket's `copied_seq` has come to its end.
 *
 * What is on its way from one probe to another is known by the place of its memory, which may have another packet by then:
 * ports and what follows them (sequence number, or length and checksum) tell.
 *
 * Cost per packet: one compare and one counter at the stack's entry, two compares at the socket, one count at the read;
 * one counter before a backlog and one compare behind it; the rest only for samples. Per softirq and per switch of
 * threads: a compare or two.
 */
#include "probes_backlog.h"
#include "probes_common.h"
#include "probes_tcp.h"

#define NET_RX_SOFTIRQ 3
#define AF_INET 2
#define AF_INET6 10
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000

/* One of so many NET_RX softirqs is measured; a power of two. */
#define SOFTIRQS 8

/* Arguments of the tracepoint kfree_skb here: 3, and from 6.11 on 4 with the socket. */
const volatile __u32 kfree_skb_args = 0;

struct { /* by inode; user space frees the places of sockets that are gone */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WEIR_SOCKETS);
	__type(key, __u32);
	__type(value, struct weir_probe_socket);
} probe_sockets SEC(".maps");

struct followed {
	__u32 inode;
	__u32 read; /* the read of its socket with which the program gets it */
	__u64 entry_ns;
	__u64 ready_ns;
	__u32 weight; /* 0: free; taken with an exchange, because reads may be on several CPUs */
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_FOLLOWED);
	__type(key, __u32);
	__type(value, struct followed);
} followed SEC(".maps");

struct woken {
	__u32 pid;
	__u32 weight; /* 0: free */
	__u64 since_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_WOKEN);
	__type(key, __u32);
	__type(value, struct woken);
} woken SEC(".maps");

/* Follows a packet if it is one for this network namespace: a datagram alone, segments as many as come. */
static __always_inline void look(struct weir_probe_cpu *cpu, struct sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 weight = looked(&cpu->stack, now), protocol, at = 0;

	if (skb->dev->nd_net.net->ns.inum != netns_inode)
		return;
	protocol = transport(skb, &at);
	if (protocol == IPPROTO_TCP) {
		pass(&handed, number(cpu, skb), now, print(skb, at), weight);
		if (!any_handed)
			any_handed = 1;
	}
	if (protocol != IPPROTO_UDP)
		return;
	cpu->skb = (__u64)skb;
	cpu->entry_ns = now;
	cpu->weight = weight;
}

SEC("tp_btf/netif_receive_skb")
int BPF_PROG(weir_entry, struct sk_buff *skb)
{
	struct weir_probe_cpu *cpu = here();

	if (!cpu)
		return 0;
	/* Its memory has another packet now: it has ended unseen. */
	if (cpu->skb == (__u64)skb)
		cpu->skb = 0;
	if (any_queued)
		unqueued(cpu, skb);
	if (cpu->stack.left) {
		cpu->stack.left--;
		return 0;
	}
	/* Packets come in lists: one is followed to its end before the next. */
	if (!cpu->skb)
		look(cpu, skb);
	return 0;
}

/* The place of a socket; with `claim` a free one becomes its own. */
static __always_inline struct weir_probe_socket *place(struct sock *sk, __u32 *inode)
{
	struct weir_probe_socket *place;
	__u32 at, holder;

	*inode = sk->sk_socket->file->f_inode->i_ino;
	at = *inode & (WEIR_SOCKETS - 1);
	if (!*inode)
		return 0;
	place = bpf_map_lookup_elem(&probe_sockets, &at);
	if (!place)
		return 0;
	holder = place->inode;
	if (holder == *inode)
		return place;
	if (holder || sk->__sk_common.skc_net.net->ns.inum != netns_inode)
		return 0;
	if (sk->__sk_common.skc_family != AF_INET && sk->__sk_common.skc_family != AF_INET6)
		return 0;
	holder = __sync_val_compare_and_swap(&place->inode, 0, *inode);
	return !holder || holder == *inode ? place : 0;
}

static __always_inline struct followed *followed_at(__u32 inode, __u32 read)
{
	__u32 at = (inode * 0x9e3779b1u + read) & (WEIR_FOLLOWED - 1);

	return bpf_map_lookup_elem(&followed, &at);
}

static __always_inline void end(struct weir_probe_cpu *cpu, struct followed *one)
{
	__u64 now, entry = one->entry_ns, ready = one->ready_ns;
	__u32 weight = __sync_lock_test_and_set(&one->weight, 0);

	if (!weight)
		return;
	now = bpf_ktime_get_ns();
	record(cpu, WEIR_WAIT_SOCKET, now - ready, weight);
	record(cpu, WEIR_WAIT_WHOLE, now - entry, weight);
}

/* A datagram is in its socket. The reader has it with as many reads from now on as there are datagrams, itself the last:
 * one less if the reader is just then between taking one and counting it. */
static __always_inline void follow(struct weir_probe_cpu *cpu, struct sock *sk, __u64 now)
{
	struct udp_sock *up = (struct udp_sock *)sk;
	struct weir_probe_socket *socket;
	__u32 inode, came, taken = 0, read;
	struct followed *one;

	socket = place(sk, &inode);
	if (!socket)
		return;
	read = socket->reads;
	came = sk->sk_receive_queue.qlen;
	if (bpf_core_read(&taken, sizeof(taken), &up->reader_queue.qlen))
		return;
	/* The reader moves what came to its own queue: then it was counted in both, or in none. */
	if (sk->sk_receive_queue.qlen != came || !came)
		return;
	read += came + taken;
	one = followed_at(inode, read);
	if (!one)
		return;
	if (one->weight && now - one->ready_ns < FORGOTTEN_NS) {
		cpu->lost++;
		return;
	}
	one->inode = inode;
	one->read = read;
	one->entry_ns = cpu->entry_ns;
	one->ready_ns = now;
	__sync_lock_test_and_set(&one->weight, cpu->weight);
	/* A reader on another CPU may have been faster. */
	if ((__s32)(*(volatile __u32 *)&socket->reads - read) >= 0)
		end(cpu, one);
}

SEC("tp_btf/sk_data_ready")
int BPF_PROG(weir_ready, struct sock *sk)
{
	struct weir_probe_cpu *cpu = here();
	__u64 now;

	if (!cpu)
		return 0;
	cpu->waking = 0;
	if (!cpu->skb || sk->sk_protocol != IPPROTO_UDP || (__u64)sk->sk_receive_queue.prev != cpu->skb)
		return 0;
	now = bpf_ktime_get_ns();
	cpu->skb = 0;
	cpu->waking = cpu->weight;
	record(cpu, WEIR_WAIT_STACK, now - cpu->entry_ns, cpu->weight);
	follow(cpu, sk, now);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(weir_read, struct sock *sk, int ret, int flags)
{
	struct weir_probe_socket *socket;
	struct weir_probe_cpu *cpu;
	struct followed *one;
	__u32 inode, read;

	if (sk->sk_protocol != IPPROTO_UDP || ret < 0 || (flags & (MSG_PEEK | MSG_ERRQUEUE)))
		return 0;
	socket = place(sk, &inode);
	if (!socket)
		return 0;
	read = __sync_fetch_and_add(&socket->reads, 1) + 1;
	one = followed_at(inode, read);
	if (!one || one->read != read || one->inode != inode || !one->weight)
		return 0;
	cpu = here();
	if (cpu)
		end(cpu, one);
	return 0;
}

/* What is followed on this CPU has ended by now, whatever became of it. */
SEC("tp_btf/napi_poll")
int BPF_PROG(weir_poll_end, struct napi_struct *napi, int work, int budget)
{
	struct weir_probe_cpu *cpu = here();

	if (cpu) {
		cpu->skb = 0;
		cpu->waking = 0;
	}
	return 0;
}

/* Right after a followed datagram came to its socket: the one that is woken is its reader. */
SEC("tp_btf/sched_waking")
int BPF_PROG(weir_waking, struct task_struct *task)
{
	struct weir_probe_cpu *cpu = here();
	struct woken *one;
	__u32 at;

	if (!cpu || !cpu->waking)
		return 0;
	at = task->pid & (WEIR_WOKEN - 1);
	one = bpf_map_lookup_elem(&woken, &at);
	if (one) {
		one->weight = 0;
		one->since_ns = bpf_ktime_get_ns();
		one->pid = task->pid;
		__sync_lock_test_and_set(&one->weight, cpu->waking);
	}
	cpu->waking = 0;
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(weir_switch, _Bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 left = prev->pid, came = next->pid, at, weight;
	struct weir_probe_cpu *cpu;
	struct woken *one;

	/* Woken before it slept: it has not waited. */
	at = left & (WEIR_WOKEN - 1);
	one = bpf_map_lookup_elem(&woken, &at);
	if (one && one->pid == left && one->weight)
		one->weight = 0;
	at = came & (WEIR_WOKEN - 1);
	one = bpf_map_lookup_elem(&woken, &at);
	if (!one || one->pid != came || !one->weight)
		return 0;
	weight = __sync_lock_test_and_set(&one->weight, 0);
	cpu = here();
	if (cpu && weight)
		record(cpu, WEIR_WAIT_WAKEUP, bpf_ktime_get_ns() - one->since_ns, weight);
	return 0;
}

SEC("tp_btf/softirq_raise")
int BPF_PROG(weir_raise, unsigned int vec)
{
	struct weir_probe_cpu *cpu;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	cpu = here();
	/* It may be raised many times before it runs. */
	if (!cpu || cpu->pending)
		return 0;
	cpu->pending = 1;
	if (!(++cpu->raises % SOFTIRQS))
		cpu->raised_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(weir_softirq, unsigned int vec)
{
	struct weir_probe_cpu *cpu;

	if (vec != NET_RX_SOFTIRQ)
		return 0;
	cpu = here();
	if (!cpu)
		return 0;
	cpu->pending = 0;
	if (cpu->raised_ns) {
		record(cpu, WEIR_WAIT_SOFTIRQ, bpf_ktime_get_ns() - cpu->raised_ns, SOFTIRQS);
		cpu->raised_ns = 0;
	}
	return 0;
}

/* The socket that it was for tells the network namespace, else the device it came from. A datagram that was in a socket
 * has something else in place of the device; reading through that gives 0. */
SEC("tp_btf/kfree_skb")
int weir_drop(unsigned long long *ctx)
{
	struct weir_probe_cpu *cpu = here();
	struct sk_buff *skb = (void *)ctx[0];
	__u32 reason = ctx[2], at, inum = 0;
	__u64 since, was;
	struct sock *sk;

	if (!cpu)
		return 0;
	if (cpu->skb == (__u64)skb)
		cpu->skb = 0;
	if (any_queued)
		passed(&queued, number(cpu, skb), &since, &was);
	if (kfree_skb_args > 3) {
		sk = (void *)ctx[3];
		if (sk)
			inum = sk->__sk_common.skc_net.net->ns.inum;
	}
	if (!inum)
		inum = skb->dev->nd_net.net->ns.inum;
	if (!inum) {
		sk = skb->sk;
		if (sk)
			inum = sk->__sk_common.skc_net.net->ns.inum;
	}
	at = (reason >> 16) << 8 | (reason & 0xff);
	if (at >= WEIR_REASONS || (reason & 0xff00))
		at = 0;
	asm volatile("" : "+r"(at));
	if (at >= WEIR_REASONS)
		return 0;
	if (inum == netns_inode)
		cpu->drops[at]++;
	else if (!inum)
		cpu->unplaced[at]++;
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
