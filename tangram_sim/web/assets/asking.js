// One run at a time per page: a button that starts it, one that cancels it, a bar between.

import { addressOf, atAddress, questionOf } from "./address.js";
import { keptAnswer, run } from "./ask.js";
import { failure, h } from "./dom.js";
import { pageInMaking } from "./kept.js";

const askers = new Map();  // verb -> what shows an answer of its again

export const showsAgain = (verb, reopened) => askers.set(verb, reopened);

/** Show the answer of an address again: the one that is kept, or the question, ready to be asked. */
export async function reopen(query, into) {
  const { request, key, files } = questionOf(query), asker = askers.get(request.verb);
  if (!asker) return into.replaceChildren(failure(`${request.verb || "this address"}: no question of this page`));
  return asker(request, key, files);
}

/** Mark the fields that an error names, as `--seq` or as what is unknown, until they are changed; the first has the focus. */
function mark(form, error) {
  const names = [...error.matchAll(/--([a-z][a-z0-9-]*)|unknown (model|cluster)/g)].map(([, option, noun]) => option || noun);
  const marked = [...form.elements].filter((field) => names.includes(field.name.replace(/^(service|replica|play|rl|buy|slow|replay)-/, "")));
  for (const field of marked) {
    field.setAttribute("aria-invalid", "true");
    field.addEventListener("input", () => field.removeAttribute("aria-invalid"), { once: true });
    for (let at = field.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  }
  marked[0]?.focus();
}

/** `request()` makes what is asked of one of `verbs`, `show(answer, request)` the elements of what came back;
 * `fill(request)` puts a question into the fields; `soFar(front)` hears of what is known before. */
export function asking(words, { verbs, request, show, into, fill, soFar = () => {} }) {
  const page = pageInMaking();
  let stop = null;
  const bar = h("progress", { max: 1, hidden: true, "aria-label": "how far the search is" });
  const said = h("span", { class: "note", role: "status" });
  const start = h("button", { class: "main", type: "submit" }, words);
  const clock = h("span", { class: "note", role: "timer" });
  const cancel = h("button", { type: "button", hidden: true, onclick: () => stop.abort() }, "Cancel");
  const told = ({ done, total, what, front }) => {
    if (total) {
      bar.max = total;
      bar.value = done;
    } else bar.removeAttribute("value");
    said.textContent = what;
    if (front.length) soFar(front);
  };
  const ask = async (event) => {
    event?.preventDefault();
    stop = new AbortController();
    for (const one of [bar, cancel]) one.hidden = false;
    bar.removeAttribute("value");
    start.disabled = true;
    const began = performance.now();
    const tick = setInterval(() => { clock.textContent = `${Math.round((performance.now() - began) / 1000)} s`; }, 1000);
    said.textContent = "asking";
    try {
      const asked = { ...request(), keep: true };
      const answer = await run(asked, { told, signal: stop.signal });
      said.textContent = answer.code ? "" : "done";
      if (answer.code) {
        into.replaceChildren(failure(answer.error));
        mark(start.form, answer.error);
      } else {
        atAddress(page, addressOf(page, asked, answer.key));
        await show(answer, asked);
      }
    } catch (error) {
      said.textContent = error.name === "AbortError" ? "cancelled" : "";
      if (error.name !== "AbortError") into.replaceChildren(failure(error.message));
    } finally {
      clearInterval(tick);
      clock.textContent = "";
      for (const one of [bar, cancel]) one.hidden = true;
      start.disabled = false;
    }
  };
  const reopened = async (asked, key, files) => {
    atAddress(page, location.hash, false);
    into.replaceChildren(h("p", { class: "note" }, "Looking for the answer"));
    let kept = null, why = "This answer is not kept on this machine.";
    try {
      if (key) kept = await keptAnswer(key);
    } catch (error) {
      why = `${why} (${error.message})`;
    }
    const known = kept ? kept.request : asked;
    if (kept || !files) fill?.(known);
    if (kept) {
      await show(kept.answer, known);
      if (!fill) into.prepend(h("p", { class: "note" }, "The form may ask something else; this answer is of the command below."));
    } else into.replaceChildren(h("h1", {}, why), h("p", {}, files ? "Its files are needed again: drop them into the form."
      : fill ? `The form asks its question: press ${words} to answer it again.` : "Fill in the form to ask its question again."));
  };
  for (const verb of verbs) showsAgain(verb, reopened);
  return { element: h("div", { class: "act" }, start, cancel, bar, clock, said), ask };
}
