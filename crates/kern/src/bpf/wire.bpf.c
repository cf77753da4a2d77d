// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The lab's wire: a paced source of frames, the hop that carries them to the host CPU, the drops and the
 * reply counter at the far end, and the meters of receive work.
 *
 * wire_source runs under BPF_PROG_TEST_RUN with live frames. The kernel hands it the same pages again and
 * again, with whatever their last receiver wrote into them, so each run writes the whole frame. All state has
 * one writer, the CPU that runs the source. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include "kernel.h"

#define TARGETS 8
#define PHASES 32
#define SCHEDULE 64
#define FRAME_WORDS 32
#define CPUS 256
#define WATCHED 64
#define CLASSES 4
#define CLASS_GUARD 2

/* Departure times carry 16 fractional bits of a nanosecond: 10^-5 ns, and 78 hours before they overflow. */
#define FRACTION 16
/* Iterations of the pacing loop, about 25 ns each: bounds one wait to some 200 ms. */
#define WAIT_MAX (8 << 20)

enum kind { KIND_STAMP = 0, KIND_DNS = 1, KIND_FIXED = 2, KIND_TCP = 3, KIND_FRAGMENT = 4, KIND_SENDERS = 5, KIND_PORTS = 6 };

/* A stretch of constant rate. step is the time between two frames, 0 for as fast as possible. */
struct phase {
	__u64 end_ns;
	__u64 step;
};

struct target {
	__u32 frame[FRAME_WORDS];
	__u32 words;
	__u32 kind;
	__u32 flows;
	__u32 port; /* first source port, host order */
};

struct config {
	__u32 burst;
	__u32 phases;
	__u32 schedule_len;
	__u32 hop; /* 1: through the CPU map */
	__u32 hop_cpu;
	__u32 rare_every; /* one of so many frames is for a rare target; 0: none */
	__u64 late_max_ns;
	__u64 wait_max_ns; /* longest wait of one run; 0: until the next departure */
	__u32 rare_from; /* the rare targets, in turn */
	__u32 rare_count;
	struct phase phase[PHASES];
	__u8 schedule[SCHEDULE];
	struct target target[TARGETS];
};

struct state {
	__u64 start_ns;
	__u64 now_ns;
	__u64 end_ns;
	__u64 due;
	__u64 late_ns;
	__u64 refused;
	__u32 phase;
	__u32 in_burst;
	__u32 slot;
	__u32 done;
	__u32 since_rare;
	__u32 rare;
	__u64 sent[TARGETS];
	__u64 sent_phase[PHASES];
	__u32 flow[TARGETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} wire_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct state);
} wire_state SEC(".maps");

/* Written by user space at any time; a word of its own, so that a write cannot disturb the state. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wire_stop SEC(".maps");

/* Target index -> wire-side device. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, TARGETS);
	__type(key, __u32);
	__type(value, __u32);
} wire_out SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, CPUS);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} wire_hop SEC(".maps");

struct wait {
	__u64 until;
	__u64 now;
};

static long wait_step(__u32 i, void *p)
{
	struct wait *w = p;

	w->now = bpf_ktime_get_ns();
	return w->now >= w->until;
}

static __always_inline __u64 wait_until(__u64 until, __u64 now)
{
	struct wait w = { .until = until, .now = now };

	if (now < until)
		bpf_loop(WAIT_MAX, wait_step, &w, 0);
	return w.now;
}

/* Waits for the next burst's departure. 0 if there is none yet, or when the load is over: then it is done. */
static __always_inline int pace(const struct config *cfg, struct state *st)
{
	__u32 zero = 0, *stop = bpf_map_lookup_elem(&wire_stop, &zero);
	__u64 now = bpf_ktime_get_ns(), rel, due, end, step;
	__u32 ph = st->phase;

	if (!st->start_ns)
		st->start_ns = now;
	if (ph >= PHASES || ph >= cfg->phases || !stop || *stop)
		goto over;
	rel = now - st->start_ns;
	end = cfg->phase[ph].end_ns;
	step = cfg->phase[ph].step;
	due = step ? st->due >> FRACTION : rel;
	if (due >= end || rel >= end) {
		/* The phase has no room for another burst: the next one begins when it ends. */
		due = end;
		st->due = end << FRACTION;
		ph++;
		st->phase = ph;
		if (ph >= PHASES || ph >= cfg->phases) {
			now = wait_until(st->start_ns + end, now);
			goto over;
		}
		step = cfg->phase[ph].step;
	}
	if (rel > due + cfg->late_max_ns) {
		/* The CPU was taken away. Making up for it would be a burst that nobody asked for. */
		st->late_ns += rel - due;
		st->due = rel << FRACTION;
	}
	if (cfg->wait_max_ns && st->start_ns + due > now + cfg->wait_max_ns) {
		/* The kernel lets others run between two batches, and never within one. */
		wait_until(now + cfg->wait_max_ns, now);
		return 0;
	}
	now = wait_until(st->start_ns + due, now);
	st->due += step * cfg->burst;
	st->now_ns = now;
	return 1;
over:
	st->done = 1;
	st->end_ns = now;
	return 0;
}

