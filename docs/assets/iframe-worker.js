// Pages that are opened from a folder may not start workers. There, and only there, a worker's script runs in a hidden frame
// instead, so that search works without a server. MkDocs' plugin `offline` looks for this file by its name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const owner = this;
      const waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html>";
      frame.onload = () => {
        frame.onload = null;
        const inside = frame.contentWindow;
        inside.postMessage = (data) => setTimeout(() => owner.dispatchEvent(new MessageEvent("message", { data })));
        const script = inside.document.createElement("script");
        script.src = new URL(url, location).href;
        script.onload = () => {
          owner.postMessage = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
          waiting.forEach((data) => owner.postMessage(data));
        };
        inside.document.head.append(script);
      };
      this.postMessage = (data) => waiting.push(data);
      this.terminate = () => frame.remove();
      const attach = () => document.body.append(frame);
      if (document.body) attach();
      else addEventListener("DOMContentLoaded", attach);
    }
  };
}
