"""Says what is wrong with a dashboard's JSON; knows nothing of how it was made."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from tests.deploy.promql import Parts, named, parts
from tests.deploy.series import FROM_PROMETHEUS, OF_TARGETS, Known, unknown

UNITS = {"percentunit", "s", "short", "none", "reqps", "ops", "bytes", "Bps"}
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WINDOW = "$__rate_interval"
SCOPE = {("job", "=~", "$job"), ("instance", "=~", "$instance")}
LEAST_WORDS = 12


def faults(dashboard: dict, known: Known) -> list[str]:
    """Everything that is wrong, each with the title of its panel."""
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    found = [*_twins(dashboard, panels), *_overlaps(dashboard["panels"]), *_variables(dashboard)]
    for panel in panels:
        found += [f"{panel.get('title')}: {text}" for text in _panel(panel)]
        for target in panel["targets"]:
            found += [f"{panel.get('title')}: {text}" for text in _target(target, known)]
    return found


def _twins(dashboard: dict, panels: list[dict]) -> Iterator[str]:
    ids = [panel.get("id") for panel in dashboard["panels"]]
    yield from (f"id {each} stands twice" for each in _repeated(ids))
    yield from (f"title {each} stands twice" for each in _repeated(p.get("title") for p in panels))
    for panel in panels:
        names = [target.get("refId") for target in panel["targets"]]
        yield from (f"{panel['title']}: refId {each} stands twice" for each in _repeated(names))
    if None in ids or dashboard.get("id") is not None:
        yield "panels have an id, the dashboard none of its own"


def _repeated(values) -> list:
    return [value for value, count in Counter(values).items() if count > 1]


def _overlaps(panels: list[dict]) -> Iterator[str]:
    for panel in panels:
        box = panel["gridPos"]
        if box["x"] + box["w"] > 24 or min(box["w"], box["h"]) < 1:
            yield f"{panel['title']}: not on the grid"
    for one, other in combinations(panels, 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        if not apart:
            yield f"{one['title']} lies on {other['title']}"


def _variables(dashboard: dict) -> Iterator[str]:
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    if not {"datasource", "job", "instance"} <= set(variables):
        yield "a variable of datasource, job and instance is missing"
    places = [each for name, each in variables.items() if name != "datasource"]
    for each in [*places, *dashboard["annotations"]["list"]]:
        if each.get("datasource") != SOURCE:
            yield f"{each['name']}: the data source is fixed"


def _panel(panel: dict) -> Iterator[str]:
    if not panel.get("title"):
        yield "no title"
    if len(panel.get("description", "").split()) < LEAST_WORDS:
        yield "the description does not say what to do"
    if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
        yield "no unit, or an unknown one"
    if panel.get("datasource") != SOURCE:
        yield "the data source is fixed"
    if not panel["targets"]:
        yield "asks nothing"


def _target(target: dict, known: Known) -> Iterator[str]:
    if target.get("datasource") != SOURCE:
        yield "a query's data source is fixed"
    try:
        asked = parts(target["expr"])
    except ValueError as problem:
        yield f"does not parse: {problem}"
        return
    legend = target.get("legendFormat", "")
    if not legend or not named(legend) <= asked.grouped | OF_TARGETS:
        yield "no legend, or one of labels that are summed away"
    yield from _windows(asked)
    for selector in asked.selectors:
        if not _scoped(selector.name, set(selector.matchers)):
            yield f"{selector.name} leaves the variables out"
        problem = unknown(selector, known)
        if problem is not None:
            yield problem


def _windows(asked: Parts) -> Iterator[str]:
    if asked.windows - {WINDOW}:
        yield f"a window is fixed: {sorted(asked.windows)}"


def _scoped(name: str, matchers: set) -> bool:
    """Series of a load generator have no job; an alert without a target has no instance."""
    if name.startswith("k6_"):
        return True
    if name in FROM_PROMETHEUS and name != "up":
        return ("job", "=~", "$job") in matchers
    return matchers >= SCOPE
