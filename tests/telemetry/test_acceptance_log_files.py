"""The log never costs more than its queue and its files, and never holds anybody up."""

import json
import logging
import os
import stat
import threading
import tracemalloc
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from telemetry.acceptance_log import QUEUED_OUTCOMES
from telemetry.acceptance_log_files import RotatingFile
from telemetry.acceptance_log_lines import header_line, is_header
from tests.telemetry.logs import HEADER, Shelf, decided, outcome, plainly, records, rounds_of
from tests.telemetry.rounds import plain, step


class Disk:
    """A file that holds its writer up while `open` is clear, and that breaks at one write."""

    def __init__(self, breaks_at=None):
        self.open = threading.Event()
        self.lines = []
        self.closed = False
        self._left = breaks_at

    def write(self, block):
        assert self.open.wait(60)
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise OSError(28, "No space left on device")
        self.lines += [json.loads(line) for line in block.splitlines()]

    def close(self):
        self.closed = True


def until(condition):
    """What is awaited is the writer's progress."""
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise TimeoutError


def test_a_full_queue_drops_counts_and_says_so(tmp_path):
    disk = Disk()
    shelf = Shelf(tmp_path, file=disk, capacity=10)
    for number in range(1, 6):  # two records of four drafts, and the disk does not move
        shelf.log.step(step(decided(4, 1), round_id=number))
    assert shelf.counts == (0, 6, 0, 0)
    disk.open.set()
    until(lambda: shelf.log._taken == 10)
    shelf.log.step(step(decided(4, 1), round_id=6))
    shelf.log.close()
    assert [each.get("round_id", each.get("count")) for each in disk.lines] == [1, 1, 2, 2, 6, 6, 6]
    assert disk.lines[4] == {"record": "dropped", "count": 6}
    assert shelf.counts == (6, 6, 0, 0)
    assert disk.closed