/* The checksum `old` after a word that it covers went from `from` to `to`, all as they stand in the frame (RFC 1624). */
static __always_inline __u16 checksum_after(__u16 old, __u16 from, __u16 to)
{
	__u32 sum = (__u16)~old + (__u16)~from + to;

	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

SEC("xdp")
int wire_source(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, t, slot, ph, *words = data;
	const struct config *cfg = bpf_map_lookup_elem(&wire_config, &zero);
	struct state *st = bpf_map_lookup_elem(&wire_state, &zero);
	const struct target *tg;
	__u16 port, id, address;
	long act;

	if (!cfg || !st || st->done)
		return XDP_DROP;
	if (st->in_burst == 0 && !pace(cfg, st))
		return XDP_DROP;

	if (cfg->rare_every && ++st->since_rare >= cfg->rare_every) {
		st->since_rare = 0;
		t = (cfg->rare_from + st->rare) & (TARGETS - 1);
		st->rare = st->rare + 1 < cfg->rare_count ? st->rare + 1 : 0;
	} else {
		slot = st->slot;
		if (slot >= cfg->schedule_len || slot >= SCHEDULE)
			slot = 0;
		t = cfg->schedule[slot] & (TARGETS - 1);
		st->slot = slot + 1;
	}
	tg = &cfg->target[t];

	/* Headers, the two stamp words and the shortest frame. */
	if (data + 60 > end)
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < 15; i++)
		words[i] = tg->frame[i];
	if (tg->words > 15) {
#pragma unroll
		for (int i = 15; i < FRAME_WORDS; i++) {
			if ((void *)(words + i + 1) > end)
				break;
			words[i] = tg->frame[i];
		}
	}
	if (tg->flows > 1) {
		__u32 flow = st->flow[t] + 1;

		if (flow >= tg->flows)
			flow = 0;
		st->flow[t] = flow;
		port = bpf_htons((__u16)(tg->port + flow));
		if (tg->kind == KIND_TCP)
			*(__u16 *)(data + 50) =
				checksum_after(*(__u16 *)(data + 50), *(__u16 *)(data + 34), port);
		*(__u16 *)(data + 34) = port;
		if (tg->kind == KIND_SENDERS) {
			address = *(__u16 *)(data + 28);
			id = bpf_htons((__u16)(bpf_ntohs(address) + flow));
			*(__u16 *)(data + 24) = checksum_after(*(__u16 *)(data + 24), address, id);
			*(__u16 *)(data + 28) = id;
		} else if (tg->kind == KIND_PORTS) {
			*(__u16 *)(data + 36) = bpf_htons((__u16)(bpf_ntohs(*(__u16 *)(data + 36)) + flow));
		}
	}
	if (tg->kind == KIND_DNS) {
		*(__u16 *)(data + 42) = bpf_htons((__u16)st->sent[t]);
	} else if (tg->kind == KIND_STAMP || tg->kind == KIND_SENDERS || tg->kind == KIND_PORTS) {
		*(__u64 *)(data + 42) = st->now_ns;
		*(__u64 *)(data + 50) = st->sent[t];
	} else if (tg->kind == KIND_FRAGMENT) {
		/* Of a datagram of its own, so that none is taken for the repetition of another. */
		id = bpf_htons((__u16)st->sent[t]);
		*(__u16 *)(data + 24) = checksum_after(*(__u16 *)(data + 24), *(__u16 *)(data + 18), id);
		*(__u16 *)(data + 18) = id;
	}

	act = cfg->hop ? bpf_redirect_map(&wire_hop, cfg->hop_cpu, 0) : bpf_redirect_map(&wire_out, t, 0);
	if (++st->in_burst >= cfg->burst)
		st->in_burst = 0;
	if (act != XDP_REDIRECT) {
		st->refused++;
		return XDP_DROP;
	}
	st->sent[t]++;
	ph = st->phase;
	if (ph < PHASES)
		st->sent_phase[ph]++;
	return XDP_REDIRECT;
}

