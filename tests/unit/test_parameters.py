"""Arguments of a call are stored as JSON and restored equal.

Other values are refused, and the error names their path.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NoReturn, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest

from psched.application import App
from psched.application.handler_base import describe_error
from psched.application.parameters import Parameters
from psched.errors import ArgumentsError, ConfigError
from psched.payload import decode, encode
from psched.task import Task
from tests.unit.fake_task import Ledger
from tests.unit.handlers import handler

T = TypeVar("T")
Number = NewType("Number", int)
DAY = date(2026, 11, 23)
MOMENT = datetime(2026, 11, 23, 8, 30, 1, 5, UTC)
UNIQUE = UUID("0191b2d4-0000-7000-8000-000000000000")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


class Point(NamedTuple):
    x: int
    day: date


class Options(TypedDict):
    day: date


@dataclass
class Order:
    number: int
    due: date
    lines: list[Order] = field(default_factory=list)


@dataclass
class Express(Order):
    hours: int = 24


@attrs.define(eq=False)
class Price:
    _amount: Decimal
    order: Order | None = None


@dataclass
class Noted:
    """A class whose `==` ignores some fields."""

    number: int
    note: Any = field(default=None, compare=False)
    cache: object = field(default_factory=object, compare=False, init=False)

    def __hash__(self) -> int:
        return self.number


@attrs.frozen
class Remark:
    text: Any = attrs.field(eq=False)


@dataclass
class Box(Generic[T]):
    content: T
    names: dict[int, str] = field(default_factory=dict)


@dataclass
class Seeded:
    seed: InitVar[int]
    number: int = 0


@dataclass
class Doubled:
    number: int
    factor: InitVar[int] = 1


@dataclass
class Unknown:
    number: Missing  # type: ignore[name-defined]  # noqa: F821


def holding_itself(kind: type) -> Any:
    value: Any = kind()
    value.append(value) if isinstance(value, list) else value.update(value=value)
    return value


def parameters_of(annotation: Any) -> Parameters:
    def function(value) -> None: ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"value": annotation}
    return Parameters(function)


def there_and_back(annotation: Any, value: Any) -> tuple[Any, Any]:
    """Return the JSON value that is stored for `value`, and the restored value."""
    parameters = parameters_of(annotation)
    text = encode(parameters.stored((value,), {}))
    return decode(text)["value"], parameters.restored(decode(text))["value"]


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (str, "x", "x"),
        (int, 5, 5),
        (int, Level.HIGH, 3),
        (float, 5, 5),
        (bool, True, True),
        (type(None), None, None),
        (date, DAY, "2026-11-23"),
        (date | None, None, None),
        (datetime, MOMENT, "2026-11-23T08:30:01.000005+00:00"),
        (time, time(8, 30), "08:30:00"),
        (timedelta, timedelta(days=1, microseconds=3), 86400.000003),
        (UUID, UNIQUE, str(UNIQUE)),
        (Decimal, Decimal("1.50"), "1.50"),
        (Decimal, Decimal("Infinity"), "Infinity"),
        (bytes, b"\x00\xff", "0RI"),
        (bytes, bytearray(b"\x00\xff"), "0RI"),
        (Annotated[int, "pieces"], 5, 5),
        (Literal[Color.RED, 3, None], Color.RED, "red"),
        (dict[Color, int], {Color.RED: 1}, {"red": 1}),
        (dict[Any, int], {"a": 1}, {"a": 1}),
        (Noted, Noted(1, "x"), {"number": 1, "note": "x"}),
        (set[Noted], {Noted(1, "x")}, [{"number": 1, "note": "x"}]),
        (Doubled, Doubled(1), {"number": 1}),
        (Path, Path("/tmp/a"), "/tmp/a"),
        (Color, Color.RED, "red"),
        (Level, Level.HIGH, 3),
        (Word, Word.YES, "yes"),
        (Number, 5, 5),
        (Literal["a", "b"], "a", "a"),
        (int | str, "5", "5"),
        (list[date], [DAY], ["2026-11-23"]),
        (set[int], {5}, [5]),
        (tuple[int, date], (5, DAY), [5, "2026-11-23"]),
        (Sequence[int], (5,), [5]),
        (dict[date, Decimal], {DAY: Decimal(1)}, {"2026-11-23": "1"}),
        (Point, Point(1, DAY), [1, "2026-11-23"]),
        (Options, {"day": DAY}, {"day": "2026-11-23"}),
        (Order, Order(1, DAY), {"number": 1, "due": "2026-11-23", "lines": []}),
        (Any, {"any": [1, None, "x"]}, {"any": [1, None, "x"]}),
        (object, 5, 5),
    ],
)
def test_a_value_comes_back_equal(annotation: Any, value: Any, stored: Any) -> None:
    assert there_and_back(annotation, value) == (stored, value)
    assert type(there_and_back(annotation, value)[1]) is type(value) or annotation in (int, float, bytes)


def test_a_decimal_that_is_no_number_comes_back() -> None:
    assert there_and_back(Decimal, Decimal("NaN"))[1].is_nan()


@pytest.mark.parametrize("moment", [(2026, 10, 25, 2, 30), (2026, 3, 29, 2, 30)], ids=["repeated hour", "skipped hour"])
@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_of_a_clock_change_comes_back(moment: tuple[int, ...], fold: int) -> None:
    given = datetime(*moment, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))  # type: ignore[misc, arg-type]
    for annotation, value in ((datetime, given), (list[datetime], [given])):
        back = there_and_back(annotation, value)[1]
        assert (back if annotation is datetime else back[0]).timestamp() == given.timestamp()


def test_values_of_a_star_parameter_without_annotation_come_back(ledger: Ledger) -> None:
    seen = []

    def function(*lines):  # type: ignore[no-untyped-def]
        seen.append(lines)

    data = Parameters(function).stored((1, "x"), {})
    Parameters(function).call(ledger.task(data=data))
    assert seen == [(1, "x")]


def test_objects_in_objects_come_back() -> None:
    order = Order(1, DAY, [Order(2, DAY)])
    back = there_and_back(Price, Price(Decimal("9.99"), order))[1]
    assert (type(back), back._amount, back.order) == (Price, Decimal("9.99"), order)


def test_a_class_may_gain_a_field_with_a_default() -> None:
    assert parameters_of(Order).restored({"value": {"number": 1, "due": "2026-11-23"}}) == {"value": Order(1, DAY)}


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "5", r"value: expected a whole number, got '5'"),
        (int, True, r"value: expected a whole number, got True"),
        (int, 5.0, r"value: expected a whole number, got 5.0"),
        (str, 5, r"value: expected text, got 5"),
        (bool, 1, r"value: expected true or false, got 1"),
        (date, MOMENT, r"value: expected a date such as 2026-11-23, got '2026-11-23T08"),
        (datetime, DAY, r"value: the date .* would come back from JSON as the datetime"),
        (UUID, "x", r"value: expected a UUID, got 'x'"),
        (Color, "red", r"value: the str 'red' would come back from JSON as the Color"),
        (Literal["a"], "b", r"value: expected 'a', got 'b'"),
        (Literal["a", 3] | None, "b", r"value: expected one of 'a', 3, got 'b'"),
        (float, 10**400, r"value: expected a number, got 1000000"),
        (int | str, 1.5, r"value: expected int \| str, got 1\.5"),
        (int | str, True, r"value: expected int \| str, got True"),
        (list[int | str], [1, None], r"value\[1\]: expected int \| str, got None"),
        (timedelta, timedelta.max, r"value: .*999999999.* is too long to be stored to the microsecond; round it"),
        (timedelta, timedelta(10**8, 0, 1), r"value: .* is too long to be stored to the microsecond; round it"),
        (Any, holding_itself(list), r"value is nested too deeply, or contains itself; use flatter data"),
        (dict, holding_itself(dict), r"value is nested too deeply, or contains itself; use flatter data"),
        (datetime, datetime(2026, 10, 25, 2, 30, fold=1), r"value: fold=1 of .* without a time zone"),  # noqa: DTZ001
        (list[time], [time(2, 30, fold=1)], r"value\[0\]: fold=1 of .* without a time zone; give it a tzinfo"),
        (Noted, Noted(1, DAY), r"value\.note: the date .* would come back from JSON as the str"),
        (list[Noted], [Noted(1, DAY)], r"value\[0\]\.note: the date .* would come back from JSON as the str"),
        (set[Noted], {Noted(1, DAY)}, r"value\[.*\]\.note: the date .* would come back from JSON as the str"),
        (Remark, Remark(DAY), r"value\.text: the date .* would come back from JSON as the str"),
        (list[str], "abc", r"value: expected a list, got 'abc'"),
        (list[str], ["a", 5], r"value\[1\]: expected text, got 5"),
        (dict[str, list[int]], {"a": [1, "x"]}, r"value\['a'\]\[1\]: expected a whole number, got 'x'"),
        (tuple[int, str], (1, "a", 2), "value: Too many values"),
        (Order, Order(1, "soon"), r"value\.due: expected a date such as 2026-11-23, got 'soon'"),  # type: ignore[arg-type]
        (Order, Order(1, DAY, [Order("2", DAY)]), r"value\.lines\[0\]\.number: expected a whole number, got '2'"),  # type: ignore[arg-type]
        (Order, Express(1, DAY), r"value: extra fields found \(hours\)"),
        (Order, {"number": 1, "due": "2026-11-23"}, r"value: the dict .* would come back from JSON as the Order"),
        (Price, Price("5"), r"value\._amount: the str '5' would come back from JSON as the Decimal"),  # type: ignore[arg-type]
        (Options, {"day": DAY, "more": 1}, r"value: extra fields found \(more\)"),
        (Any, DAY, r"value: the date .* would come back from JSON as the str '2026-11-23'; annotate it with its type"),
        (time, time(9, tzinfo=ZoneInfo("Europe/Berlin")), r"value: the time .* would come back from JSON as the time"),
        (Any, {"a": [{1}]}, r"value\['a'\]\[0\]: the set \{1\} would come back from JSON as the list \[1\]"),
        (Any, Order(1, DAY), r"value: the Order .* would come back from JSON as the dict"),
    ],
)
def test_a_value_that_would_not_come_back_is_refused_by_its_path(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"function\(\): {message}"):
        parameters_of(annotation).stored((value,), {})


def test_every_value_that_is_refused_is_named() -> None:
    def function(a: int, *b: date, **c: str) -> None: ...

    with pytest.raises(ValueError, match=r"a: expected a whole.*; b\[1\]: expected a date.*; d: expected text, got 5$"):
        Parameters(function).stored(("x", DAY, "y"), {"d": 5})


@pytest.mark.parametrize("value", [object(), [1, {"a": object()}]])
def test_what_no_json_has_is_named_by_the_queue(value: Any, queue: Any, app: App) -> None:
    function = app.task("t")(lambda value: None)
    with pytest.raises(ValueError, match=r"cannot be stored as JSON: data\['value'\].* is a object; expected text"):
        queue.submit_many([function.new_task(value)])


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"missing a required argument: 'region'"),
        (("x", "y"), {}, r"too many positional arguments"),
        (("x",), {"dya": DAY}, r"got an unexpected keyword argument 'dya'"),
        (("x",), {"task": None}, r"multiple values for argument 'task'"),
    ],
)
def test_a_call_that_python_would_refuse_is_refused(args: Any, kwargs: Any, message: str) -> None:
    def report(task: Task, region: str, *, day: date | None = None) -> None: ...

    with pytest.raises(TypeError, match=rf"report\(\): {message}"):
        Parameters(report).stored(args, kwargs)


def test_a_function_gets_its_arguments_and_the_run(ledger: Ledger) -> None:
    seen: list[object] = []

    def function(run: Task, a: int, /, b: date = DAY, *more: date, c: str = "c", **rest: timedelta) -> None:
        seen.append((run.key, a, b, more, c, rest))

    data = {"a": 5, "more": ["2026-11-24"], "patience": 60, "_done": 3}
    Parameters(function).call(ledger.task(data=data))
    Parameters(function).call(ledger.task(data={"a": 6, "c": "d"}))
    assert seen == [
        ("key1", 5, DAY, (date(2026, 11, 24),), "c", {"patience": timedelta(minutes=1)}),
        ("key1", 6, DAY, (), "d", {}),
    ]


def test_a_call_with_any_kind_of_parameter_is_stored_and_restored() -> None:
    def function(run: Task, a: int, /, b: date = DAY, *more: date, c: str = "c", **rest: timedelta) -> None: ...

    data = Parameters(function).stored((5, DAY, DAY), {"patience": timedelta(minutes=1)})
    assert data == {"a": 5, "b": "2026-11-23", "more": ["2026-11-23"], "patience": 60}
    with pytest.raises(TypeError, match=r"function\(\): multiple values for argument 'a'"):
        Parameters(function).stored((5,), {"a": timedelta(1)})


def test_a_parameter_that_takes_other_names_takes_its_own_too(ledger: Ledger) -> None:
    seen: list[object] = []

    def function(task: Task, *more: int, **options: str) -> None:
        seen.append((more, options))

    def by_name(task: Task, **options: str) -> None:
        seen.append(options)

    for each in (Parameters(function), Parameters(by_name)):
        each.call(ledger.task(data=each.stored((), {"options": "x", "y": "z"})))
        each.call(ledger.task(data={}))
    assert seen == [((), {"options": "x", "y": "z"}), ((), {}), {"options": "x", "y": "z"}, {}]
    with pytest.raises(TypeError, match=r"multiple values for argument 'more'"):
        Parameters(function).stored((), {"more": "x"})


def test_a_function_that_takes_the_task_alone_reads_its_data_itself(ledger: Ledger) -> None:
    def function(task: Task) -> None: ...

    Parameters(function).call(ledger.task(data={"anything": 1}))
    assert Parameters(function).stored((), {}) == {}


class TaskOfUser:
    """A user's class whose name ends like that of a class of psched."""


