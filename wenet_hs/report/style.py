# SPDX-License-Identifier: Apache-2.0
"""The look of the page: one style sheet, light and dark, from a phone to a desk."""

_LIGHT = """--text: #1c1e21; --quiet: #5c6370; --page: #fff; --line: #d9dce1; --panel: #f5f6f8;
  --s: #ffe0b8; --d: #ffd0d0; --i: #cfe3ff; --heat: #e2731b;
  --c0: #0b62b8; --c1: #c2410c; --c2: #15803d; --c3: #8b3fb5; --c4: #8a6a00; --c5: #0e7c86;"""
_DARK = """--text: #e6e8eb; --quiet: #9aa2af; --page: #16181c; --line: #363b44; --panel: #1f2228;
  --s: #6b4512; --d: #6d2626; --i: #1e4579; --heat: #a34d0f;
  --c0: #6cb2ff; --c1: #ff9357; --c2: #5fd38a; --c3: #d09bf0; --c4: #e2c04b; --c5: #5fd0da;"""

CSS = """
:root { color-scheme: light; LIGHT }
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) { color-scheme: dark; DARK } }
:root[data-theme=dark] { color-scheme: dark; DARK }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem 1rem 4rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, "Noto Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; }
.quiet, figcaption, .interval { color: var(--quiet); }
.simulated { color: var(--text); font-style: italic; font-weight: 500; white-space: nowrap; }
code { font: .85em/1.4 ui-monospace, "Noto Sans Mono", monospace; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .8rem; margin: 1rem 0; }
.card { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; border-left: .3rem solid var(--line); }
.card strong { display: block; font-size: 1.7rem; line-height: 1.3; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; margin: .6rem 0; position: relative; }
.scroll:focus-visible, button:focus-visible, select:focus-visible, input:focus-visible, a:focus-visible,
summary:focus-visible { outline: 2px solid var(--c0); outline-offset: 1px; }
table { border-collapse: separate; border-spacing: 0; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; }
th:first-child, th.text, td.text { text-align: left; }
tbody th, tfoot th { font-weight: 500; overflow-wrap: break-word; }
figure.table { margin: 1.2rem 0; }
tr > :first-child { background: var(--page); position: sticky; left: 0; z-index: 1; min-width: 4.5rem;
  max-width: min(16rem, 38vw); box-shadow: 1px 0 var(--line), -2px 0 var(--page); }
thead th { vertical-align: bottom; }
thead th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; margin: 0; cursor: pointer;
  text-align: inherit; }
thead th button::after { content: "\\00a0↕"; color: var(--quiet); font-weight: 400; }
thead th[aria-sort=ascending] button::after { content: "\\00a0↑"; color: var(--c0); }
thead th[aria-sort=descending] button::after { content: "\\00a0↓"; color: var(--c0); }
thead th.group + th.group { border-left: 1px solid var(--line); }
thead th.group { text-align: center; }
td { white-space: nowrap; }
td.long { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; }
td.best { font-weight: 700; }
.interval { display: block; font-size: .78rem; font-weight: 400; }
tfoot { display: table-row-group; }
tfoot tr:first-child > * { border-top: 2px solid var(--line); }
.script { display: block; font-size: .65rem; font-weight: 400; color: var(--quiet); }
tbody .script { display: inline; margin-left: .3em; }
.map td { background: color-mix(in srgb, var(--heat) calc(var(--w, 0) * 100%), transparent); min-width: 2.2rem;
  padding: .25rem .35rem; }
.map th { padding: .25rem .45rem; }
.map tr > :first-child { min-width: 3.2rem; }
.map thead th[aria-sort=none] button::after { content: none; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
.charts + figure { margin-top: 1.5rem; }
.card .simulated { font-size: 1rem; }
figcaption { font-size: .92rem; max-width: 46rem; }
svg { color: var(--text); }
.chart svg { width: 100%; height: auto; font: 12px system-ui, "Noto Sans", sans-serif; }
.wide { max-width: 34rem; margin-top: 1.2rem; }
.chart svg text { fill: var(--quiet); }
.chart svg .tick { text-anchor: middle; }
.chart svg .row, .chart svg .note { text-anchor: end; }
.chart svg .grid { stroke: var(--line); }
.chart svg .cloud { stroke: none; fill-opacity: .6; }
.chart svg polyline, .chart svg g line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart svg .faint { stroke-width: 1; opacity: .45; }
.key { display: inline-block; margin-right: 1.2rem; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: .8rem; height: .8rem; border-radius: 50%; margin-right: .4rem;
  vertical-align: -.05rem; background: currentColor; }
.key span { color: var(--text); }
.tree { overflow-x: auto; }
.tree svg { display: block; }
details { margin: .6rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
.utterance { padding: .6rem 0; border-bottom: 1px solid var(--line); }
.facts { display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: center; justify-content: space-between; }
.facts audio { height: 2rem; width: min(20rem, 100%); }
.system { margin-top: .3rem; }
nav { margin: .6rem 0; }
nav a { margin-right: 1rem; color: var(--c0); display: inline-block; padding: .15rem 0; }
.top { display: flex; justify-content: space-between; align-items: start; gap: 1rem; }
#theme { flex: none; }
.controls { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center; margin: .6rem 0; max-width: none; }
.controls input:not([type=checkbox]), .controls select, #theme, #more { font: inherit; color: inherit; max-width: 100%;
  background: var(--panel); border: 1px solid var(--quiet); border-radius: .4rem; padding: .3rem .6rem;
  min-height: 2.2rem; }
#theme, #more { cursor: pointer; }
html:not(.scripted) .js, [hidden] { display: none !important; }
.keys { max-width: none; }
h2 { scroll-margin-top: .5rem; }
.aligned { line-height: 1.35; margin-top: .2rem; }
.u { display: inline-flex; flex-direction: column; align-items: center; vertical-align: top; border-radius: .2rem;
  min-width: .6em; white-space: pre; }
.u > span { min-height: 1.35em; }
.gap { margin-right: .55em; }
.S { background: var(--s); } .D { background: var(--d); } .I { background: var(--i); }
.S, .D, .I { padding: 0 .15em; }
.legend { padding: 0 .4em; border-radius: .2rem; }
""" + "".join(
    f".c{number} {{ color: var(--c{number}); border-left-color: var(--c{number}); }} "
    f".chart svg .k{number} {{ fill: var(--c{number}); }} "
    f"svg .c{number} {{ stroke: var(--c{number}); }} svg circle.c{number} {{ fill: var(--c{number}); }}\n"
    for number in range(6)
)
# Where two curves lie on each other, the dashes of the upper one let the lower one be seen.
CSS += "".join(
    f".chart svg polyline.c{number}:not(.faint) {{ stroke-dasharray: {dashes}; }}\n"
    for number, dashes in enumerate(("none", "7 4", "2 3", "10 3 2 3", "4 2", "12 4"))
)
CSS += """
@media (max-width: 40rem) { body { padding: 1rem .7rem 3rem; font-size: 15px; } h1 { font-size: 1.3rem; }
  th, td { padding: .25rem .5rem; } .controls label { flex: 1 1 9rem; } .controls input[type=search] { width: 100%; }
  .system .key { display: block; } }
@page { margin: 14mm 12mm; }
@media print { :root, :root[data-theme=dark], :root:not([data-theme=light]) { color-scheme: light; LIGHT }
  body { max-width: none; padding: 0; font-size: 10pt; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .js, nav, audio, thead th button::after { display: none !important; }
  .scroll, .tree { overflow: visible; }
  table { font-size: 7.5pt; } th, td { padding: .15rem .35rem; } td.long { min-width: 6rem; }
  tr > :first-child { position: static; box-shadow: none; }
  .interval { font-size: 6.5pt; }
  .tree svg { max-width: 100%; height: auto; max-height: 24cm; }
  figure, .utterance, .card, tr { break-inside: avoid; } figure.table { break-inside: auto; }
  h2, h3, figcaption, summary { break-after: avoid; }
  .charts { grid-template-columns: 1fr 1fr; } }
"""
CSS = CSS.replace("LIGHT", _LIGHT).replace("DARK", _DARK)