/* Runs on the host CPU, in the CPU map's thread. The last byte of the destination address is the target. */
SEC("xdp/cpumap")
int wire_hop_out(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + 14 > end)
		return XDP_DROP;
	return bpf_redirect_map(&wire_out, ((__u8 *)data)[5] & (TARGETS - 1), 0);
}

/* Which CPU works on a packet that has come in: that of its flow, or the next one in turn whatever its flow. */
#define SPREAD 8
#define FRAGMENTED 0x3fff /* more fragments, or an offset */

struct spread {
	__u32 by_packet;
	__u32 cpus;
	__u32 cpu[SPREAD];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct spread);
} wire_spread SEC(".maps");

/* Of the CPU that hands packets out. */
struct spread_turn {
	__u64 given[SPREAD];
	__u64 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct spread_turn);
} wire_spread_turn SEC(".maps");

/* Of addresses and ports, as RSS and RPS have it; the steps are those of murmur3. */
static __always_inline __u32 flow_hash(__u32 source, __u32 target, __u32 ports)
{
	__u32 hash = source * 0xcc9e2d51;

	hash = (hash ^ hash >> 15 ^ target) * 0x1b873593;
	hash = (hash ^ hash >> 13 ^ ports) * 0x85ebca6b;
	hash = (hash ^ hash >> 13) * 0xc2b2ae35;
	return hash ^ hash >> 16;
}

SEC("xdp")
int wire_spread_out(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, at, ports;
	const struct spread *cfg = bpf_map_lookup_elem(&wire_spread, &zero);
	struct spread_turn *turn = bpf_map_lookup_elem(&wire_spread_turn, &zero);

	/* IPv4 without options is all that the lab sends there; the rest stays on the CPU that it came to. */
	if (!cfg || !turn || data + 38 > end || *(__u16 *)(data + 12) != bpf_htons(0x0800) ||
	    ((__u8 *)data)[14] != 0x45)
		return XDP_PASS;
	if (cfg->by_packet) {
		at = turn->next;
		turn->next = at + 1 < cfg->cpus ? at + 1 : 0;
	} else {
		/* Only the first fragment has ports. */
		ports = *(__u16 *)(data + 20) & bpf_htons(FRAGMENTED) ? 0 : *(__u32 *)(data + 34);
		at = (__u64)flow_hash(*(__u32 *)(data + 26), *(__u32 *)(data + 30), ports) * cfg->cpus >> 32;
	}
	if (at >= SPREAD)
		return XDP_PASS;
	turn->given[at]++;
	return bpf_redirect_map(&wire_hop, cfg->cpu[at], XDP_PASS);
}

/* Device at the host side: drops everything. */
SEC("xdp")
int wire_drop(struct xdp_md *ctx)
{
	return XDP_DROP;
}

/* The same, but it reads what every program must that tells frames apart: the headers, in the line that the wire wrote. */
SEC("xdp")
int wire_drop_read(struct xdp_md *ctx)
{
	const __u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	/* The port of a datagram without options of IP. No frame has 0xffff there, which would pass. */
	if (data + 38 <= end && *(const __u16 *)(data + 36) == 0xffff)
		return XDP_PASS;
	return XDP_DROP;
}

/* A static rate limit, the tool a user without weir has: a token bucket in front of the stack. */
struct limit {
	__u64 step;  /* ns << FRACTION per packet */
	__u64 depth; /* ns << FRACTION that may be saved up */
	__u64 next;  /* time << FRACTION from which the next packet conforms */
	__u64 dropped;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct limit);
} wire_limit SEC(".maps");

/* The device has one queue, so one CPU at a time runs this. */
SEC("xdp")
int wire_rate_limit(struct xdp_md *ctx)
{
	__u32 zero = 0;
	struct limit *l = bpf_map_lookup_elem(&wire_limit, &zero);
	__u64 now;

	if (!l)
		return XDP_PASS;
	/* 48 bits of nanoseconds wrap after 78 hours of uptime: the signed difference stays right. */
	now = bpf_ktime_get_ns() << FRACTION;
	if ((__s64)(now - l->next) < 0) {
		l->dropped++;
		return XDP_DROP;
	}
	if (now - l->next > l->depth)
		l->next = now - l->depth;
	l->next += l->step;
	return XDP_PASS;
}

