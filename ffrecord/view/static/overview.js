// The overview: counts, sizes, kinds, the largest files, and the check of all checksums.

import { ask, isAbort, request } from "./api.js";
import { bars, lines } from "./charts.js";
import { counted, el, fill, human, icon, notice, number } from "./dom.js";
import { go } from "./state.js";

export class Overview {
  constructor(box, about) {
    this.box = box;
    this.about = about;
  }

  async show() {
    this.control = new AbortController();
    const { signal } = this.control;
    const page = el("div", { class: "overview" }, notice("empty", "Counting…"));
    fill(this.box, page);
    try {
      const facts = await ask("api/overview", {}, { signal });
      fill(page, this.title(facts), this.numbers(facts), this.check(),
        el("div", { class: "two" }, this.kinds(facts), this.sizes(facts)), this.fields(facts), this.largest(facts), this.identity(facts));
      this.poll(signal);
    } catch (error) {
      if (!isAbort(error)) fill(page, notice(error.kind || "problem", error.message));
    }
  }

  close() {
    this.control?.abort();
    clearTimeout(this.timer);
  }

  title(facts) {
    return el("header", {}, el("h1", {}, this.about.name), el("p", { class: "muted" }, `${facts.kind} · ${this.about.path}`));
  }

  numbers(facts) {
    const tiles = [
      ["files", facts.kind === "records" ? null : facts.files], ["folders", facts.folders], ["records", facts.records],
      ["datapoints", facts.datapoints], ["fields", facts.fields && Object.keys(facts.fields).length],
      ["shards", facts.shards || null], ["symlinks", facts.symlinks || null], ["hard links", facts.hard_links || null],
    ].filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [name, number(value)]);
    tiles.push(["of data", human(facts.data_bytes)]);
    return el("div", { class: "tiles" }, tiles.map(([name, value]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name))));
  }

  kinds(facts) {
    if (!facts.kinds?.length) return null;
    return el("section", {}, el("h3", {}, "Kinds, by size"), lines(facts.kinds.map((kind) => ({
      name: kind.kind, count: kind.bytes, detail: human(kind.bytes), title: `${kind.kind}: ${counted(kind.files, "file")}, ${human(kind.bytes)}`,
      onclick: ["others", "no extension"].includes(kind.kind) ? undefined : () => go({ page: "", path: "", q: `*.${kind.kind}` }),
    }))));
  }

  sizes(facts) {
    if (!facts.histogram?.length) return null;
    const what = facts.kind === "records" ? "records" : "files";
    const spread = facts.file_bytes && typeof facts.file_bytes === "object" ? facts.file_bytes : facts.record_bytes;
    const items = facts.histogram.map((bin) => ({ count: bin[what], title: `${human(bin.from)} – ${human(bin.below)}: ${number(bin[what])}` }));
    return el("section", {}, el("h3", {}, "Sizes"), el("figure", {}, bars(items, { width: 480, height: 150, label: "Histogram of sizes" }),
      el("figcaption", { class: "ends" }, el("span", {}, human(facts.histogram[0].from)), el("span", {}, human(facts.histogram.at(-1).below)))),
    spread && el("dl", { class: "numbers" }, Object.entries(spread).map(([name, size]) => el("div", {}, el("dt", {}, name), el("dd", {}, human(size))))));
  }

  fields(facts) {
    if (!facts.fields) return null;
    return el("section", {}, el("h3", {}, "Fields, by size"), lines(Object.entries(facts.fields).map(([name, field]) => ({
      name: `${name}  ${field.type}`, count: field.data_bytes, detail: human(field.data_bytes), title: counted(field.values, "value"),
    }))));
  }

  largest(facts) {
    if (!facts.largest?.length) return null;
    return el("section", {}, el("h3", {}, "Largest files"), lines(facts.largest.map((file) => ({
      name: file.name, count: file.bytes, detail: human(file.bytes),
      onclick: () => go({ page: "", q: "", path: file.ref.split("/").slice(0, -1).join("/"), open: file.ref }),
    }))));
  }

  identity(facts) {
    return facts.fingerprint && el("section", {}, el("h3", {}, "Fingerprint"), el("code", { class: "print" }, facts.fingerprint));
  }

  check() {
    this.status = el("div", { class: "status" });
    return el("section", { class: "check" }, el("h3", {}, "Checksums"), this.status);
  }

  async poll(signal, start = "") {
    try {
      const options = start ? { method: "POST", signal } : { signal };
      const state = await (await request("api/verify", start === "stop" ? { stop: true } : {}, options)).json();
      this.draw(state, signal);
      clearTimeout(this.timer);
      if (state.state === "running") this.timer = setTimeout(() => this.poll(signal), 300);
    } catch (error) {
      if (!isAbort(error)) fill(this.status, notice("problem", error.message));
    }
  }

  draw(state, signal) {
    const again = (words, start) => el("button", { type: "button", onclick: () => this.poll(signal, start) }, words);
    const share = state.total ? state.done / state.total : 0;
    const parts = {
      "not run": () => [el("span", {}, "The page verifies everything that it reads. The rest was not checked yet."), again("Verify all", "start")],
      running: () => {
        const bar = el("progress", { max: 1, value: share });
        return [bar, el("span", {}, `${number(state.done)} of ${counted(state.total, "record")}`), again("Stop", "stop")];
      },
      ok: () => [el("span", { class: "good" }, `✓ All ${counted(state.total, "record")} are undamaged.`), again("Verify again", "start")],
      stopped: () => [el("span", {}, `Stopped after ${counted(state.done, "record")}.`), again("Verify all", "start")],
      failed: () => [notice("problem", state.error), again("Verify again", "start")],
      damaged: () => [el("span", { class: "bad" }, icon("damaged"), `${counted(state.bad, "problem")} in ${counted(state.total, "record")}.`), again("Verify again", "start")],
    }[state.state]();
    fill(this.status, el("div", { class: "row" }, parts), (state.damaged || []).map((each) => notice("damaged", each.paths?.length ? el("b", {}, each.paths.join(", ")) : null, " ", each.message)));
  }
}
