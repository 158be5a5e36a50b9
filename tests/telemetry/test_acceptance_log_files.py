"""The log never costs more than its queue and its files, and never holds anybody up."""

import json
import logging
import threading
from functools import partial

import pytest

from telemetry.acceptance_log_files import RotatingFile
from telemetry.acceptance_log_lines import header_line
from tests.telemetry.logs import HEADER, Shelf, decided, plainly, records, rounds_of
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
    shelf = Shelf(tmp_path, file=disk, capacity=4)
    for number in range(1, 6):  # two records each, and the disk does not move
        shelf.log.step(step(decided(4, 1), round_id=number))
    assert shelf.counts == (0, 6, 0, 0)
    disk.open.set()
    until(lambda: shelf.log._taken == 4)
    shelf.log.step(step(decided(4, 1), round_id=6))
    shelf.log.close()
    assert [each.get("round_id", each.get("count")) for each in disk.lines] == [1, 1, 2, 2, 6, 6, 6]
    assert disk.lines[4] == {"record": "dropped", "count": 6}
    assert shelf.counts == (6, 6, 0, 0)
    assert disk.closed


def test_what_was_dropped_last_is_said_at_the_end(tmp_path):
    disk = Disk()
    shelf = Shelf(tmp_path, file=disk, capacity=2)
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
    until(lambda: shelf.log._taken == 2)
    assert len(records(shelf.path)) == 2
    shelf.log.close()


def test_a_disk_that_fails_turns_the_log_off_and_nothing_else(tmp_path, caplog):
    disk = Disk(breaks_at=1)
    shelf = Shelf(tmp_path, file=disk)
    with caplog.at_level(logging.INFO):
        for number in range(1, 5):
            shelf.log.step(step(decided(4, 1), decided(4, 0), round_id=number))
        disk.open.set()
        until(lambda: shelf.log._taken == 12)
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
        (tmp_path / leftover).write_text("{}")
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
    file = RotatingFile(path, limit=100, kept=2, header=partial(header_line, HEADER))
    file.write(b"x" * 500 + b"\n")
    file.close()
    assert path.read_bytes().endswith(b"}\n" + b"x" * 500 + b"\n")
