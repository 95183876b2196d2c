// Making elements: `h("p", {class: "note"}, "words")`, and the pieces all pages use.

export function h(name, given = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== ""));
  return made;
}

export const section = (title, ...parts) => h("section", {}, h("h2", {}, title), ...parts);

/** A table; `heads` are texts, or [text] for columns of words. Rows: {cells, chosen, pick}. */
export function table(heads, rows) {
  const words = heads.map((head) => Array.isArray(head));
  // On a phone every row is a card, whose figures stand behind the names of their columns.
  const cell = (kind, at, ...what) => h(kind, { class: words[at] ? "word" : null,
    "data-head": kind === "td" ? [heads[at]].flat()[0] : null }, ...what);
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, heads.map((head, at) => cell("th", at, [head].flat()[0])))),
    h("tbody", {}, rows.map((row) => h("tr", {
      class: row.chosen ? "chosen" : null, tabindex: row.pick ? 0 : null, onclick: row.pick || (() => {}),
      onkeydown: (event) => {
        if (row.pick && event.key === "Enter") row.pick();
      },
    }, row.cells.map((one, at) => cell("td", at, one)))))));
}

export const facts = (pairs) => h("dl", { class: "facts" },
  pairs.map(([name, value, small]) => h("div", {}, h("dt", {}, name),
    h("dd", {}, value, small ? h("small", {}, ` ${small}`) : ""))));

/** Notes name arguments as Python writes them; here they are options, as in a terminal. */
const asOptions = (words) => words.replace(/`([a-z][a-z0-9_]*)=(True)?`/g, (_, name) => `--${name.replaceAll("_", "-")}`);

/** A section of notes, where there are any. */
export const noted = (texts) => (texts.length ? section("Notes", ...notes(texts)) : "");

export const inWords = (text) => [asOptions(text.charAt(0).toUpperCase() + text.slice(1)), "."];

export const notes = (texts) => texts.map((one) => h("p", { class: "note" }, asOptions(one)));

export const failure = (words) => h("p", { class: "error", role: "alert" }, words);

/** The command line that does the same, with a button that copies it. */
export function command(words, files = []) {
  const said = h("span", { class: "note", role: "status" });
  const copy = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(words);
    said.textContent = " copied";
  } }, "copy");
  const also = files.length ? h("p", { class: "note" }, `with ${files.join(", ")} in the folder you run it in`) : "";
  return section("The same in a terminal", h("code", { class: "command" }, words), also,
    h("p", { class: "act" }, copy, said));
}

export const percent = (value, digits = 1) => `${(value * 100).toFixed(digits)} %`;
export const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;
export const count = (value) => Math.round(value).toLocaleString("en-US");
