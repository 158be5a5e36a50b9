"""The seam for drafters of another vocabulary: they translate by text and propose target ids."""

import pytest

from scheduler.plan import HostDraft
from tests.oracles.rig import NGRAM, NOISE, TARGET, TOKEN, Rig, expected, letters, request
from tests.oracles.serial import greedy_text


class Syllables:
    """A drafter whose tokens are two letters long: it reads text, and answers in target ids."""

    kind = NGRAM

    def __init__(self):
        self.translated = 0

    def propose(self, view, k):
        text = letters(view.tokens)
        own = [text[at : at + 2] for at in range(len(text) % 2, len(text), 2)]
        drafted = "".join(self._guess(own, count) for count in range(-(-k // 2)))
        ids = tuple(ord(letter) - ord("a") for letter in drafted[:k])
        self.translated += len(ids)
        return HostDraft(token_ids=ids) if ids else None

    def release(self, request):
        """It keeps nothing."""

    def _guess(self, own, count):
        """Right for the first syllable, a repetition afterwards."""
        tokens = [ord(letter) - ord("a") for letter in "".join(own)]
        if not count:
            return letters(greedy_text(TARGET, tokens, 2))
        return own[-1]


@pytest.mark.parametrize("kind", [{"temperature": 0.0}, {"temperature": 0.9, "verifier": NOISE}])
def test_a_translated_draft_changes_no_text(kind):
    rig = Rig()
    drafter = Syllables()
    rig.scheduler._drafts._proposers[NGRAM] = drafter
    asked = [
        request(n, (n, 2, 5, 1), k=k, proposer=NGRAM, max_tokens=20, **kind)
        for n, k in ((1, 2), (2, 3), (3, 6))
    ]
    assert rig.serve(*asked) == [expected(each) for each in asked]
    assert drafter.translated > 20
    landed = [group for each in rig.landed for group in each.groups if group.speculation]
    assert sum(group.speculation.accepted for group in landed) > 0


def test_its_drafts_are_one_hot_for_the_verifier():
    rig = Rig()
    rig.scheduler._drafts._proposers[NGRAM] = Syllables()
    rig.submit(request(1, (4, 2, 5, 1), k=4, proposer=NGRAM, temperature=0.9, verifier=TOKEN))
    rig.step()
    plan, _ = rig.plan()
    (result,) = rig.runner.run(plan).groups
    assert [each.draft_prob for each in result.outcomes] == [1.0] * 4
