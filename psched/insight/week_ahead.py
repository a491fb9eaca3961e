"""The schedules of the next week: starts by hour, minutes in which many runs start, and clock changes."""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from time import thread_time

from psched.cron import CronDialect
from psched.cron.zones import change_between, load_zone, offset_at
from psched.errors import ConfigError
from psched.insight.forecast import HOUR, Durations, Forecast, forecast, starts_per_hour
from psched.model import NO_OCCURRENCE, Rule
from psched.schedules import rule_occurrences
from psched.store.counts import RuleUse

WEEK = 168
"""The number of hours of a week."""
MINUTE = 60
DAY = 86400
_MOST_MINUTES = 10
_LEAST_STARTS = 10
"""A minute is crowded if it has at least this many starts, and also `_TIMES_MEAN` times the mean."""
_TIMES_MEAN = 3
_MOST_TIMES = WEEK * 60
"""The maximum number of starts of one rule that are listed. A rule with so many starts counts in no crowded minute."""
_EXAMPLES = 3
_NOTES = 8
_LONGEST_SPREAD = 6 * HOUR
"""Seconds. Runs with a longer spread are left out, because they crowd no minute."""
SPREADS = (600, 3600)
"""Seconds over which the starts of a crowded minute could be spread."""


@dataclass(frozen=True, slots=True)
class CrowdedMinute:
    """Runs that start in the minute of `time` (unix seconds).

    They start together at this time of day on `days` days of the week.

    - `starts`: the largest number of starts on one of these days. Runs with a spread of a minute or more are left out.
    - `types`: up to three pairs of a type and its number of runs, the largest number first. The type None means
      unknown.
    - `keys`: some of the schedules.
    - `spread`: for each of `SPREADS`, about how many runs would start in the fullest minute if the starts were spread
      over so many seconds. Other runs count, too.
    """

    time: int
    starts: int
    days: int
    types: Sequence[tuple[str | None, int]]
    keys: Sequence[str]
    spread: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ClockNote:
    """The effect of a clock change on an occurrence of `count` schedules. `key`: one of these schedules."""

    text: str
    count: int
    key: str


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A clock change at `time` (unix seconds) in all zones with the same change.

    - `before`, `after`: UTC offsets in seconds.
    - `schedules`: the number of schedules in these zones.
    - `notes`: the effects on the occurrences of these schedules, the most frequent first.
    - `unexamined`: the number of schedules that the notes leave out because the processor time was used up.
    """

    time: int
    zones: Sequence[str]
    before: int
    after: int
    schedules: int
    notes: Sequence[ClockNote]
    unexamined: int = 0


@dataclass(frozen=True, slots=True)
class WeekAhead:
    """The next week. `crowded_minutes`: the minutes with the most starts, the fullest first.

    `dense`: the number of schedules that run every minute or more often. Schedules that `forecast` leaves uncounted
    count in no crowded minute and in no clock change.
    """

    forecast: Forecast
    crowded_minutes: Sequence[CrowdedMinute]
    changes: Sequence[ClockChange]
    dense: int


@dataclass(slots=True)
class _OfRule:
    """All schedules that have the same rule."""

    types: Counter[str | None] = field(default_factory=Counter)
    keys: list[str] = field(default_factory=list)


def week_ahead(
    uses: Sequence[RuleUse],
    begin: int,
    dialect: CronDialect,
    durations: Durations,
    seconds: float = math.inf,
) -> WeekAhead:
    """Return the week from `begin` (unix seconds, a full hour).

    Takes up to about three times `seconds` of processor time, and leaves out what cannot be counted in this time.
    """
    used: dict[Rule, _OfRule] = defaultdict(_OfRule)
    for use in uses:
        of_rule = used[use.rule]
        of_rule.types[use.type] += use.count
        if len(of_rule.keys) < _EXAMPLES:
            of_rule.keys.append(use.key)
    counted = _Minutes(begin, dialect, used)
    found = forecast(uses, begin, WEEK, dialect, durations, counted.starts_of, seconds)
    changes = _clock_changes(counted.counted, begin, begin + WEEK * HOUR, dialect, seconds)
    return WeekAhead(found, counted.crowded_minutes(), sorted(changes, key=lambda each: each.time), counted.dense)


class _Minutes:
    """The starts in each minute of the week."""

    def __init__(self, begin: int, dialect: CronDialect, used: Mapping[Rule, _OfRule]) -> None:
        self._begin = begin
        self._dialect = dialect
        self._used = used
        self._starts = [0] * _MOST_TIMES
        self._spread_changes = [0.0] * (_MOST_TIMES + 1)
        """For each minute: the expected starts of runs with a spread, minus those of the minute before."""
        self._minutes: dict[Rule, array[int]] = {}
        """For each rule that may start in crowded minutes: the minutes of its starts, in two bytes each."""
        self.counted: dict[Rule, _OfRule] = {}
        self.dense = 0

    def starts_of(self, rule: Rule, delay: float) -> Mapping[int, int]:
        """Return the result of `starts_per_hour`. At the first call for a rule, also count its starts by minute.

        The occurrences of a rule are listed only once, because parsing its expression takes long.
        """
        if rule in self.counted:
            return starts_per_hour(rule, delay, self._begin, WEEK, self._dialect)
        first = self._begin - math.floor(rule.delay)
        listed = rule_occurrences.listed(rule, first - 1, first + WEEK * HOUR - 1, self._dialect)
        starts = [time - first for time in islice(listed, _MOST_TIMES)]
        self.counted[rule] = self._used[rule]
        self._add(rule, array("H", [start // MINUTE for start in starts]))
        if len(starts) == _MOST_TIMES or math.floor(delay) != math.floor(rule.delay):
            return starts_per_hour(rule, delay, self._begin, WEEK, self._dialect)
        return Counter(start // HOUR for start in starts)

    def _add(self, rule: Rule, minutes: array[int]) -> None:
        schedules = self._used[rule].types.total()
        if len(minutes) == _MOST_TIMES:
            self.dense += schedules
        elif rule.spread < MINUTE:
            self._minutes[rule] = minutes
            for minute in minutes:
                self._starts[minute] += schedules
        elif rule.spread <= _LONGEST_SPREAD:
            width = math.ceil(rule.spread / MINUTE)
            for minute in minutes:
                self._spread_changes[minute] += schedules / width
                self._spread_changes[min(minute + width, _MOST_TIMES)] -= schedules / width

    def crowded_minutes(self) -> list[CrowdedMinute]:
        """Return the minutes with the most starts, the fullest first."""
        spread = [round(each, 6) for each in accumulate(self._spread_changes)][:_MOST_TIMES]
        found = self._fullest(sum(spread))
        wanted = {minute for minute, _ in found}
        there: dict[int, list[_OfRule]] = defaultdict(list)
        for rule, minutes in self._minutes.items() if wanted else ():
            for minute in wanted.intersection(minutes):
                there[minute].append(self._used[rule])
        return [self._crowded_minute(minute, days, there[minute], spread) for minute, days in found]

    def _fullest(self, spread: float) -> list[tuple[int, int]]:
        """Return the minutes with most starts, at most one for each time of day.

        Also return for each minute: on how many days this time of day is crowded, with at least half as many starts.

        `spread`: the number of starts that are spread over several minutes.
        """
        mean = (sum(self._starts) + spread) / _MOST_TIMES
        least = max(_LEAST_STARTS, _TIMES_MEAN * mean)
        by_clock: dict[int, list[int]] = defaultdict(list)
        for minute, starts in enumerate(self._starts):
            if starts >= least:
                by_clock[minute % (DAY // MINUTE)].append(minute)
        found = []
        for minutes in by_clock.values():
            fullest = max(minutes, key=lambda each: (self._starts[each], -each))
            found.append((fullest, sum(self._starts[each] * 2 >= self._starts[fullest] for each in minutes)))
        return sorted(found, key=lambda each: (-self._starts[each[0]], each))[:_MOST_MINUTES]

    def _crowded_minute(
        self, minute: int, days: int, there: Sequence[_OfRule], spread: Sequence[float]
    ) -> CrowdedMinute:
        types: Counter[str | None] = Counter()
        for each in there:
            types += each.types
        keys = [key for each in sorted(there, key=lambda each: -each.types.total()) for key in each.keys]
        starts = self._starts[minute]
        peaks = {seconds: self._peak(minute, starts, seconds // MINUTE, spread) for seconds in SPREADS}
        time = self._begin + minute * MINUTE
        return CrowdedMinute(time, starts, days, types.most_common(_EXAMPLES), keys[:_EXAMPLES], peaks)

    def _peak(self, minute: int, starts: int, width: int, spread: Sequence[float]) -> int:
        """Return about how many runs the fullest minute has if `starts` of `minute` are spread over `width` minutes.

        Each schedule has its own random delay, so the fullest minute gets more than the mean. In a Poisson distribution
        this excess is about the square root of 2 * mean * ln(width).
        """
        mean = starts / width
        share = min(float(starts), mean + math.sqrt(2 * mean * math.log(width)))
        places = range(minute, min(minute + width, _MOST_TIMES))
        beside = max(spread[each] + (self._starts[each] if each != minute else 0) for each in places)
        return math.ceil(share + beside)


def _clock_changes(
    used: Mapping[Rule, _OfRule], begin: int, end: int, dialect: CronDialect, seconds: float
) -> Iterator[ClockChange]:
    """Yield the clock changes in the zones of the rules. Zones with the same change are combined.

    `seconds`: the processor time for examining rules. Of each zone, the most common rules are examined first.
    """
    until = thread_time() + seconds
    by_zone: dict[str, list[Rule]] = defaultdict(list)
    for rule in used:
        by_zone[rule.timezone].append(rule)
    by_change: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    for name in by_zone:
        for change in _changes_of(name, begin, end):
            by_change[change].append(name)
    for (time, before, after), zones in by_change.items():
        there = [rule for name in zones for rule in by_zone[name]]
        schedules = sum(used[rule].types.total() for rule in there)
        notes: dict[str, ClockNote] = {}
        unexamined = 0
        for rule in there:
            if thread_time() > until:
                unexamined += used[rule].types.total()
                continue
            count, key = used[rule].types.total(), used[rule].keys[0]
            for text in _notes_of(rule, time, dialect):
                known = notes.get(text)
                notes[text] = ClockNote(text, count + (known.count if known else 0), known.key if known else key)
        listed = sorted(notes.values(), key=lambda each: (-each.count, each.text))[:_NOTES]
        yield ClockChange(time, sorted(zones), before, after, schedules, listed, unexamined)


def _changes_of(name: str, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield each clock change of a zone, with the offsets before and after it.

    Clock changes of a zone are more than two days apart, so one look a day finds every change.
    """
    try:
        zone = load_zone(name)
    except ConfigError:
        return
    for low in range(begin, end, DAY):
        high = min(low + DAY, end)
        before, after = offset_at(zone, low), offset_at(zone, high)
        if before != after:
            yield change_between(zone, low, high), before, after


_AROUND = 3 * HOUR
"""Occurrences up to this many seconds before or after a clock change are examined. At least one occurrence after the
change is examined."""
_MOST_AROUND = 200


def _notes_of(rule: Rule, change: int, dialect: CronDialect) -> set[str]:
    """Return the effects of a clock change on the occurrences of a rule."""
    found: set[str] = set()
    try:
        last = rule_occurrences.last_time(rule, change - DAY, change - 1, dialect)
        for before in (change - _AROUND - 1, change - 1 if last is None else last):
            time = before
            for number in range(_MOST_AROUND):
                following = rule_occurrences.next_time(rule, time, dialect)
                if following == NO_OCCURRENCE or (number and following > change + _AROUND):
                    break
                found.add(rule_occurrences.clock_note(rule, time, following, dialect))
                time = following
    except ConfigError:
        return set()
    return found - {""}
