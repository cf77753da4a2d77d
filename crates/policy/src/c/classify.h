/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The class of a frame: protected by a rule, or normal (MR-34, MR-37). One text for two compilers: crates/kern compiles it
 * for BPF, where it runs before any level is looked at, and crates/policy for the host, where it is tested and fuzzed.
 *
 * Integer only, no state, no allocation. A frame is read in at most 2 VLAN tags, one IP header, WEIR_EXTENSIONS IPv6
 * extension headers and one transport header; what lies deeper is not looked for, and such a frame has no ports.
 * A rule is a mask and a value over three words of the frame, and at most one prefix of one address.
 */
#ifndef WEIR_CLASSIFY_H
#define WEIR_CLASSIFY_H

typedef __UINT8_TYPE__ weir_u8;
typedef __UINT16_TYPE__ weir_u16;
typedef __UINT32_TYPE__ weir_u32;
typedef unsigned long long weir_u64;

#define WEIR_RULES 64
#define WEIR_EXTENSIONS 6
#define WEIR_INLINE static inline __attribute__((always_inline))

/* What kind of frame a rule can match: narrow rules are looked at for frames of their lane only. */
enum weir_lane {
	WEIR_LANE_LINK = 0,	/* no IPv4 or IPv6 */
	WEIR_LANE_TCP = 1,
	WEIR_LANE_UDP = 2,
	WEIR_LANE_ICMP = 3,
	WEIR_LANE_OTHER = 4,	/* every other IP protocol, and IP that is cut short */
	WEIR_LANE_WIDE = 5,	/* rules for every frame */
	WEIR_LANES = 6,
};

/* Flags of a frame; bits of key[2]. */
#define WEIR_F_V4 1u
#define WEIR_F_V6 2u
#define WEIR_F_PORTS 4u		/* its ports are known */
#define WEIR_F_FRAGMENT 8u	/* a fragment, the first one or a later one */
#define WEIR_F_LATER 16u	/* a later fragment: it has no transport header */
#define WEIR_F_ESTABLISHED 32u	/* TCP, and not a bare SYN */
#define WEIR_F_ND 64u		/* neighbour discovery that did not pass a router */
#define WEIR_F_TAGGED 128u	/* has a VLAN tag that is not a mere priority */

/* A frame as rules see it; all numbers in host order. */
struct weir_view {
	weir_u32 key[3];	/* ethertype << 16 | protocol (0: not found) << 8 | DSCP; ports; VLAN << 16 | flags */
	weir_u32 lane;
	weir_u32 l3;		/* offset of the IP header, 0 if there is none */
	weir_u32 l4;		/* offset of the transport header, 0 if there is none */
	weir_u32 source[4];	/* IPv4 in the first word; read only if a rule asks for addresses */
	weir_u32 target[4];
};

enum weir_side { WEIR_SIDE_NONE = 0, WEIR_SIDE_SOURCE = 1, WEIR_SIDE_TARGET = 2 };

struct weir_rule {
	weir_u32 value[3];
	weir_u32 mask[3];
	weir_u32 address[4];
	weir_u32 prefix[4];	/* mask of the address */
	weir_u8 side;		/* enum weir_side */
	weir_u8 bounded;	/* has the small bound of ICMP instead of a rule's */
	weir_u8 pad[6];
};

struct weir_rules {
	/* Rules of lane l are first[l]..first[l + 1]; the wide ones come last. */
	weir_u8 first[WEIR_LANES + 1];
	weir_u8 addresses;	/* a rule asks for an address */
	/* Bit port & 63: a rule of lane TCP or UDP asks for such a source or target port. */
	weir_u64 source_bits[2];
	weir_u64 target_bits[2];
	weir_u64 pad[3];
	struct weir_rule rule[WEIR_RULES];
};

_Static_assert(sizeof(struct weir_rule) == 64, "one line");
_Static_assert(sizeof(struct weir_rules) == 64 + 64 * WEIR_RULES, "one line more");

#ifdef __clang__
#define WEIR_UNROLL _Pragma("unroll")
#else
#define WEIR_UNROLL _Pragma("GCC unroll 8")
#endif

#ifdef __bpf__
/* The form that the verifier understands; packet pointers may point past the end before they are compared. */
#define WEIR_FITS(p, n, end) ((p) + (n) <= (end))
#define WEIR_LOAD16(p) (*(const weir_u16 *)(p))
#define WEIR_LOAD32(p) (*(const weir_u32 *)(p))
#else
/* p never lies past the end. */
#define WEIR_FITS(p, n, end) ((__SIZE_TYPE__)((end) - (p)) >= (__SIZE_TYPE__)(n))
WEIR_INLINE weir_u16 weir_load16(const weir_u8 *p)
{
	weir_u16 v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}

