"""Converts the arguments of a call to the data of a schedule. Each member of the data has the name of a parameter."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from psched.importers.entries import Definition


def data_of_call(
    function: Callable[..., Any] | None, args: Sequence[Any], kwargs: Mapping[str, Any], remarks: list[str]
) -> Definition:
    """Return `{"data": …}` for the arguments, or {} if there are none. `function`: None if it is unknown."""
    data = dict(kwargs)
    if args:
        names = [] if function is None else _positional(function)
        if len(names) >= len(args):
            data = dict(zip(names, args, strict=False)) | data
        else:
            data["args"] = list(args)
            remarks.append("the parameters of the function are unknown, so positional arguments are in data as `args`")
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        remarks.append(f"its arguments are not written, because they are not JSON: {error}")
        return {}
    return {"data": data} if data else {}


def _positional(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        return [name for name, each in inspect.signature(function).parameters.items() if each.kind in kinds]
    except (TypeError, ValueError):
        return []
