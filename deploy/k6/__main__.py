"""`make load`: runs one load script against a local server, or against one that runs already."""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from deploy.k6.local_server import NotServing, local_server

SCRIPTS = ("smoke", "rate", "ramp", "soak", "cancel")
_HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one script; returns k6's exit status (0, or 99 when a threshold was missed)."""
    parser = argparse.ArgumentParser(
        prog="make load",
        description="Load a server with k6. What is not listed here goes to k6, as in "
        "-e RATE=4; deploy/k6/settings.js lists the variables.",
        allow_abbrev=False,
    )
    parser.add_argument("script", nargs="?", default="smoke", choices=SCRIPTS)
    parser.add_argument("--url", help="address of a server that runs (default: one is started)")
    parser.add_argument(
        "--server", default="", metavar="FLAGS", help="flags of the server that is started"
    )
    known, rest = parser.parse_known_args(arguments)
    k6 = _k6()
    if k6 is None:
        sys.stderr.write("load: there is no k6 here; on Linux and x86-64, make env brings it\n")
        return 2
    flags = ["--log-level", "warning", *shlex.split(known.server)]
    try:
        with nullcontext(known.url) if known.url else local_server(flags) as url:
            return _run(k6, known.script, url, rest)
    except NotServing as problem:
        sys.stderr.write(f"load: {problem}\n")
        return 2


def _k6() -> str | None:
    """The one of this environment, else the one on the path."""
    beside = Path(sys.executable).with_name("k6")
    return str(beside) if beside.exists() else shutil.which("k6")


def _run(k6: str, script: str, url: str, rest: Sequence[str]) -> int:
    command = [k6, "run", "--quiet", "--no-usage-report", "-e", f"BASE_URL={url}", *rest]
    return subprocess.run([*command, str(_HERE / f"{script}.js")], check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
