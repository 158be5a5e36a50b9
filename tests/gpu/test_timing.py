"""What is timed, and what is kept from it: rounds by the profiler, whole rounds, models that go."""

import gc
import time
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import DeviceType

from scheduler.runtime.graphs import GraphedForward
from tests.bench.load import Arrivals, Run
from tests.gpu import __main__ as command
from tests.gpu import contracts, device_time
from tests.gpu.budget import Budget
from tests.gpu.device_time import busy_seconds
from tests.gpu.figures import Device, Limits
from tests.gpu.options import TINY, Options
from tests.gpu.pair import build_pair, make_models
from tests.gpu.processes import Ended
from tests.gpu.throughput import all_at_once, round_of, torch_serving
from tests.gpu.verify_step import Call, time_step
from tests.gpu.waiting import waits
from tests.oracles.recorded import Recordings
from tests.scheduler.runtime.test_graphs import Doubling, called
from tests.telemetry.rounds import plain, step

CPU = torch.device("cpu")
LIMITS = Limits(source="here", bandwidth=1e10, compute=1e11)


@pytest.fixture(scope="module")
def pair():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield build_pair(make_models(TINY, 5, CPU), CPU, time.perf_counter())
    torch.set_num_threads(threads)


# ---- rounds by the profiler --------------------------------------------------------------------


class Chip:
    """Stands for a device and its profiler: every execution of a launch takes it a second."""

    type = "cuda"

    def __init__(self):
        self.executed = 0

    def launch(self, ids):
        self.executed += 1
        return ids * 2

    def record(self, launch):
        """As `GraphRecorder` does: the device runs the warm-up, and each replay."""
        launch()
        return launch

    def profile(self, activities):
        self.before = self.executed
        return self

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.seen = self.executed - self.before

    def events(self):
        second = SimpleNamespace(elapsed_us=lambda: 1e6)
        event = SimpleNamespace(time_range=second, device_type=DeviceType.CUDA)
        return [event] * self.seen


@pytest.mark.parametrize("recorded", [True, False])
def test_the_profiler_sees_calls_that_neither_meet_nor_record_a_shape(recorded, monkeypatch):
    chip = Chip()
    monkeypatch.setattr(device_time, "profile", chip.profile)
    monkeypatch.setattr(device_time, "synchronise", lambda device: None)
    inner = Doubling(chip.launch)
    forward = GraphedForward(inner, chip.record)
    work = lambda: called(forward, 3) if recorded else chip.launch(torch.ones(3))  # noqa: E731
    assert busy_seconds(work, 3, chip) == 1.0


@pytest.mark.parametrize("k", [0, 4])
def test_a_rehearsed_round_has_the_shapes_of_the_step_that_is_timed(pair, k):
    """A prompt of whole blocks: the row after it begins a block."""
    options = Options(tiny=True, shape=TINY, requests=(2,), tokens=8, prompt_tokens=128)
    serving = torch_serving(options, pair, Recordings().record)
    call = Call(requests=2, k=k, context=options.prompt_tokens)
    target = serving.runner._pair.target
    time_step(target, call, serving.work(call), LIMITS, 1)
    timed = set(target._kept)
    serving.runner.run(round_of(serving.config, TINY.vocabulary, call))
    assert set(target._kept) == timed


# ---- whole rounds ------------------------------------------------------------------------------


def test_rounds_that_some_requests_miss_or_spend_on_a_prompt_do_not_count():
    both, one = [plain(request=1), plain(request=2)], [plain(request=1)]
    prompt = [plain(request=1), plain(request=2, prefilled=5)]
    steps = tuple(step(*groups) for groups in (prompt, both, both, one))
    arrived = Arrivals(times=(1.0,), counts=(1,))
    run = Run(k=0, seconds=1.0, arrivals=(arrived,) * 2, steps=steps, lags=())
    assert all_at_once(run).steps == steps[1:3]
    alone = Run(k=0, seconds=1.0, arrivals=(arrived,) * 2, steps=steps[3:], lags=())
    assert all_at_once(alone) is None


# ---- what is kept ------------------------------------------------------------------------------


def test_what_a_peer_is_measured_by_keeps_no_model(monkeypatch):
    models = []

    def noted(*given):
        built = build_pair(*given)
        models.extend(weakref.ref(m.decoder) for m in (built.target, built.draft))
        return built

    monkeypatch.setattr(command, "build_pair", noted)
    # No profile fits, so that auto is left out.
    options = Options(
        tiny=True, shape=TINY, requests=(1,), tokens=2, prompt_tokens=4, repeats=1,
        profile_seconds=1e6,
    )  # fmt: skip
    device = Device(name="CPU", limits=LIMITS, measured=LIMITS)
    check = command._Check(options, device, Budget(600.0, time.perf_counter))
    check._serve(None)
    assert len(check.cells) == 2
    assert check._work(Call(requests=1, k=0, context=4)).bytes > 0
    gc.collect()
    assert [model() for model in models] == [None, None]


# ---- the suite ---------------------------------------------------------------------------------


def test_a_suite_that_is_cut_off_names_its_last_test(monkeypatch, capsys):
    commands = []

    def run_within(seconds, command):
        commands.append(command)
        lines = (*(f"tests/a.py::test_{n} PASSED" for n in range(99)), "tests/a.py::test_hangs")
        return Ended(status=None, lines=lines)

    monkeypatch.setattr(contracts, "run_within", run_within)
    budget = Budget(60.0, lambda: 0.0)
    assert contracts.run_contracts(budget, cuda=False) is None
    assert budget.skipped == ["skipped: contracts: cut off after 60 s"]
    told = capsys.readouterr().err.splitlines()
    assert "tests/a.py::test_hangs" in told
    assert len(told) < 20
    # Only so is a test named before it ends.
    assert "-v" in commands[0]


def test_a_suite_that_fails_tells_what_failed(monkeypatch, capsys):
    lines = (
        "tests/a.py::test_one[a b] PASSED     [ 25%]",
        "tests/a.py::test_two SKIPPED (no)    [ 50%]",
        "tests/a.py::test_three FAILED        [ 75%]",
        "E   assert False",
        "==== 1 failed, 1 passed in 3.00s ====",
    )
    ended = Ended(status=1, lines=lines)
    monkeypatch.setattr(contracts, "run_within", lambda seconds, command: ended)
    found = contracts.run_contracts(Budget(60.0, lambda: 0.0), cuda=False)
    assert (found.summary, found.status) == ("1 failed, 1 passed in 3.00s", 1)
    told = capsys.readouterr().err
    assert "test_three FAILED" in told
    assert "assert False" in told
    assert "test_one" not in told
    assert "test_two" not in told


# ---- waits -------------------------------------------------------------------------------------


def test_waits_are_counted_and_not_what_torch_says_of_the_mode(monkeypatch):
    modes = []

    def work():
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        return 5

    def mode(name):
        modes.append(name)
        if name == "warn":
            warnings.warn("it does not yet detect all synchronizing operations", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", mode)
    result, seen = waits(work)
    assert (result, len(seen), modes) == (5, 1, ["warn", "default"])
