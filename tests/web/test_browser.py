"""One page in Chromium: no data of it acts as code, and it shows changes by itself.

scripts/browser-matrix tests all pages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from psched.config import Settings
from psched.queue.queue import Queue
from psched.schedules.collection import ScheduleCollection
from psched.web import app
from tests.web.browser.site import HOSTILE
from tests.web.browser.visitor import PROGRAMS, Visitor, chromium
from tests.web.conftest import settings_of

_FIND_BROKEN = """
(() => {
  const broken = [];
  const texts = document.createTreeWalker(document.querySelector(".gantt"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    for (const found of texts.currentNode.data.matchAll(/\\d+ (d|h|min|s|ms)( \\d+ (h|min|s))?\\b/g)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, found.index);
      range.setEnd(texts.currentNode, found.index + found[0].length);
      if (new Set([...range.getClientRects()].map((each) => each.top)).size > 1) { broken.push(found[0]); }
    }
  }
  return broken;
})()
"""
"""Finds the durations of a Gantt chart that are broken into two lines."""
_FIND_UNALIGNED = """
(() => {
  const [axis, first] = document.querySelectorAll(".gantt td:nth-child(2) svg");
  const lines = [...first.querySelectorAll(".tick")].map((each) => each.getBoundingClientRect().x);
  const texts = [...axis.querySelectorAll("text")].map((each) => each.getBoundingClientRect());
  const {left, width} = first.getBoundingClientRect();
  const isInner = (x) => Math.abs(x - left - width / 2) < width * 0.47;
  const isOff = (x, text) => Math.abs((text.left + text.right) / 2 - x) > 1.5;
  return lines.filter((x, number) => isInner(x) && isOff(x, texts[number]));
})()
"""
"""Finds the lines of a Gantt chart whose label is not centred on the line, except at both ends of the chart."""


@pytest.fixture
def address(settings: Settings, url: str) -> Iterator[str]:
    """The address of the pages."""
    with pages(settings_of(url, actions=True)) as served:
        yield served


@contextmanager
def pages(settings: Settings) -> Iterator[str]:
    """Yield the address of the pages. A thread serves them."""
    made = app(settings)
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        made.state.shared.status_poller.end()
        server.should_exit = True
        thread.join()


@pytest.mark.slow
@pytest.mark.needs(PROGRAMS[0])
def test_a_page_in_a_browser_is_harmless_and_shows_changes(address: str, queue: Queue) -> None:
    queue.submit(HOSTILE, HOSTILE, user=HOSTILE)
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
        tab = Visitor(context, address, "phone")
        tab.open("/tasks?status=waiting")
        tab.check_accessibility()
        assert tab.page.locator("#live a.key", has_text="<script>alert(1)</script>").count()
        queue.submit("a-new-one", "a")
        tab.page.locator("#live a.key", has_text="a-new-one").wait_for()
        tab.check()
    assert not tab.problems


@pytest.mark.slow
@pytest.mark.needs(PROGRAMS[0])
@pytest.mark.parametrize("user", ["x" * 255, "a name with words " * 14], ids=["one word", "words"])
def test_a_long_user_leaves_room_for_the_error(address: str, queue: Queue, user: str) -> None:
    queue.submit("a-task", "report", user=user)
    queue.submit("k" * 255, "report", user="ann")
    for task in queue.poll_multi(2):
        task.fail("ConnectionRefusedError: the warehouse did not answer within 30 s; the last of 3 attempts")
    with chromium() as browser:
        tab = Visitor(browser.new_context(viewport={"width": 1440, "height": 900}), address, "laptop")
        tab.open("/tasks")
        table = "document.querySelector('.scroll')"
        assert tab.page.evaluate(f"{table}.scrollWidth <= {table}.clientWidth")
        assert tab.page.evaluate("document.querySelector('td.error').offsetWidth") >= 250
    assert not tab.problems


@pytest.mark.slow
@pytest.mark.needs(PROGRAMS[0])
def test_a_gantt_chart_breaks_no_duration_and_centres_its_labels(
    settings: Settings, url: str, schedules: ScheduleCollection
) -> None:
    schedules.add("late", "a", cron="* * * * *", next_time=int(time.time()) // 60 * 60 - 45 * 60)
    task = schedules.poll()
    assert task is not None
    task.finish()
    with chromium() as browser:
        for zone in ("Etc/GMT", "Etc/GMT+1", "Etc/GMT+2"):
            with pages(settings_of(url, timezone=zone)) as address:
                tab = Visitor(browser.new_context(viewport={"width": 1180, "height": 760}), address, zone)
                tab.open("/yesterday")
                assert tab.page.locator("td .under", has_text="waited up to 45 min").count() == 1
                assert tab.page.evaluate(_FIND_UNALIGNED) == []
                for width in (*range(750, 1200, 25), 360):
                    tab.page.set_viewport_size({"width": width, "height": 760})
                    assert tab.page.evaluate(_FIND_BROKEN) == [], f"{width} pixels wide"
                    tab.check()
                assert not tab.problems
