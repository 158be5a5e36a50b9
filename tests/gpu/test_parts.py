"""The parts of the check one by one: budget, options, limits, the pair, least work, the table."""

import json
import os
import sys
import time
from dataclasses import asdict, replace

import pytest
import torch

from scheduler.config import PoolConfig
from scheduler.runtime.loading import ModelSource, load_model
from tests.bench.figures import Machine, Versions
from tests.gpu import stock_vllm, throughput
from tests.gpu.budget import Budget
from tests.gpu.contracts import run_contracts
from tests.gpu.figures import Cell, Contracts, Device, Limits, Report, Step, StockCell
from tests.gpu.limits import describe_device, known_limits
from tests.gpu.options import LARGE, TINY, Options, read_options
from tests.gpu.pair import build_pair, device_bytes, make_models, save_models, weights
from tests.gpu.processes import run_within
from tests.gpu.table import render
from tests.gpu.throughput import BLOCK_SIZE, engine_config, measure, torch_serving, vllm_serving
from tests.gpu.verify_step import Call, least_work, stored
from tests.oracles.forwards import need_vllm, unwarned
from tests.oracles.recorded import Recordings

CPU = torch.device("cpu")
LIMITS = Limits(source="here", bandwidth=1e10, compute=1e11)


@pytest.fixture(scope="module")
def made():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield make_models(TINY, 5, CPU)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pair(made):
    return build_pair(made, CPU, time.perf_counter())


# ---- the budget --------------------------------------------------------------------------------


def test_what_does_not_fit_is_skipped_by_name(capsys):
    now = [10.0]
    budget = Budget(30.0, lambda: now[0])
    assert budget.affords("one", 30.0)
    now[0] = 25.0
    assert budget.left() == 15.0
    assert not budget.affords("two", 15.5)
    now[0] = 90.0
    assert budget.left() == 0.0
    assert budget.skipped == ["skipped: two: needs about 16 s, 15 s are left"]
    assert capsys.readouterr().err == f"check: {budget.skipped[0]}\n"


def test_cells_past_the_budget_are_named(pair):
    options = Options(tiny=True, shape=TINY, requests=(1, 2), tokens=4, prompt_tokens=4)
    budget = Budget(0.5, time.perf_counter)
    assert measure(options, torch_serving(options, pair), LIMITS, budget) == ()
    assert [line.partition(": needs")[0] for line in budget.skipped] == [
        "skipped: the start-up profile, torch",
        "skipped: throughput, torch, 1 at once, K 0",
        "skipped: throughput, torch, 1 at once, K 4",
        "skipped: throughput, torch, 1 at once, K auto: there is no profile to choose K by",
        "skipped: throughput, torch, 2 at once, K 0",
        "skipped: throughput, torch, 2 at once, K 4",
        "skipped: throughput, torch, 2 at once, K auto: there is no profile to choose K by",
    ]


def test_a_cell_that_outlasts_the_budget_is_the_last(pair, monkeypatch):
    monkeypatch.setattr(throughput, "_FIRST_CELL", 0.0)
    options = Options(tiny=True, shape=TINY, requests=(2,), tokens=400, prompt_tokens=4)
    budget = Budget(0.3, time.perf_counter)
    assert measure(options, torch_serving(options, pair), LIMITS, budget) == ()
    assert budget.skipped[1:] == [
        "skipped: throughput, torch, 2 at once, K 0: cut off at the end of the budget"
    ]


def test_contracts_that_do_not_fit_or_have_no_pytest_are_named(monkeypatch):
    budget = Budget(1.0, time.perf_counter)
    assert run_contracts(budget, cuda=False) is None
    monkeypatch.setattr("tests.gpu.contracts.find_spec", {}.get)
    assert run_contracts(budget, cuda=False) is None
    first, second = budget.skipped
    assert first.startswith("skipped: contracts: needs about 30 s")
    assert second == "skipped: contracts: pytest is not installed"


def test_a_command_ends_with_its_seconds_and_takes_its_children_along(tmp_path):
    pipe = tmp_path / "held"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    ended = run_within(2.0, ["sh", "-c", f"exec 3>{pipe}; sleep 1000 & echo both; wait"])
    assert (ended.status, ended.lines) == (None, ("both",))
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # comes when nobody holds the pipe any more
    os.close(reader)


def test_the_output_of_a_command_and_its_status():
    told = run_within(60.0, [sys.executable, "-c", "import sys; print('a\\nb'); sys.exit(3)"])
    assert (told.status, told.lines) == (3, ("a", "b"))


# ---- options and limits --------------------------------------------------------------------------


def test_flags_and_the_variable(monkeypatch, tmp_path):
    monkeypatch.setenv("OUT", str(tmp_path))
    assert read_options([]) == Options(out=tmp_path)
    tiny = read_options(["--tiny", "--requests", "1,2", "--out", "there", "--stages", "vllm"])
    assert (tiny.shape, tiny.requests, tiny.stages) == (TINY, (1, 2), ("vllm",))
    assert str(tiny.out) == "there"
    assert tiny.seconds < Options().seconds <= 8 * 60
    assert read_options(["--enforce-eager"]).enforce_eager
    with pytest.raises(SystemExit):
        read_options(["--stages", "sleep"])


