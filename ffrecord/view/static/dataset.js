// A typed dataset: a table of datapoints, with a distribution above each column.

import { ask, isAbort } from "./api.js";
import { bars } from "./charts.js";
import { counted, el, fill, human, icon, notice, number, short } from "./dom.js";
import { Rows } from "./rows.js";
import { Scroller } from "./scroller.js";
import { current, go } from "./state.js";
import { Thumbs } from "./thumbs.js";

// What the rows depend on.
export const listing = (state) => [state.seed, state.count, ...state.filter].join("\n");

export class Dataset {
  constructor(box, about) {
    this.box = box;
    this.about = about;
    this.fields = about.fields;
    this.hasImages = about.fields.some((field) => field.image);
    this.thumbs = new Thumbs((key) => this.painted(key));
    this.columns = new Map(); // field -> its distribution
    this.chosen = -1;
  }

  parameters() {
    const state = current();
    return { filter: state.filter, seed: state.seed, count: state.seed ? state.count || 100 : undefined };
  }

  close() {
    this.rows?.close();
    this.scroller?.close();
    this.scroller = null;
    this.control?.abort();
    this.watch?.disconnect();
    this.thumbs.want([]);
  }

  show() {
    this.close();
    this.chosen = -1;
    const parameters = this.parameters();
    this.summary = el("div", { class: "listing-head" });
    this.heads = el("div", { class: "heads" });
    this.inner = el("div", { class: "sideways-inner" });
    this.list = el("div", { class: "fill rows", tabIndex: 0, onkeydown: (event) => this.key(event) });
    this.inner.append(this.heads, this.list);
    const side = el("div", { class: "sideways" }, this.inner);
    fill(this.box, this.summary, side);
    const widths = this.fields.map((field) => (field.image && !field.sequence ? 140 : 170));
    const total = 72 + widths.reduce((sum, each) => sum + each, 0);
    this.inner.style.minWidth = `${total + 16}px`;
    // Pixels, because the heads and the rows are two boxes that must line up.
    this.watch = new ResizeObserver(() => {
      const scale = Math.max(1, (this.list.clientWidth - 72) / (total - 72));
      const columns = widths.map((each) => `${Math.floor(each * scale)}px`);
      this.inner.style.setProperty("--columns", `72px ${columns.join(" ")}`);
    });
    this.watch.observe(this.list);
    this.drawHeads();
    this.rows = new Rows(
      (offset, limit, signal) => ask("api/rows", { ...parameters, offset, limit }, { signal }),
      {
        arrived: (first, last) => { for (let at = first; at < last; at += 1) this.scroller?.redraw(at); this.wantThumbs(); },
        failed: (error) => { if (this.rows.total === null) fill(this.list, notice(error.kind || "problem", error.message)); },
        total: (answer) => this.ready(answer),
      },
    );
    this.rows.start();
    fill(this.summary, el("span", { class: "muted" }, "Reading…"));
    this.loadColumns();
  }

  ready({ total, covered }) {
    const state = current();
    this.total = total;
    const words = state.filter.length ? `${number(total)} of ${counted(this.about.entries, "datapoint")}` : counted(total, "datapoint");
    fill(this.summary,
      el("span", {}, words, state.seed && `, drawn at random with seed ${state.seed}`, covered && ` (the filter looked at ${number(covered)})`),
      state.filter.map((filter) => el("button", {
        type: "button", class: "chip", title: "Remove this filter", onclick: () => go({ filter: current().filter.filter((each) => each !== filter) }),
      }, wording(filter), icon("close"))));
    if (!total) { fill(this.list, notice("empty", state.filter.length ? "No datapoint matches these filters." : "The dataset has no datapoints.")); return; }
    this.scroller = new Scroller(this.list, {
      height: this.hasImages ? 84 : 40, label: "Datapoints", render: (index) => this.render(index),
      shown: (first, last) => this.shown(first, last),
    });
    this.scroller.setCount(total);
    if (state.cell) this.reveal(state.cell.split(".")[0]);
  }

  async reveal(row) {
    try {
      const { position } = await ask("api/locate", { ...this.parameters(), path: row });
      if (position === null || !this.scroller) return false;
      this.choose(position, { middle: true });
      return true;
    } catch { return false; }
  }

