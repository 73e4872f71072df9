// Elements and the wording of numbers. Text always becomes text nodes, never markup.

export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  append(made, children);
  return made;
}

export function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) parent.append(child);
  }
}

export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

export function svg(tag, properties = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  append(made, children);
  return made;
}

const shapes = {
  folder: "M3 6.5A1.5 1.5 0 0 1 4.500 5h4l2 2.500h9A1.500 1.500 0 0 1 21 9v8.500a1.500 1.500 0 0 1-1.500 1.500h-15A1.500 1.500 0 0 1 3 17.500z",
  file: "M6 3.500h8l4.500 4.500v12.500H6zM14 3.500V8h4.500",
  link: "M10 14a4 4 0 0 0 6 .400l3-3a4 4 0 0 0-5.600-5.600l-1.500 1.500M14 10a4 4 0 0 0-6-.400l-3 3a4 4 0 0 0 5.600 5.600l1.500-1.500",
  damaged: "M12 3.500 21.500 20h-19zM12 10v4.500M12 17v.500",
  close: "M6 6l12 12M18 6L6 18",
  grow: "M4 10V4h6M20 14v6h-6M4 4l6 6M20 20l-6-6",
  save: "M12 4v11M7 10.500l5 5 5-5M5 20h14",
  grid: "M4 4h7v7H4zM13 4h7v7h-7zM4 13h7v7H4zM13 13h7v7h-7z",
  table: "M4 5h16v14H4zM4 10h16M4 14.500h16M10 5v14",
  chart: "M5 20V11M12 20V4M19 20v-6",
  dice: "M4.500 4.500h15v15h-15zM9 9v.010M15 15v.010M15 9v.010M9 15v.010",
  menu: "M4 7h16M4 12h16M4 17h16",
  right: "M9 6l6 6-6 6",
  left: "M15 6l-6 6 6 6",
  theme: "M12 4a8 8 0 1 0 0 16z M12 4a8 8 0 0 1 0 16",
};

export function icon(name) {
  const path = svg("path", { d: shapes[name] });
  return svg("svg", { viewBox: "0 0 24 24", class: `icon icon-${name}`, "aria-hidden": "true" }, path);
}

export function button(name, title, onclick, properties = {}) {
  return el("button", { type: "button", title, "aria-label": title, onclick, ...properties }, icon(name));
}

export function human(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (size >= 1000 && at < units.length - 1) { size /= 1000; at += 1; }
  return at ? `${size.toFixed(1)} ${units[at]}` : `${size} B`;
}

const grouped = new Intl.NumberFormat("en");
export const number = (value) => grouped.format(value);
export const counted = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;
export const entries = (count) => `${number(count)} ${count === 1 ? "entry" : "entries"}`;

export function short(value) {
  if (!Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return number(value);
  return String(Number(value.toPrecision(4)));
}

export function time(milliseconds) {
  const date = new Date(milliseconds);
  if (Number.isNaN(date.getTime())) return "";
  const two = (part) => String(part).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

export function notice(kind, ...children) {
  return el("div", { class: `notice ${kind}`, role: kind === "damaged" ? "alert" : "status" },
    kind === "damaged" && icon("damaged"), el("div", {}, ...children));
}

// Do the work when there was no call for a while. `cancel` drops a call that waits.
export function debounced(wait, work) {
  let timer;
  const call = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...values), wait);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}
