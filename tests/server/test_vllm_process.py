"""`fencepost serve --runtime vllm` as a process: answers over HTTP, or says what to install."""

import os
import subprocess
import sys
import threading
import time

import httpx
import psutil
import pytest

from tests.oracles.forwards import need_vllm

QUESTION = {
    "messages": [{"role": "user", "content": "What does a loop do?"}],
    "max_tokens": 24,
    "temperature": 0,
}
FLAGS = ("--port", "0", "--k", "3", "--threads", "1")


def start(*flags, environment=None):
    call = [sys.executable, "-m", "server.cli", "serve", *FLAGS, *flags]
    return subprocess.Popen(
        call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(runtime):
    """(message, log) of one server's answer."""
    process = start("--runtime", runtime)
    try:
        url = process.stdout.readline().split()[-1]
        reply = httpx.post(
            f"{url}/v1/chat/completions", json={"model": "fencepost-pair", **QUESTION}, timeout=60
        )
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    return reply.raise_for_status().json(), log


@pytest.mark.slow
def test_a_chat_completion_is_that_of_the_other_runtime():
    need_vllm()
    found, log = answer("vllm")
    assert found["usage"]["completion_tokens"] == 24
    assert "float32+vllm 0.32" in log
    assert "WARNING" not in log
    wanted, _ = answer("torch")
    assert found["choices"] == wanted["choices"]


@pytest.mark.slow
def test_a_server_whose_worker_died_is_neither_ready_nor_healthy():
    """The stream that was open ends with an error."""
    need_vllm()
    process = start("--runtime", "vllm", "--tensor-parallel", "2")
    try:
        url = process.stdout.readline().split()[-1]
        assert statuses(url) == [200, 200]
        asked = {"prompt": "The river", "max_tokens": 900, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=asked, timeout=60) as reply:
            lines = reply.iter_lines()
            assert "choices" in next(lines)
            children = psutil.Process(process.pid).children(recursive=True)
            next(each for each in children if each.name() == "VLLM::Worker_TP1").kill()
            *_, last = [line for line in lines if line and "[DONE]" not in line]
        assert "error" in last
        ends = time.monotonic() + 20
        while statuses(url) != [503, 503]:
            assert time.monotonic() < ends
            threading.Event().wait(0.05)
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "died unexpectedly" in log


def statuses(url):
    return [httpx.get(f"{url}{path}").status_code for path in ("/ready", "/health")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "said"),
    [(None, "vLLM is not installed"), ("0.31.0", "vLLM 0.31.0 is installed, but 0.32 is needed")],
)
def test_without_the_right_release_it_says_what_to_install(release, said, tmp_path):
    """The process finds no vLLM but the one whose name and version are written down for it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        f"    if name == 'vllm' and {release!r}:\n"
        f"        return {release!r}\n"
        "    if name.startswith('vllm'):\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n",
        "utf-8",
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = start("--runtime", "vllm", environment=os.environ | {"PYTHONPATH": path})
    _, log = process.communicate(timeout=60)
    assert process.returncode == 2
    assert log.splitlines()[-1] == (
        f"fencepost: cannot start: runtime=vllm: {said}; run deploy/vllm/install.sh, which "
        "installs its CPU build, or set runtime=torch"
    )
