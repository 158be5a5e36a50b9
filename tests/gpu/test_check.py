"""Runs the whole check on a tiny pair and looks at what it counts; it never looks at a speed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def check(*flags, **variables):
    """Run the script as a user does, from anywhere."""
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        [ROOT / "tests/gpu/check.sh", *flags],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )


@pytest.mark.slow
def test_the_whole_check_on_a_cpu(tmp_path):
    done = check("--tiny", "--seconds", "240", OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "gpu-check.json").read_text("utf-8"))
    assert told["failed"] == []
    assert "passed" in told["contracts"]["summary"]
    assert told["contracts"]["status"] == 0
    assert 0.7 < told["pair"]["overlap"] < 0.8
    assert [(cell["requests"], cell["k"]) for cell in told["cells"]] == [
        (requests, k) for requests in (1, 8, 32, 128) for k in (0, 4, None)
    ]
    for cell in told["cells"]:
        assert cell["tokens"] == 8 * cell["requests"]
        assert cell["rate"] == pytest.approx(cell["tokens"] / cell["seconds"])
        assert 0.0 < cell["host_share"] < 1.0
        assert cell["verify"]["memory_share"] > 0.0
        assert cell["verify"]["compute_share"] > 0.0
        if cell["k"] is not None:
            assert cell["verify"]["rows"] == cell["requests"] * (cell["k"] + 1)
            assert (cell["acceptance"] is None) == (cell["k"] == 0)
    (skipped,) = told["skipped"]
    assert skipped.startswith("skipped: vllm, stock and under our engine: ")
    assert skipped in done.stdout
    assert "host share" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it would run for minutes")
def test_without_a_device_only_tiny_runs(tmp_path):
    done = check(OUT=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == "check: torch sees no CUDA device; on a CPU only --tiny runs\n"
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_torch_is_told_by_name(tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n', "utf-8")
    bare.chmod(0o755)
    done = check("--tiny", PYTHON=str(bare))
    assert done.returncode == 2
    assert "has no torch transformers numpy: nothing can run" in done.stderr