WEIR_INLINE weir_u32 weir_load32(const weir_u8 *p)
{
	weir_u32 v;

	__builtin_memcpy(&v, p, sizeof(v));
	return v;
}
#define WEIR_LOAD16(p) weir_load16(p)
#define WEIR_LOAD32(p) weir_load32(p)
#endif

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define WEIR_BE16(p) __builtin_bswap16(WEIR_LOAD16(p))
#define WEIR_BE32(p) __builtin_bswap32(WEIR_LOAD32(p))
#else
#define WEIR_BE16(p) WEIR_LOAD16(p)
#define WEIR_BE32(p) WEIR_LOAD32(p)
#endif

#define WEIR_ETH_IP 0x0800
#define WEIR_ETH_IPV6 0x86dd
#define WEIR_ETH_VLAN 0x8100
#define WEIR_ETH_QINQ 0x88a8
#define WEIR_PROTO_ICMP 1
#define WEIR_PROTO_TCP 6
#define WEIR_PROTO_UDP 17
#define WEIR_PROTO_ICMPV6 58

/* The transport header at p, if it is there. */
WEIR_INLINE void weir_parse_transport(const weir_u8 *p, const weir_u8 *end, weir_u32 protocol, weir_u32 hops,
				      weir_u32 flags, struct weir_view *view)
{
	weir_u32 lane = WEIR_LANE_OTHER, ports = 0;

	if (protocol == WEIR_PROTO_UDP) {
		lane = WEIR_LANE_UDP;
		if (!(flags & WEIR_F_LATER) && WEIR_FITS(p, 8, end)) {
			ports = WEIR_BE32(p);
			flags |= WEIR_F_PORTS;
		}
	} else if (protocol == WEIR_PROTO_TCP) {
		lane = WEIR_LANE_TCP;
		if (!(flags & WEIR_F_LATER) && WEIR_FITS(p, 14, end)) {
			ports = WEIR_BE32(p);
			flags |= WEIR_F_PORTS;
			if ((p[13] & 0x12) != 0x02)
				flags |= WEIR_F_ESTABLISHED;
		}
	} else if (protocol == WEIR_PROTO_ICMP && (flags & WEIR_F_V4)) {
		lane = WEIR_LANE_ICMP;
	} else if (protocol == WEIR_PROTO_ICMPV6 && (flags & WEIR_F_V6)) {
		lane = WEIR_LANE_ICMP;
		if (!(flags & WEIR_F_FRAGMENT) && hops == 255 && WEIR_FITS(p, 4, end) && p[0] >= 133 && p[0] <= 137)
			flags |= WEIR_F_ND;
	}
	view->lane = lane;
	view->key[1] = ports;
	view->key[2] |= flags;
}

/*
 * Reads the frame data..end into view. `addresses` asks for the addresses too. Always succeeds: of a frame that is
 * cut short the view holds what could be read.
 */
