// Runs beside the page: sends the samples of the microphone as 16-bit numbers, with the peak of each block.
"use strict";
registerProcessor("recorder", class extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Int16Array(4096);
    this.size = 0;
    // Any message asks for the end: first the incomplete block is sent.
    this.port.onmessage = () => { this.send(); this.port.postMessage({ ended: true }); };
  }
  send() {
    const samples = this.block.slice(0, this.size);
    let peak = 0;
    for (const sample of samples) peak = Math.max(peak, Math.abs(sample));
    this.size = 0;
    this.port.postMessage({ samples, peak: peak / 32768 });  // from 0 to 1
  }
  process([channels]) {
    for (const sample of channels[0] ?? []) {
      this.block[this.size++] = Math.round(Math.max(-1, Math.min(1, sample)) * 32767);
      if (this.size === this.block.length) this.send();
    }
    return true;
  }
});
