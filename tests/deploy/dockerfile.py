"""Reads a Dockerfile and a .dockerignore as far as ours go; builds nothing."""

import json
import re
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


@dataclass
class Stage:
    """One stage: what it starts from, and its instructions in order as (name, rest)."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        """The rest of each instruction of this name."""
        return [rest for name, rest in self.instructions if name == instruction]


def read_stages(path: Path) -> dict[str, Stage]:
    """The stages by name, in order."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text("utf-8"), flags=re.MULTILINE)
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n", "", text).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            stages[stage] = current = Stage(base, stage)
        elif name:
            current.instructions.append((name, rest.strip()))
    return stages


def lineage(stages: dict[str, Stage], name: str) -> list[Stage]:
    """The stage and those it starts from, the first one first."""
    base = stages[name].base
    return [*(lineage(stages, base) if base in stages else []), stages[name]]


def variables(stages: list[Stage]) -> dict[str, str]:
    """What ENV and ARG set, quotes taken off."""
    pairs = [
        pair
        for stage in stages
        for name, rest in stage.instructions
        if name in {"ENV", "ARG"}
        for pair in re.findall(r'(\w+)=("[^"]*"|\S+)', rest)
    ]
    return {name: value.strip('"') for name, value in pairs}


def last(stages: list[Stage], instruction: str) -> str:
    """The rest of the instruction that counts, where later ones replace earlier ones."""
    return [rest for stage in stages for rest in stage.all(instruction)][-1]


def command(text: str) -> list[str]:
    """An instruction in exec form, as HEALTHCHECK, ENTRYPOINT and CMD have it."""
    return json.loads(text[text.index("[") :])


def shell(run: str) -> str:
    """What a RUN gives to the shell."""
    return re.sub(r"^(--\S+\s+)+", "", run)


def context(root: Path) -> list[Path]:
    """The files that .dockerignore lets through, relative to `root`."""
    lines = (root / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    dropped = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    if len(kept) + len(dropped) != len(rules) - 1 or rules[0] != "*":
        raise ValueError("a .dockerignore of another kind")
    found = []
    for name in kept:
        place = root / name
        found += [place] if place.is_file() else [p for p in place.rglob("*") if p.is_file()]
    return sorted(
        path.relative_to(root)
        for path in found
        if not any(fnmatch(part, rule) for part in path.relative_to(root).parts for rule in dropped)
    )
