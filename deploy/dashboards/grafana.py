"""Turns the records into Grafana's JSON; knows Grafana, and nothing of what is shown."""

import json
from string import ascii_uppercase
from typing import TypeAlias

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models

from deploy.dashboards.panel import Board, Kind, Panel, Step

__all__ = ["rendered"]

_SOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_TAG = "fencepost"
_VARIABLES = (("job", "Job", ""), ("instance", "Replica", '{job=~"$job"}'))
_ANNOTATIONS = (
    (
        "Alerts",
        "red",
        'ALERTS{alertstate="firing",job=~"$job"}',
        "{{alertname}} {{instance}}",
    ),
    (
        "Starts",
        "blue",
        'time() - process_start_time_seconds{job=~"$job",instance=~"$instance"} < 60',
        "{{instance}} started",
    ),
)

_DASHED = models.DynamicConfigValue(
    id_val="custom.lineStyle", value={"fill": "dash", "dash": [10, 10]}
)

_Drawn: TypeAlias = timeseries.Panel | stat.Panel


def rendered(board: Board) -> str:
    """The dashboard as JSON text, the same for the same records."""
    page = _page(board)
    number = 0
    for section in board.sections:
        number += 1
        page.with_row(dashboard.Row(section.title).id(number))
        for panel in section.panels:
            number += 1
            page.with_panel(_panel(panel).id(number))
    return json.dumps(page.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _page(board: Board) -> dashboard.Dashboard:
    """The dashboard without panels: variables, annotations, links to the others."""
    page = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([_TAG])
        .time("now-1h", "now")
        .refresh("10s")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Fencepost")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .as_dropdown(False)
            .keep_time(True)
            .include_vars(True)
        )
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )
    for name, label, scope in _VARIABLES:
        page.with_variable(_variable(name, label, scope))
    for name, color, expr, title in _ANNOTATIONS:
        page.annotation(
            dashboard.AnnotationQuery()
            .name(name)
            .datasource(_SOURCE)
            .enable(True)
            .icon_color(color)
            .expr(expr)
            .title_format(title)
        )
    return page


def _variable(name: str, label: str, scope: str) -> dashboard.QueryVariable:
    query = f"label_values(fencepost_build_info{scope}, {name})"
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query({"query": query, "refId": name})
        .definition(query)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def _panel(panel: Panel) -> _Drawn:
    drawn = _number(panel) if panel.kind is Kind.STAT else _curves(panel)
    (
        drawn.title(panel.title)
        .description(panel.description)
        .datasource(_SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(panel.height)
        .no_value("no data")
    )
    if panel.bottom is not None:
        drawn.min(panel.bottom)
    if panel.top is not None:
        drawn.max(panel.top)
    if panel.steps:
        drawn.thresholds(_thresholds(panel.steps))
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        drawn.with_target(
            prometheus.Dataquery()
            .datasource(_SOURCE)
            .ref_id(letter)
            .expr(query.expr)
            .legend_format(query.legend)
            .range()
        )
    return drawn


def _number(panel: Panel) -> stat.Panel:
    """The last value, large, over a line of how it came."""
    return (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .color_mode(
            common_models.BigValueColorMode.BACKGROUND_SOLID
            if panel.steps
            else common_models.BigValueColorMode.VALUE
        )
    )


def _curves(panel: Panel) -> timeseries.Panel:
    drawn = (
        timeseries.Panel()
        .line_width(1.0)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.TABLE)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["mean", "lastNotNull"])
        )
        .tooltip(
            common.VizTooltipOptions()
            .mode(common_models.TooltipDisplayMode.MULTI)
            .sort(common_models.SortOrder.DESCENDING)
        )
    )
    if panel.kind is not Kind.LINES:
        drawn.fill_opacity(40.0).stacking(
            common.StackingConfig().mode(common_models.StackingMode.NORMAL)
        )
    if panel.steps:
        drawn.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.AREA)
        )
    for name, color in panel.colors.items():
        drawn.override_by_name(name, [_fixed(color)])
    for query in panel.queries:
        if query.limit:
            drawn.override_by_name(query.legend, [_fixed("red"), _DASHED])
    return drawn


def _fixed(color: str) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})


def _thresholds(steps: tuple[Step, ...]) -> dashboard.ThresholdsConfig:
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(color=step.color, value=step.at) for step in steps])
    )
