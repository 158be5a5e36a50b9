"""The authoritative state of one request, S = (O, C, F, P, G, R, V) of contract section 6.

Frozen: a round builds a successor, and only `commit.Ledger` replaces one by the other.
"""

import hashlib
import struct
from dataclasses import dataclass, replace

from scheduler.tokens import TokenIds, tokens_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RngState:
    """Identity of a request's randomness and the draws that published rounds consumed.

    The next round's draws are keyed by (seed, choice, stream, len(tokens), offset), so the state
    holds no counter that a retry could advance (contract section 7).
    """

    seed: int
    choice: int
    consumed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """S. `tokens` is O: the prompt, then the published output.

    `kv_rows` counts the target rows committed for `tokens[:kv_rows]`, by identity: every commit
    compares the ids it adds. While the request decodes, `kv_rows == len(tokens) - 1` and the
    frontier is `tokens[-1]`; during prefill it is less. In the retained layout an append makes it
    `len(tokens)`: then there is no frontier, and the runner holds the logits of the row that was
    one, by (request, generation). `text` is the stop automaton and
    detokenizer, `history` the digest of all that stateful processors have seen (they are pure
    replays of O). `generation` grows with every publication and preemption.
    """

    tokens: TokenIds
    prompt_length: int
    kv_rows: int
    text: object
    history: str
    rng: RngState
    generation: int = 0

    @property
    def frontier(self) -> int | None:
        """F: emitted (or the last of the prompt), but without a committed target row; None when
        its row is committed and its logits are retained."""
        return None if self.retained else self.tokens[-1]

    @property
    def emitted(self) -> int:
        """Published output tokens."""
        return len(self.tokens) - self.prompt_length

    @property
    def decoding(self) -> bool:
        """Whether all rows but the frontier's are committed."""
        return self.kv_rows == len(self.tokens) - 1

    @property
    def retained(self) -> bool:
        """Whether the frontier's row is committed and its logits are held by the runner."""
        return self.kv_rows == len(self.tokens)

    @property
    def prefilled(self) -> bool:
        """Whether at most the frontier's row is missing."""
        return self.kv_rows >= len(self.tokens) - 1


def extend_history(history: str, token_ids: tuple[int, ...]) -> str:
    """Digest of the sequence after `token_ids`; equal sequences give equal digests only when they
    were cut into the same runs, which is enough to compare a retry with its first try."""
    packed = struct.pack(f"<{len(token_ids)}q", *token_ids)
    return hashlib.blake2b(packed, key=bytes.fromhex(history), digest_size=16).hexdigest()


def initial_state(prompt: tuple[int, ...], rng: RngState, text: object) -> RequestState:
    """S before the first round: nothing committed, the prompt's last token is the frontier."""
    return RequestState(
        tokens=tokens_of(prompt),
        prompt_length=len(prompt),
        kv_rows=0,
        text=text,
        history=extend_history("", prompt),
        rng=rng,
    )


def preempted(state: RequestState) -> RequestState:
    """S after its K/V rows were given up: same output, same draws ahead, a new generation."""
    return replace(state, kv_rows=0, generation=state.generation + 1)
