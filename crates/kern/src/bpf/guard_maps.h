/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* Maps that guard.bpf.c and rx.bpf.c share; rx.bpf.c is loaded with the maps of guard.bpf.c put in place of its own. */
#ifndef WEIR_GUARD_MAPS_H
#define WEIR_GUARD_MAPS_H

#include "classify.h"
#include "fair.h"
#include "gate.h"
#include "syns.h"
#include "behind.h"

#define WEIR_SHARED_ARRAY(name, type_, entries)		\
	struct {					\
		__uint(type, BPF_MAP_TYPE_ARRAY);	\
		__uint(map_flags, BPF_F_MMAPABLE);	\
		__uint(max_entries, entries);		\
		__type(key, __u32);			\
		__type(value, type_);			\
	} name SEC(".maps")

WEIR_SHARED_ARRAY(guard_ctl, struct weir_guard_ctl, 1);
WEIR_SHARED_ARRAY(source_ctls, struct weir_source_ctl, WEIR_SOURCES);
WEIR_SHARED_ARRAY(source_stats, struct weir_source_stat, WEIR_SOURCES);
WEIR_SHARED_ARRAY(rx_stats, struct weir_rx_stat, WEIR_SOURCES);
WEIR_SHARED_ARRAY(consumer_ctls, struct weir_consumer_ctl, WEIR_CONSUMERS);
WEIR_SHARED_ARRAY(consumer_stats, struct weir_consumer_stat, WEIR_CONSUMERS);
WEIR_SHARED_ARRAY(consumer_sheds, struct weir_sheds, WEIR_SOURCES);
WEIR_SHARED_ARRAY(poller_ctls, struct weir_poller_ctl, WEIR_POLLERS);
WEIR_SHARED_ARRAY(ports_used, struct weir_ports_used, 1);
WEIR_SHARED_ARRAY(gate_stats, struct weir_gate_stat, 1);

struct { /* UDP ports, then TCP ports */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * WEIR_TCP_PORTS);
	__type(key, __u32);
	__type(value, struct weir_port);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_REFUSALS);
	__type(key, __u32);
	__type(value, struct weir_refusal);
} refusals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_DESTINATIONS);
	__type(key, __u32);
	__type(value, struct weir_refusal);
} destinations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_PLACED);
	__type(key, __u32);
	__type(value, struct weir_end);
} placed SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_ENDS);
	__type(key, __u32);
	__type(value, struct weir_end);
} ends SEC(".maps");

struct { /* outer destinations of consumers behind the host */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_OUTERS);
	__type(key, __u32);
	__type(value, struct weir_outer);
} outers SEC(".maps");

struct { /* flows to them */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_ROUTES);
	__type(key, __u32);
	__type(value, struct weir_route);
} routes SEC(".maps");

struct { /* of each source */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_SOURCES);
	__type(key, __u32);
	__type(value, struct weir_shares);
} shares SEC(".maps");

/* What senders to full consumers have had, of one source: its NAPI's owner is the one writer. */
struct weir_senders {
	struct weir_sketch sketch;
	struct weir_fair of[WEIR_CONSUMERS];
};

struct { /* of each source */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_SOURCES);
	__type(key, __u32);
	__type(value, struct weir_syns);
} syns SEC(".maps");

struct { /* of each source */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_SOURCES);
	__type(key, __u32);
	__type(value, struct weir_senders);
} senders SEC(".maps");


struct { /* the rules in force and, while they change, the next ones */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct weir_rules);
} class_rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, WEIR_POLLERS);
	__type(key, __u32);
	__type(value, struct weir_bound);
} bounds SEC(".maps");

struct { /* socket address -> slot, of tracked ones; user space alone writes it */
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WEIR_CONSUMERS);
	__type(key, __u64);
	__type(value, __u32);
} consumer_slots SEC(".maps");

struct { /* local UDP port -> 1 + consumer, 0 if none is tracked, WEIR_PORT_SHARED */
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u8);
} port_consumers SEC(".maps");

#endif
