"""Stores a call of a task's function as data, and converts the data back to a call."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Never, NoReturn, get_args, get_origin

from psched.error_messages import did_you_mean
from psched.errors import ArgumentsError, ConfigError
from psched.task import Task

NOTES = "_"
"""The prefix of names in the data that are not arguments. A run keeps notes for the next attempt under such names."""

_PLAIN = (str, int, float, bool)
"""Types whose values are JSON values already."""
_NO_RESULT = (inspect.Signature.empty, None, type(None), NoReturn, Never, "None", "NoReturn", "Never")
"""The return annotations of functions that have no result, also as text."""


@dataclass(frozen=True, slots=True)
class _Conversion:
    """Converts values of one annotated type to JSON values and back. Errors name a value by its path.

    `plain`: the annotated type if its values are JSON values already, else None.
    """

    plain: type | None
    restore: Callable[[Any, str], Any]

    @classmethod
    def of(cls, annotation: Any) -> _Conversion:
        """Return the conversion for this type. Raises TypeError for a type that cannot be converted."""
        from psched.application.conversion import restorer  # noqa: PLC0415 – cattrs takes 0.1 s to import

        return cls(annotation if annotation in _PLAIN else None, restorer(annotation))

    def restored(self, stored: Any, path: str) -> Any:
        """Return the value whose JSON value is `stored`. Raises ValueError."""
        return stored if type(stored) is self.plain else self.restore(stored, path)

    def stored(self, value: Any, path: str) -> Any:
        """Return the JSON value of `value`. Raises ValueError if `restored` would not return an equal value."""
        if type(value) is self.plain:
            return value
        from psched.application.conversion import difference, unstructure  # noqa: PLC0415

        stored = unstructure(value, path)
        changed = difference(value, self.restored(stored, path), path)
        if changed is not None:
            raise ValueError(changed)
        return stored


class Parameters:
    """The parameters of a function. A first parameter named `task`, or annotated as Task, receives the Task object."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Raises ConfigError for a function that cannot be called with the data of a task."""
        self.name = getattr(function, "__qualname__", None) or repr(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(f"{self.name} is a generator, which would never run; use return, not yield")
        self._function = function
        self._signature = _signature_of(function)
        given = list(self._signature.parameters.values())
        self.run = given[0].name if given and _gets_run(given[0], function) else None
        """The name of the parameter that gets the Task, or None."""
        others = given if self.run is None else given[1:]
        self._extra = next((each.name for each in others if each.kind is each.VAR_KEYWORD), None)
        """The name of the parameter for all other named arguments, such as `kwargs` in `**kwargs`, or None."""
        own = [each for each in others if each.kind is not each.VAR_KEYWORD]
        self._own = {parameter.name: parameter for parameter in own}
        self._required = [
            each.name for each in own if each.default is each.empty and each.kind is not each.VAR_POSITIONAL
        ]
        by_name = (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_KEYWORD,
        )
        self._by_name = all(each.kind in by_name for each in others)
        self._conversions: dict[str, _Conversion] = {}
        self._extra_conversion: _Conversion | None = None
        self._result: _Conversion | None = None
        for parameter in others:
            self._check(parameter)

    @property
    def returns_value(self) -> bool:
        """Whether the function has a return annotation other than None."""
        return self._signature.return_annotation not in _NO_RESULT

    def check(self, stores_result: bool) -> None:
        """Raise ConfigError if an annotation cannot be evaluated, or a type cannot be converted.

        `stores_result`: check the return annotation, too.
        """
        self._resolve()
        if stores_result:
            self._result_conversion()

    def stored(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], partly: bool = False) -> dict[str, Any]:
        """Return the arguments of a call as the data of a task. `partly`: arguments may be missing.

        Raises TypeError if the function cannot be called with these arguments, ValueError if a value cannot be stored.
        """
        try:
            bind = self._signature.bind_partial if partly else self._signature.bind
            given = dict(bind(*() if self.run is None else (None,), *args, **kwargs).arguments)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None
        if self.run is not None:
            del given[self.run]
        extra = {} if self._extra is None else given.pop(self._extra, {})
        if clash := extra.keys() & self._own.keys():
            raise TypeError(f"{self.name}(): multiple values for argument {min(clash)!r}")
        data, faults = {}, []
        for name, value in (*given.items(), *extra.items()):
            try:
                if name.startswith(NOTES):
                    raise ValueError(f"no argument can have a name that begins with {NOTES}: rename {name}")
                data[name] = self._conversion(name).stored(value, name)
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ValueError(f"{self.name}(): {'; '.join(faults)}")
        return data

    def call(self, task: Task) -> Any:
        """Call the function with the arguments in the data of `task`. Raises ArgumentsError."""
        if not self._own and self._extra is None and self.run is not None:
            return self._function(task)  # the function reads the data itself
        values = self.restored(task.data)
        run = () if self.run is None else (task,)
        if self._by_name:
            return self._function(*run, **values)
        if self._extra is not None:
            values[self._extra] = {name: values.pop(name) for name in values.keys() - self._own.keys()}
        if self.run is not None:
            values[self.run] = task
        bound = inspect.BoundArguments(self._signature, values)
        bound.apply_defaults()  # adds missing parameters before *args
        return self._function(*bound.args, **bound.kwargs)

    def restored(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that `stored` has converted to `data`.

        Raises ArgumentsError, whose message names each missing, unknown or unsuitable value.
        """
        values, faults = {}, [f"{name} is missing" for name in self._required if name not in data]
        for name, value in data.items():
            if name.startswith(NOTES):
                continue
            if name not in self._own and self._extra is None:
                faults.append(f"{name} is not a parameter{did_you_mean(name, self._own, more_follows=True)}")
                continue
            try:
                values[name] = self._conversion(name).restored(value, name)
            except ValueError as error:
                faults.append(str(error))
        if faults:
            raise ArgumentsError(
                f"the data of this task does not fit {self.name}{self._without_annotations()}: {'; '.join(faults)}; "
                "was it submitted by another version of the program?"
            )
        return values

    def stored_result(self, value: Any) -> Any:
        """Return `value`, a result of the function, as a JSON value. Raises ValueError."""
        return self._result_conversion().stored(value, f"the result of {self.name}")

    def restored_result(self, stored: Any) -> Any:
        """Return the result whose JSON value is `stored`. Raises ValueError."""
        return self._result_conversion().restored(stored, f"the result of {self.name}")

    def _without_annotations(self) -> inspect.Signature:
        plain = [each.replace(annotation=each.empty) for each in self._signature.parameters.values()]
        return inspect.Signature(plain)

    def _check(self, parameter: inspect.Parameter) -> None:
        if parameter.name == "task" and parameter.annotation is parameter.empty:
            raise ConfigError(f"{self.name} must take task first, as in: def handler(task, region)")
        if parameter.name.startswith(NOTES):
            raise ConfigError(f"{self.name}: the parameter {parameter.name} begins with {NOTES}; choose another name")

    def _conversion(self, name: str) -> _Conversion:
        if not self._conversions and self._extra_conversion is None:
            self._resolve()
        found = self._conversions.get(name) or self._extra_conversion
        assert found is not None
        return found

    def _resolve(self) -> None:
        if not self._own and self._extra is None:
            return
        evaluated = self._evaluated().parameters
        conversions = {}
        for name, parameter in self._own.items():
            kind: Any = evaluated[name].annotation
            if isinstance(kind, type) and issubclass(kind, Task):
                first = f"put it first, as in: def handler({name}, region)"
                raise ConfigError(f"{self.name}: the parameter {name} receives the Task; {first}")
            if parameter.kind is parameter.VAR_POSITIONAL:
                each: Any = Any if kind is parameter.empty else kind
                kind = tuple[each, ...]
            conversions[name] = self._converted(f"the parameter {name}", kind)
        if self._extra is not None:
            self._extra_conversion = self._converted(f"the parameter {self._extra}", evaluated[self._extra].annotation)
        self._conversions = conversions

    def _result_conversion(self) -> _Conversion:
        if self._result is None:
            annotation = self._evaluated().return_annotation
            if get_origin(annotation) in (Awaitable, Coroutine):
                annotation = get_args(annotation)[-1]
            self._result = self._converted("the return value", annotation)
        return self._result

    def _evaluated(self) -> inspect.Signature:
        try:
            return inspect.signature(self._function, eval_str=True)
        except Exception as error:
            remedy = "import its names outside of `if TYPE_CHECKING`"
            raise ConfigError(f"{self.name}: an annotation cannot be evaluated: {error}; {remedy}") from error

    def _converted(self, what: str, annotation: Any) -> _Conversion:
        try:
            return _Conversion.of(annotation)
        except TypeError as error:
            raise ConfigError(f"{self.name}: {what}: {error}") from error


def _signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of `function`. For a function written in C, the only parameter is the task."""
    try:
        if not inspect.isbuiltin(function):
            return inspect.signature(function)
    except ValueError:  # Python knows no parameters of this class, which is written in C
        pass
    return inspect.signature(lambda task: None)


def _gets_run(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
        return False
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = inspect.signature(function, eval_str=True).parameters[parameter.name].annotation
        except Exception:  # noqa: BLE001 – evaluation may raise anything, such as NameError for a name imported for type checkers
            return parameter.name == "task" or annotation.rpartition(".")[2] == "Task"
    return parameter.name == "task" or (isinstance(annotation, type) and issubclass(annotation, Task))
