"""Finds commands that tests drive and Python does not bring; runs none of them.

Where one is missing a test skips by name, unless REQUIRE_TOOLS=1 is set (CI sets it).
"""

import os
import shutil
import sys
from pathlib import Path

import pytest


def find_tool(name: str) -> Path:
    """The command `name` on the path or beside this interpreter. Skips or fails where it is not."""
    places = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    found = shutil.which(name, path=places)
    if found is not None:
        return Path(found)
    if os.environ.get("REQUIRE_TOOLS") == "1":
        pytest.fail(f"{name} is not installed, and REQUIRE_TOOLS is set")
    pytest.skip(f"{name} is not installed")
