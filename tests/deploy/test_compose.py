"""The compose file, read by Compose itself; what it starts is started without containers."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from deploy.k6.__main__ import SCRIPTS
from server.settings import Settings
from tests.deploy.dockerfile import lineage, read_stages, variables
from tests.deploy.peer import Answer, peer
from tests.deploy.receiver import running
from tests.oracles.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "compose.yaml"
SERVERS = ("server", "server-gpu")
NOBODY = "http://127.0.0.1:9"
PROMETHEUS_CONFIG = "/etc/prometheus/prometheus.yml"
LISTENS = {"server": 8000, "server-gpu": 8000, "prometheus": 9090, "grafana": 3000, "k6": None}


def compose(*profiles, **variable):
    """The whole configuration as Compose understands it."""
    flags = [part for profile in profiles for part in ("--profile", profile)]
    # A file of variables beside it is somebody's own.
    given = ["--env-file", os.devnull, "-f", FILE, *flags]
    call = [find_tool("docker-compose"), *given, "config", "--format", "json"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/"} | variable
    done = subprocess.run(call, check=False, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def services():
    """All services by name."""
    return compose("cpu", "gpu", "load")["services"]


def mounts(service):
    """Folders and files of this tree by the place where the container sees them."""
    found = service.get("volumes", [])
    return {each["target"]: Path(each["source"]) for each in found if each["type"] == "bind"}


# ---- what stands in it ---------------------------------------------------------------------------


def test_profiles_choose_a_server_and_the_load():
    watching = {"prometheus", "grafana"}
    assert set(compose()["services"]) == watching
    assert set(compose("cpu")["services"]) == watching | {"server"}
    assert set(compose("gpu")["services"]) == watching | {"server-gpu"}
    assert set(compose("cpu", "load")["services"]) == watching | {"server", "k6"}
    assert set(compose("gpu", "load")["services"]) == watching | {"server-gpu", "k6"}


def test_ports_are_published_to_this_machine_alone(services):
    for name, service in services.items():
        ports = service.get("ports", [])
        assert [each["target"] for each in ports] == [p for p in [LISTENS[name]] if p]
        assert all(each["host_ip"] == "127.0.0.1" for each in ports)
    wide = compose("cpu", BIND="192.0.2.1", SERVER_PORT="80")["services"]["server"]["ports"][0]
    assert (wide["host_ip"], wide["published"]) == ("192.0.2.1", "80")


def test_images_are_pinned_to_a_version(services):
    for name in ("prometheus", "grafana", "k6"):
        assert re.fullmatch(r"[a-z0-9]+/[a-z0-9]+:v?\d+\.\d+\.\d+", services[name]["image"])


def test_the_image_of_k6_holds_what_these_tests_run(services):
    version = services["k6"]["image"].rpartition(":")[2]
    done = subprocess.run([find_tool("k6"), "version"], check=True, capture_output=True, text=True)
    assert done.stdout.split()[1] == f"v{version}"


def test_this_tree_is_mounted_to_be_read(services):
    for service in services.values():
        assert all(path.exists() for path in mounts(service).values())
        binds = [each for each in service.get("volumes", []) if each["type"] == "bind"]
        assert all(each["read_only"] for each in binds)


def test_nothing_starts_before_what_it_needs(services):
    for name, service in services.items():
        assert ("healthcheck" in service) == (LISTENS[name] is not None)
        needs = service.get("depends_on", {})
        assert all(each["condition"] == "service_healthy" for each in needs.values())
    assert set(services["k6"]["depends_on"]) == {*SERVERS, "prometheus"}
    assert not any(services["k6"]["depends_on"][name]["required"] for name in SERVERS)


def test_nobody_may_more_than_it_needs(services):
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.get("privileged")


def test_one_server_has_the_gpus():
    both = compose("cpu", "gpu", GPUS="2")["services"]
    (device,) = both["server-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 2, ["gpu"])
    assert "deploy" not in both["server"]


@pytest.mark.parametrize("name", SERVERS)
def test_what_is_kept_is_in_a_volume(services, name):
    service = services[name]
    assert service["read_only"]
    (cache,) = (each["target"] for each in service["volumes"])
    stages = read_stages(ROOT / "Dockerfile")
    given = variables(lineage(stages, service["build"]["target"]))
    kept = {key: value for key, value in given.items() if key.endswith("_CACHE_DIR")}
    assert all(value.startswith(f"{cache}/") for value in kept.values())
    # Triton's own choice is the home, which is not to be written.
    assert ("TRITON_CACHE_DIR" in kept) == (name == "server-gpu")


@pytest.mark.parametrize("name", SERVERS)
def test_the_build_is_one_that_the_dockerfile_has(services, name):
    build = services[name]["build"]
    stages = read_stages(Path(build["context"]) / "Dockerfile")
    assert Path(build["context"]) == ROOT
    steps = lineage(stages, f"build-{build['target']}")
    assert set(build["args"]) <= set(variables(steps))
    assert services[name]["image"] == f"fencepost:{build['target']}"


@pytest.mark.parametrize("name", SERVERS)
def test_settings_of_the_server_are_handed_on_where_they_are_set(services, name):
    # Ports and health checks stand on these two.
    handed = Settings.model_fields.keys() - {"host", "port"}
    assert set(services[name]["environment"]) == {f"FENCEPOST_{field.upper()}" for field in handed}
    assert not any(services[name]["environment"].values())
    there = compose("cpu", "gpu", FENCEPOST_MODEL="a/b")["services"][name]["environment"]
    assert there["FENCEPOST_MODEL"] == "a/b"


def test_the_drain_ends_before_the_kill(services):
    drain = Settings.model_fields["drain_seconds"].default
    for name in SERVERS:
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > drain


def test_names_lead_to_each_other(services):
    """What Prometheus scrapes, Grafana asks and k6 loads are services with these ports."""
    scraped = yaml.safe_load(mounts(services["prometheus"])[PROMETHEUS_CONFIG].read_text("utf-8"))
    targets = [job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]]
    assert ["server:8000"] in targets
    for name in SERVERS:
        assert "server" in services[name]["networks"]["default"]["aliases"]
    provisioning = mounts(services["grafana"])["/etc/grafana/provisioning"]
    (sources,) = (provisioning / "datasources").glob("*.y*ml")
    (source,) = yaml.safe_load(sources.read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert services["k6"]["environment"]["BASE_URL"] == "http://server:8000"


def test_grafana_finds_the_dashboards(services):
    places = mounts(services["grafana"])
    (providers,) = (places["/etc/grafana/provisioning"] / "dashboards").glob("*.y*ml")
    (provider,) = yaml.safe_load(providers.read_text("utf-8"))["providers"]
    assert len(list(places[provider["options"]["path"]].glob("*.json"))) >= 3


# ---- what it starts ------------------------------------------------------------------------------


def check(service, url):
    """The status of a health check that asks another address than the container's own."""
    kind, *call = service["healthcheck"]["test"]
    assert kind == "CMD"
    (port,) = (each["target"] for each in service["ports"])
    here = [part.replace(f"http://127.0.0.1:{port}", url) for part in call]
    assert here != call
    call = [find_tool(here[0]), *here[1:]]
    return subprocess.run(call, check=False, capture_output=True).returncode


