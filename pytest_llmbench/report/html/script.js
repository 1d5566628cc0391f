"use strict";
// The page is complete without this script, which adds sorting and filtering the table, and opening the linked card.
(() => {
  const query = (selector) => document.querySelector(selector);
  const table = query("#table");

  function cardOf(hash) {
    const target = document.getElementById(decodeURIComponent(hash.slice(1)));
    return target && target.closest("details");
  }

  function reveal() {
    const card = cardOf(location.hash);
    if (!card) return;
    card.hidden = false;  // the filter may have hidden it
    card.open = true;
    card.scrollIntoView({ block: "start" });
    card.querySelector("summary").focus({ preventScroll: true });
  }

  function compare(column, numeric, sign) {
    const value = (row) => row.cells[column].dataset.v;
    return (first, second) => {
      const [a, b] = [value(first), value(second)];
      if (a === "" || b === "") return (a === "") - (b === "");  // unknown values last, whichever way
      return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true })) || first.dataset.position - second.dataset.position;
    };
  }

  function sort(head) {
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const numeric = head.classList.contains("number") || head.cellIndex === 0;
    const rows = [...table.tBodies[0].rows].sort(compare(head.cellIndex, numeric, up ? 1 : -1));
    table.tBodies[0].append(...rows);
  }

  function makeSortable() {
    [...table.tBodies[0].rows].forEach((row, position) => { row.dataset.position = position; });
    for (const head of table.tHead.querySelectorAll(".text, .number")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sort(head));
      head.replaceChildren(button);
    }
  }

  function filter() {
    const words = query("#words").value.toLowerCase().split(/\s+/).filter(Boolean);
    const colours = new Set([...document.querySelectorAll("[name=colour]:checked")].map((box) => box.value));
    const rows = [...table.tBodies[0].rows];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !colours.has(row.dataset.colour) || !words.every((word) => text.includes(word));
      const card = cardOf(row.querySelector("a").hash);
      if (card) card.hidden = row.hidden;  // fleet pages have no cards: each configuration has its own page
    }
    query("#shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} shown`;
  }

  function makeFilter() {
    const form = query("#filter");
    form.hidden = false;
    form.addEventListener("input", filter);
    form.addEventListener("submit", (event) => event.preventDefault());
    filter();
  }

  if (table) { makeSortable(); makeFilter(); }
  addEventListener("hashchange", reveal);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((card) => { card.open = true; }));
  reveal();
})();