def test_the_first_parameter_gets_the_run_by_its_name_or_its_type() -> None:
    def named(task, a): ...  # type: ignore[no-untyped-def]
    def typed(run: Task, a: int) -> None: ...
    def users(task_of_user: TaskOfUser) -> None: ...
    def neither(a: int, b: int) -> None: ...

    assert [Parameters(each).run for each in (named, typed, users, neither)] == ["task", "run", None, None]


def test_a_run_that_is_not_the_first_parameter_is_reported_with_the_remedy(app: App) -> None:
    def second(region: str, run: Task) -> None: ...
    def by_name(region: str, *, run: Task) -> None: ...

    for function in (second, by_name):
        app.task(function.__name__)(function)
        with pytest.raises(ConfigError, match=r": the parameter run receives the Task; put it first, as in: def"):
            Parameters(function).check(False)


def report(region: str, *, day: date | None = None) -> None:
    """A function whose tasks other versions of it have submitted."""


@pytest.mark.parametrize(
    ("data", "difference"),
    [
        ({}, "region is missing"),
        ({"region": "x", "zone": "y"}, "zone is not a parameter"),
        ({"regoin": "x"}, r"region is missing; regoin is not a parameter \(did you mean 'region'\?\)"),
        ({"region": "x", "day": "soon"}, "day: expected a date such as 2026-11-23, got 'soon'"),
        ({"region": 5, "zone": "y"}, "region: expected text, got 5; zone is not a parameter"),
    ],
)
def test_a_task_of_another_signature_fails_with_the_difference_named(
    data: dict[str, Any], difference: str, app: App, ledger: Ledger
) -> None:
    app.task("type1", retry_wait=7)(report)
    handler(app, ledger.task(data=data)).run()
    [(outcome, wait, error)] = ledger.entries
    assert (outcome, wait) == ("retried", 7)
    message = rf"does not fit report\(region, \*, day=None\): {difference}; was it submitted by another version"
    with pytest.raises(ArgumentsError, match=message):
        Parameters(report).restored(data)
    assert error.startswith("ArgumentsError: ")
    assert "\n" not in describe_error(ArgumentsError("x"))  # a traceback of psched's own code would say nothing


