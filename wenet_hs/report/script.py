# SPDX-License-Identifier: Apache-2.0
"""What the page does: sort a table by a column, filter rows, browse utterances, light or dark. Nothing is loaded.

Without JavaScript the page shows everything, and the controls (`.js`) stay hidden.
"""

SCRIPT = """
"use strict";
(() => {
const root = document.documentElement, all = (what, where = document) => [...where.querySelectorAll(what)];
const byId = id => document.getElementById(id);
root.classList.add("scripted");

// ---- light and dark
const themes = ["auto", "light", "dark"], toggle = byId("theme");
const remembered = () => { try { return localStorage.getItem("wenet_hs.theme"); } catch { return null; } };
const wear = theme => {
  if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
  toggle.dataset.now = theme;
  toggle.textContent = "Theme: " + theme;
  try { localStorage.setItem("wenet_hs.theme", theme); } catch { /* a file may be refused a memory */ }
};
wear(themes.includes(remembered()) ? remembered() : "auto");
toggle.addEventListener("click", () => wear(themes[(themes.indexOf(toggle.dataset.now) + 1) % themes.length]));

// ---- tables
const text = cell => cell ? cell.dataset.value ?? cell.textContent.trim() : "";
const value = cell => {
  const found = text(cell).replace(/,/g, "").replace("\\u2212", "-").replace(/^</, "");
  return found !== "" && !isNaN(found) ? Number(found) : null;
};
const compare = (a, b) => {
  const x = value(a), y = value(b);
  if (x !== null && y !== null) return x - y;
  if (x !== null || y !== null) return x !== null ? -1 : 1;
  return text(a).localeCompare(text(b));
};
const sort = (table, head, index) => {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of all("thead th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const body = table.tBodies[0], known = row => !["", "n/a", "\u2014"].includes(text(row.cells[index]));
  const rows = [...body.rows].map((row, place) => [row, place]);
  rows.sort(([a, i], [b, j]) => {
    if (known(a) !== known(b)) return known(a) ? -1 : 1;
    return (down ? -1 : 1) * compare(a.cells[index], b.cells[index]) || i - j;
  });
  body.append(...rows.map(([row]) => row));
};
for (const table of all("table.sortable")) {
  if (table.tBodies[0].rows.length < 2) continue;
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, index) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(table, head, index));
  });
}
for (const select of all("select[data-filter]"))
  select.addEventListener("change", () => {
    for (const row of byId(select.dataset.filter).tBodies[0].rows)
      row.hidden = row.dataset[select.dataset.field] !== select.value;
  });

// ---- utterances
const list = byId("list");
if (list) {
  const step = 25, items = all(".utterance", list), more = byId("more");
  items.forEach((item, place) => {
    item.place = place;
    item.folded = (item.dataset.key + " " + item.dataset.text).normalize("NFC").toLowerCase();
  });
  const number = (item, name) => Number(item.dataset[name]);
  const orders = name => {
    const pair = /^d(\\d+)-(\\d+)$/.exec(name);
    if (pair) return (a, b) => {
      const gain = item => number(item, "e" + pair[2]) - number(item, "e" + pair[1]);
      return gain(a) - gain(b);
    };
    if (name === "worst") return () => 0;
    if (name === "key" || name === "lang") return (a, b) => a.dataset[name].localeCompare(b.dataset[name]);
    const down = name.startsWith("-"), field = down ? name.slice(1) : name;
    return (a, b) => (down ? -1 : 1) * (number(a, field) - number(b, field));
  };
  let room = step;
  const show = () => {
    const wanted = byId("find").value.normalize("NFC").toLowerCase().trim(), lang = byId("lang").value;
    const wrong = byId("wrong").checked, order = orders(byId("order").value);
    const kept = items.filter(item => (!lang || item.dataset.lang === lang) && item.folded.includes(wanted)
      && (!wrong || Object.keys(item.dataset).some(name => /^e\\d+$/.test(name) && number(item, name) > 0)));
    kept.sort((a, b) => order(a, b) || a.place - b.place);
    for (const item of items) item.hidden = true;
    kept.slice(0, room).forEach(item => { item.hidden = false; });
    list.append(...kept);
    byId("count").textContent = Math.min(room, kept.length) + " of " + kept.length + " shown";
    more.hidden = kept.length <= room;
  };
  for (const id of ["find", "lang", "order", "wrong"])
    byId(id).addEventListener("input", () => { room = step; show(); });
  more.addEventListener("click", () => { room += step; show(); });
  show();
}
// ---- paper has no folds
addEventListener("beforeprint", () => {
  for (const fold of all("details:not([open]):not(.screen)")) { fold.open = true; fold.dataset.printed = ""; }
});
addEventListener("afterprint", () => {
  for (const fold of all("details[data-printed]")) { fold.open = false; delete fold.dataset.printed; }
});
})();
"""
