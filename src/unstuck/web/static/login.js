// Logs in by the link that `unstuck up` writes: the token is in the fragment, which no browser sends and no log has.
"use strict";
(() => {
  const token = decodeURIComponent(location.hash.slice(1));
  const form = document.querySelector("form.login");
  if (!token || !form) return;
  history.replaceState(null, "", location.pathname + location.search);
  form.elements.token.value = token;
  if (form.elements.user.value) form.requestSubmit();
})();
