// JSON as a tree that opens level by level.

import { counted, el } from "./dom.js";

const most = 500; // items of a level that are shown at once
const longest = 5000; // letters of a value; a browser lays out megabytes in one element for minutes

const cut = (text) => (text.length > longest ? `${text.slice(0, longest)}… (${counted(text.length, "letter")})` : text);

export function tree(value, open = 2) { return el("div", { class: "json" }, node(null, value, open)); }

function node(key, value, open) {
  const label = key === null ? [] : [el("span", { class: "key" }, key), ": "];
  const number = value && typeof value === "object" && typeof value.$number === "string" ? value.$number : null;
  if (number !== null) return el("div", { class: "leaf" }, label, el("span", { class: "num" }, cut(number)));
  if (value === null || typeof value !== "object") {
    const kind = value === null ? "null" : typeof value;
    return el("div", { class: "leaf" }, label, el("span", { class: kind }, kind === "string" ? `"${cut(value)}"` : String(value)));
  }
  const items = Array.isArray(value) ? value.map((each, at) => [at, each]) : Object.entries(value);
  const words = Array.isArray(value) ? `[ ${counted(items.length, "item")} ]` : `{ ${counted(items.length, "key")} }`;
  const inside = el("div", { class: "inside" });
  const made = el("details", { open: open > 0 && items.length <= 200 }, el("summary", {}, label, el("span", { class: "muted" }, words)), inside);
  let filled = 0;
  const more = () => {
    const next = items.slice(filled, filled + most);
    filled += next.length;
    inside.append(...next.map(([name, each]) => node(String(name), each, open - 1)));
    if (filled < items.length) {
      const button = el("button", { type: "button", onclick: () => { button.remove(); more(); } }, `${counted(items.length - filled, "item")} more`);
      inside.append(button);
    }
  };
  if (made.open) more();
  else made.addEventListener("toggle", () => { if (!filled) more(); });
  return made;
}
