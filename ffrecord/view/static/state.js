// The state of the page is in the URL behind "#", so links and the back button work:
// #/folder/inner?open=folder/inner/a.jpg&view=table&order=size. Paths stay percent-encoded, as the
// server sent them: a name need not be UTF-8.

const raw = new Set(["open"]);
const listeners = [];
let state = parse(location.hash);

function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const found = { path, filter: [] };
  for (const part of query.split("&")) {
    const [name, value = ""] = part.split(/=(.*)/s);
    if (!name) continue;
    let text = value;
    try { if (!raw.has(name)) text = decodeURIComponent(value); } catch { continue; }
    if (name === "filter") found.filter.push(text);
    else found[name] = text;
  }
  return found;
}

function written(state) {
  const parts = [];
  for (const [name, value] of Object.entries(state)) {
    if (name === "path" || value === undefined || value === null || value === "") continue;
    for (const each of Array.isArray(value) ? value : [value]) {
      parts.push(`${name}=${raw.has(name) ? each : encodeURIComponent(each)}`);
    }
  }
  return `#/${state.path || ""}${parts.length ? `?${parts.join("&")}` : ""}`;
}

export const current = () => state;

// Change some fields. The user can go back to the state before, unless `replace`.
export function go(changes, { replace = false } = {}) {
  const before = state;
  const next = { ...state, ...changes };
  const hash = written(next);
  if (hash === written(before)) return;
  state = parse(hash);
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  tell(before);
}

export const link = (changes) => written({ ...state, ...changes });

export function listen(work) { listeners.push(work); }

function tell(before) { for (const work of listeners) work(state, before); }

addEventListener("popstate", () => {
  const before = state;
  state = parse(location.hash);
  tell(before);
});
