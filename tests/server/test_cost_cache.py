"""Cost tables on disk: given back as they were, never believed when foreign, never in the way."""

import json
import logging
import math
from dataclasses import replace

import pytest

from scheduler.costs import CostTable, Curve, RoundCurve
from server import cost_cache
from server.cost_cache import CostCache

TABLE = CostTable(
    context=129,
    rounds=(
        RoundCurve(emitters=1, seconds=Curve(points=((1, 0.1 + 0.2), (9, 1 / 3)))),
        RoundCurve(emitters=4, seconds=Curve(points=((4, 0.4),))),
    ),
    step=Curve(points=((1, 0.0), (4, 1e-9))),
    catch_up=Curve(points=((1, 0.0),)),
    row_key=1e-7,
    draft_row_key=0.0,
)
KEY = {"engine": "models and numerics", "max_requests": 64, "seconds": 10.0, "packed": True}


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_table_comes_back_as_it_was(tmp_path, caplog):
    folder = tmp_path / "not" / "there"
    cache = CostCache(folder, KEY)
    assert cache.load() is None
    assert cache.store(TABLE)
    assert CostCache(folder, dict(reversed(KEY.items()))).load() == TABLE
    assert warnings(caplog) == []
    assert [path.name for path in folder.iterdir()] == [cache.path.name]


@pytest.mark.parametrize("part", KEY)
def test_another_key_is_another_file(tmp_path, part):
    CostCache(tmp_path, KEY).store(TABLE)
    assert CostCache(tmp_path, KEY | {part: "other"}).load() is None
    assert CostCache(tmp_path, KEY | {"more": 1}).load() is None


def changed(**parts):
    def change(kept):
        return json.dumps(kept | parts)

    return change


def in_table(**parts):
    def change(kept):
        return json.dumps(kept | {"table": kept["table"] | parts})

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda _: "",
        lambda _: "{",
        lambda _: "[]",
        lambda kept: json.dumps(kept)[:-20],
        changed(format=0),
        changed(format=3),
        changed(more=1),
        changed(table=None),
        changed(key={}),
        changed(key=KEY | {"max_requests": 65}),
        in_table(more=1),
        in_table(context="many"),
        in_table(rounds=[]),
        in_table(step={"points": [[1, 0.5], [2, 0.25]]}),
        in_table(step={"points": [[1, -0.5]]}),
        in_table(step={"points": [[1, math.nan]]}),
        in_table(catch_up={"points": [[1, math.inf]]}),
        in_table(row_key=math.nan),
    ],
)
def test_what_cannot_be_used_is_told_of_and_replaced(tmp_path, caplog, change):
    cache = CostCache(tmp_path, KEY)
    cache.store(TABLE)
    kept = json.loads(cache.path.read_text("utf-8"))
    cache.path.write_text(change(kept), "utf-8")
    assert cache.load() is None
    assert len(warnings(caplog)) == 1
    assert str(cache.path) in warnings(caplog)[0]
    assert cache.store(replace(TABLE, context=7))
    assert cache.load() == replace(TABLE, context=7)


def test_bytes_that_are_no_text_are_told_of(tmp_path, caplog):
    cache = CostCache(tmp_path, KEY)
    cache.path.write_bytes(b"\xff\xfe\x00")
    assert cache.load() is None
    assert len(warnings(caplog)) == 1


def test_a_folder_that_cannot_be_written_to_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").write_text("", "utf-8")
    cache = CostCache(tmp_path / "file" / "folder", KEY)
    assert cache.load() is None
    assert cache.store(TABLE) is False
    assert "costs are not kept" in warnings(caplog)[-1]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path, caplog):
    cache = CostCache(tmp_path, KEY)
    (cache.path / "x").mkdir(parents=True)
    assert cache.load() is None
    assert cache.store(TABLE) is False
    assert [path.name for path in tmp_path.iterdir()] == [cache.path.name]
    assert len(warnings(caplog)) == 2


def test_the_processor_has_a_name(tmp_path, monkeypatch):
    assert cost_cache.processor()
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some CPU @ 1GHz\nmodel name: b\n", "utf-8")
    monkeypatch.setattr(cost_cache, "_CPUINFO", info)
    assert cost_cache.processor() == "Some CPU @ 1GHz"
    monkeypatch.setattr(cost_cache, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr(cost_cache.platform, "processor", lambda: "")
    assert cost_cache.processor() == cost_cache.platform.machine()
