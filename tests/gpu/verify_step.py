"""Times one verify step alone and says how near it comes to the device's limits.

Knows packed calls, bytes and operations; nothing of engines or rounds.
"""

import statistics
import time
from dataclasses import dataclass

import torch

from scheduler.runtime.forward import Forward
from scheduler.runtime.kv_cache import KvShape
from scheduler.runtime.loading import LoadedModel
from scheduler.runtime.rows import Segment, pack
from tests.bench.synthetic import Shape
from tests.gpu.figures import Limits, Step
from tests.gpu.limits import synchronise
from tests.gpu.pair import weights

_WARM_UP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The least that one call of `rows` rows must do: bytes to move, operations to take."""

    bytes: float
    operations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How a model lies in memory: its K/V rows, whose type is the layers' too, and the bytes of its
    head."""

    kv_shape: KvShape
    head_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A verify step: `k` + 1 rows for each of `requests`, which have `context` tokens before."""

    requests: int
    k: int
    context: int

    @property
    def rows(self) -> int:
        """Target rows."""
        return self.requests * (self.k + 1)


def time_step(forward: Forward, call: Call, work: Work, limits: Limits, repeats: int) -> Step:
    """Median of `repeats` calls, laid out, run and waited for.

    Writes into the first blocks of the pool: nothing else may run meanwhile.
    """
    segments = _segments(forward, call)
    ids = torch.arange(call.rows, device=forward.device) % forward.vocabulary
    times = []
    for turn in range(_WARM_UP + repeats):
        synchronise(forward.device)
        started = time.perf_counter()
        rows = pack(segments, forward.block_size, forward.device)
        forward.logits(forward.hidden(ids, rows))
        synchronise(forward.device)
        if turn >= _WARM_UP:
            times.append(time.perf_counter() - started)
    seconds = statistics.median(times)
    return Step(
        rows=call.rows,
        milliseconds=1e3 * seconds,
        memory_share=work.bytes / limits.bandwidth / seconds,
        compute_share=work.operations / limits.compute / seconds,
    )


def stored(model: LoadedModel) -> Stored:
    """What `least_work` needs of a model, without the model."""
    return Stored(kv_shape=model.kv_shape, head_bytes=model.head._layer.bytes())


def least_work(shape: Shape, model: Stored, call: Call) -> Work:
    """Every weight read once as it is stored, every cached K/V row read once, each new one written;
    a product is two operations a weight and row, attention four a head's width, key and row."""
    linears = weights(shape, shape.layers)
    body = linears - shape.vocabulary * shape.hidden
    keys = call.context + call.k + 1
    cached = call.requests * keys * model.kv_shape.bytes_per_token()
    return Work(
        bytes=body * model.kv_shape.dtype.itemsize + model.head_bytes + cached,
        operations=call.rows * (2 * linears + 4 * shape.layers * shape.hidden * keys),
    )


def _segments(forward: Forward, call: Call) -> list[Segment]:
    """Each request has blocks of its own, side by side."""
    each = -(-(call.context + call.k + 1) // forward.block_size)
    return [
        Segment(
            start=call.context,
            rows=call.k + 1,
            blocks=tuple(range(number * each, (number + 1) * each)),
        )
        for number in range(call.requests)
    ]
