"""The embedded pair: it loads, its figures hold, and its making is repeatable."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from deploy.pair import DRAFT, TARGET
from deploy.pair.card import render_card
from deploy.pair.chat import conversations
from deploy.pair.corpus import collect, is_heldout, stdlib_source
from deploy.pair.distil import distillation, start_from
from deploy.pair.evaluate import Agreement, Pair, agreement, load_pair
from deploy.pair.model import build_model, non_embedding_parameters
from deploy.pair.optim import orthogonal
from deploy.pair.pipeline import EXCERPT_BREAK, prepare
from deploy.pair.recipe import SMOKE_RECIPE, TARGET_RECIPE
from deploy.pair.tokenizer import SPECIALS, VOCAB_SIZE
from deploy.pair.tokens import block_batch
from deploy.pair.train import Run, cross_entropy, train

FOLDER = TARGET.parents[1]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
MIN_GAP = 0.2
ACCEPTANCE = (0.5, 0.9)


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(TARGET, DRAFT)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(TARGET)


@pytest.fixture(scope="module")
def figures() -> dict:
    return json.loads((FOLDER / "evaluation.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def heldout_agreement(pair: Pair, tokenizer: PreTrainedTokenizerFast) -> Agreement:
    text = (FOLDER / "heldout.txt").read_text(encoding="utf-8")
    rows = [tokenizer.encode(part, split_special_tokens=True) for part in text.split(EXCERPT_BREAK)]
    return agreement(pair, [torch.tensor([row]) for row in rows])


@pytest.mark.parametrize("folder", [TARGET, DRAFT], ids=["target", "draft"])
def test_weights_load_by_transformers_alone(folder: Path) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert model.dtype == torch.bfloat16
    assert not any(info.values())
    assert model.config.vocab_size == VOCAB_SIZE == len(AutoTokenizer.from_pretrained(folder))
    assert model.config.max_position_embeddings == 2048
    assert model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == SPECIALS.index("</s>")


def test_weights_are_finite_and_small_enough_for_the_repository(pair: Pair) -> None:
    size = sum(path.stat().st_size for path in TARGET.parent.rglob("*") if path.is_file())
    assert size < 45_000_000
    for model in (pair.target, pair.draft):
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_draft_is_at_least_eight_times_smaller(pair: Pair) -> None:
    ratio = non_embedding_parameters(pair.target) / non_embedding_parameters(pair.draft)
    assert ratio >= 8


@pytest.mark.parametrize("name", TOKENIZER_FILES)
def test_tokenizers_are_identical_by_content(name: str) -> None:
    assert (TARGET / name).read_bytes() == (DRAFT / name).read_bytes()


@given(text=st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_tokenizer_round_trips_any_text(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
    assert tokenizer.decode(ids) == text
    assert all(index >= len(SPECIALS) for index in ids)


@pytest.mark.parametrize("special", SPECIALS)
def test_special_token_in_plain_text_stays_text(
    tokenizer: PreTrainedTokenizerFast, special: str
) -> None:
    ids = tokenizer.encode(special, add_special_tokens=False, split_special_tokens=True)
    assert min(ids) >= len(SPECIALS)
    assert tokenizer.decode(ids) == special


def test_encoding_begins_with_bos(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.encode("import os")[0] == tokenizer.bos_token_id == 0
    assert tokenizer.encode("import os", add_special_tokens=False)[0] >= len(SPECIALS)


def test_chat_template_renders(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Bye"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<s><|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello.</s>\n"
        "<|user|>\nBye</s>\n<|assistant|>\n"
    )
    closed = tokenizer.apply_chat_template(messages[:3], tokenize=False)
    assert closed.endswith("Hello.</s>")


def test_chat_template_refuses_an_unknown_role(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TemplateError, match="unknown role"):
        tokenizer.apply_chat_template([{"role": "wizard", "content": "x"}], tokenize=False)


@pytest.mark.parametrize("text", ["heldout", "sampled"])
def test_recorded_figures_satisfy_the_limits(figures: dict, text: str) -> None:
    recorded = figures[text]
    assert ACCEPTANCE[0] < recorded["acceptance"] < ACCEPTANCE[1]
    assert recorded["gap"] == pytest.approx(
        recorded["draft_loss"] - recorded["target_loss"], abs=2e-4
    )


def test_recorded_target_is_better_than_the_draft(figures: dict) -> None:
    assert figures["heldout"]["gap"] >= MIN_GAP
    assert all(cost["c"] < 1 for cost in figures["row_cost"].values())


def test_heldout_excerpts_agree_with_the_record(
    heldout_agreement: Agreement, figures: dict
) -> None:
    assert heldout_agreement.draft_loss - heldout_agreement.target_loss >= MIN_GAP
    assert ACCEPTANCE[0] < heldout_agreement.acceptance < ACCEPTANCE[1]
    assert heldout_agreement.acceptance == pytest.approx(figures["heldout"]["acceptance"], abs=0.1)


def test_record_belongs_to_these_weights(pair: Pair, figures: dict) -> None:
    for name, model in (("target", pair.target), ("draft", pair.draft)):
        counted = figures["parameters"][name]
        assert counted["non_embedding"] == non_embedding_parameters(model)
        assert figures["recipes"][name]["layers"] == model.config.num_hidden_layers


def test_card_is_the_rendered_record(figures: dict) -> None:
    assert (FOLDER / "MODEL_CARD.md").read_text(encoding="utf-8") == render_card(figures)


def test_corpus_is_deterministic() -> None:
    documents = collect((stdlib_source(),), limit=40)
    again = collect((stdlib_source(),), limit=40)
    assert documents == again
    assert conversations(documents, 1) == conversations(again, 1)
    # A subset of the documents gives exactly its own conversations.
    some = conversations(documents[10:20], 1)
    names = {document.name for document in documents[10:20]}
    assert some == [
        talk for talk in conversations(documents, 1) if talk.name.split("#")[0] in names
    ]


def test_split_goes_by_name_and_conversations_follow_their_document() -> None:
    names = [f"source/{number}.py" for number in range(5000)]
    share = sum(map(is_heldout, names)) / len(names)
    assert 0.01 < share < 0.03
    documents = {d.name: d for d in collect((stdlib_source(),), limit=60)}
    for talk in conversations(list(documents.values()), 1):
        assert talk.heldout == documents[talk.name.split("#")[0]].heldout


def test_an_epoch_of_batches_sees_every_block_once() -> None:
    stream = np.arange(60_000, dtype=np.uint16)
    blocks = (len(stream) - 1) // 100 - 1
    starts = [int(block_batch(stream, step, (1, 100), 3)[0, 0]) for step in range(blocks)]
    assert len(set(starts)) == blocks
    assert {start % 100 for start in starts} == {starts[0] % 100}


def test_rate_rises_stays_and_falls_to_zero() -> None:
    factors = [TARGET_RECIPE.rate_factor(step) for step in range(TARGET_RECIPE.steps)]
    assert factors[0] == pytest.approx(1 / TARGET_RECIPE.warmup)
    assert factors[TARGET_RECIPE.steps // 4] == 1
    assert 0 < factors[-1] < 0.01
    assert TARGET_RECIPE.shape_at(TARGET_RECIPE.steps - 1) == TARGET_RECIPE.long_shape


def test_a_model_agrees_with_itself_and_has_nothing_to_distil() -> None:
    model = build_model(1, 4)
    ids = torch.arange(200, 264).unsqueeze(0)
    same = agreement(Pair(target=model, draft=model), [ids])
    with torch.no_grad():
        text, distilled = cross_entropy(model, ids).item(), distillation(model)(model, ids).item()
    assert same.tokens == 63
    assert same.acceptance == pytest.approx(1, abs=1e-5)
    assert same.argmax_agreement == 1
    assert same.target_loss == same.draft_loss == pytest.approx(text, rel=1e-5)
    assert distilled == pytest.approx(0, abs=1e-4)


def test_draft_starts_from_what_it_shares_with_the_target() -> None:
    target, draft = build_model(2, 1), build_model(1, 2)
    start_from(draft, target)
    for name, tensor in draft.state_dict().items():
        assert torch.equal(tensor, target.state_dict()[name])


@pytest.mark.parametrize("shape", [(3, 8, 20), (3, 20, 8)])
def test_muon_direction_is_nearly_orthogonal(shape: tuple[int, int, int]) -> None:
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_smoke_training_lowers_the_loss_and_resumes(tmp_path: Path) -> None:
    material = prepare((stdlib_source(),), tmp_path, 1, 40)
    run = Run(
        recipe=SMOKE_RECIPE,
        stream=material.streams.train,
        checkpoint=tmp_path / "smoke.pt",
        loss=cross_entropy,
    )
    model = build_model(SMOKE_RECIPE.layers, 1)
    losses = train(model, run)
    assert len(losses) == SMOKE_RECIPE.steps
    assert losses[-1] < losses[0] - 0.5
    # The checkpoint holds the finished run: a second call finds nothing to do.
    resumed = build_model(SMOKE_RECIPE.layers, 2)
    assert train(resumed, run) == []
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])
