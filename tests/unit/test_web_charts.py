"""The geometry of the charts on the web pages."""

from __future__ import annotations

from psched.web.charts import Span, marks, ticks


def test_bars_are_cut_to_the_chart_and_drawn_in_the_order_of_their_kinds() -> None:
    spans = [
        Span("failed", 900, 2000, lambda: "f"),
        Span("ran", -50, 500, lambda: "r"),
        Span("ran", 3000, 4000, lambda: "later"),
    ]
    assert [(mark.kind, mark.x, mark.width, mark.title) for mark in marks(spans, 0, 1000)] == [
        ("ran", 0, 50, "r"),
        ("failed", 90, 10, "f"),
    ]


def test_what_is_close_together_is_one_bar_and_never_too_narrow() -> None:
    spans = [Span("ran", number, number + 0.5, f"{number}".format) for number in range(100)]
    [mark] = marks(spans, 0, 1000)
    assert (mark.x, mark.width, mark.title) == (0, 9.95, "100 together: 0 … 99")
    [mark] = marks([Span("ran", 1000, 1000)], 0, 1000)
    assert (mark.x, mark.width) == (99.75, 0.25)


def test_however_many_bars_there_are_a_row_is_bounded() -> None:
    found = marks(
        [Span("ran", number * 0.1, number * 0.1 + 0.01, ("x" * 50).format) for number in range(10_000)], 0, 1000
    )
    assert len(found) <= 400
    found = marks([Span("ran", number * 5, number * 5 + 0.01, ("x" * 50).format) for number in range(200)], 0, 1000)
    assert {mark.title for mark in found} == {""}


def test_ticks_are_full_hours_of_the_clock_that_is_shown() -> None:
    kolkata = 5 * 3600 + 1800
    found = ticks(1_795_424_400, 1_795_424_400 + 86400, 3 * 3600, kolkata)
    assert len(found) == 8
    assert {(tick.time + kolkata) % 10_800 for tick in found} == {0}
    assert all(0 <= tick.x <= 100 for tick in found)
