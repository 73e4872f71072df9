// Rows of a listing, loaded a page at a time when they become visible.

import { isAbort } from "./api.js";

const size = 100; // rows of a page
const kept = 40; // pages in memory
const settle = 40; // milliseconds: pages that are only scrolled past are not asked for

export class Rows {
  // `load(offset, limit, signal)` answers {total, rows}; `arrived(first, last)` and `failed(error)`
  // hear of the answers.
  constructor(load, { arrived, failed, total }) {
    Object.assign(this, { load, arrived, failed, onTotal: total });
    this.pages = new Map();
    this.loading = new Map();
    this.total = null;
  }

  get(index) {
    return this.pages.get(Math.floor(index / size))?.[index % size];
  }

  start() { this.fetch(0); }

  close() {
    clearTimeout(this.timer);
    for (const control of this.loading.values()) control.abort();
    this.closed = true;
  }

  // Ask for the rows that are not there yet.
  want(first, last) {
    let index = first;
    while (index < last && this.get(index)) index += 1;
    if (index >= last) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.fetchAll(first, last), settle);
  }

  fetchAll(first, last) {
    const from = Math.floor(first / size);
    const to = Math.floor(Math.max(first, last - 1) / size);
    for (const [page, control] of this.loading) {
      if (page && (page < from || page > to)) control.abort();
    }
    for (let page = from; page <= to; page += 1) {
      if (!this.pages.has(page) && !this.loading.has(page)) this.fetch(page);
    }
  }

  async fetch(page) {
    const control = new AbortController();
    this.loading.set(page, control);
    try {
      const answer = await this.load(page * size, size, control.signal);
      if (this.closed) return;
      this.pages.delete(page);
      this.pages.set(page, answer.rows);
      for (const old of this.pages.keys()) {
        if (this.pages.size <= kept) break;
        this.pages.delete(old);
      }
      if (this.total === null) {
        this.total = answer.total;
        this.onTotal(answer);
      }
      this.arrived(page * size, page * size + answer.rows.length);
    } catch (error) {
      if (!isAbort(error) && !this.closed) this.failed(error);
    } finally {
      if (this.loading.get(page) === control) this.loading.delete(page);
    }
  }
}
