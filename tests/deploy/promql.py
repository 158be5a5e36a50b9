"""Takes PromQL apart with a parser that is not ours: which series and windows it names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import promql_parser

_WINDOW = "$__rate_interval"
_STAND_IN = "59s"  # nobody writes this window by hand
_SERIES = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """One selector: a metric's name and its matchers as (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def chooses(self, labels: Mapping[str, str], ours: frozenset[str]) -> bool:
        """Whether a sample with these labels fits the matchers of labels in `ours`."""
        return all(
            _fits(labels.get(label, ""), operator, value)
            for label, operator, value in self.matchers
            if label in ours
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All selectors of an expression, its windows, and the labels that it groups by."""

    selectors: tuple[Selector, ...]
    windows: frozenset[str]
    grouped: frozenset[str]


def parts(expr: str) -> Parts:
    """Take `expr` apart. Raises ValueError where it does not parse."""
    tree = promql_parser.parse(expr.replace(_WINDOW, _STAND_IN))
    selectors, windows, grouped = [], set(), set()

    def visit(node: object) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append(_selector(node))
        elif isinstance(node, promql_parser.MatrixSelector):
            selectors.append(_selector(node.vector_selector))
            window = promql_parser.display_duration(node.range)
            windows.add(_WINDOW if window == _STAND_IN else window)
        elif isinstance(node, promql_parser.AggregateExpr) and _by(node.modifier):
            grouped.update(node.modifier.labels)

    promql_parser.walk(tree, visit)
    return Parts(
        selectors=tuple(dict.fromkeys(selectors)),
        windows=frozenset(windows),
        grouped=frozenset(grouped),
    )


def named(legend: str) -> set[str]:
    """The labels that a legend shows."""
    return set(_SERIES.findall(legend))


def _selector(node: promql_parser.VectorSelector) -> Selector:
    matchers = tuple((m.name, _operator(m.op), m.value) for m in node.matchers.matchers)
    return Selector(name=node.name, matchers=matchers)


def _by(modifier: promql_parser.AggModifier | None) -> bool:
    return modifier is not None and modifier.type == promql_parser.AggModifierType.By


def _operator(op: object) -> str:
    return {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}[str(op).split(".")[-1]]


def _fits(have: str, operator: str, value: str) -> bool:
    found = have == value if "~" not in operator else re.fullmatch(value, have) is not None
    return found is not operator.startswith("!")
