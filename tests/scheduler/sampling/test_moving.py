"""Nothing that a round does has the host wait for the device but the transfer at its end.

Only a CUDA device can say so by itself (tests/gpu does); here the sources are read for the calls
that are known to wait.
"""

import ast
from pathlib import Path

import pytest
import torch

from scheduler.sampling.moving import flags, floats, integers, moved
from tests.architecture import module, read_modules

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")
# They run before anybody is served, on a CPU only, or they are the one way.
EXEMPT = {
    f"scheduler.{name}"
    for name in ("runtime.loading", "runtime.invariant", "runtime.linear", "sampling.moving")
}
# Their results have a size or a value that the host must know before it goes on.
WAITING = {"item", "nonzero", "bincount", "masked_select", "unique", "argwhere", "cpu"}


def waits(each):
    """Calls of a module that have the host wait for a CUDA device."""
    calls = [node for node in ast.walk(each.tree) if isinstance(node, ast.Call)]
    return [f"{each.name}:{call.lineno}" for call in calls if _waits(call)]


def _waits(call):
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    placed = {keyword.arg for keyword in call.keywords} & {"device", "non_blocking"}
    if name in {"tensor", "as_tensor", "new_tensor", "from_numpy"}:
        return bool(placed)
    if name == "to":
        return bool(placed) or any("device" in ast.unparse(argument) for argument in call.args)
    return name in WAITING


def test_no_round_waits_but_for_its_transfer():
    found = [
        line
        for name, each in read_modules(ROOT, ["scheduler"]).items()
        if name.startswith(("scheduler.runtime.", "scheduler.sampling.")) and name not in EXEMPT
        for line in waits(each)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "torch.tensor([1], device=device)",
        "torch.as_tensor(x, device=d)",
        "torch.from_numpy(x).to(device)",
        "x.to(y.device)",
        "x.to(device, non_blocking=True)",
        "x.sum().item()",
        "torch.bincount(x)",
    ],
)
def test_a_call_that_waits_is_found(line):
    assert len(waits(module("m", line))) == 1


@pytest.mark.parametrize("line", ["x.to(torch.float32)", "x.to(y.dtype)", "torch.tensor([1])"])
def test_a_call_on_the_host_or_to_another_type_is_none(line):
    assert waits(module("m", line)) == []


def test_values_keep_their_kind():
    assert integers((3, -(1 << 62)), CPU).tolist() == [3, -(1 << 62)]
    assert integers([], CPU).dtype is torch.int64
    assert floats([0.1], CPU).tolist() == [0.1]
    assert flags([True, False], CPU).tolist() == [True, False]
    assert flags([], CPU).dtype is torch.bool
    host = torch.ones(2)
    assert moved(host, CPU) is host
