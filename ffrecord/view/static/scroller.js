// A list or grid of any length, of which only the visible cells exist.
//
// Browsers limit the height of an element to some 17 million pixels. A longer list has a shorter
// track: its scroll position and the list's differ by `shift`. Small steps move the list by as much
// as the track; a jump with the scroll bar moves to the same fraction of the list.

const longest = 8_000_000; // pixels of a track
const spare = 2; // rows above and below the visible ones

export class Scroller {
  // `render(index)` returns a cell; `shown(first, last)` hears of the visible cells.
  constructor(box, { render, shown = () => {}, height, width = 0, gap = 0, label = "" }) {
    Object.assign(this, { box, render, shown, height, width, gap });
    this.count = 0;
    this.columns = 1;
    this.shift = 0;
    this.last = 0;
    this.cells = new Map();
    this.track = document.createElement("div");
    this.track.className = "track";
    this.track.setAttribute("role", width ? "grid" : "list");
    if (label) this.track.setAttribute("aria-label", label);
    box.replaceChildren(this.track);
    box.classList.add("scroller");
    this.onScroll = () => this.scrolled();
    box.addEventListener("scroll", this.onScroll, { passive: true });
    this.watch = new ResizeObserver(() => this.measure());
    this.watch.observe(box);
  }

  close() {
    this.watch.disconnect();
    this.box.removeEventListener("scroll", this.onScroll);
    this.track.remove();
  }

  setCount(count) {
    this.count = count;
    this.measure();
  }

  get rows() { return Math.ceil(this.count / this.columns); }
  get whole() { return this.rows * this.height + this.gap; }
  get view() { return this.box.clientHeight; }
  get top() { return this.box.scrollTop + this.shift; }

  measure() {
    const before = this.columns;
    const center = Math.floor((this.top + this.view / 2) / this.height) * before + Math.floor(before / 2);
    const room = this.box.clientWidth - this.gap;
    this.columns = this.width ? Math.max(1, Math.floor(room / (this.width + this.gap))) : 1;
    this.cellWidth = Math.floor(room / this.columns) - this.gap;
    this.track.style.height = `${Math.min(this.whole, longest)}px`;
    // A preview that opens leaves room for fewer columns. The cells in the middle stay there.
    const moved = before && before !== this.columns && this.top > 0;
    this.scrollTo(moved ? Math.floor(center / this.columns) * this.height - (this.view - this.height) / 2 : this.top);
    this.refresh();
  }

  // Draw all visible cells again.
  refresh() {
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
    this.draw();
  }

  // Draw one cell again, if it is visible.
  redraw(index) {
    const cell = this.cells.get(index);
    if (!cell) return;
    const next = this.render(index);
    this.place(next, index);
    cell.replaceWith(next);
    this.cells.set(index, next);
  }

  scrolled() {
    const at = this.box.scrollTop;
    if (this.whole > longest) {
      const far = Math.abs(at - this.last) > this.view;
      if (far && !this.moving) this.shift = this.fraction(at);
      clearTimeout(this.settling);
      this.settling = setTimeout(() => this.scrollTo(this.top), 150);
    }
    this.moving = false;
    this.last = at;
    if (!this.waiting) {
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.draw(); });
    }
  }

  // The shift that belongs to a place of the track.
  fraction(at) {
    const room = longest - this.view;
    return Math.round((at / room) * (this.whole - this.view)) - at;
  }

  scrollTo(top) {
    const limit = Math.max(0, this.whole - this.view);
    const wanted = Math.max(0, Math.min(top, limit));
    let at = wanted;
    if (this.whole > longest) at = Math.round((wanted / limit) * (longest - this.view));
    this.shift = wanted - at;
    if (Math.abs(this.box.scrollTop - at) >= 1) {
      this.moving = true;
      this.box.scrollTop = at;
    }
    this.last = at;
    this.draw();
  }

  // Scroll as little as needed to show a cell.
  reveal(index, { middle = false } = {}) {
    const top = Math.floor(index / this.columns) * this.height;
    if (top >= this.top && top + this.height <= this.top + this.view && !middle) return;
    if (middle) this.scrollTo(top - (this.view - this.height) / 2);
    else if (top < this.top) this.scrollTo(top - this.gap);
    else this.scrollTo(top + this.height + this.gap - this.view);
  }

  draw() {
    if (!this.view) return;
    const first = Math.max(0, Math.floor(this.top / this.height) - spare) * this.columns;
    const bottom = Math.ceil((this.top + this.view) / this.height) + spare;
    const last = Math.min(this.count, bottom * this.columns);
    for (const [index, cell] of this.cells) {
      if (index < first || index >= last) {
        cell.remove();
        this.cells.delete(index);
      } else if (this.drawnShift !== this.shift) {
        this.place(cell, index);
      }
    }
    this.drawnShift = this.shift;
    const added = document.createDocumentFragment();
    for (let index = first; index < last; index += 1) {
      if (this.cells.has(index)) continue;
      const cell = this.render(index);
      this.place(cell, index);
      this.cells.set(index, cell);
      added.append(cell);
    }
    this.track.append(added);
    this.shown(first, last);
  }

  place(cell, index) {
    const row = Math.floor(index / this.columns);
    const x = this.gap + (index % this.columns) * (this.cellWidth + this.gap);
    const y = this.gap + row * this.height - this.shift;
    cell.style.transform = `translate(${x}px, ${y}px)`;
    cell.style.height = `${this.height - this.gap}px`;
    if (this.width || !this.wide) cell.style.width = `${this.cellWidth}px`;
  }
}
