"""Says by one digest which product a run of proofs was about; knows files, not what they mean."""

import hashlib
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = ("scheduler", "server", "telemetry", "deploy")
_SUFFIXES = {".py", ".safetensors"}


def product_digest(root: Path = _ROOT) -> str:
    """SHA-256 over the names and bytes of the product's sources and its embedded weights."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted(p for p in (root / room).rglob("*") if p.suffix in _SUFFIXES):
            digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
