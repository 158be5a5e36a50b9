"""Holds what the product says of a plan, a round, a state and an end against the lives reckoned.

Knows plans, results, books and lives; decides nothing.
"""

from collections import Counter

from scheduler.coordinate import extend_table
from scheduler.lifecycle import Status
from scheduler.plan import DeviceDraft, Layout, Role
from scheduler.request import FinishReason
from tests.oracles.reckoning import K_MAX, blocks_for
from tests.oracles.rig import letters
from tests.oracles.scenes import depth, retained_by


def check_plan(plan, lives, settings):
    """The plan keeps its budgets, runs retries first and alone, and starts where each life stands.
    Notes how far the rows of each life reach."""
    groups = plan.groups
    assert groups
    assert sum(group.rows + depth(group.draft) for group in groups) <= settings.max_batched_tokens
    assert len(groups) <= settings.max_requests
    drafting = [group.draft for group in groups if isinstance(group.draft, DeviceDraft)]
    assert sum(each.catch_up for each in drafting) <= settings.max_batched_tokens
    running = {number: life for number, life in lives.items() if life.running}
    assert plan.held == {number for number, life in running.items() if life.retained}
    retries = [life.retry for life in running.values() if life.retry is not None]
    assert not retries or (len(groups) == 1 and groups[0] in retries)
    for group in groups:
        _check_group(group, running[group.request], settings)


def _check_group(group, life, settings):
    reaches = group.start + group.rows == len(life.tokens)
    appends = settings.layout is Layout.RETAINED_FRONTIER and group.rows > 0
    assert (group.generation, group.tokens) == (life.generation, life.tokens)
    assert (group.start, group.max_emit) == (life.kv, life.budget)
    assert (group.emits, group.retains) == (reaches and not appends, reaches and appends)
    assert depth(group.draft) < group.max_emit
    assert group.rows or life.retained
    if isinstance(group.draft, DeviceDraft):
        assert group.draft.rows == life.draft_rows
    reach = group.start + group.rows + depth(group.draft)
    assert reach <= settings.max_model_len
    life.reach = max(life.reach, reach)


def check_result(plan, result, rig):
    """Rows that are told are those that the tables computed, and dead rows are not held."""
    assert result.target_rows == sum(group.rows + depth(group.draft) for group in plan.groups)
    assert result.target_rows == sum(rig.target.calls)
    assert result.draft_rows == sum(rig.draft.calls)
    scored = sum((group.rows > 0) + depth(group.draft) for group in plan.groups if group.emits)
    assert result.logit_rows == scored + sum(group.retains for group in plan.groups)
    assert retained_by(rig) == plan.held | {g.request for g in plan.groups if g.retains}


def check_drafts(group, result, drafts):
    """The drafts are the draft model's own, or those of the plan, and all of them were verified."""
    assert result.written[group.rows :][: len(drafts)] == drafts
    assert tuple(each.token for each in result.outcomes) == drafts


def check_record(record, life, group, effect):
    """The commit record of one share says what is kept, what is given up, and what was drawn."""
    ids = life.tokens + effect.emitted
    kept = ids[life.kv : life.kv + effect.rows]
    assert (record.emitted_token_ids, record.committed_kv_token_ids) == (effect.emitted, kept)
    written = group.rows + depth(group.draft)
    assert len(record.discarded_kv_token_ids) == written - effect.rows
    assert record.accepted_draft_count == effect.accepted
    drawn = 0 if life.asked.sampling.greedy else len(effect.emitted)
    assert (record.rng_before, record.rng_after) == (life.drawn, life.drawn + drawn)
    assert record.expected_generation == life.generation


def check_stats(stats, group, effect, layout):
    """The statistics of one published share."""
    assert stats.committed == len(effect.emitted)
    frontier = group.emits if layout is Layout.REPLAY_FRONTIER else group.retains
    assert stats.prefilled == group.rows - frontier
    assert stats.position == len(group.tokens)
    if not effect.k:
        assert stats.speculation is None
        return
    ended = effect.accepted == len(effect.emitted)
    reached = effect.accepted if ended else min(effect.accepted + 1, effect.k)
    said = stats.speculation
    assert (said.k, said.accepted, said.reached) == (effect.k, effect.accepted, reached)


def check_end(rig, number, life):
    """The end was told once, with the sums of everything before it."""
    output, told = rig.outputs[number], life.whole[: life.out]
    assert tuple(output.tokens) == told
    (end,) = [each for each in rig.finished if each.request == number]
    assert (end.reason, end.prompt_tokens) == (life.reason, len(life.asked.prompt))
    assert end.speculated == (life.drafted > 0)
    stats = end.request_stats
    assert (stats.steps, stats.rounds, stats.drafted) == (life.steps, life.rounds, life.drafted)
    assert (stats.accepted, stats.histogram) == (life.accepted, tuple(life.histogram))
    assert stats.completion_tokens == life.out
    assert (stats.admitted, stats.first_token) == (life.admitted, life.first_token)
    assert (stats.arrival, stats.finished) == (life.asked.arrival, rig.now)
    if life.reason is FinishReason.ABORT:
        assert output.finish is None
    else:
        assert (output.finish.reason, output.finish.stats) == (life.reason, stats)
    if life.reason in {FinishReason.STOP, FinishReason.LENGTH}:
        assert told == life.whole
    tokens = [token for event in output.events for token in event.tokens]
    first = len(life.asked.prompt)
    assert [token.position for token in tokens] == list(range(first, first + life.out))
    assert letters(told).startswith(output.text)


def check_life(rig, number, life):
    """State, entry and output of one request are what its life says."""
    state, entry, output = (
        rig.book.ledger.state(number),
        rig.book.entries[number],
        rig.outputs[number],
    )
    told = life.whole[: life.out]
    assert (state.tokens, tuple(output.tokens)) == (life.tokens, told)
    assert (state.kv_rows, state.generation) == (life.kv, life.generation)
    assert (state.rng.seed, state.rng.consumed) == (life.asked.sampling.seed, life.drawn)
    assert state.text == output.text == letters(told)
    assert entry.draft_rows == life.draft_rows <= len(life.tokens) - 1
    assert (entry.status is Status.RUNNING) == life.running
    assert entry.failures == life.failures
    assert output.finish is None


def check_blocks(rig, lives):
    """Each block of both pools is held once or free, and each life holds what it needs. Once rounds
    have been bounded that may be blocks for rows whose turn is still to come."""
    book = rig.book
    rig.bounded |= book.company.limit is not None
    held = {role: Counter() for role in Role}
    for entry in (*book.entries.values(), *rig._cancelled):
        for role, blocks in entry.blocks.items():
            held[role].update(blocks)
        assert entry.tables == {r: extend_table("", b) for r, b in entry.blocks.items()}
    for role, counted in held.items():
        pool = book.tables.pool(role)
        stats = pool.stats()
        assert set(counted.values()) <= {1}
        assert set(counted) <= set(range(pool.blocks))
        assert (stats.used, stats.free) == (len(counted), pool.blocks - len(counted))
    for number, life in lives.items():
        blocks = book.entries[number].blocks
        most = blocks_for(Role.DRAFT, len(life.tokens) + K_MAX) if life.running else 0
        least = blocks_for(Role.DRAFT, life.draft_rows)
        reached = blocks_for(Role.TARGET, life.reach)
        coming = blocks_for(Role.TARGET, len(life.tokens)) if rig.bounded and life.running else 0
        assert reached <= len(blocks.get(Role.TARGET, ())) <= max(reached, coming)
        assert least <= len(blocks.get(Role.DRAFT, ())) <= most
