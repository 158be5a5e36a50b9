"""Where the embedded model pair lies: two weights folders in Hugging Face layout."""

from pathlib import Path

__all__ = ["DRAFT", "TARGET"]

_WEIGHTS = Path(__file__).resolve().parent / "weights"

TARGET: Path = _WEIGHTS / "target"
DRAFT: Path = _WEIGHTS / "draft"
