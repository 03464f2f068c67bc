// The page of a transcribed recording: its waveform, the chosen segment, and corrections that are saved at once.
"use strict";
(() => {
const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const texts = document.getElementById("texts").dataset;
const wave = document.getElementById("wave"), status = wave.querySelector("[role=status]"), player = document.getElementById("player");
const overview = wave.querySelector(".overview"), detail = wave.querySelector(".detail");
const range = wave.querySelector("input"), playHere = wave.querySelector(".play");
// Peaks per second of audio, and segments per page: as the server has them.
const duration = Number(wave.dataset.duration), PER_SECOND = 100, PAGE = 20;
const segments = JSON.parse(wave.dataset.marks).map(([start, end, isCorrected]) => ({ start, end, isCorrected }));
const articles = new Map(all("article.segment").map(one => [Number(one.id.slice("segment-".length)), one]));
// chosen: the index of a segment; -1: none. position: in seconds.
let peaks = null, highest = 1, chosen = -1, position = 0;

// ---- waveform
const clock = seconds => Math.floor(seconds / 60) + ":" + (seconds % 60).toFixed(1).padStart(4, "0");
// From when to when a canvas shows the recording: all of it, or a second more than the chosen segment.
const windowOf = canvas => {
  if (canvas === overview || !segments.length) return [0, duration];
  const { start, end } = segments[chosen] ?? { start: position, end: position };
  return [Math.max(0, start - 1), Math.min(duration, end + 1)];
};
const draw = canvas => {
  const scale = devicePixelRatio || 1, width = canvas.width = Math.round(canvas.clientWidth * scale);
  const height = canvas.height = Math.round(canvas.clientHeight * scale), context = canvas.getContext("2d");
  const style = getComputedStyle(canvas), [from, to] = windowOf(canvas), x = time => (time - from) / (to - from) * width;
  const fill = (color, alpha, left, right, top = 0, bottom = height) => {
    context.fillStyle = color;
    context.globalAlpha = alpha;
    context.fillRect(left, top, Math.max(right - left, scale), bottom - top);
  };
  segments.forEach(({ start, end, isCorrected }, index) => {
    if (end < from || start > to) return;
    fill(isCorrected ? style.outlineColor : style.borderTopColor, index === chosen ? .45 : .2, x(start), x(end));
  });
  // A bar per pixel of the page, as high as the highest peak in its time.
  for (let pixel = 0; peaks && pixel < width; pixel += scale) {
    const first = Math.floor((from + pixel / width * (to - from)) * PER_SECOND);
    const last = Math.ceil((from + (pixel + scale) / width * (to - from)) * PER_SECOND);
    let high = 0;
    for (let index = first; index < last && index < peaks.length; index++) if (peaks[index] > high) high = peaks[index];
    const half = Math.max(high / highest * height / 2, scale / 2);
    fill(style.color, 1, pixel, pixel + scale, height / 2 - half, height / 2 + half);
  }
  if (segments[chosen]) {
    const { start, end } = segments[chosen];
    for (const time of [start, end]) fill(style.borderTopColor, 1, x(time) - scale, x(time) + scale);
    if (canvas === overview) fill(style.borderTopColor, 1, x(start) - 3 * scale, x(end) + 3 * scale, height - 4 * scale);
  }
  fill(style.textDecorationColor, 1, x(position) - scale / 2, x(position) + scale / 2);
};
const show = () => {
  draw(overview);
  draw(detail);
  const values = { time: clock(position), total: clock(duration), number: chosen + 1 };
  const text = (chosen < 0 ? wave.dataset.ready : wave.dataset.segment).replace(/\{(\w+)\}/g, (_, name) => values[name]);
  range.setAttribute("aria-valuetext", text);
  wave.querySelector(".time").textContent = text;
};
const choose = (index, hasFocus = false) => {
  articles.get(chosen)?.removeAttribute("aria-current");
  chosen = index;
  const article = articles.get(index);
  article?.setAttribute("aria-current", "true");
  if (hasFocus && article) {
    article.querySelector("textarea").focus({ preventScroll: true });
    article.scrollIntoView({ block: "center" });
  }
  show();
};
const segmentAt = time => segments.findIndex(({ start, end }) => start <= time && time < end);
const moveTo = time => {
  position = Math.min(Math.max(time, 0), duration);
  range.value = position;
  const end = Math.min(position + 60, duration);
  playHere.dataset.audio = wave.dataset.source + "&start=" + position.toFixed(3) + "&end=" + end.toFixed(3);
};
const playFromHere = () => {
  if (playHere.getAttribute("aria-pressed") === "true") playHere.click();
  playHere.click();
};
for (const canvas of [overview, detail])
  canvas.addEventListener("click", event => {
    const box = canvas.getBoundingClientRect(), [from, to] = windowOf(canvas);
    const time = from + (event.clientX - box.left) / box.width * (to - from), index = segmentAt(time);
    moveTo(time);
    if (index >= 0 && !articles.has(index)) {
      const page = Math.floor(index / PAGE) + 1;
      location.assign(wave.dataset.address + "&page=" + page + "#at-" + time.toFixed(2));
      return;
    }
    if (index >= 0) choose(index, true); else show();
    playFromHere();
  });
range.addEventListener("input", () => {
  moveTo(Number(range.value));
  choose(segmentAt(position));
});
player.addEventListener("timeupdate", () => {
  const start = Number(new URL(player.src).searchParams.get("start"));
  if (player.paused) return;
  position = start + player.currentTime;
  if (document.activeElement !== range) range.value = position;
  show();
});
new ResizeObserver(show).observe(wave);
document.getElementById("theme").addEventListener("click", () => setTimeout(show));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
(async () => {
  try {
    const answer = await fetch(wave.dataset.peaks, { headers: { Accept: "application/octet-stream" } });
    if (!answer.ok) throw new Error(await answer.text());
    peaks = new Uint8Array(await answer.arrayBuffer());
    for (const peak of peaks) if (peak > highest) highest = peak;
    status.textContent = "";
    show();
  } catch (error) { status.textContent = error.message; }
})();

// ---- corrections
for (const [index, article] of articles) {
  const form = article.querySelector("form"), note = article.querySelector(".status"), fields = form.elements;
  const play = article.querySelector(".facts .play"), hidden = fields.seen;
  const contents = () => new URLSearchParams([...new FormData(form)].filter(([name]) => name !== "seen")).toString();
  const sent = [...fields].filter(one => one.name && one !== hidden && (one.type !== "checkbox" || one.defaultChecked));
  // what the server knows: a text may have been typed before this script ran
  let saved = new URLSearchParams(sent.map(one => [one.name, one.defaultValue])).toString();
  let queue = Promise.resolve(true), timer = 0;
  const send = async () => {
    const content = contents();
    if (content === saved) return true;
    let reason = "";
    try {
      const body = new URLSearchParams(content + "&seen=" + hidden.value);
      const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/plain" } });
      const text = await answer.text();
      if (answer.ok) hidden.value = text; else reason = text;
    } catch (error) { reason = error.message; }
    note.textContent = reason ? texts.failed.replace("{reason}", reason) : texts.saved;
    note.classList.toggle("fault", Boolean(reason));
    if (reason) return false;
    saved = content;
    segments[index].isCorrected = 1;
    show();
    return true;
  };
  const save = () => { clearTimeout(timer); queue = queue.then(send); return queue; };
  const goOn = async () => {
    if (!await save()) return;
    if (articles.has(index + 1)) { choose(index + 1, true); return; }
    const next = document.querySelector(".pager [rel=next]");
    if (next) location.assign(next.href + "#edit-" + (index + 1));
  };
  const showBorders = () => {
    const [start, end] = [fields.start, fields.end].map(field => Number(field.value));
    if (!(start < end)) return;
    Object.assign(segments[index], { start, end });
    play.dataset.audio = wave.dataset.source + "&start=" + start + "&end=" + end;
    play.textContent = "▶ " + (index + 1) + ": " + start.toFixed(1) + "–" + end.toFixed(1) + " s";
    show();
  };
  article.addEventListener("focusin", () => {
    if (chosen === index) return;
    if (player.paused) moveTo(segments[index].start);
    choose(index);
  });
  form.addEventListener("input", event => {
    if (event.target.type === "number") showBorders();
    if (event.target.name !== "text") return;
    clearTimeout(timer);
    timer = setTimeout(save, 1000);
  });
  form.addEventListener("change", () => { clearTimeout(timer); timer = setTimeout(save, 400); });
  form.addEventListener("focusout", event => { if (!form.contains(event.relatedTarget)) save(); });
  form.addEventListener("submit", event => { event.preventDefault(); save(); });
  form.addEventListener("keydown", event => {
    const hasControl = event.ctrlKey || event.metaKey, step = { PageUp: .1, PageDown: -.1 }[event.key];
    if (hasControl && event.key === "Enter") {
      event.preventDefault();
      if (event.shiftKey) fields.confirmed.checked = true;
      goOn();
    } else if (hasControl && event.code === "Space") {
      event.preventDefault();
      play.click();
    } else if (event.target.type === "number" && step) {
      event.preventDefault();
      event.target.value = (Number(event.target.value) + step).toFixed(3);
      showBorders();
      clearTimeout(timer);
      timer = setTimeout(save, 400);
    }
  });
  addEventListener("beforeunload", event => { if (contents() !== saved) event.preventDefault(); });
  save();
}
const [, kind, value] = /^#(edit|at)-([\d.]+)$/.exec(location.hash) ?? [];
moveTo(kind === "at" ? Number(value) : segments[Number(value)]?.start ?? 0);
if (kind) choose(kind === "at" ? segmentAt(position) : Number(value), true); else show();
if (kind === "at") playFromHere();
})();
