"""What the images would run: install commands, entry point, health check, signal."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest

from tests.deploy.dockerfile import (
    command,
    context,
    last,
    lineage,
    read_stages,
    shell,
    variables,
)
from tests.oracles.tools import find_tool

ROOT = Path(__file__).resolve().parents[2]
STAGES = read_stages(ROOT / "Dockerfile")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
TARGETS = ("cpu", "gpu")
BUILDS = {"cpu": "cpu", "gpu": "cuda"}
BIN = Path(sys.executable).parent
NOTE = """#!/bin/sh
for each in "$@"; do printf '%s\\t' "$each"; done >> "$NOTES/$(basename "$0").log"
echo >> "$NOTES/$(basename "$0").log"
"""
# A real Python, but for its pip and for what only an installed vLLM can answer.
PYTHON = f"""#!/bin/sh
if [ "$1 $2" = "-m pip" ]; then shift 2; exec pip "$@"; fi
case "$2" in *check_device*|*cu13*) exit 0;; esac
exec {BIN}/python "$@"
"""
SHIMS = {"pip": NOTE, "python": PYTHON}


def test_hadolint_finds_nothing():
    done = subprocess.run(
        [find_tool("hadolint"), ROOT / "Dockerfile"], check=False, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("", 0)


def test_cpu_is_the_default_and_both_start_from_one_runtime():
    assert list(STAGES)[-1] == "cpu"
    assert [STAGES[target].base for target in TARGETS] == ["runtime", "runtime"]
    bases = {stage.base for stage in STAGES.values() if stage.base not in STAGES}
    assert len(bases) == 1  # an environment moves only between equal Pythons
    assert all(":" in base and not base.endswith(":latest") for base in bases)


@pytest.mark.parametrize("target", TARGETS)
def test_nobody_is_root_and_code_is_laid_over_its_own_packages(target):
    user = last(lineage(STAGES, target), "USER")
    assert int(user) > 0
    assert STAGES[target].all("COPY") == [
        f"--from=build-{target} /opt/fencepost /opt/fencepost",
        "--from=build-code /opt/code /opt/fencepost",
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_a_change_of_the_source_leaves_the_packages_as_they_are(target):
    copied = [each for stage in lineage(STAGES, f"build-{target}") for each in stage.all("COPY")]
    assert copied == ["constraints.txt pyproject.toml ./", "deploy/vllm deploy/vllm"]
    assert [stage.name for stage in lineage(STAGES, "build-code")] == ["build", "build-code"]


def test_labels_say_what_the_project_says():
    labels = " ".join(STAGES["runtime"].all("LABEL"))
    wanted = {
        "title": PROJECT["name"],
        "description": PROJECT["description"],
        "version": PROJECT["version"],
        "licenses": PROJECT["license"],
    }
    for name, value in wanted.items():
        assert f'org.opencontainers.image.{name}="{value}"' in labels


# ---- the build -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with what the builder would get."""
    folder = tmp_path_factory.mktemp("context")
    for path in context(ROOT):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    return folder


def notes(folder, name):
    """The arguments of each call of a stand-in."""
    log = folder / f"{name}.log"
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    return [line.split("\t")[:-1] for line in lines]


class Rehearsal:
    """Runs the RUN lines of a build with installers that only write down what they were told."""

    def __init__(self, target, folder, **arguments):
        stages = [*lineage(STAGES, f"build-{target}"), STAGES["build-code"]]
        shim = folder / "shim"
        shim.mkdir()
        for name, text in SHIMS.items():
            (shim / name).write_text(text, "utf-8")
            (shim / name).chmod(0o755)
        self._notes = shim
        path = f"{shim}:{BIN}:{os.environ['PATH']}"
        variable = variables(stages) | arguments | {"PATH": path, "NOTES": str(shim)}
        self.statuses = []
        for run in [run for stage in stages for run in stage.all("RUN")][1:]:
            script = ["sh", "-euc", shell(run)]
            done = subprocess.run(script, cwd=folder, check=False, env=variable)
            self.statuses.append(done.returncode)

    def pip(self):
        """The arguments of each call of pip."""
        return notes(self._notes, "pip")


@pytest.fixture
def rehearse(source, tmp_path):
    folder = tmp_path / "src"
    shutil.copytree(source, folder)
    return lambda target, **arguments: Rehearsal(target, folder, **arguments)


def test_the_environment_is_made_first():
    assert STAGES["build"].all("RUN")[0] == "python -m venv /opt/fencepost"
    assert STAGES["build"].all("ENV")[1] == "PATH=/opt/fencepost/bin:$PATH"


@pytest.mark.parametrize("target", TARGETS)
def test_torch_of_the_other_kind_is_refused(rehearse, target):
    has_cuda = any("nvidia" in each for each in requires("torch"))
    run = rehearse(target)
    fits = has_cuda == (target == "gpu")
    # The packages' names, torch, the packages, vLLM, extras, our own code.
    assert run.statuses == [0, 0 if fits else 1, 0, 0, 0, 0]


@pytest.mark.parametrize("target", TARGETS)
def test_pip_is_told_what_the_project_pins(rehearse, target, tmp_path):
    torch, packages, own = rehearse(target).pip()
    constrained = ["-c", "constraints.txt"]
    assert torch == ["install", "--no-deps", *constrained, "torch"]
    assert packages == ["install", *constrained, "-r", "requirements.txt"]
    assert own == ["install", "--no-deps", "--prefix", "/opt/code", "."]
    wanted = (tmp_path / "src" / "requirements.txt").read_text("utf-8").splitlines()
    assert wanted == PROJECT["dependencies"]


