"""Token identity at scale on the embedded pair (contract 11.3): greedy and shared-noise texts do
not depend on how they are served.

In shape-invariant mode to the last bit; in plain arithmetic but for near ties, which a reference
that reads the emitted texts measures.
"""

import gc
import statistics
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from transformers import AutoModelForCausalLM

from deploy.pair import DRAFT, TARGET
from scheduler.runtime.create import LoadedPair, PairOptions, create_runner
from scheduler.runtime.loading import DtypeChoice, ModelSource
from tests.identity.cases import LAWS, PENALISED, Case, make_cases
from tests.identity.margins import Law, margin, noise_of
from tests.identity.ways import ALONE, WAYS, Served, Way, serve
from tests.oracles.driver import Output
from tests.prove.proof import Finding, Proof, Scope

_CASES = {Scope.FAST: 9, Scope.FULL: 63}
# At FAST, the ways in which most happens: every proposer and preemption; where a call is not dear
# also a K that changes and a draft that starts anew.
_FAST_WAYS = {
    "float32": ("drafters by request", "few blocks", "k by history", "draft restarts"),
    "bfloat16": ("drafters by request", "few blocks"),
}
_FAST_PROMPT = 24
_FAST_TOKENS = 20
_FAST_BLOCKS = 12
# A mismatch may be no further from a tie than this many times the largest deviation of a row.
_NEAR = 4.0
# No rounding of one forward goes further from the reference, in logprobs.
_ROUNDING = {"float32": 1e-3, "bfloat16": 0.25}


_HEAD = ("way", "tokens", "drafts accepted", "preemptions")


def load(dtype: DtypeChoice, *, invariant: bool) -> LoadedPair:
    """The embedded pair, for up to 32 requests of up to 384 tokens."""
    options = PairOptions(
        target=ModelSource(path_or_id=str(TARGET), offline=True),
        draft=ModelSource(path_or_id=str(DRAFT), offline=True),
        dtype=dtype,
        max_model_len=384,
        max_requests=32,
        batch_invariant=invariant,
    )
    return create_runner(options, time.perf_counter)


def _chosen(
    pair: LoadedPair, laws: Sequence[dict[str, object]], dtype: DtypeChoice, scope: Scope
) -> tuple[list[Case], list[Way]]:
    cases = make_cases(pair.tokenizer, _CASES[scope], laws)
    if scope is Scope.FULL:
        return cases, list(WAYS)
    ways = [way for way in WAYS if way.name.startswith(_FAST_WAYS[dtype])]
    return [_short(case) for case in cases], [_scarcer(way) for way in ways]


# ---- shape-invariant mode: every bit ------------------------------------------------------------


def bitwise(dtype: DtypeChoice, scope: Scope) -> Finding:
    """Tokens and logprobs of every way against those of each request alone without drafts."""
    pair = load(dtype, invariant=True)
    cases, ways = _chosen(pair, (*LAWS, *PENALISED), dtype, scope)
    expected = serve(pair, cases, ALONE)
    rows = [(*_HEAD, "differing")]
    compared = differing = 0
    served = {way.name: serve(pair, cases, way, seed) for seed, way in enumerate(ways, 1)}
    for name, found in served.items():
        wrong = sum(map(_differing, found.outputs, expected.outputs))
        rows.append((*_row(name, found), str(wrong)))
        compared += found.tokens
        differing += wrong
    happened = _happened(served)
    numerics = pair.runner.capabilities().numerics
    if scope is Scope.FULL and dtype == "float32":
        rows += cost_rows(pair)
    return Finding(
        cases=compared,
        unit="tokens",
        worst=float(differing),
        limit="0 differing",
        holds=differing == 0 and happened,
        note=f"{len(ways)} ways; {numerics}" + ("" if happened else "; nothing was preempted"),
        rows=tuple(rows),
    )


def _differing(found: Output, expected: Output) -> int:
    """Places where a token or a bit of its logprob differs, or where only one text has a token."""
    pairs = zip(_bits(found), _bits(expected), strict=False)
    return sum(one != other for one, other in pairs) + abs(len(found.ids) - len(expected.ids))


def _bits(output: Output) -> list[tuple[int, bytes]]:
    packed = [struct.pack("<d", value) for value in output.logprobs]
    return list(zip(output.ids, packed, strict=True))


# ---- plain arithmetic: near ties only -----------------------------------------------------------


@dataclass(slots=True)
class _Judged:
    """One text, read by the reference: margins of the tokens that are not its choice, and the
    reference's own logprobs."""

    margins: list[float] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class Teacher:
    """The unmodified model in one dtype, one text a call, head in float32."""

    def __init__(self, dtype: torch.dtype, vocabulary: int) -> None:
        model = AutoModelForCausalLM.from_pretrained(
            TARGET, dtype=dtype, attn_implementation="eager"
        ).eval()
        self._body = model.get_decoder()
        self._head = model.lm_head.weight.detach().float()
        self._vocabulary = vocabulary
        self._read: dict[tuple[int, tuple[int, ...]], _Judged] = {}

    def judge(self, case: Case, ids: Sequence[int]) -> _Judged:
        """What the reference says to the text `ids` of a case; read once."""
        key = (case.number, tuple(ids))
        if key not in self._read:
            self._read[key] = self._judge(case, ids)
        return self._read[key]

    @torch.inference_mode()
    def _judge(self, case: Case, ids: Sequence[int]) -> _Judged:
        whole = torch.tensor([[*case.prompt, *ids]])
        first = len(case.prompt)
        hidden = self._body(input_ids=whole, use_cache=False).last_hidden_state[0, first - 1 : -1]
        logits = (hidden.float() @ self._head.t())[:, : self._vocabulary]
        raw = logits.log_softmax(-1)
        sampling = case.sampling
        law = Law(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
        )
        judged = _Judged()
        for place, token in enumerate(ids):
            noise = None
            if not sampling.greedy:
                noise = noise_of(sampling.seed, first + place, self._vocabulary)
            needed = margin(logits[place].double().numpy(), law, noise, token)
            if needed > 0:
                judged.margins.append(needed)
            judged.logprobs.append(float(raw[place, token]))
        return judged


