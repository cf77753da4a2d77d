/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The gate: where a frame of an overloaded source would end, judged before a buffer exists for it (MR-22, MR-23). One text
 * for two compilers, as classify.h: what the packet path decides is what the properties of crates/policy/src/gate.rs hold for.
 *
 *   room     its consumer has room                                       pass
 *   full     its consumer has none                                       shed
 *   nobody   no socket has that port, or all of this flow is refused,    shed, a trickle passes
 *            or all for a port without a socket
 *   beyond   nearly all for its destination is refused,                  shed
 *            and that has had its share (syns.h)
 *   unknown  everything else                                             pass
 *
 * Nobody's are learnt from the kernel's own drops, never guessed. A port is nobody's only if the last list of sockets does
 * not have it and no packet has left from it since that list was begun, so that no answer is ever taken for a flood; what
 * was learnt ends when a packet leaves from the port, when a socket is bound to it, or when no drop confirms it any more. A port
 * that a connected socket has is somebody's, and still most of what is sent to it may be nobody's: then the kernel's own search for
 * the socket tells.
 *
 * Time is told in ticks of 2^WEIR_TICK_SHIFT ns, 17 ms; 0 is never. They wrap after two years.
 */
#ifndef WEIR_GATE_H
#define WEIR_GATE_H

#include "classify.h"

#define WEIR_TICK_SHIFT 24
/* Local addresses that a port is remembered for: frames to further ones pass. */
#define WEIR_WAYS 3
/* One of so many frames passes whatever is known of it, a power of two: the kernel's answer confirms what was learnt, or not. */
#define WEIR_TRICKLE 256

/* True for one frame in WEIR_TRICKLE, by its number: spread so that flows which come in turns have their part each, never two in a row. */
WEIR_INLINE weir_u32 weir_trickle(weir_u64 frame)
{
	return !((weir_u32)frame * 0x9e3779b1u / (0x100000000ull / WEIR_TRICKLE));
}

/* What is known of one port of one protocol. */
struct weir_port {
	weir_u32 left;		/* last packet that left from it, or last bind to it */
	weir_u32 bound;		/* last bind to it */
	struct {
		weir_u32 address;	/* weir_mix() of the local address */
		weir_u32 dropped;	/* last packet for it that no socket took */
	} way[WEIR_WAYS];
};

/* What was refused last of the flows that share the place. */
struct weir_refusal {
	weir_u32 flow;
	weir_u32 dropped;	/* last packet of it that was refused */
	weir_u32 refused;	/* such packets, without a minute between two of them */
	weir_u32 passed;	/* frames of it that the gate let through since the first of them */
};

/* Refusals that make a flow nobody's, frames that the kernel may still hold, and of how many one may have been taken. A filter that lets
 * more of a flow through, as a rate limit does, makes it nobody's never; of one that lets less through, the trickle holds as much. */
#define WEIR_REFUSED_LEAST 1024
#define WEIR_REFUSED_MOST 65536
#define WEIR_HELD_MOST 64
#define WEIR_TAKEN_PART WEIR_TRICKLE
/* What was counted of a flow is kept for so many ticks, a minute: all that the trickle brings may be taken for a while. */
#define WEIR_REFUSAL_KEPT 3600

_Static_assert(sizeof(struct weir_port) == 32, "half a line");

/* One more word of what a hash stands for. The seed is drawn anew by each guard: nobody outside finds two of the same. */
WEIR_INLINE weir_u32 weir_mix(weir_u32 hash, weir_u32 word)
{
	hash = (hash ^ word) * 0x9e3779b1u;
	return hash ^ hash >> 15;
}

