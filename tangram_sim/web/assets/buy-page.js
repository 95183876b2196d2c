// What to buy: candidates side by side, or the front of a whole catalogue; a click shows the plan.

import { asking } from "./asking.js";
import { draw, short } from "./charts.js";
import { command, count, h, notes, percent, section, table } from "./dom.js";
import { choice, drop, figure, named, options, toggle } from "./fields.js";
import { showPlan } from "./plan-view.js";

const money = (usd) => (usd === null || usd === undefined ? "-" : `$${short(usd)}`);
const days = (found) => (found === null || found === undefined ? "-" : `${short(found)} days`);

export function buyPage(offered, setup, state) {
  const content = h("div", { id: "content", tabindex: -1 });
  const rows = h("div"), wanted = [];
  const add = (name, many) => {
    const node = named("Node type", offered.nodes.map((one) => [one.name, `${one.gpus} x ${one.gpu}`]), name, { name: "offer" });
    const number = figure("Nodes", many, { min: 1, step: 1, name: "many" });
    const entry = { name: () => node.value(), many: () => Number(number.value()) };
    const element = h("div", { class: "group" }, number.element, node.element, h("button", { type: "button",
      "aria-label": "remove this offer", onclick: () => {
        wanted.splice(wanted.indexOf(entry), 1);
        element.remove();
      } }, "\u00d7"));
    wanted.push(entry);
    rows.append(element);
  };
  add("DGX-H100", 2);
  add("DGX-A100-80GB", 4);
  let prices = null;
  const dropped = drop("Prices of mine (YAML): ", ".yaml,.yml", (_, text) => {
    prices = text;
  });
  const which = choice("Question", [["what-if", "compare these candidates"], ["purchase", "search all mixes up to these counts"]],
    "what-if", { name: "question" });
  const fields = {
    tokens: figure("Tokens to train on", 1e12, { min: 1, name: "tokens" }),
    acquire: choice("Acquire", ["auto", "buy", "rent", "spot"], "auto"),
    fleet: choice("The fleet I have is", ["auto", "owned", "rented"], "auto"),
    effort: choice("Effort", ["quick", "normal", "exhaustive"], "quick", { name: "buy-effort" }),
  };
  const limits = {
    budget: figure("Most capital, USD", "", { min: 0 }),
    "budget-per-hour": figure("Most cost, USD an hour", "", { min: 0 }),
    "power-kw": figure("Most power, kW", "", { min: 0 }),
    "max-nodes": figure("Most nodes", "", { min: 1, step: 1 }),
  };
  const flips = toggle("say what would flip it (takes longer)", false);
  const detail = h("div");
  const search = asking("Compare", {
    into: content,
    request: () => {
      const verb = which.value();
      const given = options({ ...fields, ...(verb === "purchase" ? limits : {}), sensitivity: flips },
        { acquire: "auto", fleet: "auto", effort: "normal" });
      const request = setup.request(verb, { ...given, output: verb === "purchase" ? "front" : "plans" });
      if (prices !== null) {
        request.files["prices.yaml"] = prices;
        request.options.prices = "prices.yaml";
      }
      if (verb === "what-if") request.options.add = wanted.map((one) => `${one.name()}:${one.many()}`);
      else {
        request.options.catalogue = "catalogue.yaml";
        request.files["catalogue.yaml"] = JSON.stringify(
          { offers: wanted.map((one) => ({ node: one.name(), most: one.many() })) }, null, 1);
      }
      return request;
    },
    show: (answer, asked) => show(answer, asked),
    soFar: (front) => {
      const chart = h("div");
      content.replaceChildren(h("h1", {}, "The front so far"), chart, table([["bought"], "cost", "tokens a second"],
        front.map(([name, cost, rate]) => ({ cells: [name, money(cost), count(rate)] }))));
      draw(chart, { kind: "points", line: true, x: { title: "cost of what is bought, USD an hour" },
        y: { title: "tokens a second" }, points: front.map(([name, x, y]) => ({ name, x, y })) });
    },
  });
  const show = (answer, asked) => {
    const found = answer.document, verb = asked.verb;
    detail.replaceChildren();
    const points = verb === "what-if" ? found.candidates.map((row) => ({ row, name: row.name }))
      : found.front.flatMap((point) => point.rows.map((row) => ({ row, name: row.name, cost: point.cost })));
    // The plan of a row stands in a file named after it, as the verb names it.
    const file = (name) => {
      const kept = name.replace(/[^\p{L}\p{N}.-]/gu, "_").replace(/_{2,}/g, "_").replace(/^_+|_+$/g, "");
      return Object.entries(answer.files).find(([path]) => path.endsWith(`plans/${kept}.json`));
    };
    const open = async (point) => {
      const [path, text] = file(point.name) || [];
      if (!text) return;
      state.plan = { document: JSON.parse(text), text, command: `tangram explain ${path}`, asked: { files: { [path]: text } } };
      detail.replaceChildren(h("p", { class: "note" }, `The plan of ${point.name}:`));
      const inside = h("div");
      detail.append(inside);
      detail.scrollIntoView({ block: "start" });
      await showPlan(inside, offered, state.plan);
    };
    const planned = points.filter(({ row }) => row.feasible);
    // A front stands over the cost of what is bought, which is known; candidates over that of the whole fleet.
    const costOf = verb === "purchase" ? (point) => point.cost : ({ row }) => row.usd_per_hour;
    const billed = planned.filter((point) => costOf(point) !== null && costOf(point) !== undefined);
    const chart = h("div"), drawn = billed.length > 1 ? billed : planned;
    const figures = (row) => [days(row.days_to_train), money(row.usd_to_train),
      row.power_w ? `${(row.power_w / 1000).toFixed(1)} kW` : "-", money(row.outlay_usd), money(row.usd_per_hour),
      `${count(row.tokens_per_s)} (${short(row.tokens_per_s_low)} to ${short(row.tokens_per_s_high)})`, percent(row.mfu)];
    content.replaceChildren(
      h("h1", {}, verb === "what-if" ? "Candidates" : `The front of ${count(found.mixes)} mixes`),
      h("p", { class: "lead" }, lead(planned)),
      section("Throughput against cost", h("p", { class: "note" }, "A click on a point or a row shows its plan."), chart),
      section("In figures", table([["candidate"], "time", "total", "power", "capital", "an hour", "tokens a second", "MFU"],
        points.map((point) => ({ pick: point.row.feasible ? () => open(point) : null,
          cells: point.row.feasible ? [point.name, ...figures(point.row)]
            : [point.name, point.row.reason, "", "", "", "", "", ""] })))),
      ...hangs(found.sensitivity), detail, command(answer.command, Object.keys(asked.files)),
      section("Notes", ...notes([...found.assumptions, ...found.notes])),
      found.to_complete ? section("For whole costs, complete this and drop it as prices", h("pre", {}, found.to_complete)) : "");
    const costs = drawn === billed && billed.length > 1;
    draw(chart, costs ? { kind: "points", line: verb === "purchase", x: { title: verb === "purchase" ? "USD an hour of what is bought" : "USD per hour of training" },
      y: { title: "tokens a second" }, pick: (at) => open(drawn[at]),
      points: drawn.map(({ row, name, cost }) => ({ name, x: costOf({ row, cost }), y: row.tokens_per_s, low: row.tokens_per_s_low,
        high: row.tokens_per_s_high, detail: days(row.days_to_train) })) }
      : { kind: "bars", unit: "tokens a second", bars: drawn.map(({ row, name }) => ({ name,
        parts: [{ name: "tokens a second", value: row.tokens_per_s }] })) });
  };
  const form = h("form", { onsubmit: search.ask },
    h("fieldset", {}, h("legend", {}, "What to buy"), which.element, rows,
      h("button", { type: "button", onclick: () => add("DGX-B200", 1) }, "Add an offer"),
      h("div", { class: "fields" }, Object.values(fields).map((one) => one.element), flips.element), dropped.element),
    h("details", {}, h("summary", {}, "Limits of a search of mixes"), h("div", { class: "fields" },
      Object.values(limits).map((one) => one.element))),
    search.element);
  form.takeSetup = () => form.prepend(setup.element);
  content.append(h("h1", {}, "What to buy"), h("p", {}, "The cluster is the fleet you have. Add node types from the hardware "
    + "tables; prices of your own make the costs whole."));
  return [form, content];
}

