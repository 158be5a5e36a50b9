"""Gives the synthetic pair a tokenizer that a server can stream, beside it. Weights are linked.

The pair's own knows words, no decoder and no id to begin with: benchmarks without text need none.
"""

import json
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from tests.bench.measure import Source

_FOLDER = "served"
_TOKENIZER = "tokenizer.json"
_ABOUT = "tokenizer_config.json"


def served(pair: Source) -> Source:
    """The same pair in folders that can be served; an earlier run's are taken as they are."""
    return replace(pair, target=str(_linked(pair.target)), draft=str(_linked(pair.draft)))


def _linked(folder: str) -> Path:
    origin = Path(folder)
    copy = origin.parent / _FOLDER / origin.name
    copy.mkdir(parents=True, exist_ok=True)
    for path in origin.iterdir():
        link = copy / path.name
        if path.name not in {_TOKENIZER, _ABOUT} and not link.exists():
            link.symlink_to(path)
    tokenizer = Tokenizer.from_file(str(origin / _TOKENIZER))
    tokenizer.decoder = ByteLevel()
    tokenizer.save(str(copy / _TOKENIZER))
    about = json.loads((origin / _ABOUT).read_text("utf-8"))
    (copy / _ABOUT).write_text(json.dumps(about | {"bos_token": "w0"}), "utf-8")
    return copy