def near_ties(dtype: DtypeChoice, scope: Scope) -> Finding:
    """Every emitted token of every way is the reference's choice, or within rounding of it.

    The deviation of a row is that of requests alone, so that no fault of batches or of drafts can
    widen what it is measured by; the logprobs of every way must stay within the same bounds.
    """
    pair = load(dtype, invariant=False)
    cases, ways = _chosen(pair, LAWS, dtype, scope)
    teacher = Teacher(getattr(torch, dtype), pair.vocabulary)
    found = {way.name: serve(pair, cases, way, seed) for seed, way in enumerate([ALONE, *ways])}
    judged = {
        name: [
            teacher.judge(case, output.ids)
            for case, output in zip(cases, served.outputs, strict=True)
        ]
        for name, served in found.items()
    }
    deviations = {name: _deviation(served, judged[name]) for name, served in found.items()}
    deviation = deviations[ALONE.name]
    margins = [value for texts in judged.values() for each in texts for value in each.margins]
    tokens = sum(served.tokens for served in found.values())
    worst = max([*margins, *deviations.values()]) / deviation
    rows = [(*_HEAD, "divergences", "widest margin", "row deviation")]
    for name, served in found.items():
        own = [value for each in judged[name] for value in each.margins]
        widest = f"{max(own, default=0.0):.3g}"
        rows.append((*_row(name, served), str(len(own)), widest, f"{deviations[name]:.3g}"))
    return Finding(
        cases=tokens,
        unit="tokens",
        worst=worst,
        limit=f"margins < {_NEAR:g} row deviations",
        holds=worst < _NEAR and deviation < _ROUNDING[dtype] and _happened(found),
        note=(
            f"{len(margins)} divergences, {1000 * len(margins) / tokens:.3g} per 1,000 tokens, "
            f"margins up to {max(margins, default=0.0):.2g}; row deviation {deviation:.2g}"
        ),
        rows=tuple(rows),
    )


def _deviation(served: Served, judged: Sequence[_Judged]) -> float:
    """The largest difference of an emitted token's raw logprob from the reference's."""
    return max(
        abs(own - theirs)
        for output, text in zip(served.outputs, judged, strict=True)
        for own, theirs in zip(output.logprobs, text.logprobs, strict=True)
    )


# ---- both --------------------------------------------------------------------------------------


def _row(name: str, served: Served) -> tuple[str, ...]:
    return (name, str(served.tokens), str(served.accepted), str(served.preemptions))


def _happened(found: dict[str, Served]) -> bool:
    """Whether every way with too few blocks preempted, and drafts were accepted at all."""
    scarce = [served for name, served in found.items() if "few blocks" in name]
    return all(each.preemptions for each in scarce) and any(s.accepted for s in found.values())


def cost_rows(pair: LoadedPair, rounds: int = 3) -> list[tuple[str, ...]]:
    """Committed tokens a second of the mode over those of plain float32, K 4, in turns."""
    plain = load("float32", invariant=False)
    cases = [case for case in make_cases(pair.tokenizer, 24, LAWS) if len(case.prompt) < 100][:16]
    rows = []
    for at_once, share in ((1, cases[:4]), (8, cases)):
        way = Way(name=f"cost at {at_once}", at_once=at_once)
        ratios, speeds = [], []
        for _ in range(rounds):
            own, other = serve(pair, share, way), serve(plain, share, way)
            speeds.append((own.tokens / own.seconds, other.tokens / other.seconds))
            ratios.append(speeds[-1][0] / speeds[-1][1])
        medians = [statistics.median(column) for column in zip(*speeds, strict=True)]
        rows.append(
            (
                f"cost of the mode, K 4, {at_once} at once",
                f"{medians[0]:.0f} tokens/s against {medians[1]:.0f}",
                f"ratio {statistics.median(ratios):.2f}",
            )
        )
    del plain
    gc.collect()
    return rows


def _short(case: Case) -> Case:
    prompt = case.prompt[-_FAST_PROMPT:]
    return replace(case, prompt=prompt, stop=replace(case.stop, max_tokens=_FAST_TOKENS))


def _scarcer(way: Way) -> Way:
    return replace(way, blocks=way.blocks and _FAST_BLOCKS)


PROOFS: tuple[Proof, ...] = (
    Proof(
        name="identity-invariant-float32",
        section="11.3 a",
        oracle="each request alone, K = 0: tokens and logprob bits",
        run=partial(bitwise, "float32"),
    ),
    Proof(
        name="identity-invariant-bfloat16",
        section="11.3 a",
        oracle="each request alone, K = 0: tokens and logprob bits",
        run=partial(bitwise, "bfloat16"),
    ),
    Proof(
        name="identity-plain-float32",
        section="11.3 b",
        oracle="unmodified model reads each text: margins of divergences",
        run=partial(near_ties, "float32"),
    ),
    Proof(
        name="identity-plain-bfloat16",
        section="11.3 c",
        oracle="unmodified bfloat16 model reads each text: margins of divergences",
        run=partial(near_ties, "bfloat16"),
    ),
)
