// The page: tabs over what the verbs answer. Everything shown comes from a verb's own document.

import { here, queryOf, withoutAnswer } from "./address.js";
import { choices } from "./ask.js";
import { reopen } from "./asking.js";
import { buyPage } from "./buy-page.js";
import { failure, h } from "./dom.js";
import { estimatePage } from "./estimate-page.js";
import { goodputPage } from "./goodput-page.js";
import { historyPage } from "./history-page.js";
import { forget, within } from "./kept.js";
import { planPage } from "./plan-page.js";
import { rlPage } from "./rl-page.js";
import { servePage } from "./serve-page.js";
import { makeSetup } from "./setup.js";
import { slowPage } from "./slow-page.js";

// Name in addresses, title, maker, and the verbs whose answers it shows.
const PAGES = [["plan", "Plan", planPage, ["plan"]], ["estimate", "Estimate", estimatePage, ["estimate"]],
  ["buy", "Buy", buyPage, ["what-if", "purchase"]], ["serve", "Serve", servePage, ["serve plan", "serve estimate", "serve simulate"]],
  ["rl", "Post-train", rlPage, ["rl plan"]], ["slow", "Slow ranks", slowPage, ["stragglers", "simulate"]],
  ["goodput", "Months", goodputPage, ["goodput", "train replay"]],
  ["history", "History", (offered) => historyPage(offered, pageOf), []]];

const pageOf = (verb) => PAGES.find(([, , , verbs]) => verbs.includes(verb))[0];

async function start() {
  const page = document.getElementById("page"), tabs = document.getElementById("tabs");
  let offered;
  if (!location.hash) history.replaceState(null, "", "#plan");
  try {
    offered = await choices();
  } catch (error) {
    page.replaceChildren(failure(error.message));
    return;
  }
  within("setup");
  const setup = makeSetup(offered), state = { plan: null };
  const made = new Map();
  const show = () => {
    const [place, query] = here(), [key, title, make] = PAGES.find(([one]) => one === place) || PAGES[0];
    // The setup's fields are one set: each page that is shown takes them along.
    within(key);
    const before = made.get(key) || { parts: make(offered, setup, state) };
    const content = before.parts[1];
    before.first ||= [...content.childNodes];
    made.set(key, before);
    before.parts[0].whenShown?.(query);
    page.replaceChildren(...before.parts);
    document.title = `${title} - tangram`;
    for (const link of tabs.children) {
      if (link.dataset.page === key) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    if (key !== "history" && query !== queryOf(key)) {
      if (query) reopen(query, content);
      else {
        content.replaceChildren(...before.first);
        withoutAnswer(key);
      }
    }
    page.dataset.ready = key;
    performance.mark("ready");
  };
  tabs.replaceChildren(...PAGES.map(([key, title]) => h("a", { href: `#${key}`, "data-page": key }, title)));
  document.getElementById("over").addEventListener("click", () => {
    forget();
    withoutAnswer(here()[0]);
    location.reload();
  });
  window.addEventListener("hashchange", show);
  // A file let go beside its field would otherwise be opened in place of the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
  show();
}

start();
