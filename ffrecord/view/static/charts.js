// Bars and lines, as SVG or as rows of elements.

import { el, number, short, svg } from "./dom.js";

// Upright bars of {count, title, chosen, onclick}.
export function bars(items, { width = 240, height = 60, label = "" } = {}) {
  const most = Math.max(1, ...items.map((item) => item.count));
  const step = width / Math.max(1, items.length);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "bars", preserveAspectRatio: "none", role: "img", "aria-label": label },
    items.map((item, at) => {
      const tall = item.count ? Math.max(1.5, (item.count / most) * (height - 2)) : 0;
      const group = svg("g", { class: `bar${item.chosen ? " chosen" : ""}${item.onclick ? " active" : ""}` },
        svg("rect", { x: at * step, y: 0, width: step, height, class: "back" }),
        svg("rect", { x: at * step + step * 0.06, y: height - tall, width: step * 0.88, height: tall, class: "front" }),
        svg("title", {}, item.title));
      if (item.onclick) group.addEventListener("click", item.onclick);
      return group;
    }));
}

// Lines of a name, a bar and a number: {name, count, detail, chosen, onclick}.
export function lines(items) {
  const most = Math.max(1, ...items.map((item) => item.count));
  return el("div", { class: "lines" }, items.map((item) => {
    const bar = el("span", { class: "front" });
    bar.style.width = `${Math.max(0.4, (item.count / most) * 100)}%`;
    return el(item.onclick ? "button" : "div", {
      class: `line${item.chosen ? " chosen" : ""}`, type: item.onclick && "button", title: item.title || item.name, onclick: item.onclick,
    }, el("span", { class: "name" }, item.name), el("span", { class: "back" }, bar), el("span", { class: "number" }, item.detail ?? number(item.count)));
  }));
}

// A line through numbers; null is a gap.
export function plot(values, { width = 640, height = 200 } = {}) {
  const there = values.filter((value) => value !== null);
  if (!there.length) return el("div", { class: "muted" }, "no finite numbers");
  const low = Math.min(...there);
  const span = Math.max(...there) - low || 1;
  const x = (at) => (values.length > 1 ? (at / (values.length - 1)) * width : width / 2);
  const y = (value) => height - 4 - ((value - low) / span) * (height - 8);
  let path = "";
  let pen = "M";
  values.forEach((value, at) => {
    if (value === null) { pen = "M"; return; }
    path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return el("figure", { class: "plot" },
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img" }, svg("path", { d: path, "vector-effect": "non-scaling-stroke" })),
    el("figcaption", {}, `${short(low)} … ${short(low + span)}`));
}
