// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Coverage-guided fuzzing of classify.h, see scripts/fuzz.sh: any table of rules, also one that no user can write, over
 * any frame. The frame lies at the end of a block of its own, so that one byte read too far is found.
 */
#include <stdlib.h>
#include <string.h>
#include "classify.h"

#define CHECK(truth) do { if (!(truth)) __builtin_trap(); } while (0)

int LLVMFuzzerTestOneInput(const weir_u8 *input, __SIZE_TYPE__ size)
{
	static struct weir_rules rules;
	struct weir_view view, again;
	__SIZE_TYPE__ table, length;
	weir_u32 rule;
	weir_u8 *frame;

	if (size < 2)
		return 0;
	/* The first two bytes say how much of the input is table. */
	table = (input[0] | input[1] << 8) % sizeof(rules);
	input += 2;
	size -= 2;
	if (table > size)
		table = size;
	memset(&rules, 0, sizeof(rules));
	memcpy(&rules, input, table);
	length = size - table;
	frame = malloc(length ? length : 1);
	CHECK(frame);
	memcpy(frame, input + table, length);

	weir_parse(frame, frame + length, rules.addresses, &view);
	CHECK(view.l3 <= length && view.l4 <= length && view.lane < WEIR_LANE_WIDE);
	CHECK(!(view.key[2] & WEIR_F_PORTS) || view.l4 + 8 <= length);
	CHECK(!(view.key[2] & WEIR_F_LATER) || view.key[2] & WEIR_F_FRAGMENT);
	CHECK(!(view.key[2] & WEIR_F_V4) || !(view.key[2] & WEIR_F_V6));
	rule = weir_protector(&rules, &view);
	CHECK(rule <= WEIR_RULES);
	/* The short ways tell the same. */
	memset(&again, 0, sizeof(again));
	if (weir_parse_plain(frame, frame + length, rules.addresses, &again))
		CHECK(!memcmp(&view, &again, sizeof(view)));
	CHECK(!weir_none_protects(&rules, &view) || !rule);
	if (rule)
		CHECK(weir_matches(&rules.rule[rule - 1], &view));

	/* The rule does not hang on what follows the headers, nor on what the last frame left behind. */
	memset(&again, 0xff, sizeof(again));
	weir_parse(frame, frame + length, rules.addresses, &again);
	CHECK(!memcmp(&view, &again, sizeof(view)) && weir_protector(&rules, &again) == rule);
	free(frame);
	return 0;
}
