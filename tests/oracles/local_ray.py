"""A Ray instance on the loopback that vLLM's CPU build starts its ranks in.

vLLM's CPU platform has no name for its device in Ray, so that stock vLLM refuses. Here it takes
that of GPUs, in this process and in Ray's: Ray counts as many as it is told of. That is all that is
changed. Where Ray is not installed a test skips by name, unless REQUIRE_RAY=1 is set.
"""

import importlib
import os
import secrets
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.oracles.forwards import need_vllm, unwarned

# Places that ranks were given stay taken until the instance ends.
_PLACES = 16
_START = (
    *("start", "--head", "--block", "--port=0", "--num-cpus=2", f"--num-gpus={_PLACES}"),
    *("--include-dashboard=false", "--include-log-monitor=false", "--disable-usage-stats"),
    f"--object-store-memory={80 << 20}",
)
_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # where it is off, Ray keeps to the loopback
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
# For the ranks, each of which would take all cores. Their hook is imported from this checkout.
_OF_RANKS = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(__file__).parents[2]),
}


def need_ray():
    """Skip or fail where Ray is not installed."""
    need_vllm()
    try:
        version("ray")
    except PackageNotFoundError:
        if os.environ.get("REQUIRE_RAY") == "1":
            pytest.fail("Ray is not installed, and REQUIRE_RAY is set")
        pytest.skip("Ray is not installed")


def name_the_device():
    """What each of Ray's processes does first."""
    importlib.import_module("vllm.platforms.cpu").CpuPlatform.ray_device_key = "GPU"


_HOOK = f"{__name__}.{name_the_device.__name__}"


@contextmanager
def local_ray():
    """This process joins an instance of its own, which vLLM then finds."""
    need_ray()
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="ray-") as folder:
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        with unwarned():
            ray = importlib.import_module("ray")
            constants = importlib.import_module("ray._private.ray_constants")
            platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
        # Ray has read its environment before, if anything has imported it.
        importlib.import_module("ray._raylet").Config.initialize("")
        patch.setattr(constants, "ENABLE_RAY_CLUSTER", False)
        patch.setattr(platform, "ray_device_key", "GPU")
        with _instance(folder):
            ours = signal.getsignal(signal.SIGTERM)
            environment = {"worker_process_setup_hook": _HOOK, "env_vars": _OF_RANKS}
            ray.init("auto", runtime_env=environment, _temp_dir=folder)
            signal.signal(signal.SIGTERM, ours)
            try:
                yield ray
            finally:
                ray.shutdown()


@contextmanager
def _instance(folder):
    """Ray's processes, below one that ends them."""
    command = [sys.executable, "-m", "ray.scripts.scripts", *_START, f"--temp-dir={folder}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if "block forever" in line:  # its address is written by now
                break
        else:
            pytest.fail("".join(said))
        try:
            yield
        finally:
            process.terminate()
