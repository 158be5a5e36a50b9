"""Measures what rounds cost before anybody is served: runs made-up rounds and fills a `CostTable`.

Takes the runner and the clock as they come: knows shapes and seconds, nothing of models or devices.
A draft step is a difference of two rounds, so that both are measured by turns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from scheduler.config import EngineConfig
from scheduler.costs import CostTable, Curve, RoundCurve, rising
from scheduler.plan import RoundPlan
from scheduler.rehearsal import Rehearsal, Shape
from scheduler.runner import ModelRunner

_CONTEXT = 129
_FAR_CONTEXT = 1025
"""Cached tokens a request: one usual, one long."""
_FAR_EMITTERS = 4
_LENGTHS = (0, 1, 2, 3, 5)
_DEPTH = 3
"""Draft steps are measured by this many at once."""
_CAUGHT_UP = (1, 8, 32, 128)
_SAMPLES = 9
_AGAIN = 2
"""How often a round is run again for one sample, at most: a runner may meet a shape, record it when
it is met again, and only then run it as it will from there on."""
_FIRST_PASS = 0.3
"""Share of the time for measuring anything at all; the rest is for measuring it again: one sample
is off by a tenth on a machine with neighbours, and that is what a choice of K turns on."""
_NO_TIME = 1e-9
"""Stands for a time that the clock did not see."""


def profile_costs(
    runner: ModelRunner, config: EngineConfig, clock: Callable[[], float], *, seconds: float
) -> CostTable:
    """A table measured in about `seconds`, while no engine runs. Raises what a round raises.

    Shapes come in order of work, again and again, and the table holds medians. What does not fit
    the time is left to extrapolation, but for a few shapes that are always measured: one request
    alone, with and without drafts, and as many as may run at once.
    """
    capabilities = runner.capabilities()
    rehearsal = Rehearsal(config, capabilities.vocabulary)
    grid = _grid(config, rehearsal, modelled=capabilities.draft is not None)
    stopwatch = _Stopwatch(runner, rehearsal, clock, seconds)
    for shape in grid.always:
        stopwatch.measure(shape)
    stopwatch.measure_all(grid.shapes)
    return _Findings(grid, stopwatch.medians()).table()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """What is to be measured: `shapes` by rising work, and those of them that are `always`.

    Costs belong to `near` tokens of context; `distant` is a shape with a longer one, None where
    there is no room for any.
    """

    near: int
    distant: Shape | None
    shapes: Sequence[Shape]
    always: Sequence[Shape]


def _grid(config: EngineConfig, rehearsal: Rehearsal, *, modelled: bool) -> _Grid:
    near, far = (_context(config, most, modelled=modelled) for most in (_CONTEXT, _FAR_CONTEXT))
    depth = min(_DEPTH, config.k_max, config.max_model_len - near)
    counts = [n for n in _counts(config) if rehearsal.fits(Shape(emitters=n, context=near))]
    shapes = [
        Shape(emitters=n, context=near, k=k)
        for n in counts
        for k in (*_LENGTHS, depth, config.k_max)
    ]
    few = max(n for n in counts if n <= _FAR_EMITTERS)
    distant = Shape(emitters=few, context=far, k=depth) if far >= 2 * near else None
    shapes += [] if distant is None else [distant]
    if modelled:
        shapes += [_drafted(shape) for shape in shapes if shape.k == depth > 0]
        shapes += [Shape(emitters=1, context=near, catch_up=rows) for rows in _CAUGHT_UP]
    alone = Shape(emitters=1, context=near)
    drafting = Shape(emitters=1, context=near, k=depth)
    always = [alone, drafting, _drafted(drafting), Shape(emitters=counts[-1], context=near)]
    fitting = [shape for shape in dict.fromkeys(shapes) if rehearsal.fits(shape)]
    return _Grid(
        near=near,
        distant=distant,
        shapes=sorted(fitting, key=_work),
        always=[shape for shape in dict.fromkeys(always) if shape in fitting],
    )


def _context(config: EngineConfig, most: int, *, modelled: bool) -> int:
    """Tokens a request, up to `most`, that leave room for the longest draft."""
    limits = [most, config.max_model_len - config.k_max]
    if modelled and config.draft_pool is not None:
        rows = config.draft_pool.blocks * config.draft_pool.block_size
        limits += [config.draft_max_len - config.k_max, rows - config.k_max]
    return max(min(limits), 1)


def _counts(config: EngineConfig) -> list[int]:
    """Numbers of requests: powers of two, and the most."""
    most = min(config.max_requests, config.max_batched_tokens)
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def _drafted(shape: Shape) -> Shape:
    """The same round, with drafts that the draft model makes."""
    return replace(shape, modelled=True)


def _work(shape: Shape) -> float:
    """Rows, and more of it for a long context: time rises with it, at most in proportion."""
    return (shape.rows + shape.draft_rows) * max(shape.context / _CONTEXT, 1.0)


class _Stopwatch:
    """Runs shapes and keeps their times. `seconds` are counted from its making."""

    def __init__(
        self,
        runner: ModelRunner,
        rehearsal: Rehearsal,
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._runner = runner
        self._rehearsal = rehearsal
        self._clock = clock
        self._start = clock()
        self._seconds = seconds
        self._times: dict[Shape, list[float]] = {}

    def measure(self, shape: Shape) -> None:
        """Take a sample: a round of `shape`, run again at once when it says that the runner
        prepared something in it. It ends with its results on the host, whatever the device."""
        plan = self._rehearsal.plan(shape)
        prepared, seconds = self._run(plan)
        for _ in range(_AGAIN):
            if prepared:
                prepared, seconds = self._run(plan)
        self._times.setdefault(shape, []).append(seconds)

    def _run(self, plan: RoundPlan) -> tuple[bool, float]:
        """Whether the runner prepared something in this round, and its seconds."""
        started = self._clock()
        result = self._runner.run(plan)
        return result.prepared, self._clock() - started

    def measure_all(self, shapes: Sequence[Shape]) -> None:
        """Run shapes by turns, as often as there is time for and any use in it."""
        self._pass(shapes, self._seconds * _FIRST_PASS)
        measured = [shape for shape in shapes if shape in self._times]
        while self._pass(measured, self._seconds):
            pass

    def medians(self) -> dict[Shape, float]:
        """Seconds of each shape; the lower one of two, as only delays are by chance: a first
        sample, in which libraries may have prepared what no result tells of, never counts where
        there is another."""
        return {shape: median_low(times) for shape, times in self._times.items()}

    def _pass(self, shapes: Sequence[Shape], until: float) -> bool:
        """Run each shape once that wants another sample and is expected to end by `until`; whether
        there was any."""
        ran = False
        for shape in shapes:
            left = self._start + until - self._clock()
            wanted = len(self._times.get(shape, ())) < _SAMPLES
            if wanted and self._expected(shape) <= left:
                self.measure(shape)
                ran = True
        return ran

    def _expected(self, shape: Shape) -> float:
        """Seconds of a shape: as before, else no more than those of the next larger one, nor than
        those of the next smaller one in proportion to their work."""
        if shape in self._times:
            return min(self._times[shape])
        work = _work(shape)
        smaller = max((each for each in self._times if _work(each) <= work), key=_work)
        bounds = [min(self._times[smaller]) * work / _work(smaller)]
        larger = [each for each in self._times if _work(each) >= work]
        if larger:
            bounds.append(min(self._times[min(larger, key=_work)]))
        return min(bounds)


@dataclass(frozen=True, slots=True)
class _Findings:
    """Seconds of the shapes of a grid that were measured, and the table that they make."""

    grid: _Grid
    seconds: Mapping[Shape, float]

    def table(self) -> CostTable:
        """What was measured, and what follows from it for the rest."""
        drafting = self._drafting()
        rounds = self._rounds()
        step = self._step(drafting, rounds)
        distant = self.grid.distant
        return CostTable(
            context=self.grid.near,
            rounds=rounds,
            step=step,
            catch_up=self._catch_up(step),
            row_key=self._by_token(self.seconds) / distant.rows if distant else 0.0,
            draft_row_key=self._by_token(drafting) / distant.emitters if distant else 0.0,
        )

    def _rounds(self) -> tuple[RoundCurve, ...]:
        found: dict[int, dict[int, float]] = {}
        for shape, seconds in self.seconds.items():
            if not shape.draft_rows and shape.context == self.grid.near:
                found.setdefault(shape.emitters, {})[shape.rows] = seconds
        curves = {n: _fitted(found[n]) for n in sorted(found)}
        whole = {n: _extended(n, curves) for n in curves}
        fewer: int | None = None
        for n in curves:
            if fewer is not None:
                whole[n] = _begun(whole[n], whole[fewer], fewer)
            fewer = n
        return tuple(RoundCurve(emitters=n, seconds=curve) for n, curve in whole.items())

    def _drafting(self) -> dict[Shape, float]:
        """Seconds of a draft step, by the shape without it: what rounds take longer when the draft
        model makes their drafts, by their number of steps."""
        return {
            given: max(seconds - self.seconds[given], 0.0) / shape.k
            for shape, seconds in self.seconds.items()
            if shape.modelled and (given := replace(shape, modelled=False)) in self.seconds
        }

    def _step(self, drafting: Mapping[Shape, float], rounds: Sequence[RoundCurve]) -> Curve:
        """Draft steps over requests. Where only one number was measured they rise as rounds do."""
        near = self.grid.near
        steps = {each.emitters: s for each, s in drafting.items() if each.context == near}
        if len(steps) == 1:
            first, last = rounds[0], rounds[-1]
            growth = last.seconds.at(last.emitters) / max(first.seconds.at(1), _NO_TIME)
            steps.setdefault(last.emitters, steps[1] * growth)
        return _fitted(steps) if steps else Curve(points=((1, 0.0),))

    def _catch_up(self, step: Curve) -> Curve:
        """Seconds over rows of the draft; where not measured, rows of one request cost what those
        of several do."""
        plain = self.seconds[Shape(emitters=1, context=self.grid.near)]
        found = {
            shape.catch_up: max(seconds - plain, 0.0)
            for shape, seconds in self.seconds.items()
            if shape.catch_up
        }
        return _fitted(found) if len(found) > 1 else step

    def _by_token(self, seconds: Mapping[Shape, float]) -> float:
        """What the distant shape takes longer than the same one near, by tokens of context; 0
        where that was not measured."""
        near, distant = self.grid.near, self.grid.distant
        if distant is None or distant not in seconds:
            return 0.0
        same = replace(distant, context=near)
        further = seconds[distant] - seconds.get(same, seconds[distant])
        return max(further, 0.0) / (distant.context - near)


def _extended(emitters: int, curves: Mapping[int, Curve]) -> Curve:
    """The curve of `emitters`, and beyond it as steep as its neighbours are there."""
    points = list(curves[emitters].points)
    others = [curves[n] for n in sorted(curves, key=lambda n: abs(n - emitters)) if n != emitters]
    wide = [curve for curve in others if len(curve.points) > 1]
    while further := next((curve for curve in wide if _goes_on(curve, points[-1][0])), None):
        counts = [rows for rows, _ in further.points if rows > points[-1][0]]
        points += _shifted(further, points[-1], counts)
    if len(points) == 1:
        plain = rising(curve.points[0] for n, curve in curves.items() if curve.points[0][0] == n)
        points += _shifted(wide[0] if wide else plain, points[0], [2 * points[0][0]])
    return rising(points)


def _goes_on(curve: Curve, rows: int) -> bool:
    return curve.points[0][0] <= rows < curve.points[-1][0]


def _begun(curve: Curve, lower: Curve, fewer: int) -> Curve:
    """`curve` from `fewer` rows on, as steep as `lower`, the curve of so many requests: between
    the two numbers of requests a round may have fewer rows than the higher one. They take their
    share of its time at least."""
    first = curve.points[0]
    counts = [rows for rows, _ in lower.points if fewer <= rows < first[0]]
    before = [
        (rows, max(seconds, first[1] * rows / first[0]))
        for rows, seconds in _shifted(lower, first, counts)
    ]
    return rising([*before, *curve.points])


def _shifted(
    curve: Curve, through: tuple[int, float], counts: Sequence[int]
) -> list[tuple[int, float]]:
    """Points at `counts` on a curve of the same form that goes `through` a point."""
    start, base = through
    return [(rows, base + curve.at(rows) - curve.at(start)) for rows in counts]


def _fitted(measured: Mapping[int, float]) -> Curve:
    """The rising curve that is nearest to the times, by squares: neighbours that fall are pooled
    to their mean (pool adjacent violators; Barlow et al., Statistical Inference under Order
    Restrictions, 1972). The highest so far instead would keep the worst of the noise."""
    pools: list[tuple[float, int]] = []
    counts = sorted(measured)
    for count in counts:
        seconds, size = measured[count], 1
        while pools and pools[-1][0] >= seconds:
            mean, members = pools.pop()
            seconds = (mean * members + seconds * size) / (members + size)
            size += members
        pools.append((seconds, size))
    levels = [seconds for seconds, size in pools for _ in range(size)]
    return rising(zip(counts, levels, strict=True))
