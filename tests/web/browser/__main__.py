"""`scripts/browser-matrix`: Chromium opens every page and does every action on every store, with two daemons.

A page must not write to the console, violate its policy, ask another host, be wider than the screen, or have a serious
finding of axe-core. This is checked with light and dark colours, and on the screens of a phone and a desktop.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

from playwright.sync_api import Browser, Response

import psched
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.postgresql import PostgreSQL
from faultlab.redis import Redis
from faultlab.servers import Server
from psched.web.pages import ACTIONS, PAGES
from tests.web.browser.site import HOSTILE, Site, site, wait_for
from tests.web.browser.visitor import Visitor, chromium

_SERVERS: dict[str, type[Server] | None] = {
    "sqlite": None,
    "postgresql": PostgreSQL,
    "mariadb": MariaDB,
    "redis": Redis,
}
_HOSTILE = quote(HOSTILE, safe="")
_ADDRESSES = (
    "/schedules?state=failing",
    "/schedules?prefix=report&type=quick",
    "/schedules?type=nothing",
    "/schedule?key=every-2-s",
    "/schedule?key=every-2-s&until=4000000000",
    "/schedule?key=every-2-s&until=1",
    "/schedule?key=failing",
    "/schedule?key=long-run",
    "/schedule?key=nightly",
    "/schedule?key=paused",
    "/schedule?key=once",
    "/schedule?key=nobody-runs-it",
    f"/schedule?key={_HOSTILE}",
    "/schedule/edit?key=nightly",
    "/schedule/edit?quoted_key=nightly&cron=0+*+*+*+*&delay=90",
    f"/schedule/edit?key={_HOSTILE}",
    "/tasks?status=waiting",
    "/tasks?status=failed&type=fails",
    "/tasks?user=alice",
    "/tasks/bulk?action=cancel&status=waiting&prefix=later",
    "/task?key=long-0",
    "/task?key=long-1",
    "/task?key=failed-0",
    "/task?key=result",
    "/task?key=later-000",
    f"/task?key={_HOSTILE}",
)
"""Addresses with a query: lists with a filter, and pages about one object."""
_NEED_QUERY = ("/schedule", "/schedule/edit", "/task", "/tasks/bulk")
_NEED_ACTIONS = ("/schedule/edit", "/tasks/bulk")


class Look(NamedTuple):
    """How a visitor sees the pages: the colour scheme, and the width of the screen in pixels."""

    scheme: Literal["light", "dark"]
    width: int

    def __str__(self) -> str:
        return f"{self.scheme} {self.width}"


_LOOKS = (Look("light", 1440), Look("dark", 1440), Look("light", 360), Look("dark", 360))


def main(arguments: Sequence[str] | None = None) -> int:
    """Test the pages on the chosen stores. Return 1 if anything was wrong."""
    parser = argparse.ArgumentParser("scripts/browser-matrix", description=__doc__)
    parser.add_argument("--store", action="append", choices=list(_SERVERS), help="default: all")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="keep a picture of each page there")
    chosen = parser.parse_args(arguments)
    problems: list[str] = []
    with Lab() as lab, chromium() as browser, tempfile.TemporaryDirectory(prefix="psched-browser-") as folder:
        for store in chosen.store or _SERVERS:
            with _site(lab, store, Path(folder) / store) as here:
                found = _matrix(browser, here, chosen.screenshots)
            print(f"{store}: {len(found)} problems", flush=True)
            problems += found
    return 1 if problems else 0


@contextmanager
def _site(lab: Lab, store: str, folder: Path) -> Iterator[Site]:
    kind = _SERVERS[store]
    if kind is None:
        with site(store, f"sqlite:///{folder}/psched.db", None, folder) as found:
            yield found
        return
    with lab.private(kind) as server, site(store, server.url(server.create_database()), server, folder) as found:
        yield found


def _matrix(browser: Browser, here: Site, screenshots: Path | None) -> list[str]:
    """Test the pages on one store. Return what was wrong."""
    problems: list[str] = []

    @contextmanager
    def visitor(what: str, look: Look = _LOOKS[0], url: str = here.url, javascript: bool = True) -> Iterator[Visitor]:
        height = 800 if look.width > 500 else 740
        context = browser.new_context(
            color_scheme=look.scheme,
            viewport={"width": look.width, "height": height},
            java_script_enabled=javascript,
        )
        tab = Visitor(context, url, f"{here.store} {look} {what}")
        try:
            yield tab
        except Exception as error:  # noqa: BLE001 – the others are to be walked, too
            tab.note(f"{type(error).__name__}: {error}")
        print("".join(f"{problem}\n" for problem in tab.problems), end="", flush=True)
        problems.extend(tab.problems)
        context.close()

    def steps() -> Iterator[tuple[str, Callable[[Visitor], None]]]:
        yield "actions on schedules", _change_schedules
        yield "edit", _edit_schedule
        yield "two editors", lambda tab: _edit_at_once(tab, here)
        yield "what if", _simulate
        yield "yesterday", _look_back
        yield "proof", _prove
        yield "actions on tasks", _change_tasks
        yield "filters", _filter
        yield "keys", _press_keys
        yield "changes", lambda tab: _see_changes(tab, here)

    others = 0
    for look in _LOOKS:
        with visitor("", look) as tab:
            for path in _pages():
                tab.open(path)
                others += tab.check_accessibility()
                if screenshots is not None:
                    _take(tab, screenshots / here.store / f"{look.scheme}-{look.width}", path)
    for name, step in steps():
        for look in (_LOOKS[0], _LOOKS[3]):
            with visitor(name, look) as tab:
                step(tab)
    with visitor("without JavaScript", javascript=False) as tab:
        for path in _pages():
            answer = tab.page.goto(here.url + path)
            if answer is None or answer.status != 200:
                tab.note("not opened")
    with visitor("read-only", url=here.read_only_url) as tab:
        _look_only(tab, here)
    with visitor("another site") as tab:
        _attack(tab, here)
    if here.server is not None:
        with visitor("database away") as tab:
            _lose_database(tab, here.server)
    count = len(list(_pages()))
    print(f"{here.store}: {count} pages in {len(_LOOKS)} looks; {others} findings of axe are not serious", flush=True)
    return problems


def _pages() -> Iterator[str]:
    yield from (path for path in PAGES if path not in _NEED_QUERY)
    yield from _ADDRESSES


def _take(tab: Visitor, folder: Path, path: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = path.strip("/").replace(_HOSTILE, "hostile").replace("?", "-").replace("&", "-").replace("/", "-") or "now"
    tab.page.screenshot(path=folder / f"{name}.png", full_page=True)


def _change_schedules(tab: Visitor) -> None:
    for action, said in (("Pause", "is paused"), ("Resume", "runs again"), ("Run now", "is due now")):
        tab.open("/schedule?key=report-01")
        tab.press(action)
        tab.is_done(said)
        tab.check_accessibility()
    for action, said in (("Pause", "is paused"), ("Resume", "runs again"), ("Run now", "is due now")):
        tab.open("/schedules?prefix=report-02")
        tab.press(action)
        tab.is_done(said)
    tab.open(f"/schedule?key={_HOSTILE}")
    tab.press("Pause")
    tab.is_done("is paused")
    tab.press("Resume")
    tab.is_done("runs again")


def _edit_schedule(tab: Visitor) -> None:
    tab.open("/schedule?key=report-05")
    tab.press("Edit")
    tab.page.get_by_label("Cron expression").fill("*/20 1-3 * * mon")
    tab.page.get_by_label("Owner").fill(f"shop {tab.where}")
    tab.press("Show what would change")
    tab.check_accessibility()
    tab.press("Change it")
    tab.is_done("changed")


def _edit_at_once(tab: Visitor, here: Site) -> None:
    """Values that another visitor changed after the preview are not overwritten. The form keeps what was typed."""
    key = f"report-{'06' if '360' in tab.where else '07'}"
    tab.open(f"/schedule/edit?key={key}")
    tab.page.get_by_label("Owner").fill("first")
    tab.press("Show what would change")
    with psched.open(here.config) as schedules:
        schedules[key].modify(owner="second")
        tab.expect("409 (Conflict)")
        tab.press("Change it")
        tab.check_accessibility()
        if schedules[key].metadata().policy.owner != "second":
            tab.note("one editor has overwritten what another one had changed")
    if tab.page.get_by_label("Owner").input_value() != "first":
        tab.note("the form has lost what was typed")


def _simulate(tab: Visitor) -> None:
    tab.open("/what-if")
    tab.page.get_by_label("Workers").fill("2")
    tab.page.get_by_label("Duration of a run").fill("5")
    tab.press("Simulate")
    tab.page.get_by_text("wait at the end of the outage").wait_for()
    tab.check()
    tab.check_accessibility()


def _look_back(tab: Visitor) -> None:
    tab.open("/yesterday")
    tab.page.get_by_label("Key begins with").fill("every")
    tab.page.get_by_label("Span").select_option("6")
    tab.press("Show")
    tab.page.locator("#live a.key", has_text="every-2-s").wait_for()
    tab.check_accessibility()
    tab.press("Earlier")
    tab.page.get_by_text("Nothing ran in this time").wait_for()
    tab.check_accessibility()
    tab.press("Later")


def _prove(tab: Visitor) -> None:
    tab.open("/proof")
    tab.page.get_by_label("Key begins with").fill("every")
    tab.page.get_by_label("Late after").fill("5m")
    tab.press("Prove")
    tab.page.locator("main a.key", has_text="every-2-s").wait_for()
    tab.check_accessibility()
    for name, members in (("Export as JSON", ()), ("with the records", ("records",))):
        with tab.page.expect_download() as download:
            tab.page.get_by_role("link", name=name).click()
        exported = json.loads(download.value.path().read_text())["schedules"]
        if [each["key"] for each in exported] != ["every-2-s"] or not {"sha256", *members} <= set(exported[0]):
            tab.note(f"{name} gives {str(exported)[:200]}")


def _change_tasks(tab: Visitor) -> None:
    phone = "360" if "360" in tab.where else "1440"
    one, two = ("later-100", "later-101") if phone == "360" else ("later-110", "later-111")
    tab.open(f"/task?key={one}")
    tab.press("Cancel")
    tab.is_done("cancelled")
    tab.press("Retry")
    tab.is_done("due now")
    tab.open(f"/tasks?prefix={two}")
    tab.press("Cancel")
    tab.is_done("cancelled")
    tab.open(f"/task?key={two}")
    tab.page.locator("summary", has_text="Delete").click()
    tab.check_accessibility()
    tab.press("Delete this task")
    tab.is_done("deleted")
    prefix = "later-00" if phone == "360" else "later-01"
    for action, status, said in (
        ("Cancel all …", "waiting", "10 tasks are cancelled"),
        ("Retry all …", "cancelled", "10 tasks are due now"),
    ):
        tab.open(f"/tasks?status={status}&prefix={prefix}")
        tab.press(action)
        tab.check_accessibility()
        tab.press(f"{action.split()[0]} 10")
        tab.is_done(said)
    tab.open("/tasks?status=cancelled&prefix=later")
    prefix = "later-02" if phone == "360" else "later-03"
    tab.open(f"/tasks?status=waiting&prefix={prefix}")
    tab.press("Delete all …")
    tab.press("Delete 10")
    tab.is_done("10 tasks are deleted")


def _filter(tab: Visitor) -> None:
    tab.open("/schedules")
    tab.page.get_by_label("Key begins with").fill("report-0")
    tab.page.wait_for_url("**prefix=report-0**")
    tab.page.locator("#live a.key", has_text="every-2-s").wait_for(state="detached")
    tab.page.get_by_label("State").select_option("paused")
    tab.page.wait_for_url("**state=paused**")
    tab.check()
    tab.page.go_back()
    tab.open("/tasks")
    tab.page.get_by_label("Status").select_option("failed")
    tab.page.locator("#live a.key", has_text="failed-0").wait_for()
    tab.check()
    tab.open("/tasks?prefix=later")
    tab.press("Next page")


def _press_keys(tab: Visitor) -> None:
    tab.open("/")
    for key, path in (("s", "/schedules"), ("q", "/queue"), ("o", "/nodes"), ("d", "/doctor"), ("n", "/")):
        tab.page.keyboard.press("g")
        tab.page.keyboard.press(key)
        tab.page.wait_for_url(lambda url, path=path: url.endswith(path))
        tab.check()
    tab.open("/schedules")
    tab.page.keyboard.press("/")
    if tab.page.evaluate("document.activeElement.name") != "prefix":
        tab.note("/ does not go to the filter")


def _see_changes(tab: Visitor, here: Site) -> None:
    """An open page shows changes that were made elsewhere, without a reload."""
    key = f"new-{tab.where.split()[2]}"
    tab.open("/tasks?prefix=new-")
    with psched.open_queue(here.config) as queue:
        queue.submit(key, "unknown-type")
    tab.page.locator("#live a.key", has_text=key).wait_for()
    tab.check()


def _look_only(tab: Visitor, here: Site) -> None:
    """Nothing can be changed: no page has a form for that, and every request for a change is refused."""
    for path in _pages():
        if path.startswith(_NEED_ACTIONS):
            continue
        tab.open(path)
        if tab.page.locator("form[method=post]").count():
            tab.note("has a form that changes something")
    for path in ACTIONS:
        answer = tab.page.request.post(
            here.read_only_url + path,
            form={"key": "nightly", "action": "pause"},
            headers={"Origin": here.read_only_url},
        )
        if answer.status != 403:
            tab.note(f"POST {path}: {answer.status}")
    if tab.page.get_by_text("hunter2").count():
        tab.note("shows a secret")


_EVIL = """<!doctype html><title>evil</title>
<iframe name="into"></iframe><iframe id="framed" src="{target}/"></iframe>
<form id="pause" method="post" action="{target}/schedule/action" target="into">
<input name="key" value="nightly"><input name="action" value="pause"></form>
<script>
document.getElementById("pause").submit();
const body = new URLSearchParams({{key: "nightly", action: "pause"}});
fetch("{target}/schedule/action", {{method: "POST", body, mode: "no-cors"}})
  .finally(() => {{ document.title = "tried"; }});
