// Script of the tree explorer. Unit names are inserted only as `textContent`, never as HTML.
// Nodes are numbered as in the data: inner nodes 0…K-1, units K…K+L-1.
// No function recurses, because a tree may be thousands of levels deep.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const K = data.rows.length, L = data.names.length, total = K + L;
const FIRST_ROWS = 60, NAMED = 5, WIDE = 30, MORE = 200, DEEPEST_PAD = 24, LONGEST_CODE = 48;
const parent = new Int32Array(total).fill(-1), place = new Int32Array(total).fill(-1), level = new Int32Array(total);
const share = new Float64Array(total), count = new Float64Array(total), best = new Array(K), order = new Array(K);
const opened = new Set(), fan = new Map();
let hits = new Set(), current = 0, visible = [], elements = new Map();

const el = id => document.getElementById(id);
const make = (tag, name, text) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
};
const isUnit = node => node >= K;
const label = node => data.labels[node - K] ?? data.names[node - K];
const number = value => value.toLocaleString("en");
const digits = p => p === 0 ? "0" : p < 0.01 ? (100 * p).toPrecision(2).replace("e-", "e−") : (100 * p).toFixed(1);
const percent = p => digits(p) + " %";
const countOf = node => `${number(count[node])} units`;
const names = node => best[node].map(label).join(" · ");
const likelier = (a, b) => share[b] - share[a] || a - b;

function prepare() {
  for (let k = 0; k < K; k++) data.rows[k].forEach((child, at) => {
    parent[child] = k;
    level[child] = level[k] + 1;
    place[child] = at;
  });
  for (let i = 0; i < L; i++) { share[K + i] = data.shares[i]; count[K + i] = 1; }
  for (let k = K - 1; k >= 0; k--) {
    const units = [];
    for (const child of data.rows[k]) {
      share[k] += share[child];
      count[k] += count[child];
      if (isUnit(child)) units.push(child); else units.push(...best[child]);
    }
    best[k] = units.sort(likelier).slice(0, NAMED);
    order[k] = data.rows[k].slice();
    if (!data.binary) order[k].sort(likelier);
  }
}

// A heap would be quicker; but only dozens of branches are opened, each after one look at those that are closed.
function openMore(rows) {
  const isClosed = row => row.node < K && !row.more && !opened.has(row.node);
  const closed = (visible.length ? visible.filter(isClosed) : [{node: 0}]).map(row => row.node);
  for (let added = 0; closed.length && added < rows;) {
    let at = 0;
    for (let i = 1; i < closed.length; i++) if (share[closed[i]] > share[closed[at]]) at = i;
    const node = closed[at];
    if (node >= K) return;  // a tree of one unit
    opened.add(node);
    const children = order[node].slice(0, fan.get(node) ?? WIDE);
    added += children.length;
    closed.splice(at, 1, ...children.filter(child => child < K));
  }
}

function codeOf(node) {
  const places = [];
  for (let at = node; parent[at] >= 0; at = parent[at]) places.push(place[at]);
  return places.reverse().join(data.binary ? "" : ".");
}

function rowsInSight() {
  const rows = [], waiting = [{node: 0}];
  while (waiting.length) {
    const row = waiting.pop();
    rows.push(row);
    if (row.more || !opened.has(row.node)) continue;
    const shown = fan.get(row.node) ?? WIDE, children = order[row.node];
    if (children.length > shown) waiting.push({node: row.node, more: children.length - shown});
    for (let i = Math.min(shown, children.length) - 1; i >= 0; i--) waiting.push({node: children[i]});
  }
  return rows;
}

function fillName(name, row) {
  const {node, more} = row, inner = node < K && !more;
  const pad = make("span", "pad");
  pad.style.setProperty("--level", Math.min(level[node] + (more ? 1 : 0), DEEPEST_PAD));
  const twist = make("span", "twist", inner ? (opened.has(node) ? "▾" : "▸") : "");
  twist.setAttribute("aria-hidden", "true");
  const text = make("bdi", "label");
  name.append(pad, twist, text);
  if (more) text.textContent = `${number(more)} more branches`;
  else if (isUnit(node)) text.textContent = label(node);
  else {
    text.textContent = names(node);
    name.append(make("span", "count", countOf(node)));
  }
}

