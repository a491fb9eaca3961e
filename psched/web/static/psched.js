// Fetches the changing part of a page again at each mark of the stream, updates relative times, and handles keys.
"use strict";

(function () {
  const body = document.body;
  const offset = body.dataset.now ? body.dataset.now * 1000 - Date.now() : 0;
  const offline = document.querySelector(".offline");
  let mark = body.dataset.mark;
  let isWanted = false;

  // Do not interrupt a reader who selects text, has opened details, or types.
  function isBusy() {
    const live = document.getElementById("live");
    const selection = document.getSelection();
    return document.hidden || !live || live.querySelector("details[open], input:checked") !== null ||
      (live.contains(document.activeElement) && /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) ||
      (selection !== null && !selection.isCollapsed);
  }

  function refresh() {
    if (isWanted && !isBusy()) {
      isWanted = false;
      htmx.trigger("#live", "refresh");
    }
  }

  function listen() {
    const source = new EventSource(body.dataset.changes);
    source.onopen = function () { offline.hidden = true; };
    source.onerror = function () { offline.hidden = false; };
    source.onmessage = function (event) {
      if (event.data !== mark) {
        mark = event.data;
        isWanted = true;
        refresh();
      }
    };
    window.addEventListener("pagehide", function () { source.close(); });
  }

  const UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];

  function span(seconds) {
    let rest = Math.floor(seconds);
    const parts = [];
    for (const [name, size] of UNITS) {
      const count = Math.floor(rest / size);
      rest %= size;
      if (count || parts.length) { parts.push(count ? count + " " + name : ""); }
      if (parts.length === 2) { break; }
    }
    return parts.filter(Boolean).join(" ") || "0 s";
  }

  function countOn() {
    const now = (Date.now() + offset) / 1000;
    for (const time of document.querySelectorAll("time[data-from]")) {
      const seconds = time.dataset.from - now;
      const text = seconds > 0 ? "in " + span(seconds) : span(-seconds) + " ago";
      if (time.textContent !== text) { time.textContent = text; }
    }
    refresh();
  }

  let hasPressedG = false;

  function press(event) {
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) { return; }
    const link = hasPressedG ? document.querySelector('nav a[data-key="' + CSS.escape(event.key) + '"]') : null;
    hasPressedG = event.key === "g";
    if (link) {
      link.click();
    } else if (event.key === "/") {
      const field = document.querySelector("form.filter input");
      if (field) {
        event.preventDefault();
        field.focus();
      }
    }
  }

  // Also show answers with an error status, such as the page for a database that is away.
  document.addEventListener("htmx:beforeSwap", function (event) {
    if (event.detail.xhr.status >= 400) { event.detail.shouldSwap = true; }
  });
  document.addEventListener("change", function (event) {
    const all = event.target.closest("input[data-all]");
    if (all) {
      for (const box of document.querySelectorAll("#live input[name=key]")) { box.checked = all.checked; }
    }
  });
  document.addEventListener("keydown", press);
  document.addEventListener("visibilitychange", refresh);
  setInterval(countOn, 1000);
  listen();
}());
