// Records the microphone as WAV and uploads it as a recording to transcribe.
"use strict";
(() => {
const box = document.getElementById("mic"), texts = box.dataset, MAX_S = 30 * 60;
const button = box.querySelector(".record"), again = box.querySelector(".again");
const meter = box.querySelector("meter"), time = box.querySelector(".time"), status = box.querySelector("[role=status]");
const clock = seconds => Math.floor(seconds / 60) + ":" + String(Math.floor(seconds % 60)).padStart(2, "0");
let running = null, unsaved = null;

// A WAV file: a header of 44 bytes for one channel of 16-bit samples, and then the samples.
const wav = (blocks, rate) => {
  const size = 2 * blocks.reduce((sum, block) => sum + block.length, 0), head = new DataView(new ArrayBuffer(44));
  const put = (at, text) => [...text].forEach((letter, index) => head.setUint8(at + index, letter.charCodeAt(0)));
  put(0, "RIFF"); head.setUint32(4, 36 + size, true); put(8, "WAVEfmt "); head.setUint32(16, 16, true);
  head.setUint16(20, 1, true); head.setUint16(22, 1, true); head.setUint32(24, rate, true); head.setUint32(28, 2 * rate, true);
  head.setUint16(32, 2, true); head.setUint16(34, 16, true); put(36, "data"); head.setUint32(40, size, true);
  return new Blob([head, ...blocks]);
};
// Sends the recording. The name without a typed one has the local time; toISOString alone gives UTC.
const upload = async () => {
  const now = new Date(Date.now() - 60000 * new Date().getTimezoneOffset()).toISOString();
  const name = box.querySelector("input").value.trim() || "recording-" + now.slice(0, 19).replace("T", "-").replaceAll(":", "");
  status.textContent = texts.sending;
  again.hidden = true;
  button.disabled = true;  // the next recording would replace this one
  const headers = { "Content-Type": "application/octet-stream" }, address = texts.upload + "&name=" + encodeURIComponent(name + ".wav");
  let reason = "";
  try {
    const answer = await fetch(address, { method: "POST", body: unsaved, headers });
    reason = answer.ok ? "" : await answer.text();
  } catch (error) { reason = error.message; }
  again.hidden = !reason;
  if (reason) { status.textContent = texts.failed.replace("{reason}", reason); return; }
  unsaved = null;
  button.disabled = false;
  location.assign(texts.next + "&saved=" + encodeURIComponent(name + ".wav") + "#mic");
};
const explain = error => ({ NotAllowedError: texts.denied, SecurityError: texts.denied, NotFoundError: texts.none,
  OverconstrainedError: texts.none, NotReadableError: texts.busy })[error.name] ?? texts.unknown.replace("{reason}", error.message);
const release = async () => {
  const { stream, context } = running;
  running = null;
  for (const track of stream.getTracks()) track.stop();
  await context.close();
  meter.value = 0;
  button.textContent = texts.start;
  button.setAttribute("aria-pressed", "false");
};
const finish = async () => {
  const { blocks, context } = running, rate = context.sampleRate;
  await release();
  if (!blocks.some(block => block.length)) { status.textContent = texts.empty; return; }
  unsaved = wav(blocks, rate);
  upload();
};
const begin = async () => {
  status.textContent = texts.asking;
  const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio });
  const context = new AudioContext(), blocks = [];
  running = { stream, context, blocks };
  await context.audioWorklet.addModule("/static/recorder.js");
  const node = new AudioWorkletNode(context, "recorder", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
  let length = 0;
  node.port.onmessage = ({ data }) => {
    if (!running) return;
    if (data.ended) { finish(); return; }  // the answer to "stop", after the last samples
    blocks.push(data.samples);
    length += data.samples.length;
    meter.value = data.peak;
    time.textContent = clock(length / context.sampleRate);
    if (length > MAX_S * context.sampleRate) stop();
  };
  const stop = () => node.port.postMessage("stop");
  running.stop = stop;
  for (const track of stream.getTracks()) track.addEventListener("ended", stop);
  context.createMediaStreamSource(stream).connect(node);
  status.textContent = texts.running;
  button.textContent = texts.stop;
  button.setAttribute("aria-pressed", "true");
};
button.addEventListener("click", async () => {
  if (running) { running.stop?.(); return; }
  button.disabled = true;
  try { await begin(); } catch (error) { status.textContent = explain(error); if (running) await release(); }
  button.disabled = false;
});
again.addEventListener("click", upload);
addEventListener("beforeunload", event => { if (running || unsaved) event.preventDefault(); });
})();