WEIR_INLINE void weir_parse(const weir_u8 *data, const weir_u8 *end, weir_u32 addresses, struct weir_view *view)
{
	const weir_u8 *p = data, *ip;
	weir_u32 type, protocol, tag = 0, flags;

	view->key[0] = view->key[1] = view->key[2] = 0;
	view->lane = WEIR_LANE_LINK;
	view->l3 = view->l4 = 0;
	for (int i = 0; i < 4; i++)
		view->source[i] = view->target[i] = 0;
	if (!WEIR_FITS(p, 14, end))
		return;
	type = WEIR_BE16(p + 12);
	p += 14;
	WEIR_UNROLL
	for (int i = 0; i < 2; i++) {
		if (type != WEIR_ETH_VLAN && type != WEIR_ETH_QINQ)
			break;
		if (!WEIR_FITS(p, 4, end))
			return;
		/* The outermost tag that names a VLAN counts. */
		if (!tag)
			tag = WEIR_BE16(p) & 0xfff;
		type = WEIR_BE16(p + 2);
		p += 4;
	}
	view->key[0] = type << 16;
	view->key[2] = tag ? tag << 16 | WEIR_F_TAGGED : 0;
	ip = p;
	if (type == WEIR_ETH_IP) {
		weir_u32 length, fragment;

		if (!WEIR_FITS(p, 20, end) || p[0] >> 4 != 4)
			return;
		length = (p[0] & 15) * 4;
		if (length < 20)
			return;
		fragment = WEIR_BE16(p + 6);
		protocol = p[9];
		view->key[0] |= p[1] >> 2;
		view->l3 = p - data;
		view->lane = WEIR_LANE_OTHER;
		if (addresses) {
			view->source[0] = WEIR_BE32(p + 12);
			view->target[0] = WEIR_BE32(p + 16);
		}
		flags = WEIR_F_V4;
		if (fragment & 0x3fff)
			flags |= WEIR_F_FRAGMENT;
		if (fragment & 0x1fff)
			flags |= WEIR_F_LATER;
		if (!WEIR_FITS(p, length, end)) {
			view->key[2] |= flags;
			return;
		}
		p += length;
		view->key[0] |= protocol << 8;
		view->l4 = p - data;
		weir_parse_transport(p, end, protocol, ip[8], flags, view);
	} else if (type == WEIR_ETH_IPV6) {
		weir_u32 hops;

		if (!WEIR_FITS(p, 40, end) || p[0] >> 4 != 6)
			return;
		protocol = p[6];
		hops = p[7];
		view->key[0] |= (weir_u32)(p[0] & 15) << 2 | p[1] >> 6;
		view->l3 = p - data;
		view->lane = WEIR_LANE_OTHER;
		if (addresses) {
			WEIR_UNROLL
			for (int i = 0; i < 4; i++) {
				view->source[i] = WEIR_BE32(p + 8 + 4 * i);
				view->target[i] = WEIR_BE32(p + 24 + 4 * i);
			}
		}
		flags = WEIR_F_V6;
		p += 40;
		WEIR_UNROLL
		for (int i = 0; i < WEIR_EXTENSIONS; i++) {
			weir_u32 length;

			if (protocol != 0 && protocol != 43 && protocol != 44 && protocol != 51 && protocol != 60)
				break;
			if (!WEIR_FITS(p, 8, end))
				goto cut;
			if (protocol == 44) {
				weir_u32 fragment = WEIR_BE16(p + 2);

				length = 8;
				if (fragment & 0xfff9)
					flags |= WEIR_F_FRAGMENT;
				if (fragment & 0xfff8)
					flags |= WEIR_F_LATER;
			} else if (protocol == 51) {
				length = (p[1] + 2) * 4;
			} else {
				length = (p[1] + 1) * 8;
			}
			protocol = p[0];
			/* What follows the header of a later fragment is data. */
			if (flags & WEIR_F_LATER)
				break;
			if (!WEIR_FITS(p, length, end))
				goto cut;
			p += length;
		}
		view->key[0] |= protocol << 8;
		view->l4 = p - data;
		weir_parse_transport(p, end, protocol, hops, flags, view);
		return;
cut:
		view->key[2] |= flags;
	}
}

/*
 * The same for a zeroed view, of the frames that most floods consist of: IPv4 in one piece, without options and tags. False for others.
 * It is short enough to stand where it is used, and a call of BPF costs more than it.
 */
WEIR_INLINE weir_u32 weir_parse_plain(const weir_u8 *data, const weir_u8 *end, weir_u32 addresses, struct weir_view *view)
{
	const weir_u8 *ip;

	if (!WEIR_FITS(data, 34, end) || WEIR_BE16(data + 12) != WEIR_ETH_IP)
		return 0;
	ip = data + 14;
	if (ip[0] != 0x45 || WEIR_BE16(ip + 6) & 0x3fff)
		return 0;
	view->key[0] = WEIR_ETH_IP << 16 | ip[9] << 8 | ip[1] >> 2;
	view->key[2] = 0;
	view->l3 = 14;
	view->l4 = 34;
	if (addresses) {
		view->source[0] = WEIR_BE32(ip + 12);
		view->target[0] = WEIR_BE32(ip + 16);
	}
	weir_parse_transport(data + 34, end, ip[9], ip[8], WEIR_F_V4, view);
	return 1;
}

WEIR_INLINE weir_u32 weir_matches(const struct weir_rule *rule, const struct weir_view *view)
{
	weir_u32 miss = ((view->key[0] ^ rule->value[0]) & rule->mask[0]) |
			((view->key[1] ^ rule->value[1]) & rule->mask[1]) |
			((view->key[2] ^ rule->value[2]) & rule->mask[2]);

	if (miss)
		return 0;
	if (rule->side == WEIR_SIDE_SOURCE) {
		for (int i = 0; i < 4; i++)
			miss |= (view->source[i] ^ rule->address[i]) & rule->prefix[i];
	} else if (rule->side == WEIR_SIDE_TARGET) {
		for (int i = 0; i < 4; i++)
			miss |= (view->target[i] ^ rule->address[i]) & rule->prefix[i];
	}
	return !miss;
}

