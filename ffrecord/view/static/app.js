// The page: it opens what the server shows, and follows the state in the URL.

import { ask } from "./api.js";
import { Bar, theme } from "./bar.js";
import { Browser, listing as browserListing } from "./browser.js";
import { Dataset, listing as datasetListing } from "./dataset.js";
import { fill, notice } from "./dom.js";
import { Overview } from "./overview.js";
import { Preview } from "./preview.js";
import { current, go, listen } from "./state.js";
import { Tree } from "./tree.js";

const part = (id) => document.getElementById(id);
theme(false);

async function start() {
  let about;
  try { about = await ask("api/about"); } catch (error) {
    fill(part("main"), notice("problem", error.message));
    return;
  }
  document.title = `${about.name} – ffrecord view`;
  document.body.dataset.kind = about.kind;
  const isDataset = about.kind === "dataset";
  const middle = isDataset ? new Dataset(part("main"), about) : new Browser(part("main"), about);
  const listing = isDataset ? datasetListing : browserListing;
  const overview = new Overview(part("main"), about);
  const preview = new Preview(part("preview"), { step: (by) => middle.move(by) });
  const tree = about.kind === "folder" ? new Tree(part("tree"), about.name) : null;
  part("tree").hidden = !tree;
  const bar = new Bar(part("bar"), about, {
    drawer: () => document.body.classList.toggle("drawer-open"),
    jump: async (text) => {
      if (isDataset) { await middle.jump(text); return; }
      await ask("api/locate", { path: text });
      go({ open: text, page: "" });
      await middle.locate();
    },
  });

  async function showPreview() {
    const state = current();
    const item = isDataset ? state.cell : state.open;
    document.body.classList.toggle("previewing", Boolean(item));
    if (!item) { preview.hide(); return; }
    preview.box.classList.toggle("full", Boolean(state.full));
    if (isDataset) { await middle.preview(preview, item); return; }
    if (about.kind === "records") { await preview.show(item, `Record ${item}`); return; }
    try {
      const { row } = await ask("api/locate", { path: item });
      if (current().open !== item) return;
      await preview.show(String(row.id), row.name);
    } catch (error) { preview.problem(item, error.message, error.kind || "problem"); }
  }

  function show(state, before) {
    bar.show();
    document.body.classList.remove("drawer-open");
    const pages = !before || state.page !== before.page;
    if (state.page === "overview") {
      if (pages) { middle.close(); overview.show(); }
    } else if (pages || listing(state) !== listing(before)) {
      overview.close();
      middle.show();
    } else if (state.view !== before.view) {
      middle.ready(middle.total);
    } else if (!isDataset && state.open && state.open !== before.open && !(before.open && middle.isChosen(state.open))) {
      middle.locate();
    }
    // A list that was replaced loses the focus, and with it the keys.
    if (before && document.activeElement === document.body) middle.focus();
    if (tree && (!before || state.path !== before.path)) tree.follow(state.path);
    if (!before || state.open !== before.open || state.cell !== before.cell || state.as !== before.as || state.full !== before.full) showPreview();
  }

  listen(show);
  show(current(), null);
  if (window === window.top) middle.focus(); // a frame must not take the focus from its notebook

  addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea");
    if (event.key === "/" && !typing) {
      event.preventDefault();
      bar.search.focus();
      bar.search.select();
    } else if (event.key === "Escape") {
      const state = current();
      if (state.full) go({ full: "" }, { replace: true });
      else if (state.open || state.cell) go({ open: "", cell: "", as: "" });
      else if (state.page) go({ page: "" });
      else if (state.q || state.seed || state.filter.length) go({ q: "", seed: "", filter: [] });
      middle.focus();
    } else if (event.key === "f" && !typing && (current().open || current().cell) && !event.ctrlKey && !event.metaKey) {
      go({ full: current().full ? "" : "1" }, { replace: true });
    } else if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest(".fill, button, video, audio, iframe")
      && ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) {
      middle.key(event);
    }
  });

  part("body").addEventListener("click", (event) => {
    if (document.body.classList.contains("drawer-open") && !event.target.closest("#tree")) document.body.classList.remove("drawer-open");
  });
}

start();
