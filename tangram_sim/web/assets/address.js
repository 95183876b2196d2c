// Addresses of answers: behind the name of a page stands the question, so that a link asks the same.

const answered = new Map();  // page -> the address of the answer that it shows

/** `#plan?ask=plan&of=llama3-8b&of=dgx-h100&effort=quick&kept=KEY`; `name:` stands before what is no text. */
export function addressOf(page, request, key = "") {
  const said = new URLSearchParams({ ask: request.verb });
  for (const one of request.arguments) said.append("of", one);
  for (const [name, value] of Object.entries(request.options)) {
    if (typeof value === "string") said.append(name, value);
    else said.append(`${name}:`, JSON.stringify(value));
  }
  if (Object.keys(request.files).length) said.append("files", Object.keys(request.files).length);
  if (key) said.append("kept", key);
  return `#${page}?${said}`;
}

/** The question behind `?` of an address, without its files: {request, key, files: how many it had}. */
export function questionOf(query) {
  const request = { verb: "", arguments: [], options: {}, files: {} };
  let key = "", files = 0;
  for (const [name, value] of new URLSearchParams(query)) {
    if (name === "ask") request.verb = value;
    else if (name === "of") request.arguments.push(value);
    else if (name === "kept") key = value;
    else if (name === "files") files = Number(value);
    else if (name.endsWith(":")) request.options[name.slice(0, -1)] = JSON.parse(value);
    else request.options[name] = value;
  }
  return { request, key, files };
}

/** [page, query] of the address that is open. */
export const here = () => {
  const [page, ...query] = location.hash.slice(1).split("?");
  return [page, query.join("?")];
};

export const queryOf = (page) => (answered.get(page) || `#${page}?`).slice(page.length + 2);

/** A page shows the answer of this address from now on; `turn`: as a new entry of the browser's history. */
export function atAddress(page, address, turn = true) {
  answered.set(page, address);
  for (const link of document.querySelectorAll(`nav [data-page=${page}]`)) link.setAttribute("href", address);
  if (here()[0] !== page || location.hash === address) return;
  history[turn ? "pushState" : "replaceState"](null, "", address);
}

export const withoutAnswer = (page) => atAddress(page, `#${page}`, false);
