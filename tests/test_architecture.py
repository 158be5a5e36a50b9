"""Holds the picture of the architecture, and shows on planted snippets that each rule bites."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import (
    OURS,
    arrows,
    broken_arrows,
    cycles,
    empty_names,
    environment_reads,
    impure_core,
    lazy_imports,
    module,
    over_budget,
    read_modules,
    stray_vllm,
)

ROOT = Path(__file__).resolve().parent.parent
MODULES = read_modules(ROOT, OURS)
SHIPPED = {name: each for name, each in MODULES.items() if not name.startswith("tests")}


def found(rule, modules=SHIPPED):
    """What a rule says of the whole tree."""
    return [fault for each in modules.values() for fault in rule(each)]


# ---- the tree as it is ---------------------------------------------------------------------------


def test_the_tree_was_found():
    assert {"scheduler.engine", "server.settings", "telemetry.sink", "deploy.pair"} <= set(SHIPPED)


def test_imports_follow_the_arrows():
    assert found(broken_arrows) == []


def test_core_takes_clock_chance_and_tensors_as_arguments():
    assert found(impure_core) == []


def test_only_its_own_modules_import_vllm():
    assert found(stray_vllm) == []


def test_imports_stand_at_the_top():
    assert found(lazy_imports) == []


def test_no_module_imports_itself_in_a_circle():
    assert cycles(MODULES) == []


def test_only_the_settings_read_the_environment():
    assert found(environment_reads) == []


def test_sizes_are_within_budget():
    assert found(over_budget, MODULES) == []


def test_every_name_says_a_job():
    assert found(empty_names, MODULES) == []


@pytest.mark.parametrize(
    ("name", "unwanted"),
    [
        ("scheduler.scheduler", {"torch", "numpy", "asyncio", "transformers"}),
        ("server.cli", {"torch", "transformers", "fastapi"}),
        ("telemetry.sink", {"torch", "numpy", "transformers"}),
    ],
)
def test_importing_brings_nothing_heavy(name, unwanted):
    program = f"import sys, {name}; print(*{unwanted!r} & set(sys.modules))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# ---- planted faults ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("scheduler.plan", "from scheduler.sampling.rng import key"),
        ("scheduler.plan", "from scheduler.runtime import rows"),
        ("scheduler.engine", "import scheduler.proposers.ngram"),
        ("scheduler.engine", "from telemetry.sink import PrometheusSink"),
        ("scheduler.engine", "from server.settings import Settings"),
        ("scheduler.sampling.verify", "from scheduler.plan import Group"),
        ("scheduler.sampling.verify", "from scheduler import errors"),
        ("scheduler.runtime.round", "from scheduler.scheduler import Scheduler"),
        ("scheduler.runtime.round", "from scheduler.commit import stage"),
        ("scheduler.proposers.ngram", "from scheduler.runtime.rows import pack"),
        ("scheduler.assembly", "from scheduler.runtime.create import create_runner"),
        ("server.routes.chat", "from scheduler.runtime.create import create_runner"),
        ("server.routes.chat", "from scheduler.assembly import build_engine"),
        ("server.routes.chat", "from server.assembly import load"),
        ("server.routes.chat", "from server.main import serve"),
        ("server.routes.chat", "from telemetry.metrics import Metrics"),
        ("server.cli", "from telemetry.metrics import Metrics"),
        ("server.routes.chat", "from deploy.pair import TARGET"),
        ("telemetry.sink", "from scheduler.scheduler import Scheduler"),
        ("telemetry.sink", "from scheduler.config import EngineConfig"),
        ("telemetry.sink", "from server.settings import Settings"),
        ("deploy.pair.train", "from telemetry.metrics import Metrics"),
        ("deploy.pair.train", "from tests.bench import load"),
        ("server.main", "from tests.oracles import rows"),
        ("server.app", "from . import api"),
        ("scheduler.plan", "from .request import Request"),
        ("scheduler.plan", "def f():\n    from scheduler.runtime import rows"),
        ("scheduler.plan", "if TYPE_CHECKING:\n    from scheduler.runtime import rows"),
        ("scheduler.plan", "importlib.import_module('scheduler.runtime.rows')"),
    ],
)
def test_an_arrow_that_is_not_in_the_picture_is_found(name, line):
    assert broken_arrows(module(name, line))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("scheduler.engine", "from scheduler.stats import StepStats"),
        ("scheduler.engine", "from scheduler import events"),
        ("scheduler.runtime.round", "from scheduler.sampling.rng import key"),
        ("scheduler.runtime.round", "from scheduler.runtime.rows import pack"),
        ("scheduler.runtime.round", "from scheduler.plan import RoundPlan"),
        ("scheduler.proposers.ngram", "from scheduler.proposal import Proposer"),
        ("scheduler.assembly", "from scheduler.proposers.ngram import NgramProposer"),
        ("server.routes.chat", "from scheduler.request import Request"),
        ("server.routes.chat", "from server.errors import refusal"),
        ("server.cli", "importlib.import_module('server.main')"),
        ("server.cli", "importlib.import_module('telemetry.explain')"),
        ("server.main", "from telemetry.sink import PrometheusSink"),
        ("server.main", "from scheduler.assembly import build_engine"),
        ("server.assembly", "from scheduler.runtime.create import create_runner"),
        ("telemetry.sink", "from telemetry.metrics import Metrics"),
        ("telemetry.sink", "import schedulers.other"),
        ("tests.bench.load", "from scheduler.runtime.create import create_runner"),
    ],
)
def test_an_arrow_of_the_picture_is_left_alone(name, line):
    assert broken_arrows(module(name, line)) == []


@pytest.mark.parametrize(
    ("name", "line", "faults"),
    [
        ("scheduler.commit", "import torch", 1),
        ("scheduler.commit", "from numpy.random import default_rng", 1),
        ("scheduler.commit", "import asyncio", 1),
        ("scheduler.commit", "import time, random", 2),
        ("scheduler.commit", "def f():\n    import os.path", 1),
        ("scheduler.engine", "import torch", 1),
        ("scheduler.engine", "import asyncio", 0),
        ("scheduler.engine", "from concurrent.futures import ThreadPoolExecutor", 0),
        ("scheduler.runtime.round", "import torch", 0),
        ("scheduler.commit", "import torchlike", 0),
    ],
)
def test_impurity_of_the_core_is_found(name, line, faults):
    assert len(impure_core(module(name, line))) == faults


def test_vllm_outside_its_modules_is_found():
    line = "from vllm.config import VllmConfig"
    assert stray_vllm(module("scheduler.runtime.round", line))
    assert stray_vllm(module("scheduler.runtime.vllm_choice", line))
    assert stray_vllm(module("scheduler.runtime.vllm_forward", line)) == []


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import json",
        "async def f():\n    from json import dumps",
        "class A:\n    def f(self):\n        if self:\n            import json",
        "json = importlib.import_module('json')",
        "json = __import__('json')",
        "run(importlib.import_module, 'json')",
    ],
)
def test_an_import_below_the_top_is_found(source):
    assert lazy_imports(module("scheduler.plan", source))
    assert lazy_imports(module("scheduler.runtime.create", source)) == []


def test_imports_at_the_top_are_left_alone():
    source = "import json\nif TYPE_CHECKING:\n    from decimal import Decimal\n"
    assert lazy_imports(module("scheduler.plan", source)) == []


@pytest.mark.parametrize(
    "closing",
    [
        "from scheduler.a import x",
        "from scheduler import a",
        "import scheduler.a",
        "def f():\n    from scheduler.a import x",
        "if TYPE_CHECKING:\n    from scheduler.a import x",
        "importlib.import_module('scheduler.a')",
    ],
)
def test_a_circle_is_found(closing):
    sources = {
        "scheduler.a": "from scheduler.b import y",
        "scheduler.b": "from scheduler.c import z",
        "scheduler.c": closing,
        "scheduler.d": "from scheduler.a import x",
    }
    modules = {name: module(name, source) for name, source in sources.items()}
    assert cycles(modules) == [["scheduler.a", "scheduler.b", "scheduler.c"]]
    del modules["scheduler.c"]
    assert cycles(modules) == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nport = os.environ['PORT']",
        "import os\nport = os.getenv('PORT')",
        "from os import environ",
        "from os import getenv as read",
        "def f():\n    os.putenv('A', 'b')",
    ],
)
def test_a_look_at_the_environment_is_found(source):
    assert environment_reads(module("server.cli", source))
    assert environment_reads(module("server.settings", source)) == []


def test_budgets_bite_one_past_the_limit():
    def function(lines):
        return "def f():\n" + "    pass\n" * (lines - 1)

    def many(count, head="def f("):
        return head + ", ".join(f"p{n}" for n in range(count)) + "): pass\n"

    def own_class(lines):
        return "class A:\n" + "    x = 1\n" * (lines - 1)

    limits = [(function, 40), (many, 6), (own_class, 250), ("x = 1\n".__mul__, 400)]
    for source, limit in limits:
        assert over_budget(module("server.app", source(limit))) == []
        assert len(over_budget(module("server.app", source(limit + 1)))) == 1
    method = "class A:\n    async def f(self, a, b, c, *, d, e, f): pass\n"
    assert over_budget(module("server.app", method)) == []
    assert over_budget(module("server.app", method.replace("f)", "f, g)")))
    assert over_budget(module("server.app", method.replace("f)", "f, **rest)")))
    assert over_budget(module("tests.test_app", method.replace("f)", "f, g)"))) == []
    assert over_budget(module("tests.test_app", function(41)))


def test_names_that_say_nothing_are_found():
    for name in ("server.utils", "scheduler.helpers.rows", "telemetry.manager"):
        assert empty_names(module(name, ""))
    assert empty_names(module("server.utility_bills", "")) == []


def test_arrows_keep_line_and_place():
    source = "import json\n\ndef f():\n    from os import path\n"
    seen = [
        (arrow.target, arrow.line, arrow.local) for arrow in arrows(module("server.app", source))
    ]
    assert seen == [("json", 1, False), ("os.path", 4, True)]
