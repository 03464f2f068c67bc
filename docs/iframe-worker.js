// SPDX-License-Identifier: Apache-2.0
// Search in the site on a disk. A browser refuses a Worker from a file, so a hidden frame runs the worker's script.
// The name keeps mkdocs-material's offline plugin from loading such a script from the network.
"use strict";
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>postMessage = data => frameElement.answer(data)</script><script src="${url}"></script>`;
      frame.answer = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.loaded = new Promise(done => { frame.onload = () => done(frame.contentWindow); });
      document.documentElement.append(frame);
    }
    postMessage(data) {
      this.loaded.then(frame => frame.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