@pytest.mark.parametrize("value", [{"number": 1}, {"number": 1, "due": "2026-11-23", "color": 1}, [1], "x", None])
def test_an_object_of_another_class_is_named(value: Any) -> None:
    with pytest.raises(ArgumentsError, match="value: expected|value.due: required field missing|value: extra fields"):
        parameters_of(Order).restored({"value": value})


class Connection:
    """A class that cannot be stored as JSON."""


@pytest.mark.parametrize(
    ("annotation", "message"),
    [
        (Connection, "the parameter value: values of Connection cannot be stored as JSON"),
        (list[Connection], "the parameter value: values of Connection cannot be stored as JSON"),
        (Callable[[], int], r"the parameter value: values of .*Callable.* cannot be stored as JSON"),
        (
            date | datetime,
            r"the parameter value: a JSON value does not show which of the types Union.* it has; use only one",
        ),
        (list[date | datetime | None], "the parameter value: a JSON value does not show which of the types"),
        (dict[int, str], r"the parameter value: dict\[int, str\]: the names in a JSON object are text; use dict"),
        (
            list[Mapping[Number, str]],
            r"the parameter value: .*Mapping\[.*Number, str\]: the names in a JSON object",
        ),
        (dict[Level, str], "the parameter value: dict.*: the names in a JSON object are text"),
        (dict[Literal[1], str], "the parameter value: dict.*: the names in a JSON object are text"),
        (Box[int], r"the parameter value: dict\[int, str\]: the names in a JSON object are text"),
        (Seeded, "the parameter value: Seeded: its objects do not keep the InitVar seed; store it in a field"),
        (Unknown, "the parameter value: an annotation of Unknown cannot be evaluated: name 'Missing' is not defined"),
        ("Missing", "an annotation cannot be evaluated: name 'Missing' is not defined; import its names outside of"),
    ],
)
def test_a_type_that_cannot_be_stored_is_reported_when_the_application_is_loaded(
    annotation: Any, message: str, app: App
) -> None:
    def function(value) -> None: ...  # type: ignore[no-untyped-def]

    function.__annotations__ = {"value": annotation}
    app.task("t")(function)
    with pytest.raises(ConfigError, match=rf"function: {message}"):
        app.check()


