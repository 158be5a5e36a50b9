"""Faults of what is committed, published and retained. A table; runs nothing."""

from tests.prove.faults.killers import (
    COMMIT_TESTS,
    COORDINATE_TESTS,
    DECIDE_TESTS,
    ENGINE_FAULT_TESTS,
    FAULT_TESTS,
    LAYOUT_TESTS,
    LAYOUT_TEXTS,
    MACHINE,
    RETAINED_TEXT,
    STOPPED_LAW,
    TABLE_TEXT,
)
from tests.prove.planting import fault

_RETAINED = "scheduler/runtime/retained.py"
_COMMIT = "scheduler/commit.py"
_STAGING = "scheduler/staging.py"
_SCHEDULER = "scheduler/scheduler.py"
_STATE = "scheduler/state.py"

_ADDED = "added = len(decision.emitted) + group.rows - 1 if group.emits else group.rows"
_APPENDED_AGAIN = """state = self._states[record.request_id]
            self._states[record.request_id] = _successor(state, staged.decision, 0, 0)
            return CommitOutcome.REPLAYED"""

STATE = (
    fault(
        "rejected draft's row committed in place of the correction's",
        "wrong-token K/V row",
        _COMMIT,
        (_ADDED, "added = len(decision.emitted) + group.rows if group.emits else group.rows"),
        f"{COMMIT_TESTS}::test_the_snapshot_of_the_contract",
        TABLE_TEXT,
        MACHINE,
    ),
    fault(
        "retained round commits the frontier's row again",
        "draft slice that includes KV(F)",
        _COMMIT,
        (_ADDED, _ADDED.replace("group.rows - 1", "max(group.rows, 1) - 1")),
        f"{LAYOUT_TESTS}::test_a_request_prefills_retains_emits_and_appends",
        RETAINED_TEXT,
        LAYOUT_TEXTS,
    ),
    fault(
        "bonus kept after an accepted end of text",
        "bonus after an accepted EOS",
        _COMMIT,
        (
            "return run[:count], Ending(reason=FinishReason.STOP, stop=token)",
            "return run[: count + 1], Ending(reason=FinishReason.STOP, stop=token)",
        ),
        STOPPED_LAW,
        f"{DECIDE_TESTS}::test_a_stop_id_as_the_last_accepted_draft_drops_the_bonus",
        MACHINE,
    ),
    fault(
        "stop automaton of the round before",
        "stale processor",
        _COMMIT,
        ("text=state.text if decision.text is None else decision.text.state", "text=state.text"),
        "tests/scheduler/test_engine.py::test_a_stop_string_may_span_rounds",
        MACHINE,
    ),
    fault(
        "history of processors not carried on",
        "stale processor",
        _COMMIT,
        ("history = extend_history(history, decision.emitted)", "history = state.history"),
        f"{COMMIT_TESTS}::test_the_snapshot_of_the_contract",
    ),
    fault(
        "result of an older generation published",
        "stale generation",
        _COMMIT,
        (
            "if state is None or state.generation != record.expected_generation:",
            "if state is None:",
        ),
        f"{COMMIT_TESTS}::test_two_rounds_of_one_generation_publish_once",
        MACHINE,
    ),
    fault(
        "result of an older generation staged",
        "stale generation",
        _COMMIT,
        ('for field in ("request", "generation"):', 'for field in ("request",):'),
        f"{COMMIT_TESTS}::test_a_result_for_someone_else_is_refused_by_name",
    ),
    fault(
        "preemption keeps the generation",
        "stale generation",
        _STATE,
        (
            "return replace(state, kv_rows=0, generation=state.generation + 1)",
            "return replace(state, kv_rows=0)",
        ),
        f"{LAYOUT_TESTS}::test_preemption_loses_the_row_and_no_token",
        MACHINE,
    ),
    fault(
        "rows believed kept by a preempted request",
        "",
        _STATE,
        (
            "return replace(state, kv_rows=0, generation=state.generation + 1)",
            "return replace(state, generation=state.generation + 1)",
        ),
        f"{LAYOUT_TESTS}::test_preemption_loses_the_row_and_no_token",
        MACHINE,
    ),
    fault(
        "result taken in with another coordinate's digest",
        "",
        _STAGING,
        (
            "differs = difference(result.coordinate, plan.coordinate)",
            "differs = None if result else difference(result.coordinate, plan.coordinate)",
        ),
        "tests/scheduler/test_machine.py::test_a_plan_of_changed_results_is_refused_whole",
        f"{COORDINATE_TESTS}::test_a_stale_result_is_refused_by_the_field_that_differs",
    ),
    fault(
        "round published twice appends twice",
        "",
        _COMMIT,
        (
            "return CommitOutcome.REPLAYED",
            _APPENDED_AGAIN,
        ),
        f"{COMMIT_TESTS}::test_the_same_round_twice_appends_nothing",
        MACHINE,
    ),
    fault(
        "round that was published before not recognised",
        "",
        _COMMIT,
        (
            "return self._last.get(record.request_id) == record.round_id",
            "return self._last.get(record.request_id) is record",
        ),
        f"{COMMIT_TESTS}::test_the_same_round_twice_appends_nothing",
        FAULT_TESTS,
    ),
    fault(
        "terminal draw counted when a stop cut the run",
        "",
        _COMMIT,
        (
            "terminal = 0 if decision.terminal is TerminalKind.STOP else 1",
            "terminal = 1",
        ),
        f"{DECIDE_TESTS}::test_draws_of_a_published_round",
    ),
    fault(
        "retained row of another generation used",
        "",
        _RETAINED,
        ("if row is None or generation != group.generation:", "if row is None:"),
        f"{LAYOUT_TESTS}::test_a_row_of_another_generation_is_refused_by_name",
    ),
    fault(
        "retained row stamped with the generation before its append",
        "",
        _RETAINED,
        ("(group.generation + 1, row.clone())", "(group.generation, row.clone())"),
        RETAINED_TEXT,
        LAYOUT_TEXTS,
    ),
    fault(
        "retained rows of requests that are gone kept",
        "",
        _RETAINED,
        ("for r, row in self._rows.items() if r in requests}", "for r, row in self._rows.items()}"),
        f"{LAYOUT_TESTS}::test_rows_of_requests_that_are_gone_are_dropped_with_the_next_plan",
    ),
    fault(
        "row of another request retained",
        "",
        "scheduler/runtime/round.py",
        (
            "zip(held, logits[scored:], strict=True)",
            "zip(held, logits[: len(held)], strict=True)",
        ),
        f"{LAYOUT_TESTS}::test_an_append_keeps_its_own_row_in_a_call_that_it_shares",
    ),
    fault(
        "coordinate without the layout",
        "",
        "scheduler/coordinate.py",
        ("""f'"layout":"{layout.value}","round":{round_id}'""", """f'"round":{round_id}'"""),
        f"{COORDINATE_TESTS}::test_every_field_changes_the_digest_and_is_named",
    ),
    fault(
        "coordinate without the history of the start state",
        "",
        "scheduler/coordinate.py",
        ('"history":"{state.history}"', '"history":""'),
        f"{COORDINATE_TESTS}::test_every_field_changes_the_digest_and_is_named",
    ),
    fault(
        "coordinate with the block table of the round before",
        "",
        "scheduler/admission.py",
        (
            'entry.tables[role] = extend_table(entry.tables.get(role, ""), more)',
            'entry.tables.setdefault(role, extend_table("", more))',
        ),
        MACHINE,
    ),
    fault(
        "coordinate with the block table from before a preemption",
        "",
        "scheduler/admission.py",
        ("entry.blocks, entry.tables = {}, {}", "entry.blocks = {}"),
        MACHINE,
    ),
    fault(
        "records published that were not checked",
        "",
        _COMMIT,
        ("if not staged.holds_on(state):", "if not staged.checked:"),
        f"{COMMIT_TESTS}::test_a_successor_that_breaks_a_postcondition_is_not_published",
        f"{COMMIT_TESTS}::test_records_other_than_those_that_were_checked_are_checked_again",
    ),
    fault(
        "records published that were checked against another state",
        "",
        _COMMIT,
        (
            "return start is state and record is self.record",
            "return bool(start) and record is self.record",
        ),
        f"{COMMIT_TESTS}::test_a_state_other_than_the_one_that_was_checked_is_checked_again",
    ),
    fault(
        "output compared behind its prefix only",
        "",
        "scheduler/tokens.py",
        ("return shared or self[: len(start)] == start[:]", "return True"),
        f"{COMMIT_TESTS}::test_a_state_other_than_the_one_that_was_checked_is_checked_again",
        "tests/scheduler/test_tokens.py::test_what_continues_what",
    ),
    fault(
        "a rival's tokens taken for the round's own",
        "",
        "scheduler/tokens.py",
        ("elif tuple(self._store[self._length : end]) != token_ids:", "elif not self._store:"),
        "tests/scheduler/test_tokens.py::test_every_one_stays_the_tuple_that_it_was",
    ),
    fault(
        "rounds too large for the device tried again and again",
        "",
        _SCHEDULER,
        ("shares = self._bounded(self._shares(now))", "shares = self._shares(now)"),
        f"{ENGINE_FAULT_TESTS}::test_rounds_that_are_too_large_for_the_device_become_smaller",
    ),
    fault(
        "requests past the bound of a round never served",
        "",
        _SCHEDULER,
        ("self._turn = turns[limit - 1]", "self._turn = 0"),
        f"{ENGINE_FAULT_TESTS}::test_rounds_that_are_too_large_for_the_device_become_smaller",
    ),
    fault(
        "a group that breaks in staging breaks the whole round",
        "",
        _STAGING,
        ("return Unstaged(type(problem).__name__)", "raise"),
        f"{ENGINE_FAULT_TESTS}::test_staging_that_breaks_for_one_request_costs_the_others_one_round",
    ),
    fault(
        "retained row not dropped at preemption",
        "",
        _SCHEDULER,
        (
            "for e in self.book.running if self.book.state(e).retained)",
            "for e in self.book.entries.values() if e.counters.admitted is not None)",
        ),
        f"{LAYOUT_TESTS}::test_the_row_of_a_preempted_request_is_dropped",
    ),
    fault(
        "append that emits",
        "",
        _SCHEDULER,
        ("emits=reaches and not retains,", "emits=reaches,"),
        f"{LAYOUT_TESTS}::test_a_request_prefills_retains_emits_and_appends",
        RETAINED_TEXT,
    ),
)
