// Uploads, commands that follow their form, parts that change by themselves, playing.
"use strict";
(() => {
const all = (selector, parent = document) => [...parent.querySelectorAll(selector)];
const texts = document.getElementById("texts").dataset;
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
const post = (address, fields, headers = {}) => fetch(address, { method: "POST", body: new URLSearchParams(fields), headers });

// ---- commands
for (const button of all(".copy"))
  button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code"), label = button.textContent;
    try { await navigator.clipboard.writeText(code.textContent); } catch { getSelection().selectAllChildren(code); return; }
    button.textContent = texts.copied;
    setTimeout(() => { button.textContent = label; }, 1500);
  });
const fieldsOf = form => {
  const fields = [...new FormData(form)].filter(([name]) => !name.startsWith("content"));
  for (const select of all("select[data-column]", form))
    if (select.value) fields.push(["column." + select.value, select.dataset.column]);
  return fields;
};
for (const form of all("form[data-preview]")) {
  const code = form.querySelector(".command code");
  let timer = 0;
  const show = async () => {
    const answer = await post(form.action, [...fieldsOf(form), ["preview", "yes"]]);
    code.textContent = await answer.text();
    for (const line of all(".expected", form)) line.textContent = decodeURIComponent(answer.headers.get("X-Expected") ?? "");
  };
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(show, 250); });
  form.addEventListener("submit", () => {
    for (const [name, value] of fieldsOf(form).filter(([name]) => name.startsWith("column."))) {
      const input = document.createElement("input");
      Object.assign(input, { type: "hidden", name, value });
      form.append(input);
    }
  });
  show();
}

for (const label of all("label[data-when]")) {
  const [name, value] = label.dataset.when.split("="), form = label.closest("form");
  const update = () => { label.hidden = form.elements[name].value !== value; };
  form.addEventListener("input", update);
  update();
}

// ---- names of languages while one is typed
for (const input of all("input[data-names]")) {
  let timer = 0;
  const suggest = async () => {
    const answer = await fetch(input.dataset.names + "?" + new URLSearchParams({ name: input.value }));
    if (!answer.ok) return;
    input.list.replaceChildren(...Object.entries(await answer.json()).map(([name, code]) => new Option(code, name)));
  };
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(suggest, 150); });
}

// ---- parts that change by themselves
for (const part of all("[data-live]")) {
  let state = part.dataset.state, shown = "";
  const update = async () => {
    let answer;
    try { answer = await fetch(part.dataset.live); } catch { setTimeout(update, 5000); return; }
    if (!answer.ok) return;
    const html = await answer.text(), now = decodeURIComponent(answer.headers.get("X-State"));
    if (html !== shown) {
      part.innerHTML = shown = html;
      for (const log of all(".log", part)) log.scrollTop = log.scrollHeight;
    }
    if (state !== "once" && now !== state) { location.reload(); return; }
    if (/^(running|stopping)/.test(now)) setTimeout(update, 2000);
  };
  update();
}

// ---- playing: the button that plays shows it; a second press, or Escape, stops
const player = document.getElementById("player");
let playing = null, label = "";
const settle = () => {
  if (!playing) return;
  playing.setAttribute("aria-pressed", "false");
  if (playing.textContent.startsWith("⏸")) playing.textContent = playing.dataset.playing ? label : playing.textContent.replace("⏸", "▶");
  playing = null;
};
const stop = () => { player.pause(); settle(); };
player.addEventListener("ended", settle);
player.addEventListener("error", settle);
document.addEventListener("keydown", event => { if (event.key === "Escape" && playing) stop(); });
document.addEventListener("click", event => {
  const button = event.target.closest("[data-audio]");
  if (!button) return;
  const again = playing === button;
  stop();
  if (again) return;
  playing = button;
  label = button.textContent;
  button.setAttribute("aria-pressed", "true");
  button.textContent = button.dataset.playing ?? label.replace("▶", "⏸");
  player.src = button.dataset.audio;
  player.play().catch(settle);
});

// ---- forms that are saved where they are
for (const form of all("form[data-save]")) {
  const status = form.querySelector("[role=status]");
  form.addEventListener("input", () => { status.textContent = ""; });
  form.addEventListener("submit", async event => {
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    let reason = "";
    try {
      const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/plain" }, redirect: "manual" });
      if (answer.type !== "opaqueredirect") reason = await answer.text();
    } catch (error) { reason = error.message; }
    status.textContent = reason ? fill(texts.failed, { reason }) : texts.saved;
    status.classList.toggle("fault", Boolean(reason));
  });
}

// ---- uploads
for (const drop of all(".drop")) {
  const status = drop.querySelector("[role=status]");
  const send = async files => {
    for (const [index, file] of files.entries()) {
      status.textContent = fill(texts.uploading, { number: index + 1, total: files.length, name: file.name });
      const address = drop.dataset.upload + "&name=" + encodeURIComponent(file.name);
      const headers = { "Content-Type": "application/octet-stream" };
      const answer = await fetch(address, { method: "POST", body: file, headers });
      if (!answer.ok) { status.textContent = await answer.text(); return; }
    }
    status.textContent = fill(texts.uploaded, { total: files.length });
    location.assign(drop.dataset.next);
  };
  for (const input of all("input", drop))
    input.addEventListener("change", () => send([...input.files].filter(file => !file.name.startsWith("."))));
  for (const name of ["dragover", "dragleave", "drop"])
    drop.addEventListener(name, event => { event.preventDefault(); drop.classList.toggle("over", name === "dragover"); });
  drop.addEventListener("drop", event => send([...event.dataTransfer.files]));
}
})();
