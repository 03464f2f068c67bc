// Sorts and filters tables, browses utterances, switches between light and dark. Without JavaScript everything is shown.
"use strict";
(() => {
const root = document.documentElement;
const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const byId = id => document.getElementById(id);
root.classList.add("scripted");

// ---- light and dark
const themes = ["auto", "light", "dark"];
const toggle = byId("theme");
const savedTheme = () => {
  try { return localStorage.getItem("wenet_hs.theme"); } catch { return null; }
};
const applyTheme = theme => {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  toggle.dataset.now = theme;
  toggle.textContent = "Theme: " + theme;
  try { localStorage.setItem("wenet_hs.theme", theme); } catch { /* some browsers give files no storage */ }
};
applyTheme(themes.includes(savedTheme()) ? savedTheme() : "auto");
toggle.addEventListener("click", () => applyTheme(themes[(themes.indexOf(toggle.dataset.now) + 1) % themes.length]));

// ---- tables
const cellText = cell => cell ? cell.dataset.value ?? cell.textContent.trim() : "";
const cellNumber = cell => {
  const text = cellText(cell).replace(/,/g, "").replace("\u2212", "-").replace(/^</, "");
  return text !== "" && !isNaN(text) ? Number(text) : null;
};
const isKnown = cell => !["", "n/a", "—"].includes(cellText(cell));
const compareCells = (a, b) => {
  const x = cellNumber(a), y = cellNumber(b);
  if (x !== null && y !== null) return x - y;
  if (x !== null || y !== null) return x !== null ? -1 : 1;
  return cellText(a).localeCompare(cellText(b));
};
const sortTable = (table, head, index) => {
  const descending = head.getAttribute("aria-sort") === "ascending";
  for (const other of all("thead th[aria-sort]", table)) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row, position) => [row, position]);
  rows.sort(([a, i], [b, j]) => {
    const cellA = a.cells[index], cellB = b.cells[index];
    if (isKnown(cellA) !== isKnown(cellB)) return isKnown(cellA) ? -1 : 1;
    return (descending ? -1 : 1) * compareCells(cellA, cellB) || i - j;
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
    button.addEventListener("click", () => sortTable(table, head, index));
  });
}
const fits = new ResizeObserver(boxes => {
  for (const { target } of boxes)
    target.closest("figure").classList.toggle("scrolls", target.scrollWidth > target.clientWidth + 1);
});
for (const box of all(".scroll, .tree")) fits.observe(box);
for (const select of all("select[data-filter]"))
  select.addEventListener("change", () => {
    for (const row of byId(select.dataset.filter).tBodies[0].rows)
      row.hidden = row.cells[0].textContent !== select.value;
  });

// ---- utterances
const list = byId("list");
if (list) {
  const step = 10, items = all(".utterance", list), more = byId("more");
  const fold = text => text.normalize("NFC").toLowerCase();
  items.forEach((item, position) => {
    item.position = position;
    item.searchText = fold(item.dataset.key + " " + item.dataset.text);
  });
  const number = (item, name) => Number(item.dataset[name]);
  const hasError = item => Object.keys(item.dataset).some(name => /^e\d+$/.test(name) && number(item, name) > 0);
  const orderBy = name => {
    const pair = /^d(\d+)-(\d+)$/.exec(name);
    if (pair) {
      const gain = item => number(item, "e" + pair[2]) - number(item, "e" + pair[1]);
      return (a, b) => gain(a) - gain(b);
    }
    if (name === "worst") return () => 0;
    if (name === "key" || name === "lang") return (a, b) => a.dataset[name].localeCompare(b.dataset[name]);
    const descending = name.startsWith("-"), field = descending ? name.slice(1) : name;
    return (a, b) => (descending ? -1 : 1) * (number(a, field) - number(b, field));
  };
  let limit = step;
  const show = () => {
    const wanted = fold(byId("find").value).trim(), lang = byId("lang").value;
    const onlyWrong = byId("wrong").checked, order = orderBy(byId("order").value);
    const kept = items.filter(item => (!lang || item.dataset.lang === lang) && item.searchText.includes(wanted)
      && (!onlyWrong || hasError(item)));
    kept.sort((a, b) => order(a, b) || a.position - b.position);
    for (const item of items) item.hidden = true;
    for (const item of kept.slice(0, limit)) item.hidden = false;
    list.append(...kept);
    byId("count").textContent = Math.min(limit, kept.length) + " of " + kept.length + " shown";
    more.hidden = kept.length <= limit;
  };
  for (const id of ["find", "lang", "order", "wrong"])
    byId(id).addEventListener("input", () => { limit = step; show(); });
  more.addEventListener("click", () => { limit += step; show(); });
  show();
}

// ---- print everything unfolded
addEventListener("beforeprint", () => {
  for (const details of all("details:not([open])")) { details.open = true; details.dataset.printed = ""; }
});
addEventListener("afterprint", () => {
  for (const details of all("details[data-printed]")) { details.open = false; delete details.dataset.printed; }
});
})();
