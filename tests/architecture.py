"""Reads source text and says where it breaks the architecture; imports none of what it reads.

A module is a dotted name and its syntax tree, so that rules can be tried on planted snippets.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

OURS = ("scheduler", "server", "telemetry", "deploy", "tests")

CORE_RECORDS = tuple(
    f"scheduler.{name}" for name in ("config", "errors", "events", "plan", "request", "runner")
)
EVERYTHING = ("scheduler", "telemetry", "deploy", "server")

# What of ours a room may import besides itself. The longest room that fits a module holds, and
# NAME.* means the room NAME without the rooms inside it.
ROOMS = {
    "scheduler": ("scheduler.*",),
    "scheduler.assembly": ("scheduler.*", "scheduler.proposers"),
    "scheduler.sampling": (),
    "scheduler.proposers": ("scheduler.*", "scheduler.sampling"),
    "scheduler.runtime": (*CORE_RECORDS, "scheduler.sampling"),
    "server": ("scheduler.*",),
    "server.cli": ("scheduler.*", "server", "telemetry.explain", "telemetry.explain_text"),
    "server.main": EVERYTHING,  # with the next one the composition root
    "server.assembly": EVERYTHING,
    "telemetry": tuple(f"scheduler.{name}" for name in ("stats", "events", "plan", "request")),
    "deploy": ("scheduler", "server"),
    "tests": OURS,
}

# What the core may not reach for: tensors, an event loop, a clock, chance, the system, threads.
NOT_IN_CORE = {
    *("torch", "numpy", "transformers", "asyncio", "time", "random", "secrets", "datetime"),
    *("os", "threading", "concurrent", "multiprocessing", "socket", "subprocess"),
}
ENGINE_MAY = {"asyncio", "concurrent"}
LAZY_ALLOWED = {"server.cli", "server.main", "scheduler.runtime.create"}
# The K/V shim, the loader, norms, the forward with its fixed calls, and a pair over several
# processes from either side.
VLLM_ALLOWED = {
    f"scheduler.runtime.vllm_{name}"
    for name in ("call", "fixed", "forward", "kv", "loading", "norms", "parallel", "worker")
}
ENVIRONMENT_READER = "server.settings"
ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
EMPTY_NAMES = {"util", "utils", "common", "helper", "helpers", "misc", "manager", "managers"}

MAX_FUNCTION, MAX_CLASS, MAX_FILE, MAX_PARAMETERS = 40, 250, 400, 6

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One source file under its dotted name."""

    name: str
    source: str
    tree: ast.Module
    package: bool = False

    @property
    def core(self) -> bool:
        """Whether it is one of the files that decide: directly in scheduler/."""
        return self.name.startswith("scheduler.") and self.name.count(".") == 1 and not self.package


@dataclass(frozen=True)
class Arrow:
    """`source` imports `target`, a module or a name in it; `local` in a function or by a call."""

    source: str
    target: str
    line: int
    local: bool

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: imports {self.target}"


def module(name: str, source: str, *, package: bool = False) -> Module:
    """A module of source text."""
    return Module(name, source, ast.parse(source), package)


def read_modules(root: Path, rooms: Iterable[str]) -> dict[str, Module]:
    """All modules of these top-level folders, by dotted name."""
    found = {}
    for room in rooms:
        for path in sorted((root / room).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if package else parts)
            found[name] = module(name, path.read_text(encoding="utf-8"), package=package)
    return found


# ---- imports -----------------------------------------------------------------------------------


def arrows(each: Module) -> list[Arrow]:
    """Every import, wherever it stands: at the top, in a function, for type checkers, by name."""
    return [
        Arrow(each.name, target, node.lineno, local)
        for node, local in _walk(each.tree, local=False)
        for target, local in _targets(node, local)
    ]