function lead(planned) {
  if (!planned.length) return "No candidate has a plan.";
  const fastest = planned.map(({ row }) => row).reduce((a, b) => (a.tokens_per_s > b.tokens_per_s ? a : b));
  const priced = planned.map(({ row }) => row).filter((row) => row.usd_to_train);
  const cheapest = priced.length ? priced.reduce((a, b) => (a.usd_to_train < b.usd_to_train ? a : b)) : null;
  return `Fastest: ${fastest.name}, ${days(fastest.days_to_train)}.`
    + (cheapest ? ` Least money in all: ${cheapest.name}, ${money(cheapest.usd_to_train)}.` : "");
}

function hangs(found) {
  if (!found) return [];
  const chart = h("div"), rows = found.tornado.filter((one) => Math.abs(one.at_high - one.at_low) > 0.005 * found.value).slice(0, 12);
  const unit = found.score === "usd_per_million_tokens" ? "USD per million tokens" : "tokens a second";
  requestAnimationFrame(() => draw(chart, { kind: "swings", base: found.value, unit,
    rows: rows.map((one) => ({ name: one.input, low: short(one.low), high: short(one.high), at_low: one.at_low, at_high: one.at_high })) }));
  return [section("What it hangs on", h("p", { class: "note" }, `${unit} of ${found.best}`), chart,
    ...found.flips.slice(0, 3).map((one) => h("p", {}, `At ${one.input} of ${short(one.threshold)} (here ${short(one.base)}), `
      + `${found.second} would be ahead of ${found.best}.`)))];
}
