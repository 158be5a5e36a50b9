"""How many requests may share a round: by chance, by size, for the sake of one."""

import pytest

from scheduler.company import Company


def limits(company, rounds, size):
    """The limit after each of so many sound rounds, as full as they may be."""
    found = []
    for _ in range(rounds):
        company.ran(size if company.limit is None else min(size, company.limit))
        found.append(company.limit)
    return found


def bounded(size, most=128):
    """After two breaks in a row of a round of so many, each run one by one."""
    company = Company(most)
    for _ in range(2):
        company.broke(size)
        for _ in range(size):
            company.ran(1)
    return company


def test_one_break_is_chance():
    company = Company(128)
    company.broke(128)
    assert company.limit is None
    assert set(limits(company, 64, 128)) == {None}
    company.broke(128)
    assert company.limit is None
    assert set(limits(company, 63, 128)) == {None}
    company.broke(128)
    assert company.limit == 64


@pytest.mark.parametrize("size", [2, 3, 8, 127, 128])
def test_a_size_that_breaks_again_is_halved_down_to_one(size):
    company = bounded(size)
    found = [company.limit]
    while company.limit > 1:
        company.broke(company.limit)
        found.append(company.limit)
    wanted = size // 2
    for limit in found:
        assert limit == wanted
        wanted //= 2
    assert found[-1] == 1


def test_more_is_tried_after_sound_rounds_and_later_each_time_that_it_breaks():
    company, waits = bounded(128), []
    for _ in range(9):
        waits.append(next(n for n in range(1, 9000) if limits(company, 1, 128) == [128]))
        company.broke(128)
        assert company.limit == 64
        for _ in range(128):
            company.ran(1)
    assert waits == [64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096]


def test_nothing_is_bounded_any_more_once_all_ran_for_long():
    company = bounded(96)
    found = limits(company, 200, 96)
    assert found == [48] * 63 + [96] * 64 + [192] * 73
    assert limits(company, 1, 200)[0] == 192
    small = bounded(8, most=8)
    assert limits(small, 200, 8) == [4] * 63 + [8] * 64 + [None] * 73
    small.broke(8)
    assert small.limit is None


def test_rounds_of_few_tell_nothing_of_the_limit():
    company = bounded(128)
    for size in (1, 2, 32):
        for _ in range(500):
            company.ran(size)
    assert company.limit == 64


@pytest.mark.parametrize("breaks", [1, 2, 3])
def test_a_break_that_one_request_explains_changes_nothing(breaks):
    company = bounded(128)
    company.ran(64)
    for size in (64, 63, 62)[:breaks]:
        company.broke(size)
        company.ran(1)
        company.explained()
        company.explained()
        company.ran(size - 1)
        assert company.limit == 64
    assert limits(company, 63 - breaks, 64)[-2:] == [64, 128]


def test_an_old_break_is_not_explained_by_another():
    company = bounded(128)
    company.ran(64)
    company.explained()
    assert company.limit == 64