def test_the_index_of_torch_is_for_torch_alone(rehearse):
    torch, *rest = rehearse("cpu", TORCH_INDEX="the index").pip()
    assert torch[2:4] == ["--index-url", "the index"]
    assert not any("the index" in each for each in rest)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("extras", "others"),
    [
        ("otel", ["otel"]),
        ("plot,otel", ["plot", "otel"]),
        ("vllm", []),
        ("vllm,otel", ["otel"]),
        ("otel,vllm,plot", ["otel", "plot"]),
    ],
)
def test_extras_are_added_and_one_script_brings_vllm(rehearse, target, extras, others, tmp_path):
    run = rehearse(target, EXTRAS=extras)
    vllm = []
    if "vllm" in extras:
        lists = [
            tmp_path / "src/deploy/vllm" / name for name in ("shared.txt", f"{BUILDS[target]}.txt")
        ]
        flags = ["--no-input", "--disable-pip-version-check", "--no-deps"]
        vllm = [["install", *flags, *(part for each in lists for part in ("-r", str(each)))]]
    files = [f"extra-{name}.txt" for name in others]
    named = [part for name in files for part in ("-r", name)]
    assert run.pip()[2:-1] == vllm + (
        [["install", "-c", "constraints.txt", *named]] if named else []
    )
    for name, file in zip(others, files, strict=True):
        wanted = (tmp_path / "src" / file).read_text("utf-8").splitlines()
        assert wanted == PROJECT["optional-dependencies"][name]
    assert run.statuses[2:] == [0, 0, 0, 0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("extras", ["vllm-more", "otel, vllm", "otell"])
def test_no_other_extra_brings_it(rehearse, target, extras):
    """Pip itself ends at a list that is not there."""
    *_, named, _ = rehearse(target, EXTRAS=extras).pip()
    assert named[-1] == f"extra-{extras.split(',')[-1]}.txt"
    assert not any("shared.txt" in part for part in named)


APT = {"cpu": ["libnuma1"], "gpu": ["libc6-dev"]}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("extras", ["", "otel,vllm-more", "otel,vllm"])
def test_the_image_has_what_its_kernels_need(target, extras, tmp_path):
    for name in ("apt-get", "python"):
        (tmp_path / name).write_text(NOTE, "utf-8")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "NOTES": str(tmp_path), "EXTRAS": extras}
    for script in STAGES[target].all("RUN"):
        call = ["sh", "-euc", script.replace("rm -rf /var/lib/apt/lists/*", "true")]
        subprocess.run(call, check=True, env=path)
    wanted = extras.endswith(",vllm")
    installed = [line[-1] for line in notes(tmp_path, "apt-get") if line[0] == "install"]
    assert installed == (APT[target] if wanted else [])
    tried = [line for line in notes(tmp_path, "python") if "check_device" in line[-1]]
    # A GPU is nothing that a build has.
    assert len(tried) == (wanted and target == "cpu")


def test_pip_takes_these_arguments(rehearse, tmp_path):
    """Everything is installed here already, in the versions that the constraints name."""
    for arguments in rehearse("cpu").pip():
        dry = ["--dry-run", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        call = [sys.executable, "-m", "pip", *arguments, *dry]
        done = subprocess.run(
            call, cwd=tmp_path / "src", check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_the_source_that_the_builder_gets_makes_a_whole_wheel(source, tmp_path):
    quiet = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    call = [sys.executable, "-m", "pip", "wheel", "--quiet", *quiet, "--wheel-dir", tmp_path, "."]
    subprocess.run(call, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    rooms = ("server", "scheduler", "telemetry", "deploy/pair")
    code = {path for room in rooms for path in (ROOT / room).rglob("*.py")}
    page = {path for path in (ROOT / "server").rglob("*.*") if path.suffix != ".pyc"}
    assert {path.relative_to(ROOT).as_posix() for path in code | page} <= names
    weights = {path.as_posix() for path in context(ROOT) if path.suffix == ".safetensors"}
    assert len(weights) == 2
    assert weights <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not any(name.startswith("tests/") for name in names)


# ---- the container -------------------------------------------------------------------------------


@pytest.fixture
def container(tmp_path):
    """(environment, entry point's process) of what a container would start."""
    stages = lineage(STAGES, "cpu")
    given = variables(stages)
    assert given["FENCEPOST_HOST"] == "0.0.0.0"  # noqa: S104 - the container's own
    assert last(stages, "EXPOSE") == given["FENCEPOST_PORT"]
    # On this machine: nobody else may reach it, on a port that is free.
    here = {"FENCEPOST_HOST": "127.0.0.1", "FENCEPOST_PORT": "0", "FENCEPOST_COST_CACHE": "none"}
    path = f"{BIN}:{os.environ['PATH']}"
    quick = {"FENCEPOST_PROFILE_SECONDS": "1", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    environment = given | here | quick | {"PATH": path}
    call = [part for name in ("ENTRYPOINT", "CMD") for part in command(last(stages, name))]
    process = subprocess.Popen(
        [BIN / call[0], *call[1:]], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    line = process.stdout.readline()
    environment["FENCEPOST_PORT"] = line.strip().rpartition(":")[2]
    yield environment, process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_it_serves_is_healthy_and_ends_at_its_signal(container):
    environment, process = container
    assert process.poll() is None
    check = command(last(lineage(STAGES, "cpu"), "HEALTHCHECK"))
    # A proxy for the outside is no way to itself.
    proxied = environment | {"http_proxy": "http://127.0.0.1:9"}

    def healthy():
        done = subprocess.run(
            [BIN / check[0], *check[1:]], env=proxied, check=False, capture_output=True
        )
        return done.returncode == 0

    assert healthy()
    process.send_signal(signal.Signals[last(lineage(STAGES, "cpu"), "STOPSIGNAL")])
    assert process.wait(60) == 0
    assert not healthy()
