"""Measures 200 coroutines that submit tasks from one event loop: how many per second, and how long the loop stalls."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import psched
from benchmarks.databases import Place
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from psched.queue.queue import Queue

_SUBMITTERS = 200
_SECONDS = 5.0
_TICK = 0.001
"""Seconds between two looks at the clock, which find out whether the event loop stalls."""

Submit = Callable[[Queue, str], Coroutine[Any, Any, object]]


def _asubmit(queue: Queue, key: str) -> Coroutine[Any, Any, object]:
    return queue.asubmit(key, "returns", {"key": key})


def _to_thread(queue: Queue, key: str) -> Coroutine[Any, Any, object]:
    return asyncio.to_thread(queue.submit, key, "returns", {"key": key})


def _nothing(queue: Queue, key: str) -> Coroutine[Any, Any, object]:
    return asyncio.sleep(0.02)


def submit(way: Submit, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the tasks per second, the median time of a submit, and the longest stall of the event loop."""
    with psched.open_queue(BenchmarkWorker(place).config) as queue:
        return asyncio.run(_submit(queue, way, scale.seconds(_SECONDS)))


async def _submit(queue: Queue, way: Submit, seconds: float) -> Mapping[str, float]:
    numbers = itertools.count()
    took: list[float] = []
    begun = time.monotonic()

    async def submitter() -> None:
        while (now := time.monotonic()) < begun + seconds:
            await way(queue, f"task-{next(numbers):07}")
            took.append(time.monotonic() - now)

    async def longest_stall() -> float:
        longest, last = 0.0, time.monotonic()
        while last < begun + seconds:
            await asyncio.sleep(_TICK)
            longest, last = max(longest, (now := time.monotonic()) - last - _TICK), now
        return longest

    stall, *_ = await asyncio.gather(longest_stall(), *(submitter() for _ in range(_SUBMITTERS)))
    return {
        "tasks/s": len(took) / (time.monotonic() - begun),
        "p50 ms": statistics.median(took) * 1000,
        "longest stall ms": stall * 1000,
    }


WORKLOADS = (
    Workload(
        "async-submit",
        f"tasks submitted by {_SUBMITTERS} coroutines of one event loop",
        (
            Contender("psched", partial(submit, _asubmit), setting="asubmit"),
            Contender("psched, each alone", partial(submit, _to_thread), setting="asyncio.to_thread(queue.submit, …)"),
            Contender("floor", partial(submit, _nothing), setting="the coroutines sleep for 20 ms and submit nothing"),
        ),
    ),
)
