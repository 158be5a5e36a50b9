"""Pictures: what is drawn, in which units, and what is said without the library."""

import re
import struct
import sys

import pytest

from tests.server.ledger.conftest import TOY


def test_a_png_is_drawn_beside_the_table(ledger, tmp_path):
    path = tmp_path / "ledger.png"
    assert "best: K = 2" in ledger(f"{TOY} --plot {path}")
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width > 1500
    assert height > 500


@pytest.mark.parametrize(
    ("arguments", "rate", "time"),
    [
        (TOY, "committed tokens per second", "milliseconds a round"),
        ("--profile 0.9,0.5 --c 0.1", "speed-up over plain decoding", "plain decoding steps"),
        ("--alpha 0.5 --k 0 --c 0.1", "speed-up over plain decoding", "plain decoding steps"),
        ("--alpha 0.9 --k 0..64 --c 0.1", "speed-up over plain decoding", "plain decoding steps"),
    ],
)
def test_an_svg_names_its_axes_and_units(ledger, tmp_path, arguments, rate, time):
    path = tmp_path / "ledger.svg"
    ledger(f"{arguments} --plot {path}")
    words = set(re.findall(">([^<>]+)</text>", path.read_text()))
    assert {"drafts a round, K", "plain decoding", rate, time} <= words
    assert any(word.startswith("best: K = ") for word in words)


def test_without_its_library_a_picture_is_refused_and_nothing_else(
    ledger, refusal, monkeypatch, tmp_path
):
    monkeypatch.delitem(sys.modules, "server.ledger.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = refusal(f"{TOY} --plot {tmp_path / 'ledger.png'}")
    assert "argument --plot: needs matplotlib: python -m pip install 'fencepost[plot]'" in words
    assert list(tmp_path.iterdir()) == []
    assert "best: K = 2" in ledger(TOY)
