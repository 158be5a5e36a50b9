"""Command line: make the pair again, or measure and describe the one that is there."""

import argparse
import json
import logging
import sys
from dataclasses import replace
from pathlib import Path

import torch

from deploy.pair.card import render_card
from deploy.pair.corpus import Source, source_tables, stdlib_source
from deploy.pair.pipeline import Material, Recipes, export_pair, prepare, train_pair
from deploy.pair.recipe import DRAFT_RECIPE, SEED, SMOKE_RECIPE, TARGET_RECIPE
from deploy.pair.record import measure

_HERE = Path(__file__).resolve().parent
_WORK = Path("build/pair")
_SMOKE_DOCUMENTS = 60


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; gives the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(options.threads)
    recipes = _recipes(options)
    sources, limit = _corpus(smoke=options.smoke)
    material = prepare(sources, options.work, SEED, limit)
    weights = options.out / "weights"
    if not options.evaluate_only:
        export_pair(train_pair(recipes, material, options.work), material, weights)
    if not options.smoke:
        _describe(options, recipes, material)
    sys.stdout.write(f"{weights}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy.pair", description=__doc__)
    parser.add_argument("--out", type=Path, default=_HERE, help="where weights and card go")
    parser.add_argument("--work", type=Path, default=_WORK, help="folder for checkpoints")
    parser.add_argument("--steps", type=int, help="target steps (default: the recipe's)")
    parser.add_argument("--draft-steps", type=int, help="draft steps (default: the recipe's)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads")
    parser.add_argument("--smoke", action="store_true", help="a tiny run, without evaluation")
    parser.add_argument("--evaluate-only", action="store_true", help="measure existing weights")
    parser.add_argument("--conditions", default="", help="what else ran during the timing")
    return parser


def _recipes(options: argparse.Namespace) -> Recipes:
    recipes = Recipes(target=TARGET_RECIPE, draft=DRAFT_RECIPE)
    if options.smoke:
        recipes = Recipes(target=replace(SMOKE_RECIPE, layers=2), draft=SMOKE_RECIPE)
    return Recipes(
        target=replace(recipes.target, steps=options.steps or recipes.target.steps),
        draft=replace(recipes.draft, steps=options.draft_steps or recipes.draft.steps),
    )


def _corpus(*, smoke: bool) -> tuple[tuple[Source, ...], int | None]:
    return ((stdlib_source(),), _SMOKE_DOCUMENTS) if smoke else (source_tables(), None)


def _describe(options: argparse.Namespace, recipes: Recipes, material: Material) -> None:
    figures = measure(options.out / "weights", material, recipes, options.work)
    figures["conditions"] = options.conditions
    text = json.dumps(figures, indent=2, ensure_ascii=False) + "\n"
    (options.out / "evaluation.json").write_text(text, encoding="utf-8")
    (options.out / "MODEL_CARD.md").write_text(render_card(figures), encoding="utf-8")
    excerpts = (options.work / "heldout.txt").read_text(encoding="utf-8")
    (options.out / "heldout.txt").write_text(excerpts, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
