// Browsers start no Worker for a page that is opened as a file. There, its script runs in a hidden frame instead, so that
// the search of the site works without a server. Material for MkDocs looks for this name.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super()
    const frame = document.body.appendChild(document.createElement("iframe"))
    frame.hidden = true
    const inner = (this.inner = frame.contentWindow)
    const load = (source) =>
      new Promise((done, failed) => {
        const script = inner.document.createElement("script")
        Object.assign(script, { src: source, onload: done, onerror: failed })
        inner.document.body.appendChild(script)
      })
    inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
    inner.importScripts = (...sources) => sources.reduce((before, each) => before.then(() => load(each)), Promise.resolve())
    this.ready = load(url)
  }

  postMessage(data) {
    this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
  }
}
if (location.protocol === "file:") window.Worker = window.IFrameWorker
