"""Equal ids must be equal tokens, or the pair is refused with the first difference."""

import pytest
from tokenizers import AddedToken, normalizers

from scheduler.errors import ModelRefused
from scheduler.runtime.admission_checks import check_pair, event_space_digest


def _refusal(target, draft, widths=(300, 300)) -> str:
    with pytest.raises(ModelRefused) as caught:
        check_pair(target, draft, *widths)
    return str(caught.value)


def test_equal_tokenizers_share_the_narrower_event_space(byte_tokenizer):
    report = check_pair(byte_tokenizer("ab", "cd"), byte_tokenizer("ab", "cd"), 320, 264)
    assert report.event_space == 264
    assert report.tokens == 258
    assert (report.target_padding, report.draft_padding) == (62, 6)


def test_a_token_of_another_string_is_named_with_both(byte_tokenizer):
    message = _refusal(byte_tokenizer("ab", "cd"), byte_tokenizer("ab", "ce"))
    assert "id 257: 'cd' in the target, 'ce' in the draft" in message


def test_the_first_difference_is_the_lowest_id(byte_tokenizer):
    message = _refusal(byte_tokenizer("ab", "cd"), byte_tokenizer("xy", "cd"))
    assert "id 256: 'ab' in the target, 'xy' in the draft" in message


def test_a_token_that_only_one_has_is_named(byte_tokenizer):
    message = _refusal(byte_tokenizer("ab"), byte_tokenizer("ab", "cd"))
    assert "id 257: no token in the target, 'cd' in the draft" in message


def test_flags_of_added_tokens_are_events_too(byte_tokenizer):
    target, draft = byte_tokenizer("<end>"), byte_tokenizer("<end>")
    target.add_tokens([AddedToken("<end>", special=True)], special_tokens=True)
    draft.add_tokens([AddedToken("<end>", special=False)])
    assert "added tokens differ at id 256" in _refusal(target, draft)


def test_a_pre_tokenizer_that_splits_otherwise_is_refused(byte_tokenizer):
    message = _refusal(byte_tokenizer(), byte_tokenizer(prefix_space=True))
    assert "pre-tokenizer" in message
    assert '"add_prefix_space": true' in message


def test_a_normalizer_that_only_one_has_is_refused(byte_tokenizer):
    draft = byte_tokenizer()
    draft.backend_tokenizer.normalizer = normalizers.Lowercase()
    message = _refusal(byte_tokenizer(), draft)
    assert "normalizer: null in the target" in message
    assert "Lowercase" in message


@pytest.mark.parametrize(("widths", "role"), [((256, 300), "target"), ((300, 256), "draft")])
def test_a_token_without_a_logit_is_refused(byte_tokenizer, widths, role):
    message = _refusal(byte_tokenizer("ab"), byte_tokenizer("ab"), widths)
    assert f"the {role} has logits for 256 ids, the tokenizer uses 257" in message


def test_the_digest_of_an_event_space_is_of_its_content(byte_tokenizer):
    def lowered(tokenizer):
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
        return tokenizer

    def flagged(tokenizer):
        tokenizer.add_tokens([AddedToken("ab", special=True)], special_tokens=True)
        return tokenizer

    same = {event_space_digest(byte_tokenizer("ab", "cd")) for _ in range(2)}
    others = {
        event_space_digest(each)
        for each in (
            byte_tokenizer("ab", "ce"),
            byte_tokenizer("cd", "ab"),
            byte_tokenizer("ab"),
            byte_tokenizer("ab", "cd", prefix_space=True),
            lowered(byte_tokenizer("ab", "cd")),
            flagged(byte_tokenizer("ab", "cd")),
        )
    }
    assert len(same) == 1
    assert len(others) == 6
    assert not same & others