@pytest.mark.parametrize(("k", "accepted"), [(0, 0), (1, 0), (4, 0), (8, 0), (8, 8), (32, 0)])
def test_a_full_queue_is_as_large_as_it_says(tmp_path, k, accepted):
    """Every number is an object of its own, as those of real rounds are."""
    share, numbers = 8, iter(range(1 << 10, 1 << 30))

    def fresh():
        return next(numbers) / 7

    def round_of_one():
        number = next(numbers)
        if k == 0:
            group = plainly(request=number, position=next(numbers))
            ended = replace(group.evidence, terminal_token=next(numbers))
            return step(replace(group, evidence=ended), round_id=number)
        names = ("target_prob", "draft_prob", "uniform", "mass", "base", "bound")
        drafts = tuple(
            outcome(next(numbers), **{name: fresh() for name in names}) for _ in range(k)
        )
        group = decided(k, accepted, outcomes=drafts, request=number, position=next(numbers))
        return step(group, round_id=number)

    disk = Disk()
    shelf = Shelf(tmp_path, file=disk, capacity=QUEUED_OUTCOMES // share)
    tracemalloc.start()
    try:
        while not shelf.counts[1]:
            shelf.log.step(round_of_one())
        size = tracemalloc.get_traced_memory()[0] * share
    finally:
        tracemalloc.stop()
    disk.open.set()
    shelf.log.close()
    assert 17e6 < size < 34e6


def test_what_was_dropped_last_is_said_at_the_end(tmp_path):
    disk = Disk()
    shelf = Shelf(tmp_path, file=disk, capacity=5)
    shelf.log.step(step(decided(4, 1)))
    shelf.log.step(step(decided(4, 2)))
    disk.open.set()
    shelf.log.close()
    assert disk.lines[-1] == {"record": "dropped", "count": 3}
    assert shelf.counts == (2, 3, 0, 0)


def test_a_round_with_nothing_to_say_is_not_queued(tmp_path):
    disk = Disk()
    shelf = Shelf(tmp_path, file=disk)
    shelf.log._put = None  # calling it would break
    shelf.log.step(step(plain(committed=0, terminal=None)))
    assert shelf.counts == (0, 0, 0, 0)
    disk.open.set()
    shelf.log.close()
    assert disk.lines == []


def test_closing_writes_all_that_is_queued_in_order(tmp_path):
    disk = Disk()
    shelf = Shelf(tmp_path, file=disk)
    for number in range(1, 200):
        shelf.log.step(step(plainly(), round_id=number))
    disk.open.set()
    shelf.log.close()
    assert [each["round_id"] for each in disk.lines] == list(range(1, 200))


def test_records_are_on_disk_before_the_end(tmp_path):
    shelf = Shelf(tmp_path)
    shelf.log.step(step(decided(4, 1)))
    until(lambda: shelf.log._taken == 5)
    assert len(records(shelf.path)) == 2
    shelf.log.close()


def test_a_disk_that_fails_turns_the_log_off_and_nothing_else(tmp_path, caplog):
    disk = Disk(breaks_at=1)
    shelf = Shelf(tmp_path, file=disk)
    with caplog.at_level(logging.INFO):
        for number in range(1, 5):
            shelf.log.step(step(decided(4, 1), decided(4, 0), round_id=number))
        disk.open.set()
        until(lambda: shelf.log._taken == 40)
        shelf.log.step(step(decided(4, 1), round_id=5))
        shelf.log.close()
    assert shelf.counts == (2, 2, 10, 1)
    assert [each["round_id"] for each in disk.lines] == [1, 1]
    (line,) = caplog.records
    assert (line.levelname, line.message) == ("ERROR", "the acceptance log is off")
    assert "No space left" in str(line.exc_info[1])


def test_a_disk_that_hangs_is_left_behind(tmp_path, caplog):
    disk = Disk()
    shelf = Shelf(tmp_path, file=disk)
    shelf.log.step(step(decided(4, 1)))
    shelf.log.close(timeout=0.01)
    assert "not finished within" in caplog.text
    disk.open.set()
    shelf.log._thread.join(60)
    assert disk.closed


# ---- files ---------------------------------------------------------------------------------------


def holdings(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kept", [1, 2, 4])
@pytest.mark.parametrize("name", ["accept.log", "accept.log.1", "accept.log.2"])
@pytest.mark.parametrize("text", [b"my thesis\n", b'{"record":"plain"}\n', b"\x00" * 9000, b"\n"])
def test_a_file_that_is_no_log_is_left_alone_and_named(tmp_path, kept, name, text):
    for each in ("accept.log", "accept.log.1", "accept.log.2"):
        (tmp_path / each).write_bytes(text if each == name else header_line(HEADER, 0))
    before = holdings(tmp_path)
    with pytest.raises(OSError, match=f"no file of this log.*{name}'"):
        Shelf(tmp_path, kept=kept)
    assert holdings(tmp_path) == before


@pytest.mark.parametrize("kept", [1, 2])
def test_a_log_of_another_schema_an_empty_one_and_a_torn_one_make_room(tmp_path, kept):
    newer = header_line(HEADER, 0).replace(b'"schema":1', b'"schema":2')
    for text in (b"", newer, header_line(HEADER, 0)[:40]):
        (tmp_path / "accept.log").write_bytes(text)
        (file, *_) = Shelf(tmp_path, kept=kept).keep([step(plainly())])[::-1]
        assert len(records(file)) == 1


@pytest.mark.parametrize("kept", [1, 3])
def test_only_the_user_may_read_the_log(tmp_path, kept):
    (tmp_path / "accept.log").write_bytes(header_line(HEADER, 0))
    (tmp_path / "accept.log").chmod(0o644)
    before = os.umask(0o022)
    try:
        files = Shelf(tmp_path, limit=6000, kept=kept).keep([step(decided(4, 1))] * 40)
    finally:
        os.umask(before)
    assert len(files) == kept
    assert {stat.S_IMODE(Path(name).stat().st_mode) for name in files} == {0o600}


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_log_takes_no_more_than_its_files(tmp_path, kept):
    steps = [step(decided(4, n % 5), plainly(), round_id=n) for n in range(1, 80)]
    shelf = Shelf(tmp_path, limit=6000, kept=kept)
    files = shelf.keep(steps)
    assert len(files) == kept
    sizes = [(tmp_path / name).stat().st_size for name in files]
    assert max(sizes) <= 6000
    assert min(sizes[:-1], default=6000) > 3000
    numbers, ids = [], []
    for name in files:
        header, *rest = map(json.loads, (tmp_path / name).read_bytes().splitlines())
        numbers.append(header.pop("file"))
        assert header["started"] == HEADER.started
        drafted_rounds = rounds_of(rest)
        for reached in drafted_rounds.values():
            assert [each["place"] for each in reached] == list(range(1, len(reached) + 1))
            assert len(reached) == min(reached[0]["verified"] + 1, 4)
        ids += [each["round_id"] for each in rest]
    assert numbers == list(range(numbers[0], numbers[0] + kept))
    assert numbers[0] > 0
    assert ids == sorted(ids)
    assert ids[-1] == 79
    assert set(ids) == set(range(ids[0], 80))


def test_a_log_that_is_there_is_moved_aside(tmp_path):
    for run in range(3):
        Shelf(tmp_path, kept=2).keep([step(plainly(), round_id=run)])
    assert [records(name)[0]["round_id"] for name in sorted(tmp_path.iterdir())] == [2, 1]
    for leftover in ("accept.log.2", "accept.log.3"):
        (tmp_path / leftover).write_bytes(header_line(HEADER, 0))
    Shelf(tmp_path, kept=1).keep([step(plainly(), round_id=9)])
    (only,) = tmp_path.iterdir()
    assert records(only)[0]["round_id"] == 9


def test_only_regular_files_are_moved_aside(tmp_path):
    (tmp_path / "accept.log").mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        Shelf(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "accept.log"]


def test_a_block_longer_than_a_file_is_kept_whole(tmp_path):
    path = tmp_path / "accept.log"
    header = partial(header_line, HEADER)
    file = RotatingFile(path, limit=100, kept=2, header=header, own=is_header)
    file.write(b"x" * 500 + b"\n")
    file.close()
    assert path.read_bytes().endswith(b"}\n" + b"x" * 500 + b"\n")
