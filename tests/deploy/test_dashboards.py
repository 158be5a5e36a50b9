"""The committed dashboards: as the generator makes them, and nothing in them that cannot work."""

import copy
import json
import re
import subprocess
import sys

import pytest
import yaml
from prometheus_client import generate_latest

from deploy.dashboards.boards import BOARDS
from deploy.dashboards.panel import Source
from telemetry.metrics import Metrics, new_registry
from telemetry.slo import WishKind
from tests.deploy.lint import faults
from tests.deploy.promql import parts
from tests.deploy.series import DEPLOY, on_page, recorded, rules, unknown

FOLDER = DEPLOY / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def known():
    """What the page of a server has before its first request."""
    registry = new_registry()
    metrics = Metrics(
        registry,
        model="pair",
        k_max=8,
        domains=(),
        device_memory=lambda: 0.0,
        build={"version": "0", "model": "pair"},
    )
    for kind in WishKind:
        metrics.slo.wish(kind, 1.0)
    return on_page(generate_latest(registry).decode())


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request):
    return json.loads(request.param.read_text("utf-8"))


def test_the_committed_files_are_what_the_generator_writes(tmp_path):
    command = [sys.executable, "-m", "deploy.dashboards", str(tmp_path)]
    subprocess.run(command, check=True, cwd=DEPLOY.parent)
    written = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text("utf-8") for path in FILES}


def test_there_are_three_with_addresses_of_their_own():
    read = [json.loads(path.read_text("utf-8")) for path in FILES]
    assert [each["uid"] for each in read] == [path.stem for path in FILES]
    assert len({each["title"] for each in read}) == len(read) == 3


def test_nothing_is_wrong(dashboard, known):
    assert faults(dashboard, known) == []


def test_each_panel_of_the_records_is_drawn():
    drawn = {
        (each["uid"], panel["title"]): [target["expr"] for target in panel["targets"]]
        for each in (json.loads(path.read_text("utf-8")) for path in FILES)
        for panel in each["panels"]
        if panel["type"] != "row"
    }
    asked = {
        (board.uid, panel.title): [query.expr for query in panel.queries]
        for board in BOARDS
        for panel in board.panels
    }
    assert drawn == asked


def test_a_panel_of_recorded_or_foreign_series_says_so():
    for panel in (panel for board in BOARDS for panel in board.panels):
        names = {s.name for query in panel.queries for s in parts(query.expr).selectors}
        of_rules = bool(names & (recorded() | {"ALERTS"}))
        of_load = any(name.startswith("k6_") for name in names)
        wanted = Source.RULES if of_rules else Source.LOAD if of_load else Source.SERVER
        assert panel.source is wanted, panel.title


def test_a_color_belongs_to_a_series_that_can_come(known):
    for panel in (panel for board in BOARDS for panel in board.panels):
        names = {s.name for query in panel.queries for s in parts(query.expr).selectors}
        values = {v for name in names for labels in known.get(name, ()) for v in labels.values()}
        assert set(panel.colors) <= values, panel.title


def test_rules_ask_for_what_there_is(known):
    problems = [
        problem
        for rule in rules()
        for selector in parts(rule["expr"]).selectors
        if (problem := unknown(selector, known)) is not None
    ]
    assert problems == []


# ---- the lint sees what it is for ----------------------------------------------------------------


def panel_of(dashboard):
    return next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries")


def retitle(dashboard):
    panel_of(dashboard)["title"] = ""


def say_little(dashboard):
    panel_of(dashboard)["description"] = "It is bad when it is low."


def drop_unit(dashboard):
    del panel_of(dashboard)["fieldConfig"]["defaults"]["unit"]


def fix_source(dashboard):
    panel_of(dashboard)["datasource"]["uid"] = "prometheus"


def fix_query_source(dashboard):
    panel_of(dashboard)["targets"][0]["datasource"]["uid"] = "prometheus"


def fix_annotation_source(dashboard):
    dashboard["annotations"]["list"][0]["datasource"]["uid"] = "prometheus"


def drop_variable(dashboard):
    dashboard["templating"]["list"] = dashboard["templating"]["list"][:-1]


def repeat_id(dashboard):
    panel_of(dashboard)["id"] = dashboard["panels"][0]["id"]


def repeat_ref(dashboard):
    panel = panel_of(dashboard)
    panel["targets"].append(copy.deepcopy(panel["targets"][0]))


def lay_on_another(dashboard):
    panel_of(dashboard)["gridPos"]["y"] -= 1


def leave_the_grid(dashboard):
    panel_of(dashboard)["gridPos"]["w"] = 25


def change(old, new):
    def plant(dashboard):
        targets = [t for panel in dashboard["panels"] for t in panel.get("targets", ())]
        target = next(each for each in targets if re.search(old, each["expr"]))
        target["expr"] = re.sub(old, new, target["expr"], count=1)

    return plant


def drop_legend(dashboard):
    panel_of(dashboard)["targets"][0]["legendFormat"] = ""


def name_a_lost_label(dashboard):
    panel_of(dashboard)["targets"][0]["legendFormat"] = "{{color}}"


PLANTED = [
    (retitle, "no title"),
    (say_little, "what to do"),
    (drop_unit, "no unit"),
    (fix_source, "the data source is fixed"),
    (fix_query_source, "query's data source"),
    (fix_annotation_source, "the data source is fixed"),
    (drop_variable, "variable of"),
    (repeat_id, "stands twice"),
    (repeat_ref, "refId A stands twice"),
    (lay_on_another, "lies on"),
    (leave_the_grid, "not on the grid"),
    (drop_legend, "no legend"),
    (name_a_lost_label, "no legend"),
    (change(r"\[\$__rate_interval\]", "[5m]"), "window is fixed"),
    (change(r'instance=~"\$instance"', 'instance="a"'), "leaves the variables out"),
    (change(r'job=~"\$job",', ""), "leaves the variables out"),
    (change("fencepost_", "fencepost_no_"), "there is no"),
    (change(r"(fencepost_\w+\{)", r'\1color="red",'), "has"),
    (change(r"\)$", ""), "does not parse"),
]


@pytest.mark.parametrize(("plant", "words"), PLANTED)
def test_a_planted_fault_is_seen(plant, words, dashboard, known):
    broken = copy.deepcopy(dashboard)
    plant(broken)
    assert any(words in fault for fault in faults(broken, known))


# ---- Grafana finds them --------------------------------------------------------------------------


def provisioned(kind):
    (path,) = (DEPLOY / "grafana" / "provisioning" / kind).iterdir()
    return yaml.safe_load(path.read_text("utf-8"))


def test_the_provider_reads_the_folder_that_compose_mounts():
    (provider,) = provisioned("dashboards")["providers"]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    volumes = compose["services"]["grafana"]["volumes"]
    assert f"./dashboards:{provider['options']['path']}:ro" in volumes
    assert not provider["allowUiUpdates"]


def test_the_data_source_has_prometheus_interval():
    (source,) = provisioned("datasources")["datasources"]
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]
    assert source["url"] == "http://prometheus:9090"
