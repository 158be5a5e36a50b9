"""Prompt lookup: drafts what followed the last occurrence of the sequence's own last tokens.

Saxena, "Prompt Lookup Decoding" (2023). The proposal is one-hot, so verification needs no draft
law; it helps where the output repeats the prompt or itself.
"""

from dataclasses import dataclass, field

from scheduler.plan import HostDraft
from scheduler.proposal import RequestView
from scheduler.request import ProposerKind
from scheduler.tokens import TokenIds


@dataclass(slots=True)
class _Index:
    """For each n-gram seen, the position after its latest occurrence that has a continuation."""

    indexed: int = 0
    after: dict[tuple[int, ...], int] = field(default_factory=dict)


class NgramProposer:
    """Looks for the longest of `longest` .. `shortest` last tokens, latest occurrence first."""

    kind = ProposerKind.NGRAM

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._indexes: dict[int, _Index] = {}

    def propose(self, view: RequestView, k: int) -> HostDraft | None:
        """Up to `k` tokens; None when nothing at hand has occurred before."""
        index = self._indexes.setdefault(view.request, _Index())
        self._extend(index, view.tokens)
        for size in self._sizes:
            start = index.after.get(view.tokens[-size:])
            if start is not None and len(view.tokens) > size:
                return HostDraft(token_ids=view.tokens[start : start + k])
        return None

    def release(self, request: int) -> None:
        """Forget the index of a finished request."""
        self._indexes.pop(request, None)

    def _extend(self, index: _Index, tokens: TokenIds) -> None:
        """Index every n-gram that ends before the last token, once."""
        first = max(index.indexed, 1)
        start = max(first - self._sizes[0], 0)
        fresh = tokens[start:]
        for end in range(first, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    index.after[fresh[end - size - start : end - start]] = end
        index.indexed = max(index.indexed, len(tokens))
