"""Costs are measured once a pair and machine, when K is to be chosen; the engine is given them."""

import gc
import logging

import pytest

from scheduler.controller import FixedController
from scheduler.errors import ModelRefused
from scheduler.goodput import GoodputController
from scheduler.request import ProposerKind
from server import assembly
from server.assembly import Loaded, build_engine, load, round_costs, serving_over, settle, warm_up
from server.settings import load_settings
from tests.oracles.rig import capabilities, config, tabular_runner
from tests.server.world import Sink


class Counting:
    """A runner that counts its rounds, and breaks if told to."""

    def __init__(self, runner, *, broken=False, **told):
        self.rounds = 0
        self.plans = []
        self._runner = runner
        self._broken = broken
        self._told = told

    def capabilities(self):
        return capabilities(**self._told)

    def run(self, plan):
        self.rounds += 1
        self.plans.append(plan)
        if self._broken:
            raise RuntimeError("expected all tensors to be on the same device")
        return self._runner.run(plan)


def runner(settings=None, **told):
    return Counting(tabular_runner(settings or config())[0], **told)


@pytest.fixture(autouse=True)
def info(caplog):
    caplog.set_level(logging.INFO, logger="server.assembly")


@pytest.fixture
def settings(tmp_path):
    def make(**flags):
        quick = {"profile_seconds": "0.05", "cost_cache": str(tmp_path / "costs")}
        return load_settings(quick | flags)

    return make


def told(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "server.assembly"]


def test_costs_are_measured_once(settings, caplog, tmp_path):
    first, second = runner(), runner()
    costs = round_costs(settings(), first, config())
    assert first.rounds > 3
    assert "measuring what rounds cost, for about 0.05 s" in told(caplog)[0]
    assert str(tmp_path / "costs") in told(caplog)[1]
    assert "measured in 0." in told(caplog)[1]
    caplog.clear()
    assert round_costs(settings(), second, config()) == costs
    assert second.rounds == 0
    (line,) = told(caplog)
    assert line.startswith("costs of rounds: from ")


@pytest.mark.parametrize(
    ("flags", "changes", "models"),
    [
        ({"threads": "7"}, {}, {}),
        ({"pack_weights": False}, {}, {}),
        ({"distributed_executor_backend": "ray"}, {}, {}),
        ({"profile_seconds": "0.06"}, {}, {}),
        ({}, {"max_requests": 3}, {}),
        ({}, {"k_max": 5}, {}),
        ({}, {"max_batched_tokens": 40}, {}),
        ({}, {"max_model_len": 90}, {}),
        ({}, {"draft_max_len": 90}, {}),
        ({}, {}, {"software": "other tables"}),
        ({}, {}, {"numerics": "invariant"}),
        ({}, {}, {"draft": None}),
    ],
)
def test_other_circumstances_are_measured_too(settings, flags, changes, models):
    round_costs(settings(), runner(), config())
    other = runner(config(**changes), **models)
    round_costs(settings(**flags), other, config(**changes))
    assert other.rounds >= 3  # whatever time there is


def test_another_processor_is_measured_too(settings, monkeypatch):
    round_costs(settings(), runner(), config())
    monkeypatch.setattr(assembly, "processor", lambda: "another")
    other = runner()
    round_costs(settings(), other, config())
    assert other.rounds > 3


def test_an_accelerator_is_named(settings, monkeypatch, tmp_path):
    monkeypatch.setattr(assembly.torch.cuda, "get_device_name", lambda device: f"fast {device}")
    round_costs(settings(), runner(device="cuda:0"), config())
    (kept,) = (tmp_path / "costs").iterdir()
    assert '"accelerator": "fast cuda:0"' in kept.read_text("utf-8")


def test_without_a_folder_nothing_is_kept(settings, caplog, tmp_path):
    for _ in range(2):
        measured = runner()
        assert round_costs(settings(cost_cache="none"), measured, config()) is not None
        assert measured.rounds > 3
    assert told(caplog)[-1].endswith("not kept")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_used_stops_no_start(settings, caplog, tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    costs = round_costs(settings(cost_cache=str(tmp_path / "file" / "x")), runner(), config())
    assert costs is not None
    assert told(caplog)[-1].endswith("not kept")


@pytest.mark.parametrize(
    ("flags", "changes"),
    [
        ({"k": "4"}, {}),
        ({"k": "0"}, {}),
        ({"k_max": "0"}, {"k": 0, "k_max": 0}),
        ({}, {"proposer": ProposerKind.NONE, "draft_pool": None, "draft_max_len": 0}),
    ],
)
def test_where_there_is_nothing_to_choose_nothing_is_measured(settings, flags, changes):
    idle = runner()
    assert round_costs(settings(**flags), idle, config(**changes)) is None
    assert idle.rounds == 0


@pytest.mark.parametrize(
    "changes",
    [{"proposer": ProposerKind.NONE}, {"proposer": ProposerKind.NGRAM, "draft_pool": None}],
)
def test_whoever_may_draft_is_measured(settings, changes):
    assert round_costs(settings(), runner(), config(**changes)) is not None


def test_rounds_that_break_are_refused(settings):
    with pytest.raises(ModelRefused, match=r"the models cannot run: RuntimeError: expected all"):
        round_costs(settings(), runner(broken=True), config())


class Letters:
    """What warming up and serving ask of a tokenizer."""

    def __init__(self, pieces=None):
        self.pieces = pieces


def loaded(costs):
    pair = type("Pair", (), {"runner": runner(), "vocabulary": 16})()
    return Loaded(pair=pair, config=config(), tokenizer=Letters(), costs=costs)


def test_the_engine_chooses_by_the_costs(settings):
    costs = round_costs(settings(), runner(), config())
    for given, kind in ((costs, GoodputController), (None, FixedController)):
        engine = build_engine(loaded(given), Sink())
        assert type(engine._controller._controller) is kind


def test_the_fingerprint_says_whether_k_is_chosen(settings):
    costs = round_costs(settings(), runner(), config())
    prints = [
        serving_over(build_engine(each, Sink()), each, settings()).fingerprint
        for each in (loaded(costs), loaded(None))
    ]
    assert prints[0] != prints[1]


def test_what_is_loaded_is_no_business_of_the_collector():
    try:
        settle()
        assert gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()


@pytest.mark.anyio
async def test_the_embedded_pair_is_profiled_as_it_loads(settings, caplog):
    """And its draft runs before the first client, whatever the costs say."""
    given = settings(max_requests="2", threads="1", profile_seconds="0.3")
    first = load(given)
    assert [each.emitters for each in first.costs.rounds] == [1, 2]
    assert load(given).costs == first.costs
    assert "from " in told(caplog)[-1]
    assert load(settings(k="4")).costs is None
    seen = []
    run = first.pair.runner.run
    first.pair.runner.run = lambda plan: (seen.append(plan), run(plan))[1]
    await warm_up(first)
    assert any(group.draft is not None for plan in seen for group in plan.groups)
