"""Metric families of plain numbers, for what is counted every round; knows no metric's meaning.

The client library takes a lock for each increment. A round adds to some thirty numbers a request
on the event loop, so these keep lists and build their samples when the page is asked for, with
labels that are made once.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, product

from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample
from prometheus_client.utils import INF, floatToGoString

__all__ = ["Cell", "PlainCounter", "PositionCounter", "WeightedHistogram"]


class Cell:
    """One number of a counter. Add to `value`, never less than zero."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class PlainCounter(Collector):
    """A counter whose label sets all start at zero. `name` comes without `_total`."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        documentation: str,
        labels: Sequence[str] = (),
        label_sets: Iterable[tuple[str, ...]] = ((),),
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._cells = {values: Cell() for values in label_sets}
        self._samples = [
            (dict(zip(self._labels, values, strict=True)), cell)
            for values, cell in self._cells.items()
        ]
        registry.register(self)

    def cell(self, *values: str) -> Cell:
        """The number of one label set. Raises KeyError for another set."""
        return self._cells[values]

    def describe(self) -> Iterator[Metric]:
        """The family without samples."""
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The family as it stands now."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        name = self._name + "_total"
        family.samples = [Sample(name, labels, cell.value) for labels, cell in self._samples]
        yield family


class PositionCounter(Collector):
    """A counter by draft position (0-based) and further labels; every label set starts at zero.

    `name` comes without `_total`. A row has `positions` + 1 entries. With `runs`, adding to entry
    n counts each of the positions 0 .. n-1 once: a run of n positions is then one addition.
    Otherwise entry n is position n's own, and the last is not used.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        documentation: str,
        *,
        label_sets: Mapping[str, Sequence[str]],
        positions: int,
        runs: bool,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = ("position", *label_sets)
        self._runs = runs
        self._rows = {values: [0.0] * (positions + 1) for values in product(*label_sets.values())}
        self._samples = [
            (
                [
                    dict(zip(self._labels, (str(position), *values), strict=True))
                    for position in range(positions)
                ],
                row,
            )
            for values, row in self._rows.items()
        ]
        registry.register(self)

    def row(self, *values: str) -> list[float]:
        """The numbers of one label set, to add to. Raises KeyError for another set."""
        return self._rows[values]

    def describe(self) -> Iterator[Metric]:
        """The family without samples."""
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The family as it stands now."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        name = self._name + "_total"
        family.samples = [
            Sample(name, labels, value)
            for places, row in self._samples
            for labels, value in zip(
                places, _by_position(row) if self._runs else row[:-1], strict=True
            )
        ]
        yield family


def _by_position(runs: list[float]) -> list[float]:
    """How many runs cover each position, from how many have each length."""
    longer = list(accumulate(reversed(runs[1:])))
    return longer[::-1]


class WeightedHistogram(Collector):
    """A histogram that takes one value for several observations at once; at most one label."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        documentation: str,
        *,
        buckets: Sequence[float],
        label: tuple[str, Sequence[str]] | None = None,
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = () if label is None else (label[0],)
        self._bounds = tuple(buckets)
        self._texts = (*map(floatToGoString, self._bounds), floatToGoString(INF))
        names = ("",) if label is None else tuple(label[1])
        self._counts = {value: [0] * len(self._texts) for value in names}
        self._sums = dict.fromkeys(names, 0.0)
        registry.register(self)

    def observe(self, value: float, count: int = 1, label: str = "") -> None:
        """Count `value` `count` times. A bound belongs to the bucket that it closes."""
        self._counts[label][bisect_left(self._bounds, value)] += count
        self._sums[label] += value * count

    def describe(self) -> Iterator[Metric]:
        """The family without samples."""
        yield HistogramMetricFamily(self._name, self._documentation, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The family as it stands now, buckets cumulative."""
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        for label, counts in self._counts.items():
            total = 0
            buckets: list[tuple[str, float]] = []
            for text, count in zip(self._texts, counts, strict=True):
                total += count
                buckets.append((text, total))
            values = (label,) if self._labels else ()
            family.add_metric(values, buckets=buckets, sum_value=self._sums[label])
        yield family
