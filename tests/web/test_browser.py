"""One page in Chromium: no data of it acts as code, and it shows changes by itself.

scripts/browser-matrix tests all pages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from psched.config import Settings
from psched.queue.queue import Queue
from psched.web import app
from tests.web.browser.site import HOSTILE
from tests.web.browser.visitor import PROGRAMS, Visitor, chromium
from tests.web.conftest import settings_of


@pytest.fixture
def address(settings: Settings, url: str) -> Iterator[str]:
    """The address of the pages. A thread serves them."""
    made = app(settings_of(url, actions=True))
    server = uvicorn.Server(uvicorn.Config(made, port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
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
