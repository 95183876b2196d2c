// The answers that this machine keeps: a list, two of them side by side, all questions as a file.

import { addressOf } from "./address.js";
import { keptAnswer, keptAnswers, keptQuestions, forgetKept, save } from "./ask.js";
import { seconds, short } from "./charts.js";
import { failure, gib, h, percent, section, table } from "./dom.js";
import { pipelines } from "./plan-view.js";

const LEFT_OUT = ["schema_version", "digest", "hwdb_hash", "planning_s", "planning_cpu_s", "partial_plans"];

/** What a key of a document is called, and its value in its unit, which its name says. */
const wordsOf = (name) => name.replace("_per_s", "_a_second").replace(/_(s|bytes)(?=_|$)/, "").replaceAll("_", " ");

function valueOf(name, value) {
  if (value === undefined || value === null) return "-";
  if (typeof value !== "number") return Array.isArray(value) ? value.join(", ") : String(value);
  if (/usd|cost/.test(name)) return `$${short(value)}`;
  if (/_bytes/.test(name)) return gib(value);
  if (/share|fraction|mfu|^goodput$/.test(name)) return percent(value);
  return /_s(_low|_high)?$/.test(name) && !/per_s|tok_s/.test(name) ? seconds(value) : short(value);
}

export function historyPage(offered, pageOf) {
  const content = h("div", { id: "content", tabindex: -1 }), side = h("div", { class: "forms" });
  const tried = (act) => async () => {
    try {
      await act();
    } catch (error) {
      content.prepend(failure(error.message));
    }
  };
  let picked = [];
  const linkTo = (kept, key, words) => h("a", { href: addressOf(pageOf(kept.request.verb), kept.request, key) }, words);
  const list = tried(async () => {
    const found = await keptAnswers();
    picked = picked.filter((key) => found.entries.some((one) => one.key === key));
    const compare = h("button", { type: "button", class: "main", onclick: () => {
      location.hash = `#history?${picked.map((key) => `kept=${key}`).join("&")}`;
    } }, "Compare the two");
    const settle = () => { compare.disabled = picked.length !== 2; };
    settle();
    let sure = false;
    const all = h("button", { type: "button", onclick: tried(async () => {
      if (!sure) {
        sure = true;
        all.textContent = "Press again to delete all";
        return;
      }
      await forgetKept("");
      await list();
    }) }, "Delete all");
    const drop = (key, what) => h("button", { type: "button", "aria-label": `delete ${what}`, onclick: tried(async () => {
      await forgetKept(key);
      await list();
    }) }, "Delete");
    const box = (one) => h("input", { type: "checkbox", "aria-label": `compare ${one.command}`, checked: picked.includes(one.key),
      onchange: (event) => {
        picked = event.target.checked ? [...picked, one.key] : picked.filter((key) => key !== one.key);
        settle();
      } });
    const open = (one) => h("a", { href: `#history?open=${one.key}` }, one.command);
    side.replaceChildren(h("p", {}, found.why_off ? `No answers are kept: ${found.why_off}.`
      : "Answers are kept on this machine alone, until you delete them:"),
    found.why_off ? "" : h("code", { class: "command" }, found.folder),
    h("p", { class: "note" }, "tangram web --no-history keeps none."), h("p", { class: "act" }, compare,
      h("button", { type: "button", onclick: tried(async () => save("questions.yaml", await keptQuestions())) }, "All questions as a file"), all),
    h("p", { class: "note" }, "tangram run questions.yaml asks all of them again."));
    content.replaceChildren(h("h1", {}, "Kept answers"), found.entries.length ? table([["compare"], ["kept"], ["question"], ["answer"], ""],
      found.entries.map((one) => ({ cells: [box(one), new Date(one.kept_at).toLocaleString(), open(one),
        Object.entries(one.figures).map(([name, value]) => `${wordsOf(name)} ${valueOf(name, value)}`).join(", "), drop(one.key, one.command)] })))
      : h("p", {}, "None yet."), ...found.damaged.map((key) => h("p", { class: "error" },
      `${key}.json is damaged: it is not what was written, and is left out. `, drop(key, key))));
  });
  const compared = async (keys) => {
    const both = await Promise.all(keys.map(keptAnswer)), [a, b] = both.map((one) => one.answer.document);
    const asked = both.map((one) => one.answer.document.question || { verb: one.request.verb, ...one.request.options });
    const figures = [a, b].map((one) => Object.fromEntries(Object.entries(one).filter(([name, value]) => !LEFT_OUT.includes(name)
      && (value === null || typeof value !== "object"))));
    content.replaceChildren(h("h1", {}, "Two answers side by side"), ...both.map((one, at) => h("p", {}, `${"AB"[at]}: `,
      linkTo(one, keys[at], one.answer.command))), ...differing("Asked", asked), ...differing("Answered", figures),
    a.stages && b.stages && a.pipelines && b.pipelines ? section("Pipelines", h("div", { class: "pair" }, [a, b].map((one, at) => h("div", {}, h("h3", {}, "AB"[at]), ...pipelines(one))))) : "",
    h("p", {}, h("a", { href: "#history" }, "All kept answers")));
  };
  side.whenShown = async (query) => {
    const said = new URLSearchParams(query);
    await tried(async () => {
      if (said.get("open")) {
        const kept = await keptAnswer(said.get("open"));
        location.replace(addressOf(pageOf(kept.request.verb), kept.request, said.get("open")));
      } else if (said.getAll("kept").length === 2) await compared(said.getAll("kept"));
      else await list();
    })();
  };
  return [side, content];
}

/** A table of what differs between two mappings, marked, and what does not, folded away. */
function differing(title, [a, b]) {
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const same = (name) => JSON.stringify(a[name]) === JSON.stringify(b[name]);
  const change = (name) => (typeof a[name] === "number" && typeof b[name] === "number" && a[name] ? `${(b[name] / a[name]).toFixed(3)} x` : "\u2260");
  const rows = (some, marked) => table([["what"], "A", "B", marked ? "B over A" : ""], some.map((name) => ({ chosen: marked,
    cells: [wordsOf(name), valueOf(name, a[name]), valueOf(name, b[name]), marked ? change(name) : ""] })));
  const others = names.filter((name) => !same(name)), equal = names.filter(same);
  return [section(title, others.length ? rows(others, true) : h("p", {}, "Nothing differs."),
    equal.length ? h("details", {}, h("summary", {}, `The same in both: ${equal.length}`), rows(equal, false)) : "")];
}
