// The preview of one file, record or value, by its kind.

import { ask, isAbort, request, url } from "./api.js";
import { bars, plot } from "./charts.js";
import { button, counted, el, fill, human, notice, number, short } from "./dom.js";
import { hex } from "./hex.js";
import { current, go } from "./state.js";
import { tree } from "./values.js";

export class Preview {
  constructor(box, { step }) {
    this.box = box;
    this.step = step;
    this.shownKey = null;
  }

  hide() {
    this.control?.abort();
    this.shownKey = null;
    this.box.hidden = true;
    this.box.classList.remove("full");
    this.clear();
  }

  clear() {
    this.scroller?.close();
    this.scroller = null;
    if (this.blob) URL.revokeObjectURL(this.blob);
    this.blob = null;
    fill(this.box); // stops sound and video, too
  }

  // Show an item. `title` is its name; `detail` is shown beside it.
  async show(key, title, detail = "") {
    const view = current().as || "";
    this.box.classList.toggle("full", Boolean(current().full));
    if (this.shownKey === `${key}\n${view}` && !this.box.hidden) return;
    this.control?.abort();
    this.control = new AbortController();
    this.shownKey = `${key}\n${view}`;
    this.clear();
    this.box.hidden = false;
    this.body = el("div", { class: "preview-body" });
    this.kinds = el("span", { class: "pair" });
    this.facts = el("div", { class: "facts muted" }, detail);
    fill(this.box, this.head(key, title), this.facts, this.body);
    const { signal } = this.control;
    try {
      const facts = await ask("api/preview", { key, view }, { signal });
      this.draw(facts);
    } catch (error) {
      if (!isAbort(error)) fill(this.body, notice(error.kind || "problem", error.message));
    }
  }

  problem(title, message, kind = "problem") {
    this.clear();
    this.shownKey = null;
    this.box.hidden = false;
    this.body = el("div", { class: "preview-body" }, notice(kind, message));
    this.kinds = el("span");
    fill(this.box, this.head(null, title), this.body);
  }

  head(key, title) {
    return el("div", { class: "preview-head" },
      el("h2", { title }, title.split("/").pop()),
      this.kinds,
      this.step && button("left", "Previous (←)", () => this.step(-1)),
      this.step && button("right", "Next (→)", () => this.step(1)),
      key !== null && el("a", { class: "button", title: "Download", "aria-label": "Download", href: url("file", { key, download: true }), download: "" }, button("save", "Download", () => {}, { tabIndex: -1 })),
      button("grow", "Whole window (F)", () => go({ full: current().full ? "" : "1" }, { replace: true }), { class: "grow" }),
      button("close", "Close (Esc)", () => go({ open: "", cell: "", as: "", full: "" })));
  }

  draw(facts) {
    const state = current();
    const choices = [["", facts.kind], ["text", "text"], ["hex", "hex"]]
      .filter(([as, name]) => !as || name !== facts.kind);
    if (facts.size) {
      fill(this.kinds, choices.map(([as, name]) => el("button", {
        type: "button", "aria-pressed": String((state.as || "") === as), onclick: () => go({ as }, { replace: true }),
      }, name)));
    }
    const parts = [human(facts.size), facts.kind];
    if (facts.width) parts.push(`${number(facts.width)} × ${number(facts.height)}`, facts.mode);
    if (facts.frames > 1) parts.push(counted(facts.frames, "frame"));
    const before = this.facts.textContent;
    fill(this.facts, [before, ...parts].filter(Boolean).join(" · "));
    if (facts.damaged) { fill(this.body, notice("damaged", facts.damaged)); return; }
    if (facts.error && facts.view !== "text") { fill(this.body, notice("problem", facts.error)); return; }
    const draw = {
      image: picture, picture, audio: sound, video: film, pdf, npy: array, npz: members, json, jsonl, csv: table,
      text: words, hex: bytes, empty: (preview) => fill(preview.body, notice("empty", "Empty: 0 bytes.")),
    }[facts.view];
    this.body.className = `preview-body as-${facts.view}`;
    draw(this, facts);
  }
}