function makeRow(row, at) {
  const {node, more} = row, inner = node < K && !more;
  const element = make("div", "row " + (more ? "rest" : inner ? "inner" : "unit"));
  element.setAttribute("role", "treeitem");
  element.setAttribute("aria-level", level[node] + 1 + (more ? 1 : 0));
  if (inner) element.setAttribute("aria-expanded", opened.has(node));
  if (!more && hits.has(node)) element.classList.add("hit");
  element.tabIndex = -1;
  element.dataset.at = at;
  const name = make("span", "name");
  fillName(name, row);
  element.append(name);
  if (more) return element;
  const bar = make("span", "bar"), filled = make("i");
  filled.style.width = 100 * Math.sqrt(share[node]) + "%";
  bar.append(filled);
  bar.setAttribute("aria-hidden", "true");
  const code = place[node] < 0 ? "" : codeOf(node);
  element.append(make("span", "share", percent(share[node])), bar,
    make("code", "", code.length > LONGEST_CODE ? code.slice(0, LONGEST_CODE - 1) + "…" : code));
  return element;
}

function draw() {
  visible = rowsInSight();
  elements = new Map();
  const page = document.createDocumentFragment();
  visible.forEach((row, at) => {
    row.at = at;
    const element = makeRow(row, at);
    if (!row.more) elements.set(row.node, element);
    page.append(element);
  });
  el("tree").replaceChildren(page);
  select(elements.has(current) ? current : 0, false);
}

function select(node, focus = true, block = "nearest") {
  elements.get(current)?.removeAttribute("aria-selected");
  const before = elements.get(current), element = elements.get(node);
  if (before) before.tabIndex = -1;
  current = node;
  element.tabIndex = 0;
  element.setAttribute("aria-selected", "true");
  if (focus) { element.focus({preventScroll: true}); element.scrollIntoView({block}); describe(node); }
}

function describe(node) {
  const detail = el("detail"), code = place[node] < 0 ? "" : codeOf(node), p = share[node];
  const name = make("b"), facts = [];
  name.append(make("bdi", "", isUnit(node) ? label(node) : countOf(node)));
  if (isUnit(node)) facts.push(`id ${node - K}`);
  facts.push(percent(p));
  if (p > 0 && isUnit(node)) facts.push(`ideal length ${(-Math.log2(p) + 0).toFixed(2)} bits`);
  if (code) facts.push(data.binary ? `code ${code} (${level[node]} bits)` : `path ${code} (${level[node]} choices)`);
  detail.replaceChildren(name, " · " + facts.join(" · "));
  if (node < K) detail.append(" · most probable: ", make("bdi", "", names(node)));
}

function toggle(node, open) {
  if (node >= K || opened.has(node) === open) return;
  if (open) opened.add(node); else opened.delete(node);
  draw();
  select(node);
}

function showUnit(node) {
  hits = new Set([node]);
  for (let at = node; parent[at] >= 0; at = parent[at]) {
    const above = parent[at], needed = order[above].indexOf(at) + 1;
    opened.add(above);
    hits.add(above);
    if (needed > (fan.get(above) ?? WIDE)) fan.set(above, needed);
  }
  draw();
  select(node, true, "center");
}

function activate(row) {
  if (row.more) {
    fan.set(row.node, (fan.get(row.node) ?? WIDE) + MORE);
    draw();
    select(row.node);
  } else if (row.node < K) toggle(row.node, !opened.has(row.node));
  else select(row.node);
}

el("tree").addEventListener("click", event => {
  const element = event.target.closest(".row");
  if (element) { const row = visible[element.dataset.at]; if (!row.more) select(row.node); activate(row); }
});

