// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Sockets in the descriptors of all processes, in every network namespace: listeners of TCP, with the program that chooses in their group,
 * connections, and groups of UDP sockets. Runs only when its iterator is read. */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "kernel.h"
#include "listeners.h"

#define ESTABLISHED 1
#define CLOSE 7
#define LISTEN 10
#define PROTO_TCP 6
#define PROTO_UDP 17

struct task_struct {
	int tgid;
} __attribute__((preserve_access_index));

struct in6_addr {
	__u8 bytes[16];
};

struct sock_common {
	__u32 skc_rcv_saddr;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned char skc_reuseport : 1;
	int skc_bound_dev_if;
	__u16 skc_num;
	possible_net_t skc_net;
	struct in6_addr skc_v6_rcv_saddr;
	__u32 skc_incoming_cpu;
} __attribute__((preserve_access_index));

struct bpf_prog_aux {
	__u32 id;
} __attribute__((preserve_access_index));

struct bpf_prog {
	struct bpf_prog_aux *aux;
} __attribute__((preserve_access_index));

struct sock_reuseport {
	__u16 num_socks;
	struct bpf_prog *prog;
} __attribute__((preserve_access_index));

struct sk_buff_head {
	__u32 qlen;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	__u16 sk_protocol;
	struct sk_buff_head sk_receive_queue;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	struct sock_reuseport *sk_reuseport_cb;
} __attribute__((preserve_access_index));

struct udp_sock {
	struct sk_buff_head reader_queue;
} __attribute__((preserve_access_index));

struct socket {
	struct sock *sk;
} __attribute__((preserve_access_index));

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
} __attribute__((preserve_access_index));

SEC("iter/task_file")
int weir_listeners(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct sock_reuseport *group;
	struct weir_held held = {};
	struct bpf_prog *program;
	struct socket *socket;
	struct sock *sk;
	__u16 protocol;

	if (!task || !file)
		return 0;
	socket = bpf_sock_from_file(file);
	if (!socket)
		return 0;
	sk = socket->sk;
	if (!sk)
		return 0;
	protocol = BPF_CORE_READ(sk, sk_protocol);
	group = BPF_CORE_READ(sk, sk_reuseport_cb);
	held.state = BPF_CORE_READ(sk, __sk_common.skc_state);
	held.udp = protocol == PROTO_UDP;
	/* One of UDP that is connected gets its own peer's datagrams only. */
	if (held.udp ? !group || held.state != CLOSE :
		       protocol != PROTO_TCP || (held.state != LISTEN && held.state != ESTABLISHED))
		return 0;
	held.family = BPF_CORE_READ(sk, __sk_common.skc_family);
	held.port = BPF_CORE_READ(sk, __sk_common.skc_num);
	held.inode = BPF_CORE_READ(file, f_inode, i_ino);
	held.pid = task->tgid;
	held.fd = ctx->fd;
	held.netns = BPF_CORE_READ(sk, __sk_common.skc_net.net, ns.inum);
	held.device = BPF_CORE_READ(sk, __sk_common.skc_bound_dev_if);
	held.waiting = BPF_CORE_READ(sk, sk_ack_backlog);
	held.limit = BPF_CORE_READ(sk, sk_max_ack_backlog);
	if (held.udp) { /* Its limit is of bytes. */
		held.waiting = BPF_CORE_READ(sk, sk_receive_queue.qlen) +
			       BPF_CORE_READ((struct udp_sock *)sk, reader_queue.qlen);
		held.limit = 0;
	}
	held.core = BPF_CORE_READ(sk, __sk_common.skc_incoming_cpu);
	held.reuseport = BPF_CORE_READ_BITFIELD_PROBED(sk, __sk_common.skc_reuseport);
	if (held.family == 2) {
		__u32 address = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);

		__builtin_memcpy(held.address, &address, 4);
	} else {
		BPF_CORE_READ_INTO(&held.address, sk, __sk_common.skc_v6_rcv_saddr);
	}
	if (held.state != ESTABLISHED && group) {
		held.sockets = BPF_CORE_READ(group, num_socks);
		program = BPF_CORE_READ(group, prog);
		if (program) /* A classic filter has no id. */
			held.program = BPF_CORE_READ(program, aux, id) ?: 0xffffffff;
	}
	bpf_seq_write(ctx->meta->seq, &held, sizeof(held));
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