function picture(preview, facts) {
  const source = facts.convert ? url("api/picture", { key: facts.key }) : url("file", { key: facts.key });
  const image = el("img", { src: source, alt: facts.name, class: "whole" });
  image.addEventListener("error", () => fill(preview.body, notice("problem", "The picture cannot be decoded.")));
  image.addEventListener("click", () => image.classList.toggle("actual"));
  fill(preview.body, image);
  if (facts.convert && facts.frames > 1) {
    preview.body.prepend(slider("frame", facts.frames, (frame) => { image.src = url("api/picture", { key: facts.key, frame }); }));
  }
}

function slider(name, count, change) {
  const shown = el("output", {}, "0");
  return el("label", { class: "slider" }, `${name} `, el("input", {
    type: "range", min: 0, max: count - 1, value: 0,
    oninput: (event) => { shown.textContent = event.target.value; change(Number(event.target.value)); },
  }), shown, ` of ${number(count)}`);
}

function sound(preview, facts) { played(preview, facts, "audio"); }
function film(preview, facts) { played(preview, facts, "video"); }

function played(preview, facts, tag) {
  const made = el(tag, { controls: true, preload: "metadata", src: url("file", { key: facts.key }) });
  made.addEventListener("error", () => fill(preview.body, notice("problem", "The browser cannot play this file; download it.")));
  fill(preview.body, made);
}

async function pdf(preview, facts) {
  if (!navigator.pdfViewerEnabled) { // phones
    fill(preview.body, notice("problem", "This browser does not show PDFs; download it."));
    return;
  }
  // A blob: its URL has no token, which a document could read.
  const { signal } = preview.control;
  try {
    const answer = await request("file", { key: facts.key }, { signal });
    preview.blob = URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type: "application/pdf" }));
    fill(preview.body, el("iframe", { src: preview.blob, title: facts.name }));
  } catch (error) {
    if (!isAbort(error)) fill(preview.body, notice(error.kind || "problem", error.message));
  }
}

function words(preview, facts) {
  const code = el("div", { class: "code" });
  let line = 1;
  let end = 0;
  const add = (part) => {
    const texts = part.text.split("\n");
    if (texts.at(-1) === "" && texts.length > 1) texts.pop();
    const added = document.createDocumentFragment();
    for (const text of texts) {
      added.append(el("div", { class: "codeline", data: { line } }, text || "\u200b"));
      line += 1;
    }
    code.append(added);
    end = (part.offset || 0) + part.bytes;
  };
  add(facts);
  const more = el("button", { type: "button", class: "more", onclick: async () => {
    more.disabled = true;
    try {
      add(await ask("api/preview", { key: facts.key, view: "text", offset: end }, { signal: preview.control.signal }));
    } catch (error) { if (!isAbort(error)) more.before(notice(error.kind || "problem", error.message)); }
    more.disabled = false;
    more.hidden = end >= facts.size;
    more.textContent = `More (${human(facts.size - end)})`;
  } }, `More (${human(Math.max(0, facts.size - end))})`);
  more.hidden = end >= facts.size || !facts.offset && facts.offset !== 0;
  const isSvg = facts.kind === "svg";
  fill(preview.body,
    facts.error && notice("problem", `Shown as text: ${facts.error}`),
    // An <img> runs no scripts and loads nothing.
    isSvg && el("img", { class: "drawing", alt: "", src: url("file", { key: facts.key, svg: true }) }),
    code, more);
}

function bytes(preview, facts) {
  const list = el("div", { class: "fill hex" });
  list.addEventListener("failed", (event) => fill(preview.body, notice(event.detail.kind || "problem", event.detail.message)));
  fill(preview.body, list);
  preview.scroller = hex(list, facts.key, facts.size);
}

function json(preview, facts) { fill(preview.body, tree(facts.tree)); }

