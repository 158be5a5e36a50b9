"""The command line: parses flags, starts what was asked for; imports nothing heavy for --help."""

import argparse
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import ByteSize
from pydantic.fields import FieldInfo

from scheduler.errors import ConfigRefused
from server.settings import Settings, SettingsError, load_settings
from server.version import version

__all__ = ["main"]

_TOOLS = {"bench": "tests.bench", "pair": "deploy.pair"}
_EPILOG = (
    "Every flag can also be given as an environment variable (FENCEPOST_ and the name in capital "
    "letters, as in FENCEPOST_MAX_REQUESTS) or as a key of the TOML file that --config names. "
    "Flags win over variables, variables over the file."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given and given[0] in _TOOLS:
        return _run_tool(given[0], given[1:])
    if given and given[0] == "ledger":
        return _ledger(given[1:])
    parsed = vars(_parser().parse_args(given))
    command = parsed.pop("command")
    if command == "version":
        _say(f"fencepost {version()}")
        return 0
    return _explain(**parsed) if command == "explain" else _serve(parsed)


def _serve(flags: dict[str, object]) -> int:
    try:
        settings = load_settings(flags)
        # Imported only now: it brings torch, which --help and bad settings need not wait for.
        status: int = importlib.import_module("server.main").serve(settings)
    except (SettingsError, ConfigRefused) as problem:
        sys.stderr.write(f"fencepost: cannot start: {problem}\n")
        return 2
    return status


def _explain(log: list[str], by: str | None, *, json: bool) -> int:
    # Like the server, only now: nobody else waits for it.
    reader = importlib.import_module("telemetry.explain")
    shown = importlib.import_module("telemetry.explain_text")
    try:
        report = reader.explain(log, sys.stdin.buffer, by)
    except reader.Unreadable as problem:
        sys.stderr.write(f"fencepost: cannot explain {problem}\n")
        return 2
    _say(dumps(shown.as_data(report)) if json else shown.as_text(report))
    status: int = report.status
    return status


def _ledger(arguments: list[str]) -> int:
    status: int = importlib.import_module("server.ledger.command").run(arguments, _draw)
    return status


def _draw(inputs: object, figures: object, path: Path) -> None:
    """Imported only when a picture is asked for: matplotlib is heavy, and optional."""
    importlib.import_module("server.ledger.plot").draw(inputs, figures, path)


def _run_tool(name: str, arguments: list[str]) -> int:
    """Run a module as a program; an installed package does not bring all of them."""
    module = f"{_TOOLS[name]}.__main__"
    if not _exists(module):
        sys.stderr.write(f"fencepost: {name} needs the source tree: {module} is not here\n")
        return 2
    sys.argv = [f"fencepost {name}", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fencepost", description="Serves language models with exact speculative decoding."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="start the HTTP server",
        usage="fencepost serve [FLAG ...]",
        description="Start the HTTP server, by default with the embedded model pair.",
        epilog=_EPILOG,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for name, field in Settings.model_fields.items():
        _add_flag(serve, name, field)
    _refuse_adapters(serve)
    _add_explain(commands)
    commands.add_parser("bench", help="measure this engine on model pairs (source tree only)")
    commands.add_parser(
        "pair", help="train and evaluate the embedded pair (from an installed package too)"
    )
    commands.add_parser("ledger", help="say what speculation is worth at each K, and which is best")
    commands.add_parser("version", help="print the version")
    return parser


def _add_explain(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    explain = commands.add_parser(
        "explain",
        help="check an acceptance log and say where acceptance was lost",
        description="Check the arithmetic of every record of an acceptance log (serve "
        "--acceptance-log FILE) and say where acceptance was lost.",
        epilog="Exit status: 0 when every record checks, 1 when one does not or a line is "
        "malformed, 2 when a log cannot be read.",
        allow_abbrev=False,
    )
    explain.add_argument(
        "log", nargs="+", metavar="LOG", help="file, rotated ones too in any order; - reads stdin"
    )
    explain.add_argument(
        "--by", choices=("policy", "domain", "proposer", "k"), help="figures by one of these"
    )
    explain.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _add_flag(parser: argparse.ArgumentParser, name: str, field: FieldInfo) -> None:
    flag = f"--{name.replace('_', '-')}"
    text = f"{field.description}{_default(field)}".replace("%", "%%")
    if field.annotation is bool:
        parser.add_argument(flag, help=text, action=argparse.BooleanOptionalAction)
        return
    parser.add_argument(flag, dest=name, help=text, metavar=_metavar(field))


def _default(field: FieldInfo) -> str:
    default = field.default
    return "" if default is None or default in {(), False} else f" (default: {default})"


def _metavar(field: FieldInfo) -> str:
    """The choices of a literal, else a word for the kind of value."""
    kinds = _kinds(field.annotation)
    if get_origin(kinds[0]) is Literal:
        return "|".join(map(str, get_args(kinds[0])))
    if get_origin(kinds[0]) is tuple:
        return "A,B,..."
    words = {int: "N", float: "NUMBER", ByteSize: "BYTES", Path: "PATH"}
    return words.get(kinds[0], "TEXT") + ("|auto" if len(kinds) > 1 else "")


def _kinds(annotation: object) -> list[Any]:
    """The types of a union but None, without what constrains them."""
    if get_origin(annotation) is Annotated:
        return _kinds(get_args(annotation)[0])
    if get_origin(annotation) in {Union, UnionType}:
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    return [] if annotation is NoneType else [annotation]


class _RefuseAdapters(argparse.Action):
    """Names what is not there instead of an unknown flag."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,  # noqa: ARG002 - the library's signature
        values: object,  # noqa: ARG002
        option_string: str | None = None,
    ) -> None:
        parser.error(f"{option_string}: LoRA adapters are not supported; merge them first")


def _refuse_adapters(parser: argparse.ArgumentParser) -> None:
    for flag in ("--enable-lora", "--lora-modules"):
        parser.add_argument(flag, nargs="*", action=_RefuseAdapters, help=argparse.SUPPRESS)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
