"""Renders the metrics page; knows the two text formats, not what is on the page.

What the client library renders, byte for byte, in a fraction of its time: the names and labels of a
sample never change, so their text is made once. A scrape shares the interpreter with the engine.
"""

from collections.abc import Iterator
from functools import lru_cache

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.utils import floatToGoString

__all__ = ["render"]

_MOST_TEXTS = 1 << 16
_OLD_NAMES = {"counter": ("_total", "counter"), "info": ("_info", "gauge")}
"""(suffix, type) by type, where the older format names a family as its samples."""


def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type, in the format that the Accept header asks for.

    No sample may have a timestamp or an exemplar, and no name a character that needs an escape:
    the colon of a sample's name stays, which both formats allow.
    """
    _, wanted = choose_encoder(accept)
    new = wanted.startswith("application/openmetrics-text")
    lines = [line for family in registry.collect() for line in _lines(family, new=new)]
    if new:
        lines.append("# EOF\n")
    page = "".join(lines).encode()
    return page, CONTENT_TYPE_LATEST if new else CONTENT_TYPE_PLAIN_0_0_4


def _lines(family: Metric, *, new: bool) -> Iterator[str]:
    yield _head(family.name, family.type, family.documentation, new)
    for sample in family.samples:
        start = _start(sample.name, tuple(sample.labels.items()))
        yield f"{start} {floatToGoString(sample.value)}\n"


@lru_cache(_MOST_TEXTS)
def _head(name: str, kind: str, documentation: str, new: bool) -> str:
    text = documentation.replace("\\", r"\\").replace("\n", r"\n")
    if new:
        text = text.replace('"', r"\"")
    else:
        suffix, kind = _OLD_NAMES.get(kind, ("", kind))
        name += suffix
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


@lru_cache(_MOST_TEXTS)
def _start(name: str, labels: tuple[tuple[str, str], ...]) -> str:
    """A sample's name and labels, these in order of their names."""
    if not labels:
        return name
    shown = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return f"{name}{{{shown}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
