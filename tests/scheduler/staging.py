"""A verified round made by hand: the contract's snapshot, its group and its result."""

from dataclasses import replace

from scheduler.commit import stage
from scheduler.plan import (
    DraftOutcome,
    Group,
    GroupResult,
    HostDraft,
    Layout,
    Role,
    TerminalKind,
)
from scheduler.state import RngState, initial_state
from tests.oracles.rig import TOKEN, request

PLAN = (7, Layout.REPLAY_FRONTIER, "digest")
PROMPT = (1, 4, 7, 9, 3, 12)
DRAFTS = (8, 6, 2)
SNAPSHOT = request(5, PROMPT, max_tokens=20, temperature=1.0)


def decoding(asked=SNAPSHOT, output=()):
    """A state that decodes, with some output already published."""
    state = initial_state(asked.prompt, RngState(seed=1, choice=0), asked.text.start())
    text = asked.text.stage(state.text, output, final=False).state
    tokens = asked.prompt + output
    return replace(state, tokens=tokens, kv_rows=len(tokens) - 1, text=text)


def verified(state, accepted, terminal, drafts=DRAFTS, **changes):
    """A runner's group and result: `drafts` of which `accepted` stand, then `terminal`."""
    outcome = {"target_prob": 0.5, "draft_prob": 0.5, "uniform": 0.1, "mass": 0.5, "base": 1.0}
    kind = TerminalKind.BONUS if accepted == len(drafts) else TerminalKind.CORRECTION
    group = Group(
        request=SNAPSHOT.request_id,
        generation=state.generation,
        tokens=state.tokens,
        prompt_length=state.prompt_length,
        start=state.kv_rows,
        rows=1,
        emits=True,
        max_emit=9,
        draft=HostDraft(token_ids=drafts) if drafts else None,
        blocks={Role.TARGET: (0, 1, 2)},
        sampling=SNAPSHOT.sampling,
        verifier=TOKEN,
        stop=SNAPSHOT.stop,
        choice=0,
    )
    result = GroupResult(
        request=group.request,
        generation=group.generation,
        written=state.tokens[-1:] + drafts,
        emitted=(*drafts[:accepted], terminal),
        accepted=accepted,
        terminal=kind if drafts else TerminalKind.PLAIN,
        outcomes=tuple(DraftOutcome(token=token, **outcome) for token in drafts),
        draft_written=(),
        logprobs=(),
    )
    return replace(group, **changes), result


def staged_snapshot(accepted=2, terminal=11, asked=SNAPSHOT, state=None):
    """The contract's snapshot, staged."""
    state = state or decoding(asked)
    group, result = verified(state, accepted, terminal)
    return state, stage(PLAN, group, state, asked, result)