/* The first of the rules from..to that matches, + 1; 0 if none does. */
WEIR_INLINE weir_u32 weir_scan(const struct weir_rules *rules, const struct weir_view *view, weir_u32 from,
			       weir_u32 to)
{
	for (weir_u32 i = 0; i < WEIR_RULES; i++) {
		weir_u32 index = from + i;
		const struct weir_rule *rule;

		if (index >= to || index >= WEIR_RULES)
			break;
		/* The compiler must not derive the address from i, whose bound the verifier does not know. */
		__asm__ volatile("" : "+r"(index));
		rule = &rules->rule[index & (WEIR_RULES - 1)];
		if (weir_matches(rule, view))
			return index + 1;
	}
	return 0;
}

/* True if no rule of the frame's lane can match its ports: the fast way of most frames of a flood. */
WEIR_INLINE weir_u32 weir_no_port_rule(const struct weir_rules *rules, const struct weir_view *view)
{
	weir_u32 source = view->key[1] >> 16 & 63, target = view->key[1] & 63;

	if (view->lane == WEIR_LANE_UDP)
		return !((rules->source_bits[1] >> source | rules->target_bits[1] >> target) & 1);
	if (view->lane == WEIR_LANE_TCP)
		return !((rules->source_bits[0] >> source | rules->target_bits[0] >> target) & 1);
	return 0;
}

/* True if that alone tells that no rule protects the frame, since there are none for every frame. */
WEIR_INLINE weir_u32 weir_none_protects(const struct weir_rules *rules, const struct weir_view *view)
{
	return rules->first[WEIR_LANE_WIDE] == rules->first[WEIR_LANES] && weir_no_port_rule(rules, view);
}

/* The rule that protects the frame that view describes, + 1; 0 if none does. */
WEIR_INLINE weir_u32 weir_protector(const struct weir_rules *rules, const struct weir_view *view)
{
	weir_u32 rule = 0, lane = view->lane;

	if (lane < WEIR_LANE_WIDE && !weir_no_port_rule(rules, view))
		rule = weir_scan(rules, view, rules->first[lane], rules->first[lane + 1]);
	return rule ? rule : weir_scan(rules, view, rules->first[WEIR_LANE_WIDE], rules->first[WEIR_LANES]);
}

/*
 * A token bucket in time: one packet costs `cost` ns of credit, at most `burst` ns are saved up. `*at` is when the
 * bucket was empty for the last time, or will be. True if the packet is within the bound; a cost of 0 is no bound.
 */
WEIR_INLINE weir_u32 weir_within(weir_u64 *at, weir_u64 now, weir_u64 cost, weir_u64 burst)
{
	weir_u64 then = *at;

	if (!cost)
		return 1;
	/* A clock that went back, or another one, must not close the bucket for ever. */
	if (then + burst < now || then > now + burst)
		then = now > burst ? now - burst : 0;
	if (then + cost > now)
		return 0;
	*at = then + cost;
	return 1;
}

/* Credit for protected frames of one poller. */
struct weir_bound {
	weir_u64 all;			/* of all rules together */
	weir_u64 rule[WEIR_RULES];	/* of each, twice as dear */
	weir_u64 sure[WEIR_RULES];	/* of each when all is spent: floods of two rules must not take what a third needs */
	weir_u64 pad[7];
};

_Static_assert(sizeof(struct weir_bound) == 1088, "whole lines");

/*
 * True if one more frame that `rule` protects is within the bound, one frame per `per_packet` ns of all rules. Each
 * rule may have half of that, or one frame per `own` ns if that is not 0, and is sure of one of WEIR_RULES parts.
 */
WEIR_INLINE weir_u32 weir_may_pass(struct weir_bound *bound, weir_u32 rule, weir_u64 now, weir_u64 per_packet,
				   weir_u64 own, weir_u64 burst)
{
	rule &= WEIR_RULES - 1;
	if (!weir_within(&bound->rule[rule], now, own ? own : 2 * per_packet, burst))
		return 0;
	if (weir_within(&bound->all, now, per_packet, burst))
		return 1;
	/* One frame at least may be saved up. */
	own = WEIR_RULES * per_packet;
	return weir_within(&bound->sure[rule], now, own, own > burst ? own : burst);
}

#endif