def test_a_result_that_cannot_be_stored_is_reported_when_the_application_is_loaded(app: App) -> None:
    def function() -> Connection:
        raise NotImplementedError

    app.task("t", store_result=False)(function)
    app.check()
    app.task("u")(function)
    with pytest.raises(ConfigError, match="the return value: values of Connection cannot be stored as JSON"):
        app.check()


def test_a_parameter_with_the_name_of_a_note_is_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="the parameter _done begins with _; choose another name"):
        app.task("t")(lambda _done: None)
    with pytest.raises(ValueError, match="no argument can have a name that begins with _: rename _done"):
        app.task("t")(lambda **more: None).new_task(_done=1)


def test_results_are_converted_by_the_return_annotation() -> None:
    async def coroutine() -> Order:
        raise NotImplementedError

    def awaitable() -> Awaitable[Order]:
        raise NotImplementedError

    def mapping() -> Mapping[str, Order]:
        raise NotImplementedError

    for function in (coroutine, awaitable):
        stored = Parameters(function).stored_result(Order(1, DAY))
        assert stored == {"number": 1, "due": "2026-11-23", "lines": []}
        assert Parameters(function).restored_result(stored) == Order(1, DAY)
    with pytest.raises(ValueError, match=r"the result of .*mapping\['a'\]\.due: expected a date"):
        Parameters(mapping).stored_result({"a": Order(1, "x")})  # type: ignore[arg-type]


def test_a_function_is_annotated_to_return_something_or_not() -> None:
    def number() -> int:
        return 1

    def nothing() -> None: ...
    def never() -> NoReturn:
        raise NotImplementedError

    functions: list[Callable[..., Any]] = [number, nothing, never, lambda: 1]
    assert [Parameters(each).returns_value for each in functions] == [True, False, False, False]
