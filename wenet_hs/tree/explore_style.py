# SPDX-License-Identifier: Apache-2.0
"""The look of the page that explores a tree: light and dark, from a phone to a desk."""

STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --quiet: #5c6370; --page: #fff; --line: #d3d7de; --panel: #f5f6f8;
  --accent: #0b62b8; --hit: #fff1c9; --step: .85rem; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --quiet: #9aa2af; --page: #16181c; --line: #3a404a;
  --panel: #1f2228; --accent: #6cb2ff; --hit: #453a14; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1rem 1rem 4rem; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, "Noto Sans", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.35rem; line-height: 1.25; margin: 0 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
.figures { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; margin: 0 0 .5rem; padding: 0; }
.figures, .quiet, #said, .count { color: var(--quiet); }
details { margin: .5rem 0; }
summary { cursor: pointer; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; margin: .4rem 0; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; }
header { padding-bottom: .2rem; }
.controls { position: sticky; top: 0; z-index: 2; display: flex; flex-wrap: wrap; gap: .5rem; align-items: center;
  padding: .5rem 0; background: var(--page); }
header { display: contents; }
.find { position: relative; flex: 1 1 12rem; max-width: 22rem; }
input, button { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--line);
  border-radius: .4rem; padding: .35rem .7rem; min-height: 2.3rem; }
input { width: 100%; }
button { cursor: pointer; }
#found { position: absolute; z-index: 3; left: 0; right: 0; margin: .2rem 0 0; padding: .2rem; list-style: none;
  background: var(--page); border: 1px solid var(--line); border-radius: .4rem; box-shadow: 0 .3rem 1rem #0004; }
#found li { display: flex; justify-content: space-between; gap: 1rem; padding: .3rem .5rem; border-radius: .3rem;
  cursor: pointer; }
#found li[aria-selected=true], #found li:hover { background: var(--hit); }
.row { display: grid; grid-template-columns: minmax(0, 1fr) 4.6rem 6rem 14rem; gap: .7rem; align-items: center;
  min-height: 1.7rem; padding-right: .3rem; border-radius: .25rem; cursor: default; scroll-margin: 4.5rem 0 5rem; }
.row[aria-expanded] { cursor: pointer; }
.row:hover { background: var(--panel); }
.row.hit { background: var(--hit); }
.row:focus { outline: 2px solid var(--accent); outline-offset: -2px; }
.name { display: flex; align-items: center; align-self: stretch; min-width: 0; }
.pad { flex: none; align-self: stretch; width: calc(var(--level) * var(--step));
  background: repeating-linear-gradient(to right, transparent 0 calc(.45rem - 1px),
    var(--line) calc(.45rem - 1px) .45rem, transparent .45rem var(--step)); }
.twist { flex: none; width: 1.1rem; color: var(--quiet); }
.label { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.unit .label { font-weight: 600; font-size: 1.05rem; }
.count { flex: none; margin-left: .6rem; font-size: .87rem; }
.inner .label, .rest .label { color: var(--quiet); }
.rest .label { font-style: italic; }
.share { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { height: .55rem; background: var(--panel); border-radius: .2rem; overflow: hidden; }
.bar i { display: block; height: 100%; background: var(--accent); }
code { font: .82rem/1.3 ui-monospace, "Noto Sans Mono", "DejaVu Sans Mono", monospace; color: var(--quiet);
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
#detail { position: fixed; z-index: 2; left: 0; right: 0; bottom: 0; max-height: 30vh; overflow-y: auto;
  padding: .5rem max(1rem, calc(50vw - 31rem)); background: var(--panel); border-top: 1px solid var(--line);
  overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
#detail b { font-size: 1.05rem; }
@media (max-width: 46rem) { :root { --step: .5rem; }
  body { padding: .7rem .6rem 5rem; }
  .row { grid-template-columns: minmax(0, 1fr) 4.2rem 5.5rem; gap: .4rem; min-height: 2.1rem; }
  .bar { display: none; }
  .find { flex-basis: 100%; max-width: none; }
  .pad { background: repeating-linear-gradient(to right, transparent 0 calc(.3rem - 1px),
    var(--line) calc(.3rem - 1px) .3rem, transparent .3rem var(--step)); } }
@media (prefers-reduced-motion: no-preference) { .row { transition: background .15s; } }
"""
