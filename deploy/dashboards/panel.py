"""What a dashboard is made of, as plain records; knows neither Grafana's JSON nor a metric."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Board", "Kind", "Panel", "Query", "Section", "Source", "Step"]


class Kind(Enum):
    """How a panel draws its series. SHARES and STACK lie on one another; SHARES add up to 1."""

    LINES = "lines"
    STACK = "stack"
    SHARES = "shares"
    STAT = "stat"


class Source(Enum):
    """Who brings the series: the server's own page, rules over it, or a load generator."""

    SERVER = "server"
    RULES = "rules"
    LOAD = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression and the name of its series. `limit`: it is not measured but wished for,
    and is drawn as such."""

    expr: str
    legend: str
    limit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`color` holds from the value `at` upwards; None is the lowest step."""

    color: str
    at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture.

    `description` says what it shows and what to do when it looks wrong. `unit` is Grafana's name of
    a unit. `width` is in columns of 24, `height` in rows of the grid; `bottom` and `top` are the
    ends of the axis, None where the data says. `colors` are those of series by name, where a color
    has a meaning. `quiet` says why a healthy server under load may
    show nothing but zeros here; None means that load must move it.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    width: int = 8
    height: int = 8
    bottom: float | None = 0.0
    top: float | None = None
    steps: tuple[Step, ...] = ()
    colors: Mapping[str, str] = field(default_factory=dict)
    quiet: str | None = None
    source: Source = Source.SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Panels under one heading, left to right and then down."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard. `uid` is its address in Grafana and the name of its file."""

    uid: str
    title: str
    description: str
    sections: tuple[Section, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in the order in which they stand."""
        return tuple(panel for section in self.sections for panel in section.panels)
