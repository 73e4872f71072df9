// Bytes of a file of any size, 8 or 16 in a line, loaded as they are scrolled to.

import { isAbort, request } from "./api.js";
import { el } from "./dom.js";
import { Scroller } from "./scroller.js";

const page = 16 << 10; // bytes of a request

export function hex(box, key, size) {
  const width = box.clientWidth < 500 ? 8 : 16; // bytes of a line
  const pages = new Map();
  const loading = new Set();
  const digits = Math.max(8, size.toString(16).length);

  const render = (line) => {
    const offset = line * width;
    const bytes = pages.get(Math.floor(offset / page))?.subarray(offset % page, (offset % page) + width);
    const at = offset.toString(16).padStart(digits, "0");
    if (!bytes) return el("div", { class: "hexline" }, el("span", { class: "muted" }, at));
    const pairs = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0"));
    const letters = Array.from(bytes, (byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    const left = `${pairs.slice(0, 8).join(" ")}  ${pairs.slice(8).join(" ")}`.trimEnd().padEnd(width * 3);
    return el("div", { class: "hexline" }, el("span", { class: "muted" }, at), el("span", {}, left), el("span", { class: "letters" }, letters));
  };

  const load = async (number) => {
    loading.add(number);
    try {
      const answer = await request("api/hex", { key, offset: number * page, length: page });
      pages.set(number, new Uint8Array(await answer.arrayBuffer()));
      if (pages.size > 64) pages.delete(pages.keys().next().value);
      scroller.refresh();
    } catch (error) {
      if (!isAbort(error)) box.dispatchEvent(new CustomEvent("failed", { detail: error }));
    }
    loading.delete(number);
  };

  const scroller = new Scroller(box, {
    height: 20, render, label: "Bytes",
    shown: (first, last) => {
      for (let at = Math.floor((first * width) / page); at <= Math.floor(((last - 1) * width) / page); at += 1) {
        if (at >= 0 && !pages.has(at) && !loading.has(at)) load(at);
      }
    },
  });
  scroller.setCount(Math.ceil(size / width));
  return scroller;
}
