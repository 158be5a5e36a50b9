"""Characters that are split over tokens, and keys; against a server that recites a script."""

import codecs
import random

import pytest
from playwright.sync_api import expect

from server.api import ApiOptions
from tests.browser.steps import detail, fill, generate, spans
from tests.server.world import running

SPLIT = "naïve 🎉 東京 Ünïcode 🧮"


@pytest.fixture(scope="module")
def scripted():
    """A server whose tokenizer knows few characters whole."""
    with running() as world:
        yield world


def shown_pieces(page, pieces):
    """The text of each piece by the page's own code, and what is left at the end."""
    return page.evaluate(
        """async (pieces) => {
          const { PieceReader } = await import("/page/pieces.js");
          const reader = new PieceReader();
          const texts = pieces.map((bytes) => reader.next(Uint8Array.from(bytes)));
          return [...texts, reader.end()];
        }""",
        [list(piece) for piece in pieces],
    )


def test_characters_show_where_they_end(page):
    chance = random.Random(5)
    texts = [
        [bytes([byte]) for byte in SPLIT.encode()],
        [b"\xef\xbb\xbfmark first", b"ends in \xf0\x9f", b"\x8e"],
        *([bytes(chance.choices(range(256), k=3)) for _ in range(20)] for _ in range(20)),
    ]
    for pieces in texts:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        expected = [*map(decoder.decode, pieces), decoder.decode(b"", final=True)]
        assert "".join(shown_pieces(page, pieces)) == "".join(expected)
    assert shown_pieces(page, texts[0])[:4] == ["n", "a", "", "ï"]


def test_spelled_bytes_are_read(page):
    found = page.evaluate(
        """async (all) => {
          const { spelledBytes } = await import("/page/pieces.js");
          return all.map((one) => [...spelledBytes(one)]);
        }""",
        [" caf\u00e9", "bytes:\\xf0\\x9f", "bytes: no"],
    )
    assert [bytes(one) for one in found] == [" café".encode(), b"\xf0\x9f", b"bytes: no"]


@pytest.mark.parametrize("mode", ["Chat", "Completion"])
def test_split_characters_show_whole(visit, scripted, mode):
    scripted.runner.default = scripted.ids(SPLIT)
    with visit(scripted.url) as page:
        fill(page, mode=mode, prompt="x", max_tokens=80, k="4")
        generate(page)
        shown = spans(page)
        assert "".join(text for text, _, _ in shown) == SPLIT
        parts = [at for at, (text, _, sign) in enumerate(shown) if sign == "◦" and not text]
        assert parts
        page.locator(".run .token").nth(parts[0]).hover()
        assert detail(page)[0].startswith("part of a character: bytes ")
        assert shown[-1][2] == "end"


def test_an_unfinished_character_ends_the_text(visit, scripted):
    scripted.runner.default = scripted.ids(SPLIT)
    pieces = list(map(scripted.service.pieces.of, scripted.ids(SPLIT)))
    starts = [b"".join(pieces[:most]) for most in range(1, len(pieces))]
    cut = next(text for text in starts if text.decode("utf-8", "replace")[-1] == "\ufffd")
    with visit(scripted.url) as page:
        fill(page, mode="Completion", prompt="x", max_tokens=starts.index(cut) + 1, k="0")
        generate(page)
        assert "".join(text for text, _, _ in spans(page)) == cut.decode("utf-8", "replace")


def test_a_server_without_figures_is_no_accident(visit, scripted):
    with visit(scripted.url) as page:
        expect(page.locator("#pulse")).to_have_text("live")
        expect(page.locator("#load")).to_have_text("\N{EN DASH} / \N{EN DASH}")
        expect(page.locator("#alpha-quiet")).to_be_visible()


def test_a_key_is_asked_for_and_kept_in_memory_only(visit):
    with running(options=ApiOptions(api_keys=("open sesame",))) as world, visit(world.url) as page:
        page.complaints.expected = ("status of 401",)
        key = page.locator("#key")
        expect(key).to_be_hidden()
        generate(page)
        expect(page.locator("#problem")).to_contain_text("Error 401")
        expect(page.locator("#problem")).to_contain_text("code invalid_api_key")
        expect(key).to_be_focused()
        assert key.get_attribute("type") == "password"
        key.fill("open sesame")
        generate(page)
        expect(page.locator("#problem")).to_be_hidden()
        assert spans(page)
        assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [
            *(0, 0),
            "",
        ]
        assert "sesame" not in page.url
