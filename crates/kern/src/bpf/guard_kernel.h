/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/* The kernel's packets and sockets, as far as the guard's programs read them. */
#ifndef WEIR_GUARD_KERNEL_H
#define WEIR_GUARD_KERNEL_H

#include "kernel.h"

typedef struct { int counter; } atomic_t;
typedef struct { __s64 counter; } atomic64_t;

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	unsigned int napi_id;
	__u16 queue_mapping;
	__u16 network_header;
	__u16 transport_header;
	__u16 mac_header;
	unsigned long _nfct;
	unsigned long _skb_refdst;
	unsigned char *head;
	unsigned int end;
	unsigned int len;
	unsigned int truesize;
	int skb_iif;
	__u8 pkt_type : 3;
} __attribute__((preserve_access_index));

struct skb_shared_info {
	unsigned short gso_segs;
	struct sk_buff *frag_list;
} __attribute__((preserve_access_index));

struct sock_common {
	unsigned short skc_family;
	__u16 skc_num;
	possible_net_t skc_net;
	atomic64_t skc_cookie;
} __attribute__((preserve_access_index));

typedef struct {
	__u32 val;
} kuid_t;

struct sk_buff_head {
	__u32 qlen;
} __attribute__((preserve_access_index));

struct socket;
struct bpf_prog;

struct sock_reuseport {
	struct bpf_prog *prog;
} __attribute__((preserve_access_index));

struct sock {
	struct sock_common __sk_common;
	struct sk_buff_head sk_receive_queue;
	struct {
		atomic_t rmem_alloc;
	} __attribute__((preserve_access_index)) sk_backlog;
	int sk_rcvbuf;
	__u16 sk_protocol;
	struct socket *sk_socket;
	kuid_t sk_uid;
	__u32 sk_ack_backlog;
	__u32 sk_max_ack_backlog;
	struct sock_reuseport *sk_reuseport_cb;
} __attribute__((preserve_access_index));

struct udp_sock {
	void *encap_rcv;
} __attribute__((preserve_access_index));

#endif
