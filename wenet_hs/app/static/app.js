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
// Shows an address, also where only its fragment is another one.
const visit = address => {
  const { pathname, search } = new URL(address, location);
  const isHere = pathname === location.pathname && search === location.search;
  location.assign(address);
  if (isHere) location.reload();
};
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
  // A refused form stays as it is, with the reason below.
  const fault = Object.assign(document.createElement("p"), { className: "fault" });
  fault.setAttribute("role", "alert");
  form.append(fault);
  form.addEventListener("submit", async event => {
    if (event.submitter?.formMethod === "get") return;  // a button that shows the page again
    event.preventDefault();
    const body = new URLSearchParams(new FormData(form, event.submitter));
    fault.textContent = "";
    if (event.submitter) event.submitter.disabled = true;
    try {
      const answer = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/plain" } });
      const next = answer.headers.get("X-Next");
      if (next) visit(next);
      else fault.textContent = await answer.text();
    } catch (error) { fault.textContent = error.message; }
    if (event.submitter) event.submitter.disabled = false;
  });
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
  if (input.value) suggest();  // typed before this script ran
}

// ---- parts that change by themselves
// Makes a node like a new one. What is equal stays, so focus, positions and opened details do.
const renew = (old, now) => {
  if (old.nodeName !== now.nodeName) { old.replaceWith(now); return; }
  if (old.nodeType === Node.TEXT_NODE && old.data !== now.data) old.data = now.data;
  for (const { name } of [...old.attributes ?? []]) if (name !== "open" && !now.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of [...now.attributes ?? []])
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  const olds = [...old.childNodes], nows = [...now.childNodes];
  nows.forEach((node, index) => { if (olds[index]) renew(olds[index], node); else old.append(node); });
  for (const node of olds.slice(nows.length)) node.remove();
};
const isChanged = field => {
  if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
  if (!field.options) return field.value !== field.defaultValue;
  // A list in which no option is chosen by default shows its first one.
  return field.selectedIndex !== Math.max(0, [...field.options].findIndex(one => one.defaultSelected));
};
// Whether a new load of the page would lose something: what is typed, chosen, recorded or sent just now.
const isBusy = () => all(".drop.busy, .record[aria-pressed=true], .again:not([hidden])").length > 0
  || all("main input:not([type=hidden], [type=file]), main textarea, main select").some(isChanged);
const outdated = document.getElementById("outdated");
for (const part of all("[data-live]")) {
  let state = part.dataset.state, shown = "";
  const update = async () => {
    let answer;
    try { answer = await fetch(part.dataset.live); } catch { setTimeout(update, 5000); return; }
    if (!answer.ok) { outdated.hidden = false; setTimeout(update, 5000); return; }  // such as after a new start of the server
    const html = await answer.text(), now = decodeURIComponent(answer.headers.get("X-State"));
    if (html !== shown) {
      // A log that was at its end, up to 8 pixels, is kept there.
      const atEnd = !shown || all(".log", part).every(log => log.scrollTop + log.clientHeight > log.scrollHeight - 8);
      const fresh = document.createElement(part.nodeName);
      fresh.innerHTML = shown = html;
      for (const { name, value } of part.attributes) fresh.setAttribute(name, value);
      renew(part, fresh);
      if (atEnd) for (const log of all(".log", part)) log.scrollTop = log.scrollHeight;
    }
    if (state !== "once" && now !== state) {
      if (!isBusy()) { location.reload(); return; }
      outdated.hidden = false;
    }
    if (/^(running|stopping)/.test(now)) setTimeout(update, 2000);
  };
  update();
}

// ---- playing: the button that plays shows it; a second press, or Escape, stops
const player = document.getElementById("player");
let playing = null, label = "";
// Makes the button that plays as it was before. One without data-playing has a sign in its own text instead.
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
  addEventListener("beforeunload", event => { if (all("input:not([type=hidden]), select, textarea", form).some(isChanged)) event.preventDefault(); });
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
    if (reason) return;
    for (const field of form.elements) {  // what is saved is no change
      if (field.options) for (const option of field.options) option.defaultSelected = option.selected;
      else if (field.type === "checkbox") field.defaultChecked = field.checked;
      else if (field.name && field.name !== "was") field.defaultValue = field.value;
    }
    // What the page has shown, as the server compares it: the fields beside it with tabs between them.
    for (const was of form.querySelectorAll("[name=was]"))
      was.value = all("select, textarea, input:not([type=hidden])", was.parentElement).map(field => field.value).join("\t");
  });
}

// ---- uploads
for (const drop of all(".drop")) {
  const status = drop.querySelector("[role=status]");
  const send = async files => {
    drop.classList.add("busy");
    try { await sendAll(files); } finally { drop.classList.remove("busy"); }
  };
  const sendAll = async files => {
    if (!files.length) { status.textContent = texts.none; return; }
    const left = [];
    for (const [index, file] of files.entries()) {
      status.textContent = fill(texts.uploading, { number: index + 1, total: files.length, name: file.name });
      const address = drop.dataset.upload + "&name=" + encodeURIComponent(file.name);
      const headers = { "Content-Type": "application/octet-stream" };
      try {
        const answer = await fetch(address, { method: "POST", body: file, headers });
        if (!answer.ok) left.push(await answer.text());
      } catch (error) { left.push(file.name + ": " + error.message); }
    }
    if (left.length) {
      status.textContent = fill(texts.left, { number: left.length, total: files.length, reasons: left.slice(0, 3).join("; ") });
      return;
    }
    status.textContent = fill(texts.uploaded, { total: files.length });
    location.assign(drop.dataset.next);
  };
  for (const input of all("input", drop))
    input.addEventListener("change", () => {
      const suffixes = input.dataset.suffixes?.split(" ") ?? [""];  // a folder also has files of other programs
      send([...input.files].filter(({ name }) => !name.startsWith(".") && suffixes.some(one => name.toLowerCase().endsWith(one))));
    });
  for (const name of ["dragover", "dragleave", "drop"])
    drop.addEventListener(name, event => { event.preventDefault(); drop.classList.toggle("over", name === "dragover"); });
  drop.addEventListener("drop", event => send([...event.dataTransfer.files]));
}
})();
