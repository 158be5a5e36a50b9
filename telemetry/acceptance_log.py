"""Takes the evidence of every round to a file, beside serving and never in its way.

The event loop only puts frozen stats into a queue; one thread turns them into lines and writes.
Knows no model and no request; what a line says stands in `telemetry.acceptance_log_lines`.
"""

import logging
import threading
from collections.abc import Collection
from dataclasses import dataclass
from queue import SimpleQueue

from scheduler.stats import FinishedStats, GroupStats, LoadStats, StepStats
from telemetry.acceptance_log_files import RotatingFile
from telemetry.acceptance_log_lines import dropped_line, record_count, round_lines
from telemetry.metrics import OTHER_DOMAIN, AcceptanceLogMetrics

__all__ = ["QUEUED_OUTCOMES", "AcceptanceLog"]

logger = logging.getLogger(__name__)

QUEUED_OUTCOMES = 1 << 16
"""Draft outcomes, and one more a request's round, that may wait: 20 to 32 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """One round on its way, which takes `held` of the queue; `dropped` records before it found no
    room."""

    round_id: int
    groups: tuple[GroupStats, ...]
    records: int
    held: int
    dropped: int


class AcceptanceLog:
    """A `StatsSink`. Its methods belong to the event loop, but for `close`, which waits.

    Records that find the queue full are dropped and counted, and the next line written says how
    many. When the disk refuses, the log turns itself off with one logged error; from then on
    records are counted as dropped, and those that were queued as failed.
    """

    def __init__(
        self,
        file: RotatingFile,
        metrics: AcceptanceLogMetrics,
        *,
        domains: Collection[str],
        capacity: int = QUEUED_OUTCOMES,
    ) -> None:
        self._file = file
        self._metrics = metrics
        self._domains = frozenset(domains)
        self._capacity = capacity
        self._queue: SimpleQueue[_Batch | None] = SimpleQueue()
        # Each of these has one writer: the first two the event loop, the others the thread.
        self._offered = 0
        self._dropped = 0
        self._taken = 0
        self._off = False
        self._thread = threading.Thread(target=self._run, name="acceptance-log", daemon=True)
        self._thread.start()

    def step(self, stats: StepStats) -> None:
        """Queue what one round has to say."""
        groups = tuple(group for group in stats.groups if group.evidence is not None)
        records = sum(record_count(group) for group in groups)
        if not records:
            return
        held = sum(_held(group) for group in groups)
        if self._off or self._offered - self._taken + held > self._capacity:
            self._dropped += records
            self._metrics.dropped.value += records
            return
        self._offered += held
        self._put(stats.round_id, groups, records, held)

    def load(self, load: LoadStats) -> None:
        """Not logged."""

    def finished(self, finished: FinishedStats) -> None:
        """Not logged."""

    def close(self, timeout: float = 10.0) -> None:
        """Write what is queued and let go of the file; a disk that hangs gets `timeout` seconds.
        Nothing may be offered afterwards."""
        if self._dropped:
            self._put(0, (), 0, 0)
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            logger.error("the acceptance log was not finished within %.0f s", timeout)

    def _put(self, round_id: int, groups: tuple[GroupStats, ...], records: int, held: int) -> None:
        batch = _Batch(
            round_id=round_id, groups=groups, records=records, held=held, dropped=self._dropped
        )
        self._dropped = 0
        self._queue.put(batch)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            if self._off:
                self._metrics.failed.value += batch.records
            else:
                self._write(batch)
            self._taken += batch.held
        self._file.close()

    def _write(self, batch: _Batch) -> None:
        """One round to the file. Whatever goes wrong is the log's end and nobody else's."""
        left = batch.records
        try:
            if batch.dropped:
                self._file.write(dropped_line(batch.dropped))
            for group in batch.groups:
                self._file.write(round_lines(batch.round_id, group, self._domain(group)))
                self._metrics.written.value += record_count(group)
                left -= record_count(group)
        except Exception:
            self._off = True
            self._metrics.failed.value += left
            self._metrics.failures.value += 1
            logger.exception("the acceptance log is off")

    def _domain(self, group: GroupStats) -> str:
        return group.domain if group.domain in self._domains else OTHER_DOMAIN


def _held(group: GroupStats) -> int:
    """What one request's round takes of the queue: all its drafts wait, reached or not."""
    return 0 if group.evidence is None else len(group.evidence.outcomes) + 1
