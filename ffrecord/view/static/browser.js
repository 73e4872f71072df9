// The middle of the page: files or records as a grid of thumbnails, or as a table.

import { ask } from "./api.js";
import { button, counted, el, entries, fill, human, icon, notice, number, time } from "./dom.js";
import { Rows } from "./rows.js";
import { Scroller } from "./scroller.js";
import { current, go } from "./state.js";
import { Thumbs } from "./thumbs.js";

const columns = {
  folder: [["name", "Name"], ["size", "Size"], ["time", "Changed"], ["mode", "Mode"]],
  records: [["name", "Record"], ["size", "Size"], ["", "First bytes"]],
};
const cell = { width: 148, height: 178, gap: 10 };

// What the listing depends on. If none of it changes, the listing stays.
export const listing = (state) => [state.path, state.q, state.seed, state.count, state.order, state.reverse].join("\n");

export class Browser {
  constructor(box, about) {
    this.box = box;
    this.about = about;
    this.pictures = new Set(about.pictures);
    this.thumbs = new Thumbs((key) => this.painted(key));
    this.chosen = -1;
  }

  parameters(state = current()) {
    return {
      folder: state.path, pattern: state.q, order: state.order || "name", reverse: Boolean(state.reverse),
      seed: state.seed, count: state.seed ? state.count || 100 : undefined,
    };
  }

  get view() { return current().view || (this.about.kind === "records" ? "table" : "grid"); }

  close() {
    this.rows?.close();
    this.scroller?.close();
    this.scroller = null;
    this.thumbs.want([]);
  }

  show() {
    this.close();
    this.chosen = -1;
    const state = current();
    const parameters = this.parameters(state);
    this.head = el("div", { class: "listing-head" });
    this.list = el("div", { class: "fill", tabIndex: 0, onkeydown: (event) => this.key(event) });
    fill(this.box, this.head, this.list);
    this.rows = new Rows(
      (offset, limit, signal) => ask("api/list", { ...parameters, offset, limit }, { signal }),
      {
        arrived: (first, last) => this.arrived(first, last),
        failed: (error) => this.failed(error),
        total: (answer) => this.ready(answer.total),
      },
    );
    this.rows.start();
    this.slow = setTimeout(() => { if (this.rows.total === null) fill(this.head, el("span", { class: "muted" }, "Looking…")); }, 300);
  }

  failed(error) {
    clearTimeout(this.slow);
    if (this.rows.total === null) fill(this.list, notice(error.kind || "problem", error.message));
  }

  ready(total) {
    clearTimeout(this.slow);
    this.total = total;
    const state = current();
    const what = this.about.kind === "records" ? "record" : state.q ? "match" : state.seed ? "file" : "entry";
    const words = what === "match" ? `${number(total)} ${total === 1 ? "match" : "matches"}`
      : what === "entry" ? entries(total) : counted(total, what);
    const where = state.q ? ` for “${state.q}”` : state.seed ? `, drawn at random with seed ${state.seed}` : "";
    fill(this.head, el("span", {}, words, where), this.view === "table" && this.titles());
    if (!total) {
      const empty = state.q ? "Nothing matches. A search may use *, ? and **: *.jpg, train/**/*.png."
        : this.about.kind === "records" ? "The file has no records." : "This folder is empty.";
      fill(this.list, notice("empty", empty));
      return;
    }
    this.draw();
  }

  draw() {
    this.scroller?.close();
    this.list.className = `fill ${this.view}`;
    const size = this.view === "grid" ? cell : { height: 34 };
    this.scroller = new Scroller(this.list, {
      ...size, label: "Files", render: (index) => this.render(index),
      shown: (first, last) => this.shown(first, last),
    });
    this.scroller.setCount(this.total);
    this.locate();
  }

  // Choose the file that the URL names.
  async locate() {
    const { open } = current();
    if (!open) return;
    try {
      const found = await ask("api/locate", { ...this.parameters(), path: open });
      if (found.position !== null && current().open === open) this.choose(found.position, { middle: true });
    } catch { /* the preview tells why */ }
  }

  titles() {
    const state = current();
    return el("div", { class: `titles ${this.about.kind}` }, columns[this.about.kind].map(([order, title]) => {
      if (!order) return el("span", {}, title);
      const active = (state.order || "name") === order;
      const mark = active ? (state.reverse ? " ↓" : " ↑") : "";
      return el("button", {
        type: "button", class: active ? "active" : "",
        onclick: () => go({ order, reverse: active && !state.reverse ? "1" : "" }),
      }, title, mark);
    }));
  }

  isPicture(row) {
    if (row.content) return ["image", "picture"].includes(row.content);
    const end = row.name.toLowerCase().split(".");
    return row.kind === "file" && end.length > 1 && this.pictures.has(end.pop());
  }

  ref(row) {
    const state = current();
    if (this.about.kind === "records" || state.q || state.seed) return row.ref;
    return state.path ? `${state.path}/${row.ref}` : row.ref;
  }

  render(index) {
    const row = this.rows.get(index);
    const chosen = index === this.chosen ? " chosen" : "";
    if (!row) return el("div", { class: `item waiting${chosen}` });
    const made = el("a", {
      class: `item ${row.kind.replace(" ", "-")}${chosen}`, title: this.title(row), role: "listitem",
      onclick: (event) => { event.preventDefault(); this.choose(index); this.enter(row); },
    });
    if (this.view === "grid") this.fillCell(made, row);
    else this.fillLine(made, row);
    return made;
  }