def test_every_draft_of_the_widest_load_fits_a_round():
    options = Options()
    each = -(-options.max_model_len // BLOCK_SIZE)
    pool = PoolConfig(blocks=128 * each, block_size=BLOCK_SIZE)
    config = engine_config(options, pool)
    assert config.max_batched_tokens >= 128 * (config.k_max + 1)
    rows = config.target_pool.blocks * config.target_pool.block_size
    assert rows >= 128 * config.max_model_len


@pytest.mark.parametrize(
    ("name", "terabytes"),
    [
        ("NVIDIA H200", 4.8),
        ("NVIDIA H100 80GB HBM3", 3.35),
        ("NVIDIA H100 PCIe", 2.0),
        ("NVIDIA A100-SXM4-80GB", 2.04),
        ("NVIDIA A100-PCIE-40GB", 1.56),
        ("NVIDIA GH200 144G HBM3e", 4.9),
        ("NVIDIA L4", 0.3),
        ("NVIDIA L40S", 0.864),
    ],
)
def test_known_devices(name, terabytes):
    assert known_limits(name).bandwidth == pytest.approx(terabytes * 1e12)


def test_an_unknown_device_is_measured():
    assert known_limits("Somebody's chip") is None
    device = describe_device(CPU)
    assert device.limits == device.measured
    assert device.limits.bandwidth > 1e8
    assert device.limits.compute > 1e8


# ---- the pair ------------------------------------------------------------------------------------


def test_the_draft_is_the_targets_first_layers(made):
    whole, own = made.target.state_dict(), made.draft.state_dict()
    assert {name.split(".")[2] for name in own if ".layers." in name} == {"0"}
    for name, weight in own.items():
        assert weight.data_ptr() == whole[name].data_ptr()
    linears = [m.weight for m in made.target.modules() if isinstance(m, torch.nn.Linear)]
    assert weights(TINY, TINY.layers) == sum(weight.numel() for weight in linears)
    assert made.overlap == pytest.approx(TINY.acceptance, abs=0.03)
    assert 1.0 < made.entropy < 6.0


def test_the_same_seed_makes_the_same_pair(made):
    state = torch.random.get_rng_state()
    again, other = make_models(TINY, 5, CPU), make_models(TINY, 6, CPU)
    assert torch.equal(torch.random.get_rng_state(), state)
    name = "model.layers.5.mlp.down_proj.weight"
    assert torch.equal(made.target.get_parameter(name), again.target.get_parameter(name))
    assert not torch.equal(made.target.get_parameter(name), other.target.get_parameter(name))


def test_the_packed_pair_is_what_the_runtime_loads(made, pair, tmp_path):
    save_models(made, TINY, tmp_path)
    for built, name in ((pair.target, "target"), (pair.draft, "draft")):
        source = ModelSource(path_or_id=str(tmp_path / name), offline=True)
        served = load_model(source, device=CPU, pack=False)
        assert served.identity.dtype == built.identity.dtype
        assert served.identity.parameters == built.identity.parameters
        assert served.kv_shape == built.kv_shape
        assert served.max_positions == built.max_positions
        assert served.decoder.weight_bytes() == built.decoder.weight_bytes()
        assert built.deviation < 1e-3


def test_the_large_pair_has_the_sizes_that_were_asked_for():
    assert 7.0e9 < weights(LARGE, LARGE.layers) < 8.5e9
    assert 0.5e9 < weights(LARGE, LARGE.draft_layers) < 1.05e9
    assert 40 < device_bytes(LARGE) / 2**30 < 60


# ---- work and table ------------------------------------------------------------------------------


def test_the_least_work_of_a_call(made, pair):
    """Counted from the modules of the unmodified model."""
    call = Call(requests=3, k=4, context=20)
    work = least_work(TINY, stored(pair.target), call)
    linears = [m.weight for m in made.target.modules() if isinstance(m, torch.nn.Linear)]
    keys, dim = 25, TINY.hidden // TINY.heads
    cached = 3 * keys * 2 * TINY.layers * TINY.kv_heads * dim * 4
    assert work.bytes == sum(weight.nbytes for weight in linears) + cached
    attention = 15 * 4 * TINY.layers * TINY.hidden * keys
    assert work.operations == 15 * 2 * sum(weight.numel() for weight in linears) + attention


def _report(**changes):
    machine = Machine(cpu="c", cores=2, usable_cores=2, flags=(), memory_gib=1.0, load=0.0)
    versions = Versions(
        fencepost="0", revision=None, changed=0, python="3", torch="2", transformers="5"
    )
    nothing = {"contracts": None, "pair": None, "cells": (), "stock": (), "failed": ()}
    return Report(
        date="d",
        machine=machine,
        versions=versions,
        device=Device(name="chip", limits=LIMITS, measured=LIMITS),
        seconds=3.0,
        settings={},
        **nothing | {"skipped": ()} | changes,
    )


def _cell(k, rate):
    step = Step(rows=8, milliseconds=2.0, memory_share=0.5, compute_share=0.25)
    return Cell(
        runtime="torch",
        requests=8,
        k=k,
        tokens=80,
        seconds=80 / rate,
        rate=rate,
        round_ms=4.0,
        mean_k=1.5,
        acceptance=None,
        verify=step,
        eager_ms=None,
        host_share=None,
    )


def test_the_table_has_the_ratios_and_what_was_left_out():
    stock = StockCell(requests=8, k=0, tokens=80, seconds=1.0, rate=80.0)
    text = render(
        _report(
            cells=(_cell(0, 40.0), _cell(None, 60.0)),
            stock=(stock, replace(stock, k=4, rate=120.0)),
            contracts=Contracts(summary="9 passed", status=0),
            skipped=("skipped: this: that",),
        )
    )
    lines = [line.split() for line in text.splitlines()]
    assert [
        "8",
        "0",
        "40.0",
        "1.00",
        "1.50",
        "4.00",
        "8",
        "2.00",
        "50.0",
        "%",
        "25.0",
        "%",
    ] in lines
    assert ["8", "auto", "60.0", "1.50", "1.50", "4.00", "8"] in [line[:7] for line in lines]
    assert ["8", "0", "80.0", "0.50", "0.75"] in lines
    assert ["8", "4", "120.0", "0.50"] in lines
    assert "contracts 9 passed" in text
    assert text.endswith("skipped: this: that")


def test_the_table_says_how_model_calls_were_made():
    host = render(_report(cells=(_cell(0, 40.0),)))
    assert "layers by torch, model calls launched from the host," in host
    replayed = render(_report(cells=(replace(_cell(0, 40.0), eager_ms=3.25),)))
    assert "layers by torch, model calls replayed from recordings," in replayed
    assert ["8", "0", "40.0", "1.00", "1.50", "4.00", "8", "2.00", "3.25", "50.0", "%"] in [
        line.split()[:11] for line in replayed.splitlines()
    ]


def test_a_report_of_nothing_is_a_table_too():
    assert render(_report()).startswith("d  chip  c\n")


# ---- recorded calls ------------------------------------------------------------------------------


def test_recorded_calls_are_served_and_their_verify_step_is_timed_both_ways(pair):
    options = Options(tiny=True, shape=TINY, requests=(2,), tokens=6, prompt_tokens=8, repeats=1)
    recordings = Recordings()
    # No profile fits, so that auto is left out.
    budget = Budget(2 * options.profile_seconds - 1.0, time.perf_counter)
    serving = torch_serving(options, pair, recordings.record)
    cells = measure(options, serving, LIMITS, budget)
    assert [cell.tokens for cell in cells] == [12, 12]
    assert all(cell.eager_ms > 0 for cell in cells)
    assert recordings.replays > recordings.recorded > 2
    assert serving.runner.capabilities().numerics == "plain, padded"


# ---- stock vLLM ----------------------------------------------------------------------------------


def test_loads_that_stock_vllm_ended_before_it_broke_are_kept(monkeypatch, tmp_path, capsys):
    line = json.dumps(asdict(StockCell(requests=1, k=0, tokens=8, seconds=2.0, rate=4.0)))
    code = "import sys; open(sys.argv[1], 'w').write(sys.argv[2]); sys.exit('ValueError: no room')"

    def arguments(options, folder, k, file):
        return ["-c", code, str(file), line] if not k else ["-c", "", str(folder)]

    monkeypatch.setattr(stock_vllm, "_arguments", arguments)
    budget = Budget(60.0, time.perf_counter)
    options = Options(tiny=True, requests=(1, 8))
    cells = stock_vllm.measure_stock(options, tmp_path, budget)
    assert [(cell.requests, cell.rate) for cell in cells] == [(1, 4.0)]
    assert budget.skipped == ["skipped: stock vLLM, K 0, 1 of 2 loads: it broke"]
    assert "ValueError: no room" in capsys.readouterr().err


def test_stock_vllm_that_does_not_fit_is_named(tmp_path):
    budget = Budget(10.0, time.perf_counter)
    assert stock_vllm.measure_stock(Options(), tmp_path, budget) == ()
    assert [line.partition(": needs")[0] for line in budget.skipped] == [
        "skipped: stock vLLM, K 0",
        "skipped: stock vLLM, K 4",
    ]


@pytest.mark.slow
def test_our_engine_serves_the_pair_over_vllms_layers(made, pair, tmp_path):
    need_vllm()
    save_models(made, TINY, tmp_path)
    options = Options(tiny=True, shape=TINY, requests=(2,), tokens=4, prompt_tokens=8)
    work = torch_serving(options, pair).work
    # No profile fits, so that auto is left out.
    budget = Budget(2 * options.profile_seconds - 1.0, time.perf_counter)
    with unwarned():
        serving = vllm_serving(options, tmp_path, work)
        cells = measure(options, serving, LIMITS, budget)
    assert [(cell.runtime, cell.k, cell.tokens) for cell in cells] == [
        ("vllm", 0, 8),
        ("vllm", 4, 8),
    ]
    assert serving.runner.capabilities().target.dtype.endswith("+vllm")
