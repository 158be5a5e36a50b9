"""Runs the whole making of the pair: corpus, tokenizer, target, draft, export."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from deploy.pair.corpus import Document, Source, collect
from deploy.pair.distil import distillation, start_from
from deploy.pair.model import build_model, export, save_tokenizer
from deploy.pair.recipe import Recipe
from deploy.pair.tokenizer import train_tokenizer
from deploy.pair.tokens import CHAT_SOURCE, Streams, build_streams, load_streams, save_streams
from deploy.pair.train import Run, cross_entropy, train

__all__ = [
    "EXCERPT_BREAK",
    "Material",
    "Recipes",
    "export_pair",
    "load_material",
    "prepare",
    "train_pair",
]

_LOG = logging.getLogger(__name__)
_HELDOUT_EXCERPT = 2500
_HELDOUT_DOCUMENTS = 8
EXCERPT_BREAK = "\f\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What training reads: the tokenizer and the encoded corpus."""

    tokenizer: PreTrainedTokenizerFast
    streams: Streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipes:
    """The recipes of both models."""

    target: Recipe
    draft: Recipe


def prepare(sources: tuple[Source, ...], work: Path, seed: int, limit: int | None) -> Material:
    """Build tokenizer and streams into `work`, or take those already there.

    `limit` keeps only the first documents, for a trial.
    """
    if not (work / "counts.json").exists():
        work.mkdir(parents=True, exist_ok=True)
        documents = collect(sources, limit)
        _LOG.info("corpus: %d documents", len(documents))
        tokenizer = train_tokenizer(d.text for d in documents if not d.heldout)
        save_tokenizer(tokenizer, work / "tokenizer")
        streams = build_streams(documents, tokenizer, seed)
        _write_records(sources, documents, streams, work)
        save_streams(streams, work)
    return load_material(work)


def load_material(work: Path) -> Material:
    """Read what `prepare` left in `work`."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(work / "tokenizer")
    return Material(tokenizer=tokenizer, streams=load_streams(work))


def train_pair(
    recipes: Recipes, material: Material, work: Path
) -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """Train the target on the text, then the draft on the target; gives (target, draft)."""
    target = build_model(recipes.target.layers, recipes.target.seed)
    text_run = Run(
        recipe=recipes.target,
        stream=material.streams.train,
        checkpoint=work / "target.pt",
        loss=cross_entropy,
    )
    train(target, text_run)
    draft = build_model(recipes.draft.layers, recipes.draft.seed)
    start_from(draft, target)
    distil_run = Run(
        recipe=recipes.draft,
        stream=material.streams.train,
        checkpoint=work / "draft.pt",
        loss=distillation(target),
    )
    train(draft, distil_run)
    return target, draft


def export_pair(
    pair: tuple[LlamaForCausalLM, LlamaForCausalLM], material: Material, out: Path
) -> None:
    """Write both models into `out`/target and `out`/draft."""
    for model, name in zip(pair, ("target", "draft"), strict=True):
        export(model, material.tokenizer, out / name)


def _write_records(
    sources: tuple[Source, ...], documents: list[Document], streams: Streams, work: Path
) -> None:
    """Write what the card states about the corpus, and the excerpts the tests read."""
    table = []
    for source in sources:
        own = [d for d in documents if d.name.startswith(f"{source.name}/")]
        table.append(
            {
                "name": source.name,
                "version": source.version,
                "licence": source.licence,
                "documents": len(own),
                "characters": sum(len(d.text) for d in own),
                "tokens": streams.counts.get(source.name, 0),
            }
        )
    record = {
        "sources": table,
        "conversation_tokens": streams.counts.get(CHAT_SOURCE, 0),
        "train_tokens": len(streams.train),
        "heldout_tokens": len(streams.heldout),
    }
    (work / "corpus.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    kept = [d.text[:_HELDOUT_EXCERPT] for d in documents if d.heldout]
    spread = kept[:: max(1, len(kept) // _HELDOUT_DOCUMENTS)][:_HELDOUT_DOCUMENTS]
    (work / "heldout.txt").write_text(EXCERPT_BREAK.join(spread), encoding="utf-8")
