"""A Chromium that records everything that a page must not do: console messages, violations, requests to other hosts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SERIOUS = ("serious", "critical")
_NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(event.violatedDirective + " " + event.blockedURI + " " + event.sample);
});
"""
_HOLD_UPDATES = """
for (const name of ["htmx:beforeRequest", "htmx:beforeSwap"]) {
  document.addEventListener(name, (event) => { if (window.holdsUpdates) { event.preventDefault(); } }, true);
}
"""
_AXE = """
(async () => {
  window.holdsUpdates = true;
  try { return await axe.run(document, {resultTypes: ["violations"]}); } finally { window.holdsUpdates = false; }
})()
"""
"""While axe-core reads the page, the page does not replace its parts."""
_COMPUTING = "The answer is being computed"
"""The text of a page that has no answer yet. It asks again until it has one."""
_FIND_WIDE = """
(() => {
  const page = document.documentElement;
  if (page.scrollWidth <= page.clientWidth) { return ""; }
  const wide = [...document.querySelectorAll("body *")].filter(
    (each) => each.getBoundingClientRect().right > page.clientWidth && !each.closest(".scroll, nav"));
  return wide.map((each) => each.outerHTML.slice(0, 150)).slice(0, 3).join("\\n") || "unknown element";
})()
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Yield a browser without windows: the one that PSCHED_CHROMIUM names, or else the first one that is installed."""
    program = os.environ.get("PSCHED_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        raise FileNotFoundError("no Chromium is installed; apt-get install chromium, or set PSCHED_CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A browser tab. `problems`: what was wrong on the pages that it has opened."""

    def __init__(self, context: BrowserContext, url: str, where: str) -> None:
        """`url`: the site's URL, without a slash at its end. `where`: the tab's name in the problems."""
        self.problems: list[str] = []
        self.page: Page = context.new_page()
        self._url = url
        self.where = where
        self._expected: tuple[str, ...] = ()
        context.set_default_timeout(20_000)
        self.page.add_init_script(_NOTE_VIOLATIONS + _HOLD_UPDATES)
        self.page.on("console", lambda message: self._console(message.text))
        self.page.on("pageerror", lambda error: self.note(f"error in a script: {error}"))
        self.page.on("request", lambda request: self._check_host(request.url))
        self.page.on("dialog", self._dialog)

    def note(self, problem: str) -> None:
        """Record a problem of the present page."""
        self.problems.append(f"{self.where} {self.page.url.removeprefix(self._url)}: {problem}")

    def expect(self, *texts: str) -> None:
        """From now on, ignore console messages that contain one of these texts."""
        self._expected = texts

    def open(self, path: str, status: int = 200) -> None:
        """Open a page, and check it when its answer has been computed. `status`: the expected HTTP status."""
        answer = self.page.goto(self._url + path)
        if answer is None or answer.status != status:
            self.note(f"status {None if answer is None else answer.status}, expected {status}")
        self.check_when_computed()

    def check_when_computed(self) -> None:
        """Wait until the page has its answer, and check it."""
        self.page.get_by_text(_COMPUTING).wait_for(state="detached")
        self.page.wait_for_load_state()
        self.check()

    def check(self) -> None:
        """Record what is wrong on the page in its present state."""
        found: Sequence[str] = self.page.evaluate("window.violations || []")
        for violation in found:
            self.note(f"violates the policy: {violation}")
        self.page.evaluate("window.violations = []")
        wide = self.page.evaluate(_FIND_WIDE)
        if wide:
            self.note(f"wider than the screen: {wide}")

    def check_accessibility(self) -> int:
        """Record the serious findings of axe-core. Return the number of its other findings."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(axe())
        found = self.page.evaluate(_AXE)
        others = 0
        for each in found["violations"]:
            if each["impact"] in SERIOUS:
                self.note(f"axe: {each['id']}: {each['help']}: {_targets(each)}")
            else:
                others += 1
        return others

    def press(self, name: str) -> None:
        """Press the first button or link with this name, and check the next page."""
        with self.page.expect_navigation():
            self.page.locator(f"main :is(button, a.button):text-is({name!r})").first.click()
        self.check_when_computed()

    def is_done(self, text: str) -> None:
        """Record a problem if the page does not report that an action was done. `text`: a part of that report."""
        found = self.page.locator(".done").all_inner_texts()
        if not any(text in each for each in found):
            said = self.page.locator("main").inner_text()[:200]
            self.note(f"does not say {text!r} after the action, but: {found or said}")

    def _console(self, text: str) -> None:
        if not any(each in text for each in self._expected):
            self.note(f"console: {text}")

    def _check_host(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "about", "chrome-error") and f"{parts.scheme}://{parts.netloc}" != self._url:
            self.note(f"asks another host: {url}")

    def _dialog(self, dialog: Any) -> None:
        self.note(f"a dialog: {dialog.message}")
        dialog.dismiss()


def axe() -> str:
    """Return the source of axe-core."""
    return Path(str(files("axe_playwright_python") / "axe.min.js")).read_text()


def _targets(finding: dict[str, Any]) -> str:
    return "; ".join(str(node["target"]) for node in finding["nodes"][:3])
