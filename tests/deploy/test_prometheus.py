"""Prometheus' own tool over its configuration and rules, and over faults planted in the rules."""

import shutil
import subprocess

import pytest
import yaml

from tests.deploy.series import DEPLOY, rules
from tests.oracles.tools import find_tool

FOLDER = DEPLOY / "prometheus"
ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = [rule["record"] for rule in rules() if "record" in rule]
WANTED = {
    *("ServerDown", "DeadDraft", "GoodputDrop", "SpeculationSlowerThanBaseline", "QueueGrowing"),
    *("KvExhausted", "FenceAnomaly", "EventLoopLag"),
}
NEVER, ALWAYS = "vector(0) > 1", "vector(1)"


@pytest.fixture
def promtool():
    tool = find_tool("promtool")

    def run(*arguments):
        return subprocess.run(
            [tool, *map(str, arguments)], capture_output=True, text=True, check=False
        )

    return run


def unit_tests(folder):
    return sorted((folder / "tests").glob("*.yml"))


def test_the_configuration_and_its_rules_are_valid(promtool):
    done = promtool("check", "config", "--lint=all", "--lint-fatal", FOLDER / "prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


def test_the_unit_tests_of_the_rules_pass(promtool):
    done = promtool("test", "rules", *unit_tests(FOLDER))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_that_is_wanted_is_there():
    assert {rule["alert"] for rule in ALERTS} == WANTED


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule):
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"].startswith("1. ")
    assert "$labels.instance" in rule["annotations"]["summary"]


@pytest.mark.parametrize("expr", [NEVER, ALWAYS], ids=["never", "always"])
@pytest.mark.parametrize("number", range(len(ALERTS)), ids=[rule["alert"] for rule in ALERTS])
def test_the_unit_tests_see_an_alert_that_fires_never_or_always(promtool, tmp_path, number, expr):
    name = ALERTS[number]["alert"]
    copy = planted(tmp_path, "alerts.yml", number, expr)
    assert promtool("test", "rules", of_alert(name, copy)).returncode != 0


@pytest.mark.parametrize("number", range(len(RECORDED)), ids=RECORDED)
def test_the_unit_tests_see_a_recording_rule_that_is_wrong(promtool, tmp_path, number):
    copy = planted(tmp_path, "recording.yml", number, "vector(17)")
    assert promtool("test", "rules", copy / "tests" / "recording.yml").returncode != 0


@pytest.mark.parametrize("name", sorted(WANTED))
def test_the_unit_tests_of_one_alert_pass_alone(promtool, tmp_path, name):
    copy = shutil.copytree(FOLDER, tmp_path / "prometheus")
    done = promtool("test", "rules", of_alert(name, copy))
    assert done.returncode == 0, done.stdout + done.stderr


def planted(folder, name, number, expr):
    """A copy with one rule's expression replaced."""
    copy = shutil.copytree(FOLDER, folder / "prometheus")
    path = copy / "rules" / name
    content = yaml.safe_load(path.read_text("utf-8"))
    rule = [rule for group in content["groups"] for rule in group["rules"]][number]
    rule["expr"] = expr
    path.write_text(yaml.safe_dump(content), "utf-8")
    return copy


def of_alert(name, folder):
    """The unit tests that are named after one alert, as a file: all of them take seconds."""
    path = folder / "tests" / "alerts.yml"
    content = yaml.safe_load(path.read_text("utf-8"))
    content["tests"] = [each for each in content["tests"] if each["name"].startswith(name)]
    assert content["tests"]
    path.write_text(yaml.safe_dump(content), "utf-8")
    return path
