"""The command: contracts, throughput and stock vLLM within the budget, then the table and data."""

import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from scheduler.runtime.cuda_graphs import GraphRecorder
from tests.bench.machine import describe_machine, describe_versions
from tests.gpu.budget import Budget, say
from tests.gpu.contracts import run_contracts
from tests.gpu.figures import Cell, Contracts, Device, PairFigures, Report, StockCell
from tests.gpu.limits import describe_device
from tests.gpu.options import STAGES, Options, read_options
from tests.gpu.pair import (
    BuiltPair,
    build_pair,
    device_bytes,
    free_memory,
    make_models,
    save_models,
)
from tests.gpu.stock_vllm import have_vllm, measure_stock
from tests.gpu.table import render
from tests.gpu.throughput import measure, torch_serving, vllm_serving
from tests.gpu.verify_step import Call, Work

_BUILD_SECONDS = 60.0
"""What building a large pair is expected to take."""
_FILE = "gpu-check.json"


class _Check:
    """One run, and what it found so far."""

    def __init__(self, options: Options, device: Device, budget: Budget) -> None:
        self._options = options
        self._device = device
        self._budget = budget
        self._on = torch.device("cpu" if device.name == "CPU" else "cuda")
        self._stages = options.stages or STAGES
        self.contracts: Contracts | None = None
        self.pair: PairFigures | None = None
        self.cells: tuple[Cell, ...] = ()
        self.stock: tuple[StockCell, ...] = ()
        self.failed: list[str] = []
        self._work: Callable[[Call], Work] | None = None

    def run(self, folder: Path) -> None:
        """All stages in turn, with checkpoints for a peer in `folder`."""
        if "contracts" in self._stages:
            with self._noting("contracts"):
                self._run_contracts()
        peer = "vllm" in self._stages and self._has_peer()
        if not (peer or "throughput" in self._stages):
            return
        with self._noting("the pair and its throughput"):
            self._serve(folder if peer else None)
        free_memory()
        if peer and self.pair is not None:
            with self._noting("stock vLLM"):
                self.stock = measure_stock(self._options, folder, self._budget)
            with self._noting("throughput, vllm"):
                self._serve_by_vllm(folder)

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """What breaks is noted, and the next stage runs."""
        try:
            yield
        except Exception as problem:  # noqa: BLE001
            say(traceback.format_exc())
            self.failed.append(f"failed: {name}: {type(problem).__name__}: {problem}")

    def _run_contracts(self) -> None:
        self.contracts = run_contracts(self._budget, cuda=self._on.type == "cuda")
        if self.contracts is not None and self.contracts.status:
            self.failed.append(f"failed: contracts: {self.contracts.summary}")

    def _has_peer(self) -> bool:
        """Whether stock vLLM can be measured; says so when it cannot."""
        reason = None
        if not have_vllm():
            reason = "vllm is not installed"
        elif self._on.type == "cpu" and self._options.stages is None:
            reason = "on a CPU only where --stages names it"
        if reason is not None:
            self._budget.skip("vllm, stock and under our engine", reason)
        return reason is None

    def _serve(self, checkpoints: Path | None) -> None:
        """Build the pair, save it where a peer needs it, and measure."""
        if not self._has_room():
            return
        pair = self._built(checkpoints)
        free_memory()
        self.pair = pair.figures
        say(f"acceptance {pair.figures.overlap:.3f} on random ids")
        recording = self._on.type == "cuda" and not self._options.enforce_eager
        record = GraphRecorder(self._on) if recording else None
        serving = torch_serving(self._options, pair, record)
        self._work = serving.work
        if "throughput" in self._stages:
            self.cells = measure(self._options, serving, self._device.limits, self._budget)

    def _serve_by_vllm(self, folder: Path) -> None:
        """Our engine once more, vLLM's layers under it. Last: that process keeps its memory."""
        least = 0.0 if self._options.tiny else _BUILD_SECONDS
        if self._work is None or not self._budget.affords("throughput, vllm", least):
            return
        say("loading the pair by vLLM")
        serving = vllm_serving(self._options, folder, self._work)
        self.cells += measure(self._options, serving, self._device.limits, self._budget)

    def _has_room(self) -> bool:
        """Whether time and memory are left to build the pair; says so when they are not."""
        if not self._budget.affords("the pair", 0.0 if self._options.tiny else _BUILD_SECONDS):
            return False
        needed = device_bytes(self._options.shape)
        if self._options.tiny or needed <= (free := torch.cuda.mem_get_info(self._on)[0]):
            return True
        gib = f"needs about {needed / 2**30:.0f} GiB of the device, {free / 2**30:.0f} are free"
        self._budget.skip("the pair", gib)
        return False

    def _built(self, checkpoints: Path | None) -> BuiltPair:
        say("building the pair")
        started = time.perf_counter()
        made = make_models(self._options.shape, self._options.seed, self._on)
        if checkpoints is not None:
            save_models(made, self._options.shape, checkpoints)
        return build_pair(made, self._on, started)


def main(arguments: Sequence[str]) -> int:
    """Run the check; the exit status is 1 when something broke, 2 when nothing can run."""
    options = read_options(arguments)
    clock = time.perf_counter
    started, date = clock(), datetime.now(UTC).isoformat(timespec="seconds")
    cuda = torch.cuda.is_available()
    if not (cuda or options.tiny):
        sys.stderr.write("check: torch sees no CUDA device; on a CPU only --tiny runs\n")
        return 2
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    device = describe_device(torch.device("cuda" if cuda else "cpu"))
    check = _Check(options, device, Budget(options.seconds, clock))
    with tempfile.TemporaryDirectory(prefix="fencepost-gpu-") as folder:
        check.run(Path(folder))
    report = Report(
        date=date,
        machine=describe_machine(),
        versions=describe_versions(),
        device=device,
        seconds=clock() - started,
        settings=asdict(options) | {"out": None},
        contracts=check.contracts,
        pair=check.pair,
        cells=check.cells,
        stock=check.stock,
        skipped=tuple(check._budget.skipped),
        failed=tuple(check.failed),
    )
    sys.stdout.write(render(report) + "\n")
    _write(report, options.out)
    return 1 if report.failed else 0


def _write(report: Report, folder: Path | None) -> None:
    if folder is None:
        say("no data written: neither --out nor OUT names a folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _FILE).write_text(json.dumps(asdict(report), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
