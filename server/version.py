"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

__all__ = ["version"]


def version() -> str:
    """The distribution's version, "unknown" when the source tree runs without being installed."""
    try:
        return installed("fencepost")
    except PackageNotFoundError:
        return "unknown"