</script>"""


def _attack(tab: Visitor, here: Site) -> None:
    """Pages of another origin, and of another site, try to pause a schedule and to show the pages in a frame."""
    for host in ("127.0.0.1", "localhost"):
        _attack_from(host, tab, here)


def _attack_from(host: str, tab: Visitor, here: Site) -> None:
    with _evil(here.url) as port, psched.open(here.config) as schedules:
        page = tab.page.context.new_page()
        answered: list[int] = []

        def note(answer: Response) -> None:
            if answer.request.method == "POST":
                answered.append(answer.status)

        page.on("response", note)
        page.goto(f"http://{host}:{port}/")
        wait_for(lambda: page.title() == "tried" and bool(answered))
        if set(answered) != {403}:
            tab.note(f"a form of another site was answered with {answered}")
        if schedules["nightly"].metadata().paused:
            tab.note("another site has paused a schedule")
        framed = page.frames[2].content() if len(page.frames) > 2 else ""
        if "psched</a>" in framed:
            tab.note("another site can frame the pages")
        page.close()


@contextmanager
def _evil(target: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(_EVIL.format(target=target).encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


def _lose_database(tab: Visitor, server: Server) -> None:
    """An open page reports that the database is away, and recovers without a reload."""
    tab.open("/queue")
    tab.expect("503 (Service Unavailable)", "Response Status Error Code 503")
    server.stop()
    tab.page.get_by_text("The database does not answer").wait_for()
    tab.page.get_by_text("It has not been usable since").wait_for()
    tab.check()
    tab.check_accessibility()
    server.start()
    tab.page.get_by_role("heading", name="Queue").wait_for()
    tab.check()


if __name__ == "__main__":
    sys.exit(main())