/* Replies that leave the host side: counted, then taken off, as a wire would. */
struct replies {
	__u64 packets;
	__u64 bytes;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct replies);
} wire_replies SEC(".maps");

#define TCX_PASS 0
#define TCX_DROP 2

SEC("tcx/egress")
int wire_reply(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct replies *r = bpf_map_lookup_elem(&wire_replies, &zero);
	__u8 protocol = 0;

	if (!r || skb->protocol != bpf_htons(0x0800) || bpf_skb_load_bytes(skb, 23, &protocol, 1) ||
	    protocol != 17)
		return TCX_PASS;
	r->packets++;
	r->bytes += skb->len;
	return TCX_DROP;
}

/* Answers to the wire's own questions, by the question's number. Whoever sent a question may never get its answer where a
 * client has to run for it, or where the answer passes a queue that the flood fills; here it has left the host. */
#define ANSWERS (1 << 17)

struct answer {
	__u64 asked_ns; /* departure of the question */
	__u64 left_ns;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, ANSWERS);
	__type(key, __u32);
	__type(value, struct answer);
} wire_answers SEC(".maps");

/* Port of the server, host order. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wire_answer_port SEC(".maps");

/* Takes off everything that leaves the host, as a wire would: refusals of the flood too. */
SEC("tcx/egress")
int wire_answer(struct __sk_buff *skb)
{
	__u32 zero = 0, number, *port = bpf_map_lookup_elem(&wire_answer_port, &zero);
	struct answer *a;
	__u64 stamp[2];
	__u16 source = 0;
	__u8 protocol = 0;

	if (!port || skb->protocol != bpf_htons(0x0800) || bpf_skb_load_bytes(skb, 23, &protocol, 1) ||
	    protocol != 17 || bpf_skb_load_bytes(skb, 34, &source, 2) || bpf_ntohs(source) != *port ||
	    bpf_skb_load_bytes(skb, 42, stamp, sizeof(stamp)) || stamp[1] >= ANSWERS)
		return TCX_DROP;
	number = stamp[1];
	a = bpf_map_lookup_elem(&wire_answers, &number);
	/* The first answer counts. */
	if (a && a->asked_ns != stamp[0]) {
		a->left_ns = bpf_ktime_get_ns();
		a->asked_ns = stamp[0];
	}
	return TCX_DROP;
}

/* Stands for the rules of a firewall: counted work for each packet, where tc sees it first. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} wire_rules SEC(".maps");

static long rule(__u32 i, void *p)
{
	__u64 *x = p;

	*x = *x * 0x9e3779b97f4a7c15ULL ^ *x >> 29;
	return 0;
}

SEC("tcx/ingress")
int wire_rule_set(struct __sk_buff *skb)
{
	__u32 zero = 0, *rules = bpf_map_lookup_elem(&wire_rules, &zero);
	__u64 x = skb->len;

	if (rules)
		bpf_loop(*rules, rule, &x, 0);
	return TCX_PASS;
}

/* Far end of a forwarding host's output: packets that made it there, and how long they took. */

/* Sixteen steps per power of two, from 16 ns to 2^34 ns: enough for a latency, small enough for one map value. */
#define SINK_BUCKETS 512
/* A prime: neither turns nor bursts are a multiple of it. */
#define SINK_SAMPLE 13
/* What the source sends has 64. */
#define SINK_TTL 63

struct sink {
	__u64 packets;
	__u64 other; /* frames that are none of the source's */
	__u64 bad;   /* sampled packets that were not forwarded as a router must: TTL, checksum */
	__u64 buckets[SINK_BUCKETS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sink);
} wire_sink SEC(".maps");

static __always_inline __u32 sink_bucket(__u64 ns)
{
	__u32 power = 0;

	if (ns >= 1ULL << 34)
		return SINK_BUCKETS - 1;
	if (ns < 16)
		return ns;
	/* ns >> power is from 16 to 31. */
	if (ns >> (power + 16) >= 16)
		power += 16;
	if (ns >> (power + 8) >= 16)
		power += 8;
	if (ns >> (power + 4) >= 16)
		power += 4;
	if (ns >> (power + 2) >= 16)
		power += 2;
	if (ns >> (power + 1) >= 16)
		power += 1;
	return power * 16 + (ns >> power);
}