@pytest.fixture(scope="module")
def prometheus(services, tmp_path_factory):
    """The address of the service, with its own flags over a copy of what it has mounted."""
    service, root = services["prometheus"], tmp_path_factory.mktemp("prometheus")
    for target, path in mounts(service).items():
        place = root / target.removeprefix("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copy)(path, place)
    flags = [re.sub(r"=/", f"={root}/", flag) for flag in service["command"]]
    config = root / PROMETHEUS_CONFIG.removeprefix("/")
    subprocess.run([find_tool("promtool"), "check", "config", config], check=True)
    with running(find_tool("prometheus"), flags) as url:
        yield url


def test_prometheus_starts_with_its_rules_and_is_healthy(services, prometheus):
    assert check(services["prometheus"], prometheus) == 0
    assert check(services["prometheus"], NOBODY) != 0
    groups = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"]
    kinds = {rule["type"] for group in groups for rule in group["rules"]}
    assert kinds == {"alerting", "recording"}


def test_k6_writes_to_that_prometheus(services, prometheus):
    service = services["k6"]
    ((target, folder),) = mounts(service).items()
    call = [part.replace(target, str(folder)) for part in service["command"]]
    with peer(lambda _: Answer()) as told:
        given = {
            "http://server:8000": told.url,
            "http://prometheus:9090/api/v1/write": f"{prometheus}/api/v1/write",
        }
        environment = {
            name: given.get(value, value) for name, value in service["environment"].items()
        }
        few = {"VUS": "1", "ITERATIONS": "2", "PATH": os.environ["PATH"], "HOME": "/"}
        wide = {"TTFT_MS": "60000", "TPOT_MS": "60000"}
        done = subprocess.run(
            [find_tool("k6"), *call],
            check=False,
            capture_output=True,
            text=True,
            env=environment | few | wide,
        )
    assert done.returncode == 0, done.stderr
    for stat in ("avg", "p50", "p95", "p99"):
        query = {"query": f"k6_llm_ttft_ms_{stat}"}
        assert httpx.get(f"{prometheus}/api/v1/query", params=query).json()["data"]["result"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_load_is_there(script):
    service = compose("load", LOAD=script)["services"]["k6"]
    ((target, folder),) = mounts(service).items()
    assert Path(service["command"][-1].replace(target, str(folder))).is_file()


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_healthy_when_they_take_requests(services, server, name):
    assert check(services[name], server) == 0
    assert check(services[name], NOBODY) != 0


def test_grafana_is_healthy_when_it_answers(services):
    with peer(lambda _: Answer()) as told:
        assert check(services["grafana"], told.url) == 0
    assert check(services["grafana"], NOBODY) != 0
