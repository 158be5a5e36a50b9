"""Any split of a run into calls gives what the whole string gives, and no state ever changes."""

import codecs
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server.text.pieces import Pieces
from server.text.stager import Stager, TextRules

TABLE = (
    *(b"a", b"b", b"ab", b" ", b"aba", b"\xe2", b"\x82", b"\xac", b"\xe2\x82\xac"),
    *(b"\xf0\x9f", b"\x8e\x89", b"\xff", b"\xc3", b"", b"<s>"),
)
PIECES = Pieces(table=TABLE, special=frozenset({len(TABLE) - 1}))
STOPS = st.lists(st.text("ab €\ufffd<", min_size=1, max_size=4), max_size=4)
TOKENS = st.lists(st.integers(0, len(TABLE) - 1), max_size=14)


@dataclass
class Expected:
    text: str
    kept: int
    stop: str | None


def bytes_of(tokens, skip):
    return b"".join(b"" if skip and t in PIECES.special else TABLE[t] for t in tokens)


def naive(tokens, rules):
    """The definition, on whole strings: look again from the start after each token."""
    before = ""
    for count in range(1, len(tokens) + 2):
        data = bytes_of(tokens[:count], rules.skip_special)
        whole = count > len(tokens)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data, final=whole)
        counts = min(count, len(tokens)) > rules.min_tokens
        ends = [
            (end, -len(stop), stop)
            for stop in rules.stops
            for end in range(len(before) + 1, len(text) + 1)
            if text[:end].endswith(stop)
        ]
        if counts and ends:
            end, _, stop = min(ends)
            cut = end if rules.include_stop else end - len(stop)
            return Expected(text[:cut], min(count, len(tokens)), stop)
        before = text
    return Expected(before, len(tokens), None)


def cut(tokens, places):
    bounds = [0, *sorted(p % (len(tokens) + 1) for p in places), len(tokens)]
    return [tuple(tokens[a:b]) for a, b in pairwise(bounds)]


def run(stager, parts):
    """What a client gets, and how many tokens are kept, calling `stage` once a part."""
    state, shown, kept = stager.start(), "", 0
    for number, part in enumerate(parts):
        final = number == len(parts) - 1
        staged = stager.stage(state, part, final=final)
        assert stager.stage(state, part, final=final) == staged
        state, shown, kept = staged.state, shown + staged.text, kept + staged.kept
        if staged.stop is not None:
            return Expected(shown, kept, staged.stop)
    return Expected(shown, kept, None)


@settings(max_examples=300, deadline=None)
@given(
    tokens=TOKENS,
    places=st.lists(st.integers(0, 14), max_size=5),
    stops=STOPS,
    include=st.booleans(),
    skip=st.booleans(),
    least=st.integers(0, 4),
)
def test_any_split_equals_the_whole(tokens, places, stops, include, skip, least):
    rules = TextRules(stops=tuple(stops), include_stop=include, skip_special=skip, min_tokens=least)
    assert run(Stager(PIECES, rules), cut(tokens, places)) == naive(tokens, rules)


@settings(max_examples=150, deadline=None)
@given(tokens=TOKENS, stops=STOPS, least=st.sampled_from([0, 99]))
@example(tokens=[0, 1], stops=["ab"], least=99)
def test_holds_back_no_more_than_it_must(tokens, stops, least):
    stager = Stager(PIECES, TextRules(stops=tuple(stops), min_tokens=least))
    staged = stager.stage(stager.start(), tuple(tokens), final=False)
    if staged.stop is not None:
        return
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes_of(tokens, skip=True))
    begins = [text[-n:] for s in stops for n in range(1, len(s)) if text.endswith(s[:n])]
    held = max(map(len, begins), default=0)
    assert staged.text == text[: len(text) - held]


def test_a_stop_counts_only_after_the_first_min_tokens():
    ids = tuple(TABLE.index(piece) for piece in (b"a", b"b", b"a", b"b"))
    for least, kept in ((0, 2), (1, 2), (2, 4), (3, 4)):
        stager = Stager(PIECES, TextRules(stops=("ab",), min_tokens=least))
        staged = stager.stage(stager.start(), ids, final=True)
        assert (staged.kept, staged.stop) == (kept, "ab")


def test_of_two_stops_that_end_together_the_longer_one_cuts():
    for stops in (("b", "ab"), ("ab", "b")):
        stager = Stager(PIECES, TextRules(stops=stops))
        staged = stager.stage(stager.start(), (3, 2), final=True)
        assert (staged.text, staged.stop) == (" ", "ab")


def test_a_stop_may_begin_inside_one_that_did_not_count():
    for stop, ids in (("aa", (0, 0, 0)), ("aba", (0, 1, 0, 1, 0))):
        stager = Stager(PIECES, TextRules(stops=(stop,), min_tokens=len(ids) - 1))
        staged = stager.stage(stager.start(), ids, final=False)
        assert (staged.kept, staged.stop) == (len(ids), stop)


def test_an_unfinished_character_waits_and_is_flushed():
    stager = Stager(PIECES, TextRules())
    first = stager.stage(stager.start(), (TABLE.index(b"\xe2"),), final=False)
    assert first.text == ""
    more = stager.stage(first.state, (TABLE.index(b"\x82"), TABLE.index(b"\xac")), final=False)
    assert more.text == "€"
    assert stager.stage(first.state, (), final=True).text == "\ufffd"


def test_a_foreign_state_is_refused():
    with pytest.raises(TypeError, match="not a text state"):
        Stager(PIECES, TextRules()).stage(object(), (), final=True)


def test_a_very_long_stop_string_costs_linear_time():
    stager = Stager(PIECES, TextRules(stops=("a" * 200_000 + "b",)))
    staged = stager.stage(stager.start(), (0,) * 20_000, final=False)
    assert (staged.text, staged.stop) == ("", None)
    assert stager.stage(staged.state, (), final=True).text == "a" * 20_000