  async jump(text) {
    const parameters = { ...this.parameters(), path: text };
    if (!/^\d+$/.test(text)) throw new Error("Enter the number of a datapoint.");
    const { position } = await ask("api/locate", parameters);
    if (position === null) throw new Error("The filter leaves this datapoint out.");
    this.choose(position, { middle: true });
  }

  drawHeads() {
    fill(this.heads, el("div", { class: "head" }, el("b", {}, "#")), this.fields.map((field) => {
      const column = this.columns.get(field.name);
      return el("div", { class: "head", data: { field: field.name } },
        el("b", { title: field.name }, field.name), el("span", { class: "muted" }, field.type, column?.what && !["value", "label"].includes(column.what) && ` · ${column.what}`), this.distribution(field, column));
    }));
  }

  distribution(field, column) {
    if (!column) return el("div", { class: "chart waiting" });
    if (column.error) return el("div", { class: "chart bad", title: column.error }, column.error);
    const items = column.bars.map((bar) => {
      const filter = bar.label !== undefined ? `${field.name}=${bar.label}` : `${field.name}:${bar.low}:${bar.high}:${bar.closed ? 1 : 0}`;
      const name = bar.label !== undefined ? bar.label : `${short(bar.low)} … ${short(bar.high)}`;
      return {
        count: bar.count, title: `${name}: ${number(bar.count)}`, chosen: current().filter.includes(filter),
        onclick: bar.count ? () => this.toggle(field.name, filter) : undefined,
      };
    });
    const labels = column.distinct !== undefined;
    const ends = labels && column.minimum === undefined
      ? [counted(column.distinct, "label"), column.others ? `${number(column.others)} in others` : ""]
      : [column.minimum, column.maximum].map((end) => (column.what === "stored bytes" ? human(end ?? 0) : short(end ?? 0)));
    const lost = column.unread ? el("div", { class: "bad" }, icon("damaged"), `${number(column.unread)} damaged`) : null;
    return el("div", { class: "chart" }, bars(items, { label: `Distribution of ${field.name}` }),
      el("div", { class: "ends" }, ends.map((end) => el("span", {}, end))), lost);
  }

  toggle(name, filter) {
    const { filter: before } = current();
    const others = before.filter((each) => !(each.startsWith(`${name}=`) || each.startsWith(`${name}:`)));
    go({ filter: before.includes(filter) ? others : [...others, filter], cell: "", seed: "" });
  }

  async loadColumns() {
    this.control = new AbortController();
    const { signal } = this.control;
    for (const field of this.fields) {
      if (this.columns.has(field.name)) continue;
      try {
        this.columns.set(field.name, await ask("api/column", { field: field.name }, { signal }));
      } catch (error) {
        if (isAbort(error)) return;
        this.columns.set(field.name, { error: error.message });
      }
      this.drawHeads();
    }
  }

  render(index) {
    const row = this.rows.get(index);
    const chosen = index === this.chosen ? " chosen" : "";
    if (!row) return el("div", { class: `datapoint waiting${chosen}` });
    return el("div", { class: `datapoint${chosen}`, role: "listitem" },
      el("div", { class: "cell number" }, number(row.id)),
      this.fields.map((field) => this.cell(row, field)));
  }

  cell(row, field) {
    const value = row.cells[field.name];
    const key = `${row.id}.${field.name}`;
    const open = (event) => { event.stopPropagation(); go({ cell: key, as: "" }, { replace: Boolean(current().cell) }); };
    if (value.damaged) return el("div", { class: "cell bad", title: value.damaged, onclick: open }, icon("damaged"), "damaged");
    if (!field.sequence) return el("div", { class: "cell", onclick: open }, this.value(key, value));
    const rest = value.length - value.elements.length;
    return el("div", { class: "cell sequence", onclick: open }, value.elements.map((each, at) => this.value(`${key}.${at}`, each)),
      el("span", { class: "muted" }, rest > 0 ? `+${number(rest)}` : value.length ? "" : "empty"));
  }

  value(key, value) {
    if (value.damaged) return el("span", { class: "bad", title: value.damaged }, icon("damaged"), "damaged");
    if (!value.image) return el("span", { class: "text" }, value.text);
    const thumb = this.thumbs.get(key);
    const made = thumb?.url ? el("img", { src: thumb.url, alt: "" })
      : thumb ? el("span", { class: "bad", title: thumb.problem }, icon("damaged"), thumb.problem.includes("checksum") ? "damaged" : "no preview")
        : el("span", { class: "blank" });
    made.dataset.key = key;
    return made;
  }

