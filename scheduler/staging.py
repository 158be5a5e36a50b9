"""Stages a verified round, group by group, on frozen inputs. Runs in the worker thread.

A round that is not the plan's is refused whole. What breaks while one group is staged concerns
that group alone: the others are to be published as if it had not been there.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.commit import FaultHook, Staged, check_addressee, no_faults, stage
from scheduler.coordinate import difference
from scheduler.errors import CommitRejected
from scheduler.plan import Group, GroupResult, Layout, RoundPlan, RoundResult
from scheduler.request import Request
from scheduler.state import RequestState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """One group of a plan with the frozen state and request that it was made from."""

    group: Group
    state: RequestState
    request: Request


@dataclass(frozen=True, slots=True)
class Unstaged:
    """Stands for a group whose staging broke; `problem` names what was raised."""

    problem: str


StagedGroup = Staged | Unstaged | None
"""What staging made of one group: None where the row law was unusable."""


def stage_round(
    plan: RoundPlan, jobs: Sequence[Job], result: RoundResult, fault: FaultHook = no_faults
) -> tuple[StagedGroup, ...]:
    """Stage every group, each for itself.

    Raises CommitRejected when the result is not of this plan.
    """
    if result.round_id != plan.round_id:
        raise CommitRejected(f"stale result: round_id {result.round_id}, expected {plan.round_id}")
    differs = difference(result.coordinate, plan.coordinate)
    if differs is not None:
        raise CommitRejected(f"stale result: {differs}")
    pairs = list(zip(jobs, result.groups, strict=True))
    for job, each in pairs:
        check_addressee(job.group, each)
    coordinate = (plan.round_id, plan.layout, plan.coordinate.digest)
    return tuple(_stage_one(coordinate, job, each, fault) for job, each in pairs)


def _stage_one(
    coordinate: tuple[int, Layout, str], job: Job, result: GroupResult, fault: FaultHook
) -> StagedGroup:
    if result.error:
        return None
    try:
        return stage(coordinate, job.group, job.state, job.request, result, fault)
    except Exception as problem:
        logger.exception("staging request %d broke", job.group.request)
        return Unstaged(type(problem).__name__)
