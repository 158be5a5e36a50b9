"""Token bytes agree with what the tokenizers themselves decode."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from scheduler.errors import ModelRefused
from server.text.pieces import read_pieces
from tests.server.world import new_tokenizer

TOKENIZER = new_tokenizer()
PIECES = read_pieces(TOKENIZER)
SPECIALS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
UNKNOWN = {"unk_token": "<unk>"}


def sentencepiece_like(decoder):
    """A byte-fallback BPE in the manner of Llama 2: word marks, <0xNN> for unknown bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"]
    vocabulary = {word: index for index, word in enumerate(words)}
    merges = [("\u2581", "a"), ("a", "b"), ("\u2581a", "b")]
    core = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, **UNKNOWN))
    core.normalizer = normalizers.Replace(" ", "\u2581")
    core.decoder = decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=core, **{f"{kind}_token": name for kind, name in SPECIALS.items()}
    )


LLAMA = decoders.Sequence(
    [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=20))
def test_byte_level_text_equals_the_tokenizers(ids):
    for skip in (True, False):
        own = TOKENIZER.decode(ids, skip_special_tokens=skip)
        assert PIECES.join(ids, skip_special=skip) == own


@settings(max_examples=100, deadline=None)
@given(st.text("ab é東", min_size=1, max_size=12))
def test_sentencepiece_text_keeps_every_space(text):
    tokenizer = sentencepiece_like(LLAMA)
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = read_pieces(tokenizer).join(ids, skip_special=True)
    assert joined == text
    assert joined.removeprefix(" ") == tokenizer.decode(ids)


def test_metaspace_counts_as_sentencepiece():
    tokenizer = sentencepiece_like(decoders.Metaspace())
    ids = tokenizer.encode(" ab a", add_special_tokens=False)
    assert read_pieces(tokenizer).join(ids, skip_special=True) == " ab a"


def test_special_ids_are_those_marked_special():
    assert PIECES.special == frozenset(range(6))
    assert PIECES.of(len(PIECES.table) + 7) == b""


def test_an_added_token_is_what_it_says():
    tokenizer = new_tokenizer()
    tokenizer.add_tokens(["é\u0120more"])
    pieces = read_pieces(tokenizer)
    assert pieces.of(len(tokenizer) - 1) == "é\u0120more".encode()
    assert len(tokenizer) - 1 not in pieces.special


def test_an_unknown_decoder_is_refused_by_name():
    core = Tokenizer(models.WordPiece({"<unk>": 0, "a": 1, "##b": 2}, **UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.decoder = decoders.WordPiece()
    with pytest.raises(ModelRefused, match="WordPiece"):
        read_pieces(PreTrainedTokenizerFast(tokenizer_object=core))