  painted(key) {
    const made = this.list?.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (made) made.replaceWith(this.value(key, { image: true }));
  }

  shown(first, last) {
    this.span = [first, last];
    this.rows.want(first, last);
    this.wantThumbs();
  }

  wantThumbs() {
    if (!this.span) return;
    const keys = [];
    for (let index = this.span[0]; index < this.span[1]; index += 1) {
      const row = this.rows.get(index);
      if (!row) continue;
      for (const field of this.fields) {
        const value = row.cells[field.name];
        const key = `${row.id}.${field.name}`;
        if (value.image) keys.push(key);
        (value.elements || []).forEach((each, at) => { if (each.image) keys.push(`${key}.${at}`); });
      }
    }
    this.thumbs.want(keys);
  }

  choose(index, options) {
    this.scroller.cells.get(this.chosen)?.classList.remove("chosen");
    this.chosen = index;
    this.scroller.reveal(index, options);
    this.scroller.cells.get(index)?.classList.add("chosen");
  }

  // Move by some rows. An open preview shows the same field of the new row.
  move(step) {
    if (!this.total || !this.scroller) return;
    const first = this.chosen < 0 && step < this.total; // nothing is chosen yet, and not End
    const next = first ? 0 : Math.max(0, Math.min(this.total - 1, this.chosen + step));
    this.choose(next);
    const row = this.rows.get(next);
    const { cell } = current();
    if (cell && row) go({ cell: `${row.id}.${cell.split(".")[1]}` }, { replace: true });
  }

  key(event) {
    const page = this.scroller ? Math.max(1, Math.floor(this.scroller.view / this.scroller.height)) : 1;
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.total, End: this.total };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Enter" && this.rows.get(this.chosen)) go({ cell: `${this.rows.get(this.chosen).id}.${this.fields[0].name}` });
    else return;
    event.preventDefault();
  }

  focus() { this.list?.focus({ preventScroll: true }); }

  // A cell's preview; a sequence shows all its elements.
  async preview(panel, key) {
    const name = key.slice(key.indexOf(".") + 1);
    const field = this.fields.find((each) => each.name === name);
    if (!field?.sequence) { await panel.show(key, key.replace(".", " · ")); return; }
    panel.problem(key.replace(".", " · "), "Reading…", "empty");
    const row = key.slice(0, key.indexOf("."));
    const box = el("div", { class: "elements" });
    let start = 0;
    const more = async () => {
      const answer = await ask("api/sequence", { row, field: name, start, count: 100 });
      if (answer.damaged) { fill(panel.body, notice("damaged", answer.damaged)); return; }
      if (!start) fill(panel.body, el("p", { class: "muted" }, counted(answer.length, "element")), box);
      for (const [at, value] of answer.elements.entries()) {
        const inner = `${key}.${start + at}`;
        box.append(el("button", { type: "button", class: "element", onclick: () => go({ cell: inner }) },
          el("span", { class: "muted" }, number(start + at)), this.value(inner, value)));
      }
      const keys = answer.elements.flatMap((each, at) => (each.image ? [`${key}.${start + at}`] : []));
      if (keys.length) this.elementThumbs(box, keys);
      start += answer.elements.length;
      if (start < answer.length) {
        const next = el("button", { type: "button", class: "more", onclick: () => { next.remove(); more(); } }, `${number(answer.length - start)} more`);
        box.append(next);
      }
    };
    try { await more(); } catch (error) { panel.problem(key, error.message, error.kind || "problem"); }
  }

  elementThumbs(box, keys) {
    const thumbs = new Thumbs((key) => {
      this.thumbs.found.set(key, thumbs.get(key));
      box.querySelector(`[data-key="${CSS.escape(key)}"]`)?.replaceWith(this.value(key, { image: true }));
    });
    thumbs.want(keys);
  }
}

function wording(filter) {
  const range = /^(.*):([^:]*):([^:]*):[01]$/.exec(filter);
  if (filter.includes("=") && !range) return filter.replace("=", " = ");
  return range ? `${range[1]}: ${short(Number(range[2]))} … ${short(Number(range[3]))}` : filter;
}
