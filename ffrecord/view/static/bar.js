// The bar at the top: where the page is, the search, and the ways to look.

import { ask } from "./api.js";
import { viewButtons } from "./browser.js";
import { button, debounced, el, fill } from "./dom.js";
import { current, go } from "./state.js";

const hints = {
  folder: "Search: name, *.jpg, or a path", records: "Go to record", dataset: "Go to datapoint",
};

export class Bar {
  constructor(box, about, { drawer, jump }) {
    this.about = about;
    this.jump = jump;
    this.crumbs = el("nav", { class: "crumbs", "aria-label": "Path" });
    this.typing = debounced(300, () => this.typed());
    this.search = el("input", {
      type: "search", placeholder: hints[about.kind], "aria-label": hints[about.kind], spellcheck: false,
      autocomplete: "off", oninput: this.typing, onkeydown: (event) => this.key(event),
    });
    this.problem = el("span", { class: "bad", role: "status" });
    this.views = el("span", { class: "views" });
    fill(box,
      about.kind === "folder" && button("menu", "Folders", drawer, { class: "drawer" }),
      this.crumbs, el("span", { class: "search" }, this.search, this.problem), this.views,
      button("dice", "Random sample", () => this.sample()),
      button("chart", "Overview", () => go({ page: current().page ? "" : "overview", open: "" })),
      button("theme", "Light or dark", () => theme(true)));
  }

  show() {
    const state = current();
    if (document.activeElement !== this.search) this.search.value = state.q || "";
    this.problem.textContent = "";
    const parts = state.path ? state.path.split("/") : [];
    const steps = [el("a", { href: "#/", class: "home", title: this.about.path, onclick: (event) => this.up(event, "") }, this.about.name)];
    parts.forEach((part, depth) => {
      const ref = parts.slice(0, depth + 1).join("/");
      steps.push(el("span", { class: "slash" }, "/"), el("a", { href: `#/${ref}`, onclick: (event) => this.up(event, ref) }, readable(part)));
    });
    fill(this.crumbs, steps);
    this.crumbs.scrollLeft = this.crumbs.scrollWidth;
    fill(this.views, this.about.kind !== "dataset" && viewButtons(this.about));
  }

  up(event, path) {
    event.preventDefault();
    go({ path, open: "", q: "", seed: "", page: "", filter: [] });
  }

  sample() {
    // A new draw each time; the seed is in the URL, so a link shows the same files.
    const seed = Math.floor(Math.random() * 1_000_000);
    go({ seed: String(seed), count: current().count || "100", q: "", open: "", page: "", order: "", reverse: "" });
  }

  typed() {
    if (this.about.kind !== "folder") return;
    go({ q: this.search.value.trim(), seed: "", open: "", page: "" }, { replace: Boolean(current().q) });
  }

  async key(event) {
    if (event.key === "Escape") {
      this.typing.cancel();
      this.search.value = "";
      this.typed();
      this.search.blur();
      event.stopPropagation();
    } else if (event.key === "Enter" && this.search.value.trim()) {
      event.preventDefault();
      this.typing.cancel(); // otherwise it would close what Enter opens
      await this.enter(this.search.value.trim());
    }
  }

  // Jump to a path or a number; what is neither is a search.
  async enter(text) {
    this.problem.textContent = "";
    try {
      if (this.about.kind === "folder") await this.toPath(text);
      else await this.jump(text.replace(/[#,\s]/g, ""));
    } catch (error) {
      if (this.about.kind === "folder") this.typed();
      else this.problem.textContent = error.message;
    }
  }

  async toPath(text) {
    const { path } = current();
    const ref = encodeURIComponent(text.replace(/^\/+|\/+$/g, "")).replace(/%2F/g, "/");
    const inside = path && !text.startsWith("/");
    let row;
    try {
      ({ row } = await ask("api/locate", { path: inside ? `${path}/${ref}` : ref }));
    } catch (error) {
      if (!inside || !ref.includes("/")) throw error;
      ({ row } = await ask("api/locate", { path: ref })); // a path from the top
    }
    this.search.value = "";
    if (row.kind === "folder") go({ path: row.ref, q: "", seed: "", open: "", page: "" });
    else go({ path: row.ref.split("/").slice(0, -1).join("/"), open: row.ref, q: "", seed: "", page: "" });
  }
}

function readable(ref) {
  try { return decodeURIComponent(ref); } catch { return ref; }
}

export function theme(change) {
  let chosen = null;
  // A notebook's frame may have no storage.
  try { chosen = localStorage.getItem("theme"); } catch { /* the system decides */ }
  if (change) {
    const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    chosen = dark ? "light" : "dark";
    try { localStorage.setItem("theme", chosen); } catch { /* for this page only */ }
  }
  if (chosen) document.documentElement.dataset.theme = chosen;
}
