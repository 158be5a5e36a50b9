"""Collects the training documents from permissively licensed text already installed."""

import hashlib
import itertools
import platform
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

__all__ = ["Document", "Source", "collect", "is_heldout", "source_tables", "stdlib_source"]

_DOCS_PACKAGE = "python3.11-doc"
_DOCS_ROOT = Path("/usr/share/doc/python3.11/html/_sources")
_SKIPPED_PARTS = frozenset(
    {"test", "tests", "idlelib", "lib2to3", "site-packages", "turtledemo", "encodings"}
    | {"pydoc_data", "_bundled", "__pycache__"}
)
_MIN_CHARS = 200
_MAX_CHARS = 250_000
_HELDOUT_ONE_IN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One body of text: where it comes from and on what terms it may be used."""

    name: str
    root: Path
    pattern: str
    version: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file's text; `name` is stable over machines and decides the split."""

    name: str
    text: str

    @property
    def heldout(self) -> bool:
        """Whether the document is kept out of training."""
        return is_heldout(self.name)


def is_heldout(name: str) -> bool:
    """Tell by a stable hash of `name` whether the document is for evaluation (about 2%)."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "big") % _HELDOUT_ONE_IN == 0


def stdlib_source() -> Source:
    """Describe the running interpreter's standard library."""
    return Source(
        name="cpython-stdlib",
        root=Path(sysconfig.get_path("stdlib")),
        pattern="*.py",
        version=platform.python_version(),
        licence="PSF-2.0",
    )


def source_tables() -> tuple[Source, ...]:
    """List every source with its version as installed here."""
    docs = Source(
        name=_DOCS_PACKAGE,
        root=_DOCS_ROOT,
        pattern="*.rst.txt",
        version=_docs_version(),
        licence="PSF-2.0",
    )
    return (stdlib_source(), docs, *_package_sources())


def collect(sources: tuple[Source, ...], limit: int | None = None) -> list[Document]:
    """Read the documents of `sources`, in a fixed order and each text only once.

    `limit` stops after that many documents.
    """
    return list(itertools.islice(_distinct(sources), limit))


def _distinct(sources: tuple[Source, ...]) -> Iterator[Document]:
    seen: set[str] = set()
    for source in sources:
        for document in _read_source(source):
            if document.text not in seen:
                seen.add(document.text)
                yield document


def _package_sources() -> Iterator[Source]:
    licences = {
        "fastapi": "MIT",
        "starlette": "BSD-3-Clause",
        "pydantic": "MIT",
        "uvicorn": "BSD-3-Clause",
        "click": "BSD-3-Clause",
        "jinja2": "BSD-3-Clause",
        "h11": "MIT",
    }
    purelib = Path(sysconfig.get_path("purelib"))
    for name, licence in licences.items():
        yield Source(
            name=name,
            root=purelib / name,
            pattern="*.py",
            version=metadata.version(name),
            licence=licence,
        )


def _docs_version() -> str:
    if not _DOCS_ROOT.is_dir():
        message = f"the Debian package {_DOCS_PACKAGE} is not installed"
        raise FileNotFoundError(message)
    conf = _DOCS_ROOT.parent / "about.html"
    found = re.search(r"(\d+\.\d+\.\d+) Documentation", conf.read_text(encoding="utf-8"))
    return found.group(1) if found else "3.11"


def _read_source(source: Source) -> Iterator[Document]:
    for path in sorted(source.root.rglob(source.pattern)):
        relative = path.relative_to(source.root)
        if not _is_wanted(relative):
            continue
        text = _read_text(path)
        if text is not None and _MIN_CHARS <= len(text) <= _MAX_CHARS:
            yield Document(name=f"{source.name}/{relative.as_posix()}", text=text)


def _is_wanted(relative: Path) -> bool:
    # Generated build settings would carry paths of the machine that built the interpreter.
    generated = relative.name.startswith(("_sysconfigdata", "changelog"))
    return not generated and not _SKIPPED_PARTS.intersection(relative.parts)


def _read_text(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
    lines = (line.rstrip() for line in text.expandtabs(4).split("\n"))
    return "\n".join(lines).strip() + "\n"