def _walk(node: ast.AST, *, local: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes, each with whether it stands inside a function."""
    for child in ast.iter_child_nodes(node):
        yield child, local
        inside = local or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from _walk(child, local=inside)


def _targets(node: ast.AST, local: bool) -> Iterator[tuple[str, bool]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, local) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        stem = "." * node.level + (node.module or "")
        yield from ((f"{stem}.{alias.name}", local) for alias in node.names)
    elif isinstance(node, ast.Call):
        yield from ((target, True) for target in _called(node))


def _called(node: ast.Call) -> Iterator[str]:
    """Modules that a call imports by name, also where import_module is itself an argument."""
    if any(_last_name(part) in {"import_module", "__import__"} for part in (node.func, *node.args)):
        for part in node.args:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def _last_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def _room(name: str) -> str:
    return max((room for room in ROOMS if _within(name, room)), key=len)


def _allows(pattern: str, target: str) -> bool:
    """`scheduler.*` is the core alone: not the rooms inside, which have rules of their own."""
    if pattern.endswith(".*"):
        return _room(target) == pattern.removesuffix(".*")
    return _within(target, pattern)


def broken_arrows(each: Module) -> list[str]:
    """Imports of ours that the picture does not have, and relative ones."""
    room = _room(each.name)
    allowed = (*ROOMS[room], f"{room}.*")
    return [
        str(arrow)
        for arrow in arrows(each)
        if arrow.target.startswith(".")
        or (
            arrow.target.split(".")[0] in OURS
            and not any(_allows(pattern, arrow.target) for pattern in allowed)
        )
    ]


def impure_core(each: Module) -> list[str]:
    """Imports of a core file that bring in what has to come as an argument."""
    if not each.core:
        return []
    allowed = ENGINE_MAY if each.name == "scheduler.engine" else set()
    return [
        str(arrow) for arrow in arrows(each) if arrow.target.split(".")[0] in NOT_IN_CORE - allowed
    ]


def stray_vllm(each: Module) -> list[str]:
    """Imports of vLLM outside the modules that drive it."""
    if each.name.startswith("tests") or each.name in VLLM_ALLOWED:
        return []
    return [str(arrow) for arrow in arrows(each) if _within(arrow.target, "vllm")]


def lazy_imports(each: Module) -> list[str]:
    """Imports inside functions, except where a backend is picked or --help must be quick."""
    if each.name in LAZY_ALLOWED or each.name.startswith("tests"):
        return []
    return [str(arrow) for arrow in arrows(each) if arrow.local]


def cycles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Groups of modules that import each other in a circle."""
    graph = {
        name: {target for arrow in arrows(each) for target in _resolved(arrow, modules)} - {name}
        for name, each in modules.items()
    }
    reach = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset(n for n in reach[name] if name in reach[n]) for name in graph}
    return sorted(sorted(group) for group in groups if group)


def _resolved(arrow: Arrow, modules: Mapping[str, Module]) -> Iterator[str]:
    """The module that an arrow ends at, if it is one of these."""
    for name in (arrow.target, arrow.target.rpartition(".")[0]):
        if name in modules:
            yield name
            return


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(graph[start])
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo.extend(graph[name])
    return seen


# ---- the environment, sizes and names ------------------------------------------------------------


def environment_reads(each: Module) -> list[str]:
    """Places that look at the environment, outside the settings."""
    if each.name == ENVIRONMENT_READER or each.name.startswith("tests"):
        return []
    attributes = [
        f"{each.name}:{node.lineno}: os.{node.attr}"
        for node in ast.walk(each.tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ENVIRONMENT
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    names = {f"os.{name}" for name in ENVIRONMENT}
    return attributes + [str(arrow) for arrow in arrows(each) if arrow.target in names]


def over_budget(each: Module) -> list[str]:
    """Functions, classes and files that are too long, and functions with too many parameters."""
    found = []
    room = each.name.split(".")[0]
    limit = MAX_PARAMETERS if room != "tests" else None  # a test asks for its fixtures
    lines = len(each.source.splitlines())
    if lines > MAX_FILE:
        found.append(f"{each.name}: {lines} lines in a file")
    for node in ast.walk(each.tree):
        if isinstance(node, ast.ClassDef) and _lines(node) > MAX_CLASS:
            found.append(f"{each.name}:{node.lineno}: {_lines(node)} lines in class {node.name}")
        if isinstance(node, Function):
            found += [
                f"{each.name}:{node.lineno}: {text}" for text in _function_faults(node, limit)
            ]
    return found


def _function_faults(node: Function, limit: int | None) -> Iterator[str]:
    if _lines(node) > MAX_FUNCTION:
        yield f"{_lines(node)} lines in {node.name}"
    count = _parameters(node)
    if limit is not None and count > limit:
        yield f"{count} parameters of {node.name}"


def _lines(node: Function | ast.ClassDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _parameters(node: Function) -> int:
    """Parameters without `self` or `cls`."""
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    starred = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    bound = bool(named) and named[0].arg in {"self", "cls"}
    return len(named) + len(starred) - bound


def empty_names(each: Module) -> list[str]:
    """Modules whose name says nothing of their job."""
    return [each.name for part in each.name.split(".") if part in EMPTY_NAMES]