  title(row) {
    const parts = [row.name];
    if (row.target !== undefined) parts.push(`→ ${row.target}`);
    if (row.damaged) parts.push(row.damaged);
    return parts.join("\n");
  }

  name(row) { return row.name.split("/").pop(); }

  fillCell(made, row) {
    const face = el("div", { class: "face" }, this.face(row));
    const detail = row.kind === "folder" ? entries(row.entries)
      : row.kind === "file" ? human(row.size) : row.kind;
    made.append(face, el("div", { class: "name" }, this.about.kind === "records" ? `#${number(row.id)}` : this.name(row)),
      el("div", { class: "detail" }, detail));
  }

  face(row) {
    if (row.kind === "folder") return icon("folder");
    if (row.damaged) return el("div", { class: "problem", title: row.damaged }, icon("damaged"), "damaged");
    if (row.kind !== "file") return icon("link");
    if (this.isPicture(row)) {
      const thumb = this.thumbs.get(String(row.id));
      if (!thumb) return el("div", { class: "blank" });
      if (thumb.url) return el("img", { src: thumb.url, alt: "", draggable: false });
      if (thumb.problem.includes("checksum")) return el("div", { class: "problem", title: thumb.problem }, icon("damaged"), "damaged");
    }
    if (row.start) return el("div", { class: "start" }, row.start);
    const end = this.name(row).split(".");
    const kind = end.length > 1 && /^\w{1,6}$/.test(end.at(-1)) ? end.at(-1) : "";
    return el("div", { class: "kind" }, icon("file"), el("span", {}, kind));
  }

  fillLine(made, row) {
    if (this.about.kind === "records") {
      made.append(el("span", { class: "name number" }, `#${number(row.id)}`), el("span", { class: "number" }, human(row.size)),
        row.damaged ? el("span", { class: "bad" }, icon("damaged"), row.damaged)
          : el("span", { class: `start${row.unverified ? " unverified" : ""}`, title: row.unverified ? "Not verified: the record is long." : "" }, row.start));
      return;
    }
    const mark = row.kind === "folder" ? "folder" : row.kind === "file" ? "file" : "link";
    made.append(
      el("span", { class: "name" }, icon(row.target === undefined ? mark : "link"), el("span", {}, row.name),
        row.target !== undefined && el("span", { class: "muted" }, ` → ${row.target}`)),
      el("span", { class: "number" }, row.kind === "folder" ? entries(row.entries) : human(row.size)),
      el("span", { class: "number" }, time(row.time)), el("span", { class: "mode" }, row.mode));
  }

  arrived(first, last) {
    if (!this.scroller) return;
    for (let index = first; index < last; index += 1) this.scroller.redraw(index);
    this.wantThumbs();
  }

  shown(first, last) {
    this.span = [first, last];
    this.rows.want(first, last);
    this.wantThumbs();
  }

  wantThumbs() {
    if (this.view !== "grid" || !this.span) return;
    const keys = [];
    this.places = new Map();
    for (let index = this.span[0]; index < this.span[1]; index += 1) {
      const row = this.rows.get(index);
      if (!row || row.damaged || !this.isPicture(row)) continue;
      this.places.set(String(row.id), index);
      keys.push(String(row.id));
    }
    this.thumbs.want(keys);
  }

  painted(key) {
    const index = this.places?.get(key);
    const made = index === undefined ? null : this.scroller?.cells.get(index);
    const row = made && this.rows.get(index);
    if (row) made.querySelector(".face")?.replaceChildren(this.face(row));
  }

  choose(index, options) {
    const before = this.chosen;
    this.chosen = index;
    this.scroller.cells.get(before)?.classList.remove("chosen");
    this.scroller.reveal(index, options);
    this.scroller.cells.get(index)?.classList.add("chosen");
  }

  isChosen(ref) {
    const row = this.rows.get(this.chosen);
    return Boolean(row) && this.ref(row) === ref;
  }

  enter(row) {
    if (row.kind === "folder") go({ path: this.ref(row), open: "", q: "", seed: "" });
    else go({ open: this.ref(row), as: "" }, { replace: Boolean(current().open) });
  }

  // Move by a number of cells; the preview follows if it is open.
  move(step) {
    if (!this.total || !this.scroller) return;
    const first = this.chosen < 0 && step < this.total; // nothing is chosen yet, and not End
    const next = first ? 0 : Math.max(0, Math.min(this.total - 1, this.chosen + step));
    this.choose(next);
    const row = this.rows.get(next);
    if (current().open && row && row.kind !== "folder") this.enter(row);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.scroller) return;
    const row = this.scroller.columns;
    const page = Math.max(1, Math.floor(this.scroller.view / this.scroller.height)) * row;
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, PageDown: page, PageUp: -page,
      Home: -this.total, End: this.total,
    };
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Enter" && this.rows.get(this.chosen)) this.enter(this.rows.get(this.chosen));
    else if (event.key === "Backspace" && current().path) go({ path: current().path.split("/").slice(0, -1).join("/"), open: "", q: "", seed: "" });
    else return;
    event.preventDefault();
  }

  focus() { this.list?.focus({ preventScroll: true }); }
}

export function viewButtons(about) {
  const view = current().view || (about.kind === "records" ? "table" : "grid");
  return el("span", { class: "pair" },
    button("grid", "Grid", () => go({ view: "grid" }, { replace: true }), { "aria-pressed": String(view === "grid") }),
    button("table", "Table", () => go({ view: "table" }, { replace: true }), { "aria-pressed": String(view === "table") }));
}