function jsonl(preview, facts) {
  fill(preview.body, facts.lines.map((line, at) => el("div", { class: "record" }, el("span", { class: "muted" }, number(at + 1)),
    line.error ? el("div", {}, notice("problem", line.error), el("code", {}, line.text)) : tree(line.tree, facts.lines.length > 20 ? 0 : 1))),
  facts.more && el("div", { class: "muted" }, `The first ${counted(facts.lines.length, "line")}.`));
}

function table(preview, facts) {
  const row = (cells, tag, at) => el("tr", {}, el("th", { class: "muted" }, at), cells.map((cell) => el(tag, {}, cell)));
  fill(preview.body, el("div", { class: "sheet" }, el("table", {},
    el("thead", {}, facts.header.map((cells) => row(cells, "th", ""))),
    el("tbody", {}, facts.rows.map((cells, at) => row(cells, "td", number(at + 1)))))),
  facts.more && el("div", { class: "muted" }, `The first ${counted(facts.rows.length, "row")}.`));
}

function members(preview, facts) {
  const inner = el("div");
  const choose = async (at) => {
    for (const [other, tab] of [...tabs.children].entries()) tab.setAttribute("aria-pressed", String(other === at));
    try {
      const found = await ask("api/member", { key: facts.key, member: at }, { signal: preview.control.signal });
      drawArray(inner, { ...found, key: facts.key }, at);
    } catch (error) { if (!isAbort(error)) fill(inner, notice(error.kind || "problem", error.message)); }
  };
  const tabs = el("div", { class: "tabs" }, facts.members.map((member, at) => el("button", { type: "button", onclick: () => choose(at) }, member.name)));
  fill(preview.body, tabs, inner);
  if (facts.members.length) choose(0);
  else fill(inner, notice("empty", "The file holds no arrays."));
}

function array(preview, facts) { drawArray(preview.body, facts); }

function drawArray(box, facts, member) {
  const shape = facts.shape.length ? facts.shape.map(number).join(" × ") : "one number";
  const parts = [el("p", { class: "shape" }, el("b", {}, shape), ` ${facts.dtype}`)];
  if (!facts.whole) {
    const is = facts.loaded.length === facts.shape.length;
    const loaded = facts.loaded.map(number).join(" × ");
    const part = is ? `${loaded} of ${shape}` : `the first ${loaded} of ${number(facts.shape.reduce((a, b) => a * b, 1))} values`;
    parts.push(notice("problem", `${facts.cut_off ? "The file is cut off. " : ""}Only a part is shown: ${part}.`));
  }
  if (facts.picture) {
    const at = facts.slices.map(() => 0);
    const source = () => url("api/slice", { key: facts.key, member, at: at.join(",") });
    const image = el("img", { class: "whole pixels", src: source(), alt: `slice of ${shape}` });
    facts.slices.forEach((count, axis) => { if (count > 1) parts.push(slider(`axis ${axis}`, count, (value) => { at[axis] = value; image.src = source(); })); });
    parts.push(image);
  }
  if (facts.plot) parts.push(plot(facts.plot));
  if (facts.statistics) {
    const { minimum, maximum, mean, deviation, zeros } = facts.statistics;
    const list = { minimum, maximum, mean, "standard deviation": deviation, zeros, "not finite": facts.not_finite };
    parts.push(el("dl", { class: "numbers" }, Object.entries(list).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value === null ? "too large" : short(value))))));
    parts.push(el("figure", {}, bars(facts.histogram.map((bin) => ({ count: bin.count, title: `${short(bin.from)} … ${short(bin.to)}: ${number(bin.count)}` })), { width: 480, height: 90, label: "Histogram" }),
      el("figcaption", { class: "ends" }, el("span", {}, short(minimum)), el("span", {}, facts.sampled ? "of a part of the values" : ""), el("span", {}, short(maximum)))));
  }
  if (facts.values) parts.push(el("code", { class: "values" }, facts.values.join(", "), facts.values.length === 100 && " …"));
  fill(box, parts);
}
