"""Faults of rows, positions, slots and masks of packed calls. A table; runs nothing."""

from tests.prove.faults.killers import (
    EQUALITY_TESTS,
    INVARIANT_TEXT,
    LAYOUT_TEXTS,
    MACHINE,
    MODEL_TEXT,
    PACKED_ROW_TESTS,
    PREFIXES,
    ROUND_LAW,
    SPLIT_EQUALITY,
    TABLE_TEXT,
)
from tests.prove.planting import fault

_DRAFTING = "scheduler/runtime/drafting.py"
_CALL = "scheduler/runtime/target_call.py"
_ATTENTION = "scheduler/runtime/attention.py"
_SPLIT = "scheduler/runtime/split_attention.py"
_ROWS = "scheduler/runtime/rows.py"

_SCORED = "range(len(tokens) - min(group.rows, 1), len(tokens) + depth)"
_FED = "ids[integers(slots, device)] = drafted.ids.view(-1)[integers(cells, device)]"

PACKING = (
    fault(
        "target logits off by one row",
        "logit row off by one",
        _CALL,
        (f"scored += {_SCORED}", f"scored += [max(0, row - 1) for row in {_SCORED}]"),
        TABLE_TEXT,
        ROUND_LAW,
        MACHINE,
        LAYOUT_TEXTS,
    ),
    fault(
        "draft logits off by one row",
        "logit row off by one",
        _DRAFTING,
        ("last.append(len(tokens) - 1)", "last.append(max(0, len(tokens) - 2))"),
        ROUND_LAW,
        PREFIXES,
    ),
    fault(
        "frontier fed twice, the drafts one row late",
        "duplicated frontier",
        _CALL,
        (
            _FED,
            f"{_FED}\n        ids[torch.tensor(slots)] = ids[torch.tensor(slots) - 1].clone()",
        ),
        TABLE_TEXT,
        ROUND_LAW,
        MACHINE,
    ),
    fault(
        "another request's drafts fed to the target",
        "wrong-token K/V row",
        _CALL,
        ("drafted.ids.view(-1)[integers", "drafted.ids.roll(1, 0).view(-1)[integers"),
        TABLE_TEXT,
        ROUND_LAW,
        MACHINE,
    ),
    fault(
        "draft slice begins at the frontier's row",
        "draft slice that includes KV(F)",
        _CALL,
        (
            "slots += range(len(tokens), len(tokens) + depth)",
            "slots += (row - (group.rows > 0) for row in range(len(tokens), len(tokens) + depth))",
        ),
        TABLE_TEXT,
        ROUND_LAW,
        MACHINE,
    ),
    fault(
        "positions of all requests but the first shifted by one",
        "shifted position",
        _ROWS,
        (
            "positions=moved(torch.from_numpy(positions)",
            "positions=moved(torch.from_numpy(positions + (owners > 0))",
        ),
        f"{PACKED_ROW_TESTS}::test_every_row_stands_at_its_own_position_and_slot",
        f"{EQUALITY_TESTS}::test_packed_rows_equal_the_model_alone[llama]",
    ),
    fault(
        "target rows of a round one place late",
        "shifted position",
        _CALL,
        (
            "segments.append(Segment(start=group.start,",
            "segments.append(Segment(start=group.start + (group.rows == 1),",
        ),
        TABLE_TEXT,
        MACHINE,
    ),
    fault(
        "draft rows of later steps one place late",
        "shifted position",
        _DRAFTING,
        ("start = len(group.tokens) + step - 1", "start = len(group.tokens) + step"),
        PREFIXES,
        ROUND_LAW,
    ),
    fault(
        "keys gathered from the neighbour's blocks",
        "cross-request visibility",
        _ATTENTION,
        (
            "rows.blocks[group.members[:, None], np.minimum(",
            "rows.blocks[np.roll(group.members, 1)[:, None], np.minimum(",
        ),
        f"{EQUALITY_TESTS}::test_packed_rows_equal_the_model_alone[llama]",
        MODEL_TEXT,
    ),
    fault(
        "keys of the first request seen by all in shape-invariant mode",
        "cross-request visibility",
        _SPLIT,
        (
            "rows.blocks[self._owners[:, None], columns]",
            "rows.blocks[0 * self._owners[:, None], columns]",
        ),
        SPLIT_EQUALITY,
        INVARIANT_TEXT,
    ),
    fault(
        "one block given to two requests",
        "cross-request visibility",
        "scheduler/block_pool.py",
        (
            "taken = tuple(self._free.pop() for _ in range(count))",
            "taken = tuple(self._free[-1 - n] for n in range(count))",
        ),
        TABLE_TEXT,
        "tests/scheduler/test_block_pool.py",
        MACHINE,
    ),
    fault(
        "square causal mask that counts queries from the call's first row",
        "square causal mask",
        _ATTENTION,
        (
            "self._mask(group.query_positions - low[:, None] * size,",
            "self._mask(group.query_positions - starts[:, None],",
        ),
        f"{EQUALITY_TESTS}::test_packed_rows_equal_the_model_alone[llama]",
        MODEL_TEXT,
    ),
    fault(
        "no causal mask inside a request's new rows",
        "square causal mask",
        _ATTENTION,
        ("max(0, length - window) : length] = 0.0", "max(0, length - window) :] = 0.0"),
        f"{EQUALITY_TESTS}::test_packed_rows_equal_the_model_alone[llama]",
        MODEL_TEXT,
    ),
    fault(
        "square causal mask in shape-invariant mode",
        "square causal mask",
        _SPLIT,
        (
            "rows.positions[:, None]",
            "(rows.positions - torch.from_numpy(rows.starts[self._owners]).to(device))[:, None]",
        ),
        SPLIT_EQUALITY,
        INVARIANT_TEXT,
    ),
    fault(
        "sliding window one key short",
        "",
        _ATTENTION,
        ("max(0, length - window) : length] = 0.0", "max(0, length - window + 1) : length] = 0.0"),
        f"{EQUALITY_TESTS}::test_packed_rows_equal_the_model_alone[mistral]",
        f"{EQUALITY_TESTS}::test_any_mix_of_segments_equals_the_model_alone",
    ),
    fault(
        "sliding window one key short in shape-invariant mode",
        "",
        _SPLIT,
        ("(after <= -window)", "(after <= 1 - window)"),
        SPLIT_EQUALITY,
    ),
)
