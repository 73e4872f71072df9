// The tree of folders. Each open folder loads its inner folders a page at a time, so a folder of a
// million folders scrolls too.

import { ask } from "./api.js";
import { el, icon, fill } from "./dom.js";
import { Rows } from "./rows.js";
import { Scroller } from "./scroller.js";
import { current, go } from "./state.js";

class Node {
  constructor(tree, ref) {
    this.ref = ref;
    this.total = 0;
    this.open = new Map(); // position of an inner folder -> its node
    this.rows = new Rows(
      (offset, limit, signal) => ask("api/list", { folder: ref, folders: true, offset, limit }, { signal }),
      { arrived: () => tree.update(), failed: () => {}, total: (answer) => { this.total = answer.total; tree.update(); } },
    );
    this.ready = this.rows.fetch(0);
  }

  get height() {
    let sum = this.total;
    for (const inner of this.open.values()) sum += inner.height;
    return sum;
  }

  // The folder in a line below this node: {node, position, depth}.
  at(line, depth = 0) {
    let before = 0;
    for (const [position, inner] of [...this.open].sort((a, b) => a[0] - b[0])) {
      const own = position + before;
      if (line <= own) break;
      if (line <= own + inner.height) return inner.at(line - own - 1, depth + 1);
      before += inner.height;
    }
    return { node: this, position: line - before, depth };
  }

  line(position) {
    let line = position;
    for (const [other, inner] of this.open) if (other < position) line += inner.height;
    return line;
  }
}

export class Tree {
  constructor(box, name) {
    this.name = name;
    const list = el("div", { class: "fill" });
    this.home = el("button", { type: "button", class: "home", onclick: () => this.enter("") },
      icon("folder"), el("span", { class: "name" }, name));
    fill(box, this.home, list);
    this.scroller = new Scroller(list, {
      height: 30, render: (line) => this.render(line), label: "Folders",
      shown: (first, last) => this.shown(first, last),
    });
    this.root = new Node(this, "");
  }

  update() {
    if (!this.root) return;
    const count = this.root.height;
    if (count !== this.scroller.count) this.scroller.setCount(count);
    else this.scroller.refresh();
  }

  shown(first, last) {
    const wanted = new Map();
    for (let line = first; line < last; line += 1) {
      const { node, position } = this.root.at(line);
      const span = wanted.get(node) || [position, position];
      wanted.set(node, [Math.min(span[0], position), Math.max(span[1], position)]);
    }
    for (const [node, [from, to]] of wanted) node.rows.want(from, to + 1);
  }

  render(line) {
    const { node, position, depth } = this.root.at(line);
    const row = node.rows.get(position);
    if (!row) return el("div", { class: "branch waiting" });
    const ref = node.ref ? `${node.ref}/${row.ref}` : row.ref;
    const inner = node.open.get(position);
    const chosen = ref === current().path;
    const twist = el("button", {
      type: "button", class: `twist${inner ? " open" : ""}`, tabIndex: -1, hidden: !row.folders,
      "aria-label": inner ? "Close" : "Open", onclick: (event) => { event.stopPropagation(); this.toggle(node, position, ref); },
    }, icon("right"));
    const made = el("div", {
      class: `branch${chosen ? " chosen" : ""}`, role: "listitem", title: row.name,
      onclick: () => this.enter(ref),
    }, twist, icon("folder"), el("span", { class: "name" }, row.name));
    made.style.paddingLeft = `${6 + depth * 14}px`;
    return made;
  }

  toggle(node, position, ref) {
    if (node.open.has(position)) node.open.delete(position);
    else node.open.set(position, new Node(this, ref));
    this.update();
  }

  enter(ref) { go({ path: ref, open: "", q: "", seed: "", page: "" }); }

  // Open the folders on the way to a path, and show it.
  async follow(path) {
    this.home.classList.toggle("chosen", path === "");
    let node = this.root;
    let line = 0;
    const names = path ? path.split("/") : [];
    for (let depth = 0; depth < names.length; depth += 1) {
      const ref = names.slice(0, depth + 1).join("/");
      let position;
      try {
        ({ position } = await ask("api/locate", { path: ref, folder: node.ref, folders: true, order: "name" }));
      } catch { break; }
      if (path !== current().path || position === null) break;
      line += node.line(position) + (depth ? 1 : 0);
      if (depth < names.length - 1 && !node.open.has(position)) {
        node.open.set(position, new Node(this, ref));
        await node.open.get(position).ready;
      }
      if (depth < names.length - 1) node = node.open.get(position);
    }
    this.update();
    if (names.length) this.scroller.reveal(line);
  }
}
