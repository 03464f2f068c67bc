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
for (const form of all("form[data-preview]")) {
  const code = form.querySelector(".command code");
  let timer = 0;
  const show = async () => {
    const answer = await post(form.action, [...new FormData(form), ["preview", "yes"]]);
    code.textContent = await answer.text();
    for (const line of all(".expected", form)) line.textContent = decodeURIComponent(answer.headers.get("X-Expected") ?? "");
  };
  form.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(show, 250); });
  show();
}

for (const label of all("label[data-when]")) {
  const [name, value] = label.dataset.when.split("="), form = label.closest("form");
  const update = () => { label.hidden = form.elements[name].value !== value; };
  form.addEventListener("input", update);
  update();
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

// ---- playing
const player = document.getElementById("player");
let playing = null;
const settle = () => { playing?.setAttribute("aria-pressed", "false"); playing = null; };
player.addEventListener("ended", settle);
player.addEventListener("error", settle);
document.addEventListener("click", event => {
  const button = event.target.closest("[data-audio]");
  if (!button) return;
  const again = playing === button;
  player.pause();
  settle();
  if (again) return;
  playing = button;
  button.setAttribute("aria-pressed", "true");
  player.src = button.dataset.audio;
  player.play().catch(settle);
});

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
