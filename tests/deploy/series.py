"""What can be asked for: the names and labels on a metrics page, in recording rules, and of k6."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.promql import Selector

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules"
OF_TARGETS = frozenset({"job", "instance", "track"})
FROM_PROMETHEUS = frozenset({"up", "ALERTS"})
_TREND = re.compile(r"new (Trend|Counter|Rate)\('(\w+)'\)")
_SUFFIXES = {"Trend": ("_p95", "_p99", "_avg"), "Counter": ("_total",), "Rate": ("_rate",)}

Known = Mapping[str, Sequence[Mapping[str, str]]]
"""Label sets by the name of a sample."""


def on_page(text: str) -> Known:
    """What a metrics page in the text format has."""
    found = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append(sample.labels)
    return found


@cache
def of_load_scripts() -> set[str]:
    """Names under which k6 writes the metrics of deploy/k6 to Prometheus."""
    script = (DEPLOY / "k6" / "client.js").read_text("utf-8")
    return {
        f"k6_{name}{suffix}" for kind, name in _TREND.findall(script) for suffix in _SUFFIXES[kind]
    }


def rules() -> Iterator[dict]:
    """All rules, as they stand in the files."""
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            yield from group["rules"]


@cache
def recorded() -> set[str]:
    """Names that recording rules give."""
    return {rule["record"] for rule in rules() if "record" in rule}


def unknown(selector: Selector, known: Known) -> str | None:
    """Why nothing can ever answer this selector; None where something can. Labels of targets are
    left out: no page has them."""
    if selector.name in FROM_PROMETHEUS | recorded() | of_load_scripts():
        return None
    if selector.name not in known:
        return f"there is no {selector.name}"
    ours = frozenset(label for label, _, _ in selector.matchers) - OF_TARGETS
    if not any(selector.chooses(labels, ours) for labels in known[selector.name]):
        return f"no {selector.name} has {selector.matchers}"
    return None
