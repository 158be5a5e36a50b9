"""Keeps measured cost tables on disk, so that only the first start of a pair on a machine measures.

A file that cannot be used is as good as none: it is told of, and replaced. So is a folder that
cannot be written to: no start fails for it. Knows files; nothing of how a table is measured.
"""

import json
import logging
import math
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from scheduler.coordinate import digest_of
from scheduler.costs import CostTable

__all__ = ["CostCache", "processor"]

logger = logging.getLogger(__name__)

FORMAT = 2
_CPUINFO = Path("/proc/cpuinfo")


class _Kept(BaseModel):
    """What a file holds: the key in words, for people and against a file of another name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[2]
    key: dict[str, str | int | float | bool | None]
    table: CostTable


class CostCache:
    """Tables in `folder`, one file each. `key` is all that costs depend on; what it does not name
    must not change them."""

    def __init__(self, folder: Path, key: Mapping[str, str | float | None]) -> None:
        self._key = dict(key)
        text = json.dumps({"format": FORMAT, **self._key}, sort_keys=True)
        self.path = folder / f"costs-{digest_of(text)[:32]}.json"

    def load(self) -> CostTable | None:
        """The table, None where there is none that can be used."""
        try:
            kept = _Kept.model_validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as problem:
            logger.warning("costs are measured anew: %s: %s", self.path, _first_line(problem))
            return None
        if kept.key != self._key or not _finite(kept.table):
            logger.warning("costs are measured anew: %s: not of this pair", self.path)
            return None
        return kept.table

    def store(self, table: CostTable) -> bool:
        """Write the table, whole or not at all; whether that worked."""
        kept = {"format": FORMAT, "key": self._key, "table": asdict(table)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.path, json.dumps(kept, indent=1))
        except OSError as problem:
            logger.warning("costs are not kept: %s", problem)
            return False
        return True


def processor() -> str:
    """The CPU's name, as far as the system tells."""
    with suppress(OSError):
        for line in _CPUINFO.read_text("utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _replace(path: Path, text: str) -> None:
    """Readers see the old file or the new one. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _finite(table: CostTable) -> bool:
    curves = [table.step, table.catch_up, *(each.seconds for each in table.rounds)]
    times = [seconds for curve in curves for _, seconds in curve.points]
    return all(map(math.isfinite, [*times, table.row_key, table.draft_row_key]))


def _first_line(problem: Exception) -> str:
    if isinstance(problem, ValidationError):
        first = problem.errors(include_url=False, include_input=False)[0]
        return ".".join(map(str, first["loc"])) + " " + first["msg"]
    return str(problem)
