"""The benchmark of runtimes: servers come and go, loads are what they say, ratios are as told."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.bench.closed_loop import Loop, serve
from tests.bench.runtimes import Figure, Options, contenders, ratios, render
from tests.bench.servers import Server, ServerEnded, running

# Answers as many tokens as are asked for, and writes down what it was asked.
SCRIPT = """
import json, pathlib, subprocess, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
notes = pathlib.Path(sys.argv[1])
# It holds so much memory that it takes a while to end.
held = "held = bytes(1) * 2**28; print(flush=True); import time; time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE)
child.stdout.readline()
(notes / "child").write_text(str(child.pid))
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/up" else 404)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with (notes / "asked").open("a") as log:
            log.write(json.dumps(body) + "\\n")
        tokens = body["max_tokens"] - (body["temperature"] == 2)
        text = json.dumps({"usage": {"completion_tokens": tokens}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
"""


def server(folder, script=SCRIPT):
    command = (sys.executable, "-c", script, str(folder))
    return Server(name="fake", command=command, ready="/up")


def gone(pid):
    """Whether a process has ended; whoever adopted it may not have noticed."""
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_every_client_asks_in_turn_and_all_that_was_started_ends(tmp_path):
    async def ask():
        async with running(server(tmp_path), 30) as url:
            loop = Loop(at_once=3, each=2, tokens=5, temperature=1.0)
            return await serve(url, loop, [(n, n) for n in range(6)], {"k": 7})

    assert asyncio.run(ask()) > 0
    asked = [json.loads(line) for line in (tmp_path / "asked").read_text("utf-8").splitlines()]
    assert sorted(body["prompt"] for body in asked) == [[n, n] for n in range(6)]
    assert all(body["seed"] == body["prompt"][0] for body in asked)
    assert {(body["k"], body["max_tokens"], body["ignore_eos"]) for body in asked} == {(7, 5, True)}
    assert gone((tmp_path / "child").read_text("utf-8"))


def test_a_short_answer_is_no_figure(tmp_path):
    async def ask():
        async with running(server(tmp_path), 30) as url:
            loop = Loop(at_once=1, each=1, tokens=5, temperature=2.0)
            await serve(url, loop, [(1,)], {})

    with pytest.raises(RuntimeError, match="4 tokens instead of 5"):
        asyncio.run(ask())
    assert gone((tmp_path / "child").read_text("utf-8"))


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path):
    async def start():
        async with running(server(tmp_path, "raise SystemExit('no models')"), 30):
            pass

    with pytest.raises(ServerEnded, match=r"fake is not ready \(status 1\):\nno models"):
        asyncio.run(start())


def test_what_was_started_ends_with_a_bench_that_is_terminated(tmp_path):
    async def ask():
        async with running(server(tmp_path), 30):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask())
    assert gone((tmp_path / "child").read_text("utf-8"))


def test_both_sides_serve_the_same_pair_with_as_many_threads():
    options = Options(threads=3, stock_k=(2, 4), tokens=10)
    found = contenders(options, "T", "D")
    names = [each.server.name for each in found]
    assert names == [
        *("fencepost-torch", "fencepost-vllm"),
        *("vllm-server", "vllm-server-k2", "vllm-server-k4"),
    ]
    for each in found:
        flags = each.server.command
        assert flags[flags.index("--model") + 1] == "T"
        assert flags[flags.index("--max-model-len") + 1] == str(32 + 10 + 8)
    assert [list(each.modes) for each in found] == [["K 0", "auto"]] * 2 + [[""]] * 3
    ours, stock = found[1].server, found[4].server
    assert ours.command[ours.command.index("--threads") + 1] == "3"
    assert stock.environment["OMP_NUM_THREADS"] == "3"
    wanted = json.loads(stock.command[stock.command.index("--speculative-config") + 1])
    assert (wanted["model"], wanted["num_speculative_tokens"]) == ("D", 4)
    assert [each.server.name for each in contenders(Options(only=("vllm",)), "T", "D")] == names[2:]


def figure(name, mode, *rates, at_once=1):
    return Figure(name=name, mode=mode, temperature=0.0, at_once=at_once, rates=rates)


def test_ratios_are_to_no_speculation_and_to_the_best_inside_rounds():
    figures = [
        figure("fencepost-torch", "K 0", 10.0, 5.0, 11.0),
        figure("fencepost-torch", "auto", 32.0, 14.0, 30.0),
        figure("fencepost-vllm", "K 0", 15.0, 6.0, 15.0),
        figure("fencepost-vllm", "auto", 24.0, 12.0, 30.0),
        figure("vllm-server", "", 20.0, 5.0, 10.0),
        figure("vllm-server-k2", "", 16.0, 7.0, 15.0),
        figure("vllm-server-k2", "", 5.0, 6.0, 7.0, at_once=8),
    ]
    found = {(each.name, each.at_once): each.ratio for each in ratios(figures)}
    assert {(name, at_once): ratio.values for (name, at_once), ratio in found.items()} == {
        ("torch, K 0 / vLLM's server without speculation", 1): (0.5, 1.0, 1.1),
        ("torch, auto / vLLM's server at its best", 1): (2.0, 2.0, 2.0),
        ("vllm, K 0 / vLLM's server without speculation", 1): (0.75, 1.2, 1.5),
        ("vllm, auto / vLLM's server at its best", 1): (1.5, pytest.approx(12 / 7), 2.0),
        ("vllm / torch, K 0", 1): (1.5, 1.2, pytest.approx(15 / 11)),
        ("vllm / torch, auto", 1): (0.75, pytest.approx(6 / 7), 1.0),
    }
    lines = render(figures, ratios(figures)).splitlines()
    assert lines[0].split("  ")[-1].strip() == "T 0, 8 at once"
    assert next(line for line in lines if line.startswith("vllm-server-k2")).split() == [
        *("vllm-server-k2", "15.0", "6.0"),
    ]
    shown = next(line for line in lines if line.startswith("vllm, auto"))
    assert shown.endswith("1.71 (1.50-2.00)")
