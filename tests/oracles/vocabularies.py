"""Small tokenizers, and pairs of them that do not speak of the same events."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def make_byte_tokenizer(*extra: str, prefix_space: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer; extra tokens follow the 256 bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate((*alphabet, *extra))}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def strangers():
    """(target, draft, what a refusal must say) of pairs whose equal ids are not equal events."""
    plain = make_byte_tokenizer("ab", "cd")
    lowered = make_byte_tokenizer("ab", "cd")
    lowered.backend_tokenizer.normalizer = normalizers.Lowercase()
    special = make_byte_tokenizer("ab", "cd")
    special.add_tokens([AddedToken("ab", special=True)], special_tokens=True)
    return [
        (plain, make_byte_tokenizer("ab", "ce"), "id 257: 'cd' in the target, 'ce' in the draft"),
        (plain, make_byte_tokenizer("cd", "ab"), "id 256: 'ab' in the target, 'cd' in the draft"),
        (plain, make_byte_tokenizer("ab"), "id 257: 'cd' in the target, no token in the draft"),
        (make_byte_tokenizer("ab"), plain, "id 257: no token in the target, 'cd' in the draft"),
        (plain, make_byte_tokenizer("ab", "cd", prefix_space=True), "pre-tokenizer"),
        (plain, lowered, "normalizer"),
        (plain, special, "added tokens differ at id 256"),
    ]
