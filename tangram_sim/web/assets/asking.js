// One run at a time per page: a button that starts it, one that cancels it, a bar between.

import { run } from "./ask.js";
import { failure, h } from "./dom.js";

/** `request()` makes what is asked, `show(answer, request)` the elements of what came back; `soFar(front)` hears
 * of what is known before. */
export function asking(words, { request, show, into, soFar = () => {} }) {
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
      const asked = request();
      const answer = await run(asked, { told, signal: stop.signal });
      said.textContent = answer.code ? "" : "done";
      if (answer.code) into.replaceChildren(failure(answer.error));
      else await show(answer, asked);
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
  return { element: h("div", { class: "act" }, start, cancel, bar, clock, said), ask };
}
