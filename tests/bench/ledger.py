"""Times forwards alone and predicts from them what speculation is worth at concurrency 1.

The formulas are those of `scheduler.speedup`, with reach acceptances by position. Knows forwards
and ratios, nothing of engines.
"""

import statistics
import time
from dataclasses import dataclass

import torch

from scheduler.runtime.forward import Forward
from scheduler.runtime.rows import Segment, pack
from scheduler.runtime.torch_runner import Pair
from scheduler.speedup import expected_committed, goodput, round_time
from tests.bench.figures import Ledger, Level, Prediction, RowCost

_CONTEXT = 200
_WIDEST = 16
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class _Call:
    """A forward to time: `rows` rows of one request."""

    model: str
    forward: Forward
    rows: int


def time_forwards(pair: Pair, blocks: int, k: int, repeats: int) -> Ledger:
    """Median times of one draft row and of 1 .. K + 1 and 16 target rows, taken in turns.

    Writes into the first of the `blocks` blocks of either pool: nothing else may run meanwhile.
    Raises ValueError without a draft model.
    """
    if pair.draft is None:
        raise ValueError("a ledger needs a draft model")
    longest = min(blocks * pair.target.block_size, pair.target.max_positions)
    context = max(0, min(_CONTEXT, longest - _WIDEST))
    widths = sorted({*range(1, k + 2), _WIDEST})
    calls = [_Call("draft", pair.draft, 1)]
    calls += [_Call("target", pair.target, width) for width in widths]
    taken: dict[_Call, list[float]] = {call: [] for call in calls}
    for turn in range(_WARM_UP + repeats):
        for call, times in taken.items():
            seconds = _time(call, context)
            if turn >= _WARM_UP:
                times.append(seconds)
    costs = {(call.model, call.rows): statistics.median(times) for call, times in taken.items()}
    row = costs["target", 1]
    return Ledger(
        context=context,
        costs=tuple(
            RowCost(model=model, rows=rows, milliseconds=1e3 * seconds)
            for (model, rows), seconds in costs.items()
        ),
        c=costs["draft", 1] / row,
        verify_ratio=costs["target", k + 1] / row,
    )


def predict(ledger: Ledger, level: Level) -> Prediction | None:
    """Predictions for a level at concurrency 1; None when nothing was drafted."""
    on = level.on
    if not on.positions:
        return None
    profile = [place.acceptance for place in on.positions]
    # All K drafts are paid for, also where none of the last ones was ever reached.
    flat = goodput(profile, round_time(on.k, draft=ledger.c, verify=1.0))
    with_verify = goodput(profile, round_time(on.k, draft=ledger.c, verify=ledger.verify_ratio))
    achieved = level.decode_speedup.median
    return Prediction(
        expected=expected_committed(profile),
        flat=flat,
        with_verify=with_verify,
        achieved=achieved,
        achieved_over_flat=achieved / flat,
        achieved_over_with_verify=achieved / with_verify,
    )


def _time(call: _Call, context: int) -> float:
    forward, rows = call.forward, call.rows
    blocks = tuple(range(-(-(context + rows) // forward.block_size)))
    segment = Segment(start=context, rows=rows, blocks=blocks)
    packed = pack([segment], forward.block_size, forward.device)
    ids = torch.arange(rows, device=forward.device)
    started = time.perf_counter()
    forward.logits(forward.hidden(ids, packed))
    if forward.device.type == "cuda":
        torch.cuda.synchronize(forward.device)
    return time.perf_counter() - started
