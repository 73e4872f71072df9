// Requests to the server. All URLs are relative, so they begin with the token.

export class Failure extends Error {
  constructor(message, kind, status) {
    super(message);
    this.kind = kind;
    this.status = status;
  }
}

export function url(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === undefined || value === null || value === false) continue;
    for (const each of Array.isArray(value) ? value : [value]) {
      query.append(name, each === true ? "1" : each);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

export async function request(path, parameters, options = {}) {
  let answer;
  try {
    answer = await fetch(url(path, parameters), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The server does not answer. Is `ffrecord view` still running?", "lost", 0);
  }
  if (!answer.ok) {
    const said = await answer.json().catch(() => ({}));
    throw new Failure(said.error || answer.statusText, said.kind || "", answer.status);
  }
  return answer;
}

export async function ask(path, parameters, options) {
  return (await request(path, parameters, options)).json();
}

export const isAbort = (error) => error.name === "AbortError";
