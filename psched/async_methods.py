"""Async twins of blocking methods. A twin runs its method in a thread of the event loop's default executor.

The twin of a method `pause` is called `apause` and has the same parameters. If the caller is cancelled, the thread
still runs the method to the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from itertools import islice
from typing import Any, Concatenate, ParamSpec, TypeVar

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")

_PAGE = 100
"""The maximum number of items that one call in a thread reads from an iterator."""


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call the function in a thread, with the caller's context variables, and return its result."""
    import asyncio  # noqa: PLC0415 – programs without asyncio save the time of this import

    return await asyncio.to_thread(function, *args, **kwargs)


def async_twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(self, method.__name__)  # a subclass may override the method
        return await run_in_thread(bound, *args, **kwargs)

    return _named(twin, method, f"Call `{method.__name__}` in a thread, without blocking the event loop.")


def signed_as_twin_of(
    method: Callable[Concatenate[S, P], T],
) -> Callable[[Callable[..., Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Decorate a hand-written async twin with the name and signature of a generated twin."""

    def decorate(twin: Callable[..., Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        return _named(twin, method, twin.__doc__)

    return decorate


def async_iterator_twin(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[S, P], AsyncIterator[T]]:
    """Return the async twin of a method that yields. The twin reads up to 100 items ahead."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        bound: Callable[P, Iterator[T]] = getattr(self, method.__name__)
        items = await run_in_thread(bound, *args, **kwargs)
        while page := await run_in_thread(list, islice(items, _PAGE)):
            for item in page:
                yield item

    return _named(twin, method, f"Call `{method.__name__}` in a thread and yield its items; for `async for`.")


def _named(twin: Callable[P, T], method: Callable[..., object], promise: str | None) -> Callable[P, T]:
    """Return `twin` with the name and signature of the twin of `method`, and with `promise` as its docstring."""
    named = wraps(method)(twin)
    named.__name__ = f"a{method.__name__}"
    named.__qualname__ = f"{method.__qualname__.removesuffix(method.__name__)}{named.__name__}"
    named.__doc__ = promise
    return named
