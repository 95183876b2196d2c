// The page: tabs over what the verbs answer. Everything shown comes from a verb's own document.

import { choices } from "./ask.js";
import { buyPage } from "./buy-page.js";
import { failure, h } from "./dom.js";
import { estimatePage } from "./estimate-page.js";
import { goodputPage } from "./goodput-page.js";
import { forget, within } from "./kept.js";
import { planPage } from "./plan-page.js";
import { rlPage } from "./rl-page.js";
import { servePage } from "./serve-page.js";
import { makeSetup } from "./setup.js";
import { slowPage } from "./slow-page.js";

const PAGES = [["plan", "Plan", planPage], ["estimate", "Estimate", estimatePage], ["buy", "Buy", buyPage],
  ["serve", "Serve", servePage], ["rl", "Post-train", rlPage], ["slow", "Slow ranks", slowPage], ["goodput", "Months", goodputPage]];

async function start() {
  const page = document.getElementById("page"), tabs = document.getElementById("tabs");
  let offered;
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
    const [key, title, make] = PAGES.find(([one]) => `#${one}` === location.hash) || PAGES[0];
    // The setup's fields are one set: each page that is shown takes them along.
    within(key);
    const before = made.get(key) || { parts: make(offered, setup, state) };
    made.set(key, before);
    before.parts[0].takeSetup?.();
    page.replaceChildren(...before.parts);
    document.title = `${title} - tangram`;
    for (const link of tabs.children) {
      if (link.hash === `#${key}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    page.dataset.ready = key;
    performance.mark("ready");
  };
  tabs.replaceChildren(...PAGES.map(([key, title]) => h("a", { href: `#${key}` }, title)));
  document.getElementById("over").addEventListener("click", () => {
    forget();
    location.reload();
  });
  window.addEventListener("hashchange", show);
  // A file let go beside its field would otherwise be opened in place of the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, (event) => event.preventDefault());
  show();
}

start();
