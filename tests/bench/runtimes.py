"""This server on PyTorch and on vLLM's layers beside vLLM's own server: one pair, the same load.

All of them are up at once and take turns at the same prompts, over HTTP and in a closed loop: what
disturbs the machine meets all of them, and ratios are taken inside rounds. vLLM's own runs with its
defaults, without speculation and with its draft-model speculation, for which
`pip install --no-deps -r tests/bench/stock_vllm.txt` has to follow deploy/vllm/install.sh.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from httpx import HTTPError

from scheduler.runtime.vllm_choice import vllm_version
from tests.bench.closed_loop import Loop, serve
from tests.bench.figures import Spread, spread
from tests.bench.machine import describe_machine, describe_versions
from tests.bench.measure import find_pair
from tests.bench.options import at_least_1, counts
from tests.bench.prompts import Prompt, random_prompts
from tests.bench.served_pair import served
from tests.bench.servers import Server, ServerEnded, library_of, running, say
from tests.bench.synthetic import Shape
from tests.bench.table import aligned, origin

_PROMPT_TOKENS = 32
_K_MAX = 8
_READY_SECONDS = 420.0
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to measure. `requests` are those that each client sends in one round; `only` picks
    contenders by the start of their names."""

    requests: int = 2
    rounds: int = 2
    tokens: int = 64
    concurrency: tuple[int, ...] = (1, 8)
    temperatures: tuple[float, ...] = (0.0, 1.0)
    threads: int = 1
    dtype: str = "float32"
    stock_k: tuple[int, ...] = (2, 4)
    stock_python: str = sys.executable
    only: tuple[str, ...] = ()
    json: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A server, and by name what more is in the bodies of its requests."""

    server: Server
    modes: Mapping[str, Mapping[str, object]] = field(default_factory=lambda: {"": {}})


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Tokens per second of one contender in one mode at one load, round by round."""

    name: str
    mode: str
    temperature: float
    at_once: int
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One rate over another at one load, inside rounds."""

    name: str
    temperature: float
    at_once: int
    ratio: Spread


def main(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the data. Status 2 where vLLM or a server is missing."""
    options = _read(arguments)
    if vllm_version() is None:
        say("vLLM is not installed: run deploy/vllm/install.sh")
        return 2
    if not contenders(options, "", ""):
        say(f"no contender is named {', '.join(options.only)}")
        return 2
    date = datetime.now(UTC).isoformat(timespec="seconds")
    machine, versions = describe_machine(), describe_versions()
    try:
        figures = asyncio.run(_measure(options))
    except (ServerEnded, RuntimeError, HTTPError) as problem:
        say(str(problem) or repr(problem))
        return 2
    except asyncio.CancelledError:
        say("terminated")
        return 2
    found = ratios(figures)
    sys.stdout.write(f"{origin(date, machine, versions, options.threads)}\n")
    sys.stdout.write(f"          vLLM {vllm_version()}\n\n{render(figures, found)}\n")
    if options.json is not None:
        report = {
            "date": date,
            "machine": asdict(machine),
            "versions": asdict(versions) | {"vllm": vllm_version()},
            "settings": _settings(options),
            "figures": [asdict(figure) for figure in figures],
            "ratios": [asdict(ratio) for ratio in found],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return 0


# ---- who runs ------------------------------------------------------------------------------------


def contenders(options: Options, target: str, draft: str) -> list[Contender]:
    """Ours on both runtimes, vLLM's own without speculation, and with so many drafts."""
    found = [_ours(options, target, draft, runtime) for runtime in ("torch", "vllm")]
    found += [_stock(options, target, draft, k) for k in (0, *options.stock_k)]
    wanted = options.only or ("",)
    return [each for each in found if each.server.name.startswith(wanted)]


def _ours(options: Options, target: str, draft: str, runtime: str) -> Contender:
    flags = {
        "model": target,
        "draft-model": draft,
        "served-model-name": "pair",
        "runtime": runtime,
        # PyTorch's own path is fastest in float32 sums over weights packed to 16 bits.
        "dtype": options.dtype if runtime == "vllm" else "auto",
        "device": "cpu",
        "threads": options.threads,
        "max-model-len": _context(options),
        "max-requests": max(options.concurrency),
        "cost-cache": "none",
    }
    command = [sys.executable, "-m", "server.cli", "serve", "--offline", *_flags(flags)]
    server = Server(name=f"fencepost-{runtime}", command=tuple(command), ready="/ready")
    return Contender(server=server, modes={"K 0": {"speculation": {"k": 0}}, "auto": {}})


def _stock(options: Options, target: str, draft: str, k: int) -> Contender:
    flags: dict[str, object] = {
        "model": target,
        "served-model-name": "pair",
        "dtype": options.dtype,
        "max-model-len": _context(options),
        "max-num-seqs": max(options.concurrency),
    }
    if k:
        flags["speculative-config"] = json.dumps(
            {
                "method": "draft_model",
                "model": draft,
                "num_speculative_tokens": k,
                "draft_sample_method": "probabilistic",
            }
        )
    module = "vllm.entrypoints.openai.api_server"
    command = [options.stock_python, "-m", module, "--disable-uvicorn-access-log", *_flags(flags)]
    environment = {
        "OMP_NUM_THREADS": str(options.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    openmp = library_of(options.stock_python, "libiomp5.so")
    if openmp is not None:
        environment["LD_PRELOAD"] = str(openmp)
    name = f"vllm-server-k{k}" if k else "vllm-server"
    server = Server(name=name, command=tuple(command), ready="/health", environment=environment)
    return Contender(server=server)


def _context(options: Options) -> int:
    return _PROMPT_TOKENS + options.tokens + _K_MAX


def _flags(flags: Mapping[str, object]) -> list[str]:
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


# ---- what is measured ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Entrant:
    """A contender whose server is up, in one of its modes."""

    name: str
    mode: str
    url: str
    more: Mapping[str, object]

    async def serve(self, loop: Loop, prompts: Sequence[Prompt]) -> float:
        rate = await serve(self.url, loop, prompts, self.more)
        label = f"{self.name} {self.mode}".rstrip()
        say(f"{label}, {loop.at_once} at once, {loop.temperature:g}: {rate:.1f} tokens/s")
        return rate


async def _measure(options: Options) -> list[Figure]:
    pair = served(find_pair("synthetic", seed=0))
    async with AsyncExitStack() as stack:
        entrants: list[_Entrant] = []
        for contender in contenders(options, pair.target, pair.draft):
            name = contender.server.name
            say(f"{name}: loading")
            url = await stack.enter_async_context(running(contender.server, _READY_SECONDS))
            entrants += [
                _Entrant(name=name, mode=mode, url=url, more=more)
                for mode, more in contender.modes.items()
            ]
        return await _figures(entrants, options)


async def _figures(entrants: Sequence[_Entrant], options: Options) -> list[Figure]:
    """All loads, round by round; at each load all take their turns. A round before warms up."""
    widest = max(options.concurrency) * options.requests
    number = (options.rounds + 1) * widest
    prompts = random_prompts(number, _PROMPT_TOKENS, Shape().vocabulary, seed=1)
    for loop, entrant in product(_loops(options, warm=True), entrants):
        await entrant.serve(loop, prompts[:widest])
    rates: dict[tuple[Loop, _Entrant], list[float]] = {}
    for first in range(widest, number, widest):
        for loop, entrant in product(_loops(options, warm=False), entrants):
            rate = await entrant.serve(loop, prompts[first : first + widest])
            rates.setdefault((loop, entrant), []).append(rate)
    return [
        Figure(
            name=entrant.name,
            mode=entrant.mode,
            temperature=loop.temperature,
            at_once=loop.at_once,
            rates=tuple(values),
        )
        for (loop, entrant), values in rates.items()
    ]


def _loops(options: Options, *, warm: bool) -> list[Loop]:
    return [
        Loop(
            at_once=at_once,
            each=1 if warm else options.requests,
            tokens=_WARM_UP_TOKENS if warm else options.tokens,
            temperature=temperature,
        )
        for temperature in options.temperatures
        for at_once in options.concurrency
    ]


# ---- what is said --------------------------------------------------------------------------------


def ratios(figures: Sequence[Figure]) -> list[Ratio]:
    """Ours over vLLM's own: K 0 over no speculation, auto over its best; and vLLM over PyTorch."""
    found = []
    for temperature, at_once in sorted({(each.temperature, each.at_once) for each in figures}):
        rates = {
            (each.name, each.mode): each.rates
            for each in figures
            if (each.temperature, each.at_once) == (temperature, at_once)
        }
        for name, over, under in _compared(rates):
            inside = [high / low for high, low in zip(over, under, strict=True)]
            ratio = Ratio(name=name, temperature=temperature, at_once=at_once, ratio=spread(inside))
            found.append(ratio)
    return found


_Rates = Sequence[float]


def _compared(
    rates: Mapping[tuple[str, str], _Rates],
) -> Iterator[tuple[str, _Rates, _Rates]]:
    """What is held against what: a name, rates and rates, round by round."""
    plain = rates.get(("vllm-server", ""))
    stock = [found for (name, _), found in rates.items() if name.startswith("vllm-server")]
    best = max(stock, key=median, default=None)
    for runtime in ("torch", "vllm"):
        own = {mode: rates.get((f"fencepost-{runtime}", mode)) for mode in ("K 0", "auto")}
        if own["K 0"] and plain:
            yield f"{runtime}, K 0 / vLLM's server without speculation", own["K 0"], plain
        if own["auto"] and best:
            yield f"{runtime}, auto / vLLM's server at its best", own["auto"], best
    for mode in ("K 0", "auto"):
        ours, torch = (rates.get((f"fencepost-{runtime}", mode)) for runtime in ("vllm", "torch"))
        if ours and torch:
            yield f"vllm / torch, {mode}", ours, torch


def render(figures: Sequence[Figure], found: Sequence[Ratio]) -> str:
    """Tokens per second by contender, and ratios, with a column for each load."""
    loads = sorted({(each.temperature, each.at_once) for each in figures})
    head = [f"T {temperature:g}, {at_once} at once" for temperature, at_once in loads]
    rates = {
        (f"{each.name} {each.mode}".rstrip(), each.temperature, each.at_once): each.rates
        for each in figures
    }
    names = list(dict.fromkeys(name for name, _, _ in rates))
    shown = {(each.name, each.temperature, each.at_once): _ratio(each.ratio) for each in found}
    compared = list(dict.fromkeys(each.name for each in found))
    rows = [["tokens/s, median of rounds", *head]]
    rows += [[name, *(_rate(rates.get((name, *load))) for load in loads)] for name in names]
    rows += [["ratio inside a round, median (min-max)", *("" for _ in loads)]]
    rows += [[name, *(shown.get((name, *load), "") for load in loads)] for name in compared]
    return aligned(rows)


def _rate(rates: _Rates | None) -> str:
    return "" if rates is None else f"{median(rates):.1f}"


def _ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.lowest:.2f}-{ratio.highest:.2f})"


# ---- the command line ----------------------------------------------------------------------------


def _settings(options: Options) -> dict[str, Any]:
    told = asdict(options) | {"prompt_tokens": _PROMPT_TOKENS, "k_max": _K_MAX}
    # Paths are of one machine.
    return {name: value for name, value in told.items() if name not in {"json", "stock_python"}}


def _read(arguments: Sequence[str]) -> Options:
    start = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.bench.runtimes", description=__doc__)
    add = parser.add_argument
    add("--requests", type=at_least_1, help=f"of each client, a round (default {start.requests})")
    add("--rounds", type=at_least_1, help=f"default {start.rounds}")
    add("--tokens", type=at_least_1, help=f"default {start.tokens}")
    add("--concurrency", type=counts, metavar="N,N", help="default 1,8")
    add("--temperatures", type=_numbers, metavar="T,T", help="default 0,1")
    add("--threads", type=at_least_1, help=f"of one tensor operation (default {start.threads})")
    add("--dtype", choices=("bfloat16", "float32"), help="of vLLM's weights (default float32)")
    add("--stock-k", type=counts, metavar="K,K", help="drafts of vLLM's own server (default 2,4)")
    add("--stock-python", metavar="PYTHON", help="that has vLLM's own server (default: this one)")
    add("--only", type=_names, metavar="NAME,NAME", help="contenders, by the start of their names")
    add("--json", type=Path, metavar="FILE", help="write the figures as data too")
    given = vars(parser.parse_args(arguments))
    return Options(**{name: value for name, value in given.items() if value is not None})


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
