"""Curves and tables read by hand, and what they refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.costs import CostTable, Curve, RoundCurve, rising

BENT = Curve(points=((2, 1.0), (4, 2.0), (10, 2.0), (14, 8.0)))
FLAT = Curve(points=((1, 0.0),))


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        (0, 1.0),
        (1, 1.0),
        (2, 1.0),
        (3, 1.5),
        (3.5, 1.75),
        (4, 2.0),
        (7, 2.0),
        (10, 2.0),
        (11, 3.5),
        (14, 8.0),
        (26, 8.0 + 12 * 7.0 / 12),
    ],
)
def test_a_curve_is_flat_before_linear_between_and_on_at_the_average_past_its_points(
    count, seconds
):
    assert BENT.at(count) == pytest.approx(seconds)


def test_a_curve_of_one_point_is_flat():
    only = Curve(points=((3, 0.5),))
    assert [only.at(count) for count in (0, 3, 99)] == [0.5] * 3


def test_a_stair_is_two_points_one_apart():
    stair = Curve(points=((1, 1.0), (4, 1.0), (5, 3.0), (8, 3.0)))
    assert [stair.at(count) for count in range(1, 9)] == [1.0] * 4 + [3.0] * 4


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((1, -0.5),),
        ((1, 1.0), (1, 2.0)),
        ((2, 1.0), (1, 2.0)),
        ((1, 2.0), (2, 1.0)),
    ],
    ids=["none", "below zero", "one count twice", "counts fall", "seconds fall"],
)
def test_a_curve_refuses_points_that_do_not_rise(points):
    with pytest.raises(ValueError, match="curve"):
        Curve(points=points)


def test_measured_dips_are_lifted_to_what_came_before():
    assert rising([(4, 1.5), (1, 1.0), (2, 2.0), (8, 3.0)]).points == (
        (1, 1.0),
        (2, 2.0),
        (4, 2.0),
        (8, 3.0),
    )


@given(
    points=st.dictionaries(st.integers(0, 99), st.floats(0.0, 9.0), min_size=1, max_size=9),
    counts=st.tuples(st.floats(0.0, 200.0), st.floats(0.0, 200.0)),
)
def test_costs_never_fall_and_a_rising_curve_is_no_lower_than_what_was_measured(points, counts):
    curve = rising(points.items())
    low, high = sorted(counts)
    assert curve.at(low) <= curve.at(high) * (1 + 1e-12)
    assert all(curve.at(count) >= seconds for count, seconds in points.items())


# ---- tables --------------------------------------------------------------------------------------


def table(**changes):
    rounds = (
        RoundCurve(emitters=2, seconds=Curve(points=((2, 1.0), (12, 2.0)))),
        RoundCurve(emitters=4, seconds=Curve(points=((4, 3.0), (14, 3.0)))),
    )
    given = {
        "context": 100,
        "rounds": rounds,
        "step": Curve(points=((1, 0.25), (3, 0.75))),
        "catch_up": Curve(points=((1, 0.5), (11, 1.5))),
    }
    return CostTable(**{**given, **changes})


@pytest.mark.parametrize(
    ("emitters", "rows", "seconds"),
    [
        (1, 7, 1.5),
        (2, 7, 1.5),
        (3, 7, 2.25),
        (3, 12, 2.5),
        (4, 7, 3.0),
        (9, 7, 3.0),
    ],
)
def test_a_round_lies_between_its_neighbours_at_equal_rows(emitters, rows, seconds):
    assert table().round(emitters, rows, 100) == pytest.approx(seconds)


def test_every_row_takes_longer_in_a_longer_context():
    deep = table(row_key=0.001, draft_row_key=0.01)
    assert deep.round(2, 7, 150) == pytest.approx(1.5 + 0.001 * 7 * 50)
    assert deep.round(2, 7, 50) == pytest.approx(1.5 - 0.001 * 7 * 50)
    assert deep.draft_step(2, 110) == pytest.approx(0.5 + 0.01 * 2 * 10)


@given(
    context=st.floats(0.0, 1e6),
    keys=st.tuples(st.floats(0.0, 10.0), st.floats(0.0, 10.0)),
    emitters=st.integers(1, 20),
    rows=st.integers(0, 5000),
)
def test_no_context_makes_a_round_or_a_step_cost_nothing(context, keys, emitters, rows):
    """Rates are tokens over these seconds."""
    steep, flat = table(row_key=keys[0], draft_row_key=keys[1]), table()
    for found, measured in (
        (steep.round(emitters, rows, context), flat.round(emitters, rows, context)),
        (steep.draft_step(emitters, context), flat.draft_step(emitters, context)),
    ):
        assert found >= 0.1 * measured > 0.0
    if context <= steep.context:
        assert steep.round(emitters, rows, context) <= flat.round(emitters, rows, context)


def test_a_table_refuses_rounds_that_take_no_time():
    with pytest.raises(ValueError, match="time"):
        table(rounds=(RoundCurve(emitters=1, seconds=FLAT),))


def test_a_draft_step_of_nobody_costs_nothing():
    assert table().draft_step(0, 1e6) == 0.0
    assert table().draft_step(1, 100) == pytest.approx(0.25)


def test_rows_to_catch_up_cost_what_they_add_to_one():
    assert [table().draft_rows(rows) for rows in (0, 1, 10, 20)] == pytest.approx(
        [0.0, 0.1, 1.0, 2.0]
    )
    assert table(catch_up=FLAT).draft_rows(50) == 0.0


@pytest.mark.parametrize("emitters", [(), (0,), (2, 2), (4, 2)])
def test_a_table_refuses_rounds_that_do_not_rise_in_their_emitters(emitters):
    rounds = tuple(RoundCurve(emitters=n, seconds=FLAT) for n in emitters)
    with pytest.raises(ValueError, match="emitters"):
        table(rounds=rounds)
