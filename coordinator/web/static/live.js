// Asks again only for visible tabs, sends the tag of what is shown, and leaves alone the form that a person fills in.
"use strict";
(() => {
  const live = (element) => element.closest?.(".live");
  Idiomorph.defaults.ignoreActiveValue = true;
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
    !(name === "open" && node.tagName === "DETAILS");
  Idiomorph.defaults.callbacks.beforeNodeMorphed = (node) => !node.matches?.("details.action[open]");

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && live(event.target)) event.preventDefault();
  });
  document.addEventListener("htmx:configRequest", (event) => {
    const tag = live(event.target)?.dataset.tag;
    if (tag) event.detail.headers["If-None-Match"] = tag;
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (live(event.target)) document.getElementById("away").hidden = event.detail.xhr.status > 0;
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) htmx.trigger(document.body, "again");
  });
})();
