/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Segments of TCP from the stack's entry until a program has read them: `copied_seq` tells. */
#ifndef WEIR_PROBES_TCP_H
#define WEIR_PROBES_TCP_H

#include "probes_common.h"

struct tcp_skb_cb {
	__u32 seq;
	__u32 end_seq;
} __attribute__((preserve_access_index));

struct tcp_sock {
	__u32 copied_seq;
} __attribute__((preserve_access_index));

struct { /* handed to the stack, until TCP has it */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_PASSING);
	__type(key, __u32);
	__type(value, struct passing);
} handed SEC(".maps");

/* Followed segments of a socket, numbered in the order in which they came. Only who holds the socket's lock changes it. */
struct stream {
	__u64 sk; /* 0: free */
	__u32 first; /* the oldest that was not read */
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_STREAMS);
	__type(key, __u32);
	__type(value, struct stream);
} streams SEC(".maps");

struct segment {
	__u64 sk;
	__u64 entry_ns;
	__u32 number;
	__u32 end_seq;
	__u32 weight;
	__u32 unused;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_SEGMENTS);
	__type(key, __u32);
	__type(value, struct segment);
} segments SEC(".maps");

/* Whether there ever was one: hosts without them look for none. */
__u32 any_handed = 0;

static __always_inline struct stream *stream(__u64 sk)
{
	__u32 at = (sk * 0x9e3779b97f4a7c15ULL) >> 32;

	at &= WEIR_STREAMS - 1;
	return bpf_map_lookup_elem(&streams, &at);
}

static __always_inline struct segment *segment(__u64 sk, __u32 number)
{
	__u32 at = (sk * 0x9e3779b97f4a7c15ULL) >> 32;

	at = (at + number) & (WEIR_SEGMENTS - 1);
	return bpf_map_lookup_elem(&segments, &at);
}

/* True while a segment is one of those that its socket still has to read. */
static __always_inline _Bool waits(struct segment *one)
{
	struct stream *of;

	if (!one->weight)
		return 0;
	of = stream(one->sk);
	return of && of->sk == one->sk && one->number - of->first < of->next - of->first;
}

/* TCP looks at a segment, with the socket's lock. One that found it locked comes later, from the reader that held it. */
SEC("tp_btf/tcp_probe")
int BPF_PROG(weir_segment, struct sock *sk, struct sk_buff *skb)
{
	struct tcp_skb_cb *tcp = (struct tcp_skb_cb *)&skb->cb[0];
	__u32 weight, seq = 0, end_seq = 0, copied = 0;
	struct weir_probe_cpu *cpu;
	__u64 since = 0, was = 0, own;
	struct segment *one;
	struct stream *of;

	if (!any_handed)
		return 0;
	cpu = here();
	if (!cpu)
		return 0;
	weight = passed(&handed, number(cpu, skb), &since, &was);
	if (!weight || print(skb, 0) != was)
		return 0;
	bpf_core_read(&seq, sizeof(seq), &tcp->seq);
	bpf_core_read(&end_seq, sizeof(end_seq), &tcp->end_seq);
	bpf_core_read(&copied, sizeof(copied), &((struct tcp_sock *)sk)->copied_seq);
	/* Acknowledgements carry nothing; what comes twice may have been read. */
	if (seq == end_seq || (__s32)(end_seq - copied) <= 0)
		return 0;
	own = number(cpu, sk);
	of = stream(own);
	if (!of)
		return 0;
	if (of->sk != own) {
		one = segment(of->sk, of->first);
		if (of->sk && of->first != of->next && one && one->sk == of->sk && since - one->entry_ns < FORGOTTEN_NS)
			goto full;
		of->sk = own;
		of->first = of->next;
	}
	one = segment(own, of->next);
	if (!one || (waits(one) && since - one->entry_ns < FORGOTTEN_NS))
		goto full;
	one->sk = own;
	one->entry_ns = since;
	one->number = of->next;
	one->end_seq = end_seq;
	one->weight = weight;
	of->next++;
	return 0;
full:
	cpu->lost++;
	return 0;
}

/* A program has read from a TCP socket, to `copied_seq`. */
SEC("tp_btf/tcp_rcv_space_adjust")
int BPF_PROG(weir_stream, struct sock *sk)
{
	struct weir_probe_cpu *cpu;
	struct stream *of;
	__u32 copied = 0, i;
	__u64 now, own;

	if (!any_handed)
		return 0;
	cpu = here();
	if (!cpu)
		return 0;
	own = number(cpu, sk);
	of = stream(own);
	if (!of || of->sk != own || of->first == of->next)
		return 0;
	if (bpf_core_read(&copied, sizeof(copied), &((struct tcp_sock *)sk)->copied_seq))
		return 0;
	now = bpf_ktime_get_ns();
	/* A read ends at a segment's end most often; what is left is for the next one. */
	for (i = 0; i < 8; i++) {
		struct segment *one = segment(own, of->first);

		if (!one || of->first == of->next)
			break;
		if (one->sk == own && one->number == of->first && one->weight) {
			if ((__s32)(copied - one->end_seq) < 0)
				break;
			record(cpu, WEIR_WAIT_TCP, now - one->entry_ns, one->weight);
			one->weight = 0;
		}
		of->first++;
	}
	return 0;
}

/* Its memory may be another socket's next. */
SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(weir_stream_end, struct sock *sk)
{
	struct weir_probe_cpu *cpu = here();
	struct stream *of;
	__u64 own;

	if (!any_handed || !cpu)
		return 0;
	own = number(cpu, sk);
	of = stream(own);
	if (of && of->sk == own)
		of->sk = 0;
	return 0;
}

#endif
