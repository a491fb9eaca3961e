"""Async twins of blocking methods: each runs its method in a thread of the event loop's default executor.

A method `pause` has the twin `apause`, with the same parameters. Cancelling the caller does not stop the method: its
thread continues to the end.
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
"""Items that one call in a thread takes from an iterator."""


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(*args, **kwargs)`, called in a thread, with the caller's context variables."""
    import asyncio  # noqa: PLC0415 – blocking programs need not wait for its import

    return await asyncio.to_thread(function, *args, **kwargs)


def async_twin(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Return the async twin of `method`, for the class that has both."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bound: Callable[P, T] = getattr(self, method.__name__)  # perhaps a subclass's own
        return await run_in_thread(bound, *args, **kwargs)

    return _named(twin, method, f"Do what `{method.__name__}` does, in a thread, without blocking the event loop.")


def signed_as_twin_of(
    method: Callable[Concatenate[S, P], T],
) -> Callable[[Callable[..., Coroutine[Any, Any, T]]], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Decorate an async twin that needs a body of its own: it gets the name and signature of the twin of `method`."""

    def decorate(twin: Callable[..., Coroutine[Any, Any, T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        return _named(twin, method, twin.__doc__)

    return decorate


def async_iterator_twin(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[S, P], AsyncIterator[T]]:
    """Return the async twin of a method that yields: an async iterator, which reads ahead up to 100 items."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        bound: Callable[P, Iterator[T]] = getattr(self, method.__name__)
        items = await run_in_thread(bound, *args, **kwargs)
        while page := await run_in_thread(list, islice(items, _PAGE)):
            for item in page:
                yield item

    return _named(twin, method, f"Yield what `{method.__name__}` yields, read in a thread; for `async for`.")


def _named(twin: Callable[P, T], method: Callable[..., object], promise: str | None) -> Callable[P, T]:
    """Return `twin` with the name and signature of the twin of `method`. `promise`: its docstring."""
    named = wraps(method)(twin)
    named.__name__ = f"a{method.__name__}"
    named.__qualname__ = f"{method.__qualname__.removesuffix(method.__name__)}{named.__name__}"
    named.__doc__ = promise
    return named
