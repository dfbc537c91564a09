// Refreshes visible tabs only, sends the tag of the shown content, and keeps forms that a person fills in.
"use strict";
(() => {
  const live = (element) => element.closest?.(".live");
  Idiomorph.defaults.ignoreActiveValue = true;
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "open" && node.tagName === "DETAILS");
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !node.matches?.("details.action[open], form.filters");

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && live(event.target)) event.preventDefault();
  });
  document.addEventListener("htmx:configRequest", (event) => {
    const tag = live(event.target)?.dataset.tag;
    if (tag) event.detail.headers["If-None-Match"] = tag;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!live(event.target)) return;
    const { status, responseText } = event.detail.xhr;
    const away = document.getElementById("away");
    away.hidden = status > 0 && status < 500;
    if (away.hidden) return;
    const answer = new DOMParser().parseFromString(status ? responseText : "", "text/html");
    away.firstElementChild.textContent = answer.querySelector(".sentence")?.textContent ?? "The page is not responding.";
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) htmx.trigger(document.body, "again");
  });
})();