/* The same for a flow, whose place in a table and whose mark there must not hang together. */
WEIR_INLINE weir_u64 weir_mix64(weir_u64 hash, weir_u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

/* How far `now` may be behind a tick: the packet path reads the clock of the last one. */
#define WEIR_BEHIND_TICKS 64

/* True if `tick` is at most `most` before `now`, which may be a little behind. Ticks wrap after two years; older ones are not recent. */
WEIR_INLINE weir_u32 weir_recent(weir_u32 tick, weir_u32 now, weir_u32 most)
{
	weir_u32 age = now - tick;

	return tick && (age <= most || age >= 0u - WEIR_BEHIND_TICKS);
}

/* True if `tick` is after `other`, or there was no other. */
WEIR_INLINE weir_u32 weir_after(weir_u32 tick, weir_u32 other)
{
	return !other || (weir_u32)(tick - other - 1) < 0x7fffffffu;
}

/* True if a frame for this port and address is nobody's, by what no socket took in the last `most` ticks. */
WEIR_INLINE weir_u32 weir_nobodys(const struct weir_port *port, weir_u32 address, weir_u32 now, weir_u32 most)
{
	weir_u32 found = 0;

WEIR_UNROLL
	for (int i = 0; i < WEIR_WAYS; i++)
		found |= port->way[i].address == address && weir_recent(port->way[i].dropped, now, most) &&
			 weir_after(port->way[i].dropped, port->left);
	return found;
}

/*
 * True if a drop may be learnt from: a list of sockets that was begun at `listed`, at most `most` ticks ago, does not have
 * the port (`used`), and nothing has left from it since.
 */
WEIR_INLINE weir_u32 weir_learns(const struct weir_port *port, weir_u32 used, weir_u32 listed, weir_u32 now,
				 weir_u32 most)
{
	return !used && weir_recent(listed, now, most) && weir_after(listed, port->left);
}

enum weir_whose {
	WEIR_SOMEBODYS = 0,	/* or nobody knows */
	WEIR_NOBODYS = 1,
	WEIR_ASK = 2,		/* a socket has the port, or may have it, and does not take all that is for it: the kernel's search tells */
	WEIR_WITHIN = 3,	/* nearly all for the destination is refused, and this is within its share, */
	WEIR_BEYOND = 4,	/* or beyond it */
};

/*
 * For how many of `most` ticks the port of this `key` is remembered: up to half less, by its number. Ports that were refused at one
 * time, as in a scan, would all pass again at one time, which is an overload of its own.
 */
WEIR_INLINE weir_u32 weir_port_ticks(weir_u32 key, weir_u32 most)
{
	return most - ((key * 0x9e3779b1u >> 16) * (most / 2) >> 16);
}

/* Whose a frame for this port and address is, see weir_nobodys() and weir_learns(). */
WEIR_INLINE weir_u32 weir_whose(const struct weir_port *port, weir_u32 address, weir_u32 used, weir_u32 listed,
				weir_u32 now, weir_u32 most, weir_u32 listed_most)
{
	if (!weir_nobodys(port, address, now, most))
		return WEIR_SOMEBODYS;
	return weir_learns(port, used, listed, now, listed_most) ? WEIR_NOBODYS : WEIR_ASK;
}

/* Memory that lasts no longer is of a host where nothing tells of binds: policy::gate::BRIEFLY. */
#define WEIR_BRIEFLY 3

/* Whose a frame is where a filter has dropped all that was for its destination. A filter drops what is for a socket too: where one may have
 * come since the list, the kernel's search tells. */
WEIR_INLINE weir_u32 weir_whose_refused(const struct weir_port *port, weir_u32 listed, weir_u32 now, weir_u32 most,
					weir_u32 listed_most)
{
	return most > WEIR_BRIEFLY && weir_learns(port, 0, listed, now, listed_most) ? WEIR_NOBODYS : WEIR_ASK;
}

/* Ticks since then; 0 also where another CPU, which is a few ticks ahead, has written it, and the most for what never was. */
WEIR_INLINE weir_u32 weir_age(weir_u32 then, weir_u32 now)
{
	weir_u32 age = now - then;

	if (!then)
		return ~0U;
	return age >= 0u - WEIR_BEHIND_TICKS ? 0 : age;
}

/* No socket took a packet for this port and address. True if that is news. */
WEIR_INLINE weir_u32 weir_learn(struct weir_port *port, weir_u32 address, weir_u32 now)
{
	weir_u32 oldest = 0, age = 0;

WEIR_UNROLL
	for (int i = 0; i < WEIR_WAYS; i++) {
		weir_u32 dropped = port->way[i].dropped, since = weir_age(dropped, now);

		if (port->way[i].address == address && dropped) {
			if (since)
				port->way[i].dropped = now;
			return 0;
		}
		if (since > age) {
			age = since;
			oldest = i;
		}
	}
	/* Each one by its constant number: the verifier does not know that `oldest` is small. */
WEIR_UNROLL
	for (int i = 0; i < WEIR_WAYS; i++)
		if (oldest == (weir_u32)i) {
			port->way[i].address = address;
			port->way[i].dropped = now;
		}
	return 1;
}

/* The place is of this flow, or destination, from here on, of which a packet is refused. True if it was another's. */
WEIR_INLINE weir_u32 weir_refusal_begins(struct weir_refusal *refusal, weir_u32 flow, weir_u32 now)
{
	weir_u32 fresh = refusal->flow != flow;

	if (fresh || !weir_recent(refusal->dropped, now, WEIR_REFUSAL_KEPT)) {
		refusal->flow = flow;
		refusal->refused = 0;
		refusal->passed = 0;
	}
	if (refusal->dropped != now)
		refusal->dropped = now;
	/* Of what a flow had long ago less and less counts. */
	if (refusal->refused >= WEIR_REFUSED_MOST) {
		refusal->refused /= 2;
		refusal->passed /= 2;
	}
	return fresh;
}

/* One more packet of the flow was refused. True if the flow is new here. */
WEIR_INLINE weir_u32 weir_refuse(struct weir_refusal *refusal, weir_u32 flow, weir_u32 now)
{
	weir_u32 fresh = weir_refusal_begins(refusal, flow, now);

	/* Packets for a foreign address come by several queues. */
	__sync_fetch_and_add(&refusal->refused, 1);
	return fresh;
}

/* True if it was refused lately, and often, and of `part` frames that passed at most one was taken. */
WEIR_INLINE weir_u32 weir_refused_all_but(const struct weir_refusal *refusal, weir_u32 flow, weir_u32 now, weir_u32 most, weir_u32 part)
{
	return refusal->flow == flow && refusal->refused >= WEIR_REFUSED_LEAST &&
	       weir_recent(refusal->dropped, now, most) &&
	       refusal->passed <= refusal->refused + refusal->refused / part + WEIR_HELD_MOST;
}

/* True if the flow is refused, and nothing has left since from where it goes. */
WEIR_INLINE weir_u32 weir_refused(const struct weir_refusal *refusal, weir_u32 flow, weir_u32 left, weir_u32 now,
				  weir_u32 most)
{
	return weir_refused_all_but(refusal, flow, now, most, WEIR_TAKEN_PART) && weir_after(refusal->dropped, left);
}

/* The place of a destination is its own as long as packets for it are refused: so many ticks. */
#define WEIR_PLACE_TICKS 3
/* Of so many datagrams for a destination that is mostly refused one may be taken. */
#define WEIR_TAKEN_SOME 16

/*
 * One more packet for the destination was refused, whoever sent it. False if another one has the place. No more refusals count than frames
 * that the gate has counted when they passed: of those that pass uncounted nobody knows how many are taken.
 */
WEIR_INLINE weir_u32 weir_refuse_for(struct weir_refusal *refusal, weir_u32 destination, weir_u32 now)
{
	if (refusal->flow != destination && weir_recent(refusal->dropped, now, WEIR_PLACE_TICKS))
		return 0;
	weir_refusal_begins(refusal, destination, now);
	if (refusal->refused < refusal->passed)
		__sync_fetch_and_add(&refusal->refused, 1);
	return 1;
}

/* True if nearly all for the destination is refused. Somebody may still take the rest: it has a share, and is never nobody's. */
WEIR_INLINE weir_u32 weir_mostly_refused(const struct weir_refusal *refusal, weir_u32 destination, weir_u32 now, weir_u32 most)
{
	return weir_refused_all_but(refusal, destination, now, most, WEIR_TAKEN_SOME);
}

/* A port that is translated for others keeps its number from here on. */
#define WEIR_TRANSLATED_PORTS 1024

/* What lets a datagram pass that is beyond the share of its port. */
enum weir_beyond_passes {
	WEIR_PASSES_PLACED = 1,		/* a place in the table of connections */
	WEIR_PASSES_FOREIGN = 2,	/* an address that is another host's */
	WEIR_PASSES_ANY = 4,		/* nothing more */
};

/*
 * What of enum weir_beyond_passes lets a datagram for the port pass all the same, if the table of connections is `full`, or addresses are
 * `translated`. Without a full table somebody may take the rest and never answer: for another host's port, and for one that may be
 * translated, where the kernel does not tell (`told`) who has a connection.
 */
WEIR_INLINE weir_u32 weir_beyond(weir_u32 port, weir_u32 full, weir_u32 translated, weir_u32 told)
{
	if (translated && !told && port >= WEIR_TRANSLATED_PORTS)
		return WEIR_PASSES_ANY;
	return (told && (translated || full) ? WEIR_PASSES_PLACED : 0) | (full ? 0 : WEIR_PASSES_FOREIGN);
}

/* True if what is refused for a port may be judged: all of it where nobody may take the rest, else what a full table refuses, if the kernel
 * tells who has a place there. */
WEIR_INLINE weir_u32 weir_refusals_tell(weir_u32 spoken, weir_u32 full, weir_u32 told)
{
	return !spoken || (told && full);
}

/* Where packets have ended. One that was translated is remembered by where it went then, which no frame has. */
struct weir_end {
	weir_u32 mark;		/* hash of the destination and the consumer */
	weir_u32 tick;		/* of the last one */
};

/* Packets end there for so many ticks: a second. */
#define WEIR_END_TICKS 60

/* The consumer has refused a packet for the destination. */
WEIR_INLINE void weir_ended(struct weir_end *end, weir_u32 mark, weir_u32 now)
{
	if (end->mark != mark)
		end->mark = mark;
	if (end->tick != now)
		end->tick = now;
}

/* A flow that has a place in the table of connections is known for so many ticks, half a minute, after its last packet. */
#define WEIR_PLACED_TICKS 1800

/* True if the flow has a place there, as far as is known. */
WEIR_INLINE weir_u32 weir_placed(const struct weir_end *end, weir_u32 mark, weir_u32 now)
{
	return end->mark == mark && weir_recent(end->tick, now, WEIR_PLACED_TICKS);
}

/* True if another one is known by this entry. */
WEIR_INLINE weir_u32 weir_placed_other(const struct weir_end *end, weir_u32 mark, weir_u32 now)
{
	return end->mark != mark && weir_recent(end->tick, now, WEIR_PLACED_TICKS);
}

/* True if frames for the destination end in the consumer, as far as is known. */
WEIR_INLINE weir_u32 weir_ends(const struct weir_end *end, weir_u32 mark, weir_u32 now)
{
	return end->mark == mark && weir_recent(end->tick, now, WEIR_END_TICKS);
}

/* The size of a consumer's packets, which was `size`, or 0 at first, once it has refused one of `seen` bytes. Too small a size costs
 * what would be lost without weir; by one that is too large packets are shed that there is room for, and none is refused that says
 * so. Hence it falls at once and rises slowly. */
WEIR_INLINE weir_u32 weir_size_learnt(weir_u32 size, weir_u32 seen)
{
	return !size || seen < size ? seen : size + (seen - size + 15) / 16;
}

/* Packets of room that an input leaves to each other one, where its even part is smaller than what is then left for it. */
#define WEIR_SPARED 16

/*
 * Packets of `truesize` bytes that fit into a buffer of `size` bytes which holds `held`, for one of `slices` inputs; at least one
 * if any fits, or the buffer is empty: then the kernel takes one of any size. Others may be idle, so in a buffer that has room for
 * much an input gets more than an even part, and twice that at most: all of them may be flooded at once. WEIR_ROOM_UNKNOWN where the size of a packet is not known yet.
 */
#define WEIR_ROOM_UNKNOWN 0xffffffffu
WEIR_INLINE weir_u32 weir_room(weir_u32 size, weir_u32 held, weir_u32 truesize, weir_u32 slices)
{
	weir_u32 fit, even, spared;

	if (!truesize)
		return WEIR_ROOM_UNKNOWN;
	if (held && (held >= size || size - held < truesize))
		return 0;
	if (!slices)
		slices = 1;
	fit = (size - held) / truesize;
	even = fit / slices;
	spared = WEIR_SPARED * (slices - 1);
	if (fit > spared && fit - spared > even)
		even = fit - spared < 2 * even ? fit - spared : 2 * even;
	return even ? even : 1;
}

/* Packets of one poll of the kernel. */
#define WEIR_POLL 64

/*
 * What the poll of this number is given of the `room` of a consumer: `admit` permille of a poll. Where that is less than a packet, one that
 * is flooded is given one in several polls, any other one in each.
 */
WEIR_INLINE weir_u32 weir_room_given(weir_u32 room, weir_u32 admit, weir_u32 poll, weir_u32 flooded)
{
	weir_u32 part = WEIR_POLL * admit, given = part / 1000;

	if (admit >= 1000 || room == WEIR_ROOM_UNKNOWN)
		return room;
	if (!given && part)
		given = !flooded || !(poll % (1000 / part));
	return given < room ? given : room;
}

/* Fragments that one poll may hand up while consumers are given `admit` permille of their room: a consumer waits for none of them
 * alone, each takes the kernel's memory, and whose it is nobody can tell. */
WEIR_INLINE weir_u32 weir_fragments(weir_u32 admit)
{
	return 1 + WEIR_POLL * admit / 1000;
}

#endif
