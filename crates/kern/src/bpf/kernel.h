/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The kernel's structs, as far as programs here read them; the loader puts in the offsets of the running kernel (CO-RE).
 */
#ifndef WEIR_KERNEL_H
#define WEIR_KERNEL_H

struct inode {
	unsigned long i_ino;
} __attribute__((preserve_access_index));

struct file {
	struct inode *f_inode;
} __attribute__((preserve_access_index));

struct ns_common {
	unsigned int inum;
} __attribute__((preserve_access_index));

struct netns_ipv4 {
	__u8 sysctl_tcp_migrate_req;
} __attribute__((preserve_access_index));

struct net {
	struct ns_common ns;
	struct netns_ipv4 ipv4;
} __attribute__((preserve_access_index));

typedef struct {
	struct net *net;
} possible_net_t;

struct rtnl_link_ops {
	const char *kind;
} __attribute__((preserve_access_index));

struct net_device {
	int ifindex;
	possible_net_t nd_net;
	const struct rtnl_link_ops *rtnl_link_ops;	/* of a virtual device */
} __attribute__((preserve_access_index));

struct napi_struct {
	struct net_device *dev;
	unsigned int napi_id;
} __attribute__((preserve_access_index));

#endif
