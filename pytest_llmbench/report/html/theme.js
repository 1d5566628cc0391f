"use strict";
// The page is complete without this script, which adds a button for a stored theme.
(() => {
  const button = document.querySelector("#theme");
  const names = { "": "automatic", light: "light", dark: "dark" };
  const order = Object.keys(names);

  function setTheme(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${names[theme]}`;
  }

  function stored() {
    try { return localStorage.getItem("llmbench-theme") || ""; } catch { return ""; }  // forbidden in a sandbox
  }

  let theme = order.includes(stored()) ? stored() : "";
  setTheme(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = order[(order.indexOf(theme) + 1) % order.length];
    setTheme(theme);
    try { localStorage.setItem("llmbench-theme", theme); } catch { /* forbidden in a sandbox */ }
  });
})();
