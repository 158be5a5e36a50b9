"""Describes the machine, the process and the software. Reads, and measures no speed."""

import os
import platform
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tests.bench.figures import Machine, Versions

_TELLING_FLAGS = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd")
_ROOT = Path(__file__).resolve().parents[2]
# Field 22 of /proc/PID/stat; the 2 before it end with the parenthesis of the name (proc(5)).
_START_AFTER_NAME = 19


def describe_machine() -> Machine:
    """The machine as this process sees it."""
    about = _fields(Path("/proc/cpuinfo"))
    flags = set(about.get("flags", about.get("Features", "")).split())
    return Machine(
        cpu=about.get("model name", platform.processor() or platform.machine()),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)),
        flags=tuple(flag for flag in _TELLING_FLAGS if flag in flags),
        memory_gib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30,
        load=os.getloadavg()[0],
    )


def describe_versions() -> Versions:
    """The software, without importing any of it."""
    return Versions(
        fencepost=_version("fencepost"),
        revision=_git("rev-parse", "--short", "HEAD") or None,
        changed=len((_git("status", "--porcelain") or "").splitlines()),
        python=platform.python_version(),
        torch=_version("torch"),
        transformers=_version("transformers"),
    )


def process_age() -> float:
    """Seconds since this process started, to about 10 ms."""
    after_name = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    started = int(after_name[_START_AFTER_NAME]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def peak_rss_mib() -> float:
    """The most memory that this process held at any moment."""
    # getrusage would count what the parent held before this process was born.
    return int(_fields(Path("/proc/self/status"))["VmHWM"].split()[0]) / 1024


def _fields(path: Path) -> dict[str, str]:
    """`name: value` lines of a file; the first of equal names counts."""
    found: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _git(*arguments: str) -> str | None:
    """What git says of this checkout, None where there is no git or no checkout."""
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run(
        [git, "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None