el("tree").addEventListener("keydown", event => {
  const element = event.target.closest(".row");
  if (!element || event.ctrlKey || event.metaKey || event.altKey) return;
  const at = +element.dataset.at, row = visible[at], node = row.node;
  const go = to => {
    const next = visible[Math.max(0, Math.min(visible.length - 1, to))];
    if (!next.more) select(next.node);
    else {
      const more = el("tree").children[next.at];
      more.focus({preventScroll: true});
      more.scrollIntoView({block: "nearest"});
    }
  };
  const keys = {
    ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1), Home: () => go(0), End: () => go(visible.length - 1),
    PageDown: () => go(at + 15), PageUp: () => go(at - 15), Enter: () => activate(row), " ": () => activate(row),
    ArrowRight: () => {
      if (row.more || (node < K && !opened.has(node))) activate(row);
      else if (node < K) go(at + 1);
    },
    ArrowLeft: () => {
      if (row.more) select(node);
      else if (node < K && opened.has(node)) toggle(node, false);
      else if (parent[node] >= 0) select(parent[node]);
    },
  };
  if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
});

const folded = text => text.normalize("NFC").toLowerCase();
const searched = data.names.map((name, i) => [folded(name), folded(data.labels[i] ?? name)]);
let found = [], marked = 0;

function search() {
  const typed = el("find").value, query = folded(typed), shown = query.replace(/ /g, "▁"), groups = [[], [], [], []];
  if (typed) for (let i = 0; i < L; i++) {
    const names = searched[i], test = how => names.some(name => how(name, query) || how(name, shown));
    if (data.names[i] === typed) groups[0].push(K + i);
    else if (test((name, part) => name === part)) groups[1].push(K + i);
    else if (test((name, part) => name.startsWith(part))) groups[2].push(K + i);
    else if (test((name, part) => name.includes(part))) groups[3].push(K + i);
  }
  groups.forEach(group => group.sort(likelier));
  const all = groups.flat();
  found = all.slice(0, 8);
  marked = 0;
  el("status").textContent = typed ? `${number(all.length)} ${all.length === 1 ? "unit" : "units"} found` : "";
  listFound();
}

function listFound() {
  const list = el("found");
  list.replaceChildren(...found.map((node, i) => {
    const item = make("li");
    item.id = "found" + i;
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", i === marked);
    item.append(make("bdi", "", label(node)), make("span", "count", percent(share[node])));
    item.addEventListener("mousedown", event => { event.preventDefault(); choose(i); });
    return item;
  }));
  list.hidden = !found.length;
  el("find").setAttribute("aria-expanded", !list.hidden);
  if (found.length) el("find").setAttribute("aria-activedescendant", "found" + marked);
  else el("find").removeAttribute("aria-activedescendant");
}

function choose(i) {
  const node = found[i];
  found = [];
  listFound();
  showUnit(node);
}

el("find").addEventListener("input", search);
el("find").addEventListener("focus", () => { if (el("find").value) search(); });
el("find").addEventListener("blur", () => { found = []; listFound(); });
el("find").addEventListener("keydown", event => {
  if (event.isComposing) return;
  if (event.key === "Enter" && found.length) { event.preventDefault(); choose(marked); }
  else if (event.key === "Escape") { event.preventDefault(); found = []; listFound(); select(current); }
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && found.length) {
    event.preventDefault();
    marked = (marked + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length;
    listFound();
  }
});

document.addEventListener("keydown", event => {
  if (event.key === "/" && event.target !== el("find") && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    el("find").focus();
    el("find").select();
  }
});

el("more").addEventListener("click", () => { openMore(FIRST_ROWS); draw(); });
el("fold").addEventListener("click", () => {
  opened.clear(); fan.clear(); hits = new Set(); visible = []; current = 0;
  openMore(FIRST_ROWS);
  draw();
  scrollTo(0, 0);
});

prepare();
openMore(FIRST_ROWS);
draw();