SEC("xdp")
int wire_sink_in(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, bucket, sum = 0;
	struct sink *s = bpf_map_lookup_elem(&wire_sink, &zero);
	__u16 *ip = data + 14;
	__u64 ns;

	if (!s)
		return XDP_DROP;
	/* The source's datagrams: IPv4 without options, UDP. */
	if (data + 58 > end || ((__u8 *)data)[14] != 0x45 || ((__u8 *)data)[23] != 17) {
		s->other++;
		return XDP_DROP;
	}
	s->packets++;
	if (*(__u64 *)(data + 50) % SINK_SAMPLE)
		return XDP_DROP;
#pragma unroll
	for (int i = 0; i < 10; i++)
		sum += ip[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	s->bad += sum != 0xffff || ((__u8 *)data)[22] != SINK_TTL;
	ns = bpf_ktime_get_ns() - *(__u64 *)(data + 42);
	bucket = sink_bucket(ns);
	if (bucket < SINK_BUCKETS)
		s->buckets[bucket]++;
	return XDP_DROP;
}

/* Meters. */

struct xdp_cpumap_stats {
	unsigned int redirect;
	unsigned int pass;
	unsigned int drop;
} __attribute__((preserve_access_index));

/* One device is metered at a time, named by namespace and index. */
struct meter_config {
	__u32 netns;
	__u32 ifindex;
	__u32 hop_map;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct meter_config);
} meter_config SEC(".maps");

struct meter {
	__u64 polls;
	__u64 packets;
	__u64 full;
	__u64 softirq_polls; /* those made in softirq context */
	__u64 softirq_ns;
	__u64 softirq_runs;
	__u64 softirq_start;
	__u64 hop_enqueue_drops;
	__u64 hop_thread_drops;
	__u64 hop_packets;
	__u64 stolen_ns[CLASSES]; /* softirq time by the class of the task that it interrupted */
	__u64 packets_by[CLASSES]; /* packets handed up outside softirq, by the class of the polling task */
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct meter);
} meters SEC(".maps");

/* Thread group -> class, for those whose CPU time is measured. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WATCHED);
	__type(key, __u32);
	__type(value, __u32);
} meter_watched SEC(".maps");

/* Moments of a takeover and a release, on any CPU: the device has one queue. */
struct edges {
	__u64 from_ns;       /* set by user space: what happens before is not looked at; 0 switches the rest off */
	__u64 full_ns;       /* first poll that used up its quota */
	__u64 guard_ns;      /* first poll by the guard after that */
	__u64 guard_last_ns; /* latest poll by the guard */
	__u64 takeovers;     /* polls by the guard with none in the TAKEOVER_GAP before */
	__u64 until_ns;	     /* set by user space: the end of the load that the guard is for */
	__u64 let_go_ns;     /* latest poll by the guard before its first TAKEOVER_GAP that ends after that */
};

/* Longer than any pause between two turns of a poller, heartbeats included. */
#define TAKEOVER_GAP 20000000ULL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct edges);
} meter_edges SEC(".maps");

static __always_inline struct meter *meter(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&meters, &zero);
}

SEC("tp_btf/napi_poll")
int BPF_PROG(meter_poll, struct napi_struct *napi, int work, int budget)
{
	__u32 zero = 0;
	const struct meter_config *cfg = bpf_map_lookup_elem(&meter_config, &zero);
	struct net_device *dev = napi->dev;
	__u32 tgid, *class = 0;
	struct edges *e;
	struct meter *m;

	if (!cfg || !dev || (__u32)dev->ifindex != cfg->ifindex || dev->nd_net.net->ns.inum != cfg->netns)
		return 0;
	m = meter();
	if (!m)
		return 0;
	m->polls++;
	m->packets += work;
	m->full += work >= budget;
	if (m->softirq_start) {
		m->softirq_polls++;
	} else {
		tgid = bpf_get_current_pid_tgid() >> 32;
		class = bpf_map_lookup_elem(&meter_watched, &tgid);
		if (class && *class < CLASSES)
			m->packets_by[*class] += work;
	}
	e = bpf_map_lookup_elem(&meter_edges, &zero);
	if (e && e->from_ns) {
		__u64 now = bpf_ktime_get_ns();

		if (now < e->from_ns)
			return 0;
		if (!e->full_ns && work >= budget)
			e->full_ns = now;
		if (class && *class == CLASS_GUARD) {
			if (e->full_ns && !e->guard_ns)
				e->guard_ns = now;
			if (now - e->guard_last_ns > TAKEOVER_GAP) {
				e->takeovers++;
				if (!e->let_go_ns && now > e->until_ns)
					e->let_go_ns = e->guard_last_ns;
			}
			e->guard_last_ns = now;
		}
	}
	return 0;
}

