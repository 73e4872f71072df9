// Thumbnails: asked for in batches while they are visible, dropped when they are scrolled away.

import { request, isAbort } from "./api.js";

const batch = 24; // thumbnails of a request
const atOnce = 3; // requests in flight; the browser has six connections in all
const fine = devicePixelRatio > 1;
const kept = 1500; // pictures in memory

export class Thumbs {
  // `arrived(key)` hears of each thumbnail.
  constructor(arrived) {
    this.arrived = arrived;
    this.found = new Map(); // key -> {url} or {problem}
    this.wanted = [];
    this.flying = new Set();
  }

  get(key) { return this.found.get(key); }

  // Say which thumbnails are visible now. All others are not needed any more.
  want(keys) {
    this.wanted = keys;
    const visible = new Set(keys);
    for (const flight of this.flying) {
      if (![...flight.keys].some((key) => visible.has(key))) flight.control.abort();
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.launch(), 20);
  }

  launch() {
    const due = new Set(this.wanted.filter((key) => !this.found.has(key)));
    for (const flight of this.flying) for (const key of flight.keys) due.delete(key);
    const waiting = [...due];
    while (waiting.length && this.flying.size < atOnce) this.fetch(waiting.splice(0, batch));
  }

  async fetch(keys) {
    const flight = { keys: new Set(keys), control: new AbortController() };
    this.flying.add(flight);
    try {
      const options = { signal: flight.control.signal };
      const answer = await request("api/thumbs", { keys: keys.join(","), fine }, options);
      await this.take(answer.body.getReader(), flight);
    } catch (error) {
      if (!isAbort(error)) for (const key of flight.keys) this.keep(key, { problem: error.message });
    }
    this.flying.delete(flight);
    this.launch();
  }

  // Frames: the lengths of a key, a media type and the data, and then these three.
  async take(reader, flight) {
    let bytes = new Uint8Array(0);
    const text = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const rest = bytes;
      bytes = new Uint8Array(rest.length + value.length);
      bytes.set(rest);
      bytes.set(value, rest.length);
      let at = 0;
      while (bytes.length - at >= 12) {
        const view = new DataView(bytes.buffer, at);
        const ends = [12, 0, 0, 0];
        for (const part of [0, 1, 2]) ends[part + 1] = ends[part] + view.getUint32(4 * part, true);
        if (bytes.length - at < ends[3]) break;
        const part = (number) => bytes.subarray(at + ends[number], at + ends[number + 1]);
        const key = text.decode(part(0));
        const type = text.decode(part(1));
        flight.keys.delete(key);
        this.keep(key, type ? { url: URL.createObjectURL(new Blob([part(2)], { type })) } : { problem: text.decode(part(2)) });
        at += ends[3];
      }
      bytes = bytes.subarray(at);
    }
    for (const key of flight.keys) this.keep(key, { problem: "no thumbnail" });
  }

  keep(key, found) {
    this.found.set(key, found);
    for (const [old, { url }] of this.found) {
      if (this.found.size <= kept) break;
      if (url) URL.revokeObjectURL(url);
      this.found.delete(old);
    }
    this.arrived(key);
  }
}