/* A forwarding host's output: since when it holds packets that nothing has taken. */
struct output {
	__u32 netns;
	__u32 ifindex;
	__u32 far_netns;
	__u32 far_ifindex;
	__s64 held;
	__u64 since_ns;
	__u64 starved_ns; /* waits longer than OUTPUT_STARVED */
	__u64 longest_ns;
};

#define OUTPUT_STARVED 2000000ULL

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct output);
} meter_output SEC(".maps");

SEC("tp_btf/net_dev_xmit")
int BPF_PROG(output_sent, void *skb, int rc, struct net_device *dev, unsigned int len)
{
	__u32 zero = 0;
	struct output *o = bpf_map_lookup_elem(&meter_output, &zero);

	if (!o || rc || (__u32)dev->ifindex != o->ifindex || dev->nd_net.net->ns.inum != o->netns)
		return 0;
	if (__sync_fetch_and_add(&o->held, 1) <= 0)
		o->since_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(output_taken, struct napi_struct *napi, int work, int budget)
{
	__u32 zero = 0;
	struct output *o = bpf_map_lookup_elem(&meter_output, &zero);
	struct net_device *dev = napi->dev;
	__u64 now, wait;

	if (!o || !work || !dev || (__u32)dev->ifindex != o->far_ifindex ||
	    dev->nd_net.net->ns.inum != o->far_netns)
		return 0;
	now = bpf_ktime_get_ns();
	wait = now - o->since_ns;
	if (o->held > 0 && o->since_ns && now > o->since_ns) {
		if (wait > o->longest_ns)
			o->longest_ns = wait;
		if (wait > OUTPUT_STARVED)
			o->starved_ns += wait;
	}
	__sync_fetch_and_add(&o->held, -(__s64)work);
	o->since_ns = now;
	return 0;
}

#define NET_RX 3

SEC("tp_btf/softirq_entry")
int BPF_PROG(meter_softirq_entry, unsigned int vec)
{
	struct meter *m;

	if (vec != NET_RX)
		return 0;
	m = meter();
	if (m)
		m->softirq_start = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(meter_softirq_exit, unsigned int vec)
{
	struct meter *m;
	__u32 tgid, *class;
	__u64 ns;

	if (vec != NET_RX)
		return 0;
	m = meter();
	if (!m || !m->softirq_start)
		return 0;
	ns = bpf_ktime_get_ns() - m->softirq_start;
	m->softirq_start = 0;
	m->softirq_ns += ns;
	m->softirq_runs++;
	tgid = bpf_get_current_pid_tgid() >> 32;
	class = bpf_map_lookup_elem(&meter_watched, &tgid);
	if (class && *class < CLASSES)
		m->stolen_ns[*class] += ns;
	return 0;
}

struct task_struct {
	int tgid;
} __attribute__((preserve_access_index));

/* Switches of this CPU to or from a watched task. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} meter_switched SEC(".maps");

SEC("tp_btf/sched_switch")
int BPF_PROG(task_switched, int preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 zero = 0, from = prev->tgid, to = next->tgid;
	__u64 *switches;

	if (!bpf_map_lookup_elem(&meter_watched, &from) && !bpf_map_lookup_elem(&meter_watched, &to))
		return 0;
	switches = bpf_map_lookup_elem(&meter_switched, &zero);
	if (switches)
		++*switches;
	return 0;
}

SEC("tp_btf/xdp_cpumap_enqueue")
int BPF_PROG(meter_hop_enqueue, int map_id, unsigned int processed, unsigned int drops, int to_cpu)
{
	__u32 zero = 0;
	const struct meter_config *cfg = bpf_map_lookup_elem(&meter_config, &zero);
	struct meter *m = meter();

	if (cfg && m && (__u32)map_id == cfg->hop_map)
		m->hop_enqueue_drops += drops;
	return 0;
}

SEC("tp_btf/xdp_cpumap_kthread")
int BPF_PROG(meter_hop_thread, int map_id, unsigned int processed, unsigned int drops, int sched,
	     struct xdp_cpumap_stats *stats)
{
	__u32 zero = 0;
	const struct meter_config *cfg = bpf_map_lookup_elem(&meter_config, &zero);
	struct meter *m = meter();

	if (cfg && m && (__u32)map_id == cfg->hop_map) {
		m->hop_packets += processed;
		m->hop_thread_drops += drops + stats->drop;
	}
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
