// What to buy: candidates side by side, or the front of a whole catalogue; a click shows the plan.

import { run, save } from "./ask.js";
import { asking } from "./asking.js";
import { draw, short } from "./charts.js";
import { command, count, failure, h, noted, percent, section, table } from "./dom.js";
import { choice, drop, fillIn, toggle } from "./fields.js";
import { makeEconomics, makeOffers, pricesOf, typedPrices } from "./offers.js";
import { showPlan } from "./plan-view.js";
import { questionForm } from "./question-form.js";
import { showServed } from "./served-offers.js";
import { SETUP } from "./setup.js";

const money = (usd) => (usd === null || usd === undefined ? "-" : `$${short(usd)}`);
const days = (found) => (found === null || found === undefined ? "-" : `${short(found)} days`);

export function buyPage(offered, setup, state) {
  const content = h("div", { id: "content", tabindex: -1 });
  const offers = makeOffers(offered), economics = makeEconomics();
  let prices = null, requests = null;
  const dropped = drop("Prices of mine (YAML): ", ".yaml,.yml", (_, text) => {
    prices = text;
  });
  const which = choice("Question", [["what-if", "compare these candidates"], ["purchase", "search all mixes up to these counts"],
    ["goal", "recommend one for a goal"]],
    "what-if", { name: "question" });
  const asked = offered.questions.purchase, known = new Set(offered.questions["what-if"].map((one) => one.name));
  const form = questionForm(asked, { values: { effort: "quick" }, without: [...SETUP, "catalogue", "prices"], prefix: "buy-" });
  const nothing = toggle("I own no GPUs", false);
  const goal = ["finish-within", "cloud", "spot"];
  const ofService = new Set(asked.filter((one) => ["Requests", "Fleets that serve"].includes(one.group)).map((one) => one.name));
  /** What is typed of the fields that a question has. */
  const typed = (verb, aimed, serves) => Object.fromEntries(Object.entries(form.options()).filter(([name]) => (verb === "purchase" || known.has(name))
    && (aimed || !goal.includes(name)) && !(serves && name === "sensitivity")));
  const traced = drop("or a trace of requests (CSV): ", ".csv", (_, text) => {
    requests = text;
  });
  const detail = h("div");
  const priced = () => {
    const typed = pricesOf(offers.entries(), economics.figures());
    if (typed && prices !== null) throw new Error("prices stand in the fields and in a file that was dropped; empty one of them");
    return typed || prices;
  };
  const request = (output) => {
    const aimed = which.value() === "goal", verb = aimed ? "purchase" : which.value(), offer = offers.entries();
    const serves = requests || form.field("serve").value() !== "";
    const given = typed(verb, aimed, serves);
    if (requests) given.serve = "requests.csv";
    if (!serves && Object.keys(given).some((name) => ofService.has(name))) throw new Error("what is served? Give a mix of requests, or drop a trace");
    if (serves) output ||= "served.json";
    const made = setup.request(verb, { ...given, output: output || (verb === "purchase" ? "front" : "plans") });
    if (nothing.value()) made.arguments[1] = "none";
    const file = priced();
    if (file) {
      made.files["prices.yaml"] = file;
      made.options.prices = "prices.yaml";
    }
    if (requests) made.files["requests.csv"] = requests;
    if (verb === "what-if") made.options.add = offer.map((one) => `${one.node}:${one.many}`);
    else if (!made.options.cloud && (!aimed || offer.length)) {
      made.options.catalogue = "catalogue.yaml";
      made.files["catalogue.yaml"] = JSON.stringify({ offers: offer.map((one) => ({ node: one.node, most: one.many })) }, null, 1);
    }
    return made;
  };
  const takeAlong = (asked) => {
    const said = h("span", { class: "note", role: "status" });
    const report = async (event) => {
      event.target.disabled = true;
      const again = { ...asked, options: { ...asked.options, output: "report.html" } };
      try {
        const found = await run(again, { told: ({ what }) => {
          said.textContent = ` writing the report: ${what}`;
        } });
        said.replaceChildren(found.code ? failure(found.error) : " the report is written");
        if (!found.code) save("report.html", found.files["report.html"], "text/html");
      } catch (error) {
        said.replaceChildren(failure(error.message));
      }
      event.target.disabled = false;
    };
    return section("Take it along", h("p", { class: "act" },
      h("button", { type: "button", onclick: report }, "Report"), Object.keys(asked.files).map((name) => h("button",
        { type: "button", onclick: () => save(name, asked.files[name]) }, name)), said));
  };
  const search = asking("Compare", {
    verbs: ["what-if", "purchase"], into: content,
    fill: ({ verb, arguments: [model, cluster], options, files }) => {
      fillIn(which, verb === "what-if" ? verb : [...goal, "budget"].some((name) => options[name]) ? "goal" : verb);
      fillIn(nothing, cluster === "none");
      setup.fill({ arguments: [model, cluster], options, files });
      form.fill({ ...options, serve: options.serve in files ? "" : options.serve });
      const own = files["prices.yaml"], said = typedPrices(own);
      dropped.fill("prices.yaml", said ? "" : own);
      economics.fill(said?.economics ?? {});
      traced.fill("requests.csv", files["requests.csv"]);
      const asked = (options.add ?? []).map((one) => one.split(":")).map(([node, many]) => ({ node, many: Number(many) }));
      const listed = files["catalogue.yaml"] ? JSON.parse(files["catalogue.yaml"]).offers.map(({ node, most }) => ({ node, many: most })) : [];
      offers.fill([...asked, ...listed].map((one) => ({ ...one, capital: said?.nodes?.[one.node]?.capital_usd,
        hour: said?.nodes?.[one.node]?.rent_usd_per_hour })));
    },
    request: () => request(""),
    show: (answer, asked) => (asked.options.serve ? showServed(content, answer, asked, takeAlong(asked)) : show(answer, asked)),
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
    const best = found.recommended;
    const points = best ? [best, ...found.runner_ups].map((row) => ({ row, name: row.name, cost: row.usd_per_hour }))
      : verb === "what-if" ? found.candidates.map((row) => ({ row, name: row.name }))
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
    const costs = billed.length > 1, chart = h("div"), drawn = costs ? billed : planned;
    const figures = (row) => [days(row.days_to_train), money(row.usd_to_train),
      row.site_kw ? `${row.site_kw.toFixed(1)} kW` : "-", money(row.outlay_usd), money(row.usd_per_hour),
      `${count(row.tokens_per_s)} (${short(row.tokens_per_s_low)} to ${short(row.tokens_per_s_high)})`, percent(row.mfu)];
    content.replaceChildren(
      h("h1", {}, best ? `Recommended: ${best.name}` : verb === "what-if" ? "Candidates" : `The front of ${count(found.mixes)} mixes`),
      h("p", { class: "lead" }, best ? `${days(best.days_to_train)}, ${money(best.usd_to_train)} in all${found.reached ? "" : ": the goal is missed"}` : lead(planned)),
      ...(best ? [["Why", found.why], ["What would change it", found.changes]].filter(([, lines]) => lines.length)
        .map(([title, lines]) => section(title, h("ul", {}, lines.map((line) => h("li", {}, line))))) : []),
      section(costs ? "Throughput against cost" : "Throughput", h("p", { class: "note" },
        `A click on a ${costs ? "point" : "bar"} or a row shows its plan.`), chart),
      section("In figures", table([["candidate"], "time", "total", "power", "capital", "an hour", "tokens a second", "MFU"],
        points.map((point) => ({ pick: point.row.feasible ? () => open(point) : null,
          cells: point.row.feasible ? [point.name, ...figures(point.row)]
            : [point.name, point.row.reason, "", "", "", "", "", ""] })))),
      ...hangs(found.sensitivity), detail, takeAlong(asked), command(answer.command, Object.keys(asked.files)),
      noted([...found.assumptions, ...found.notes]),
      found.to_complete ? section("For whole costs, complete this and drop it as prices", h("pre", {}, found.to_complete)) : "");
    draw(chart, costs ? { kind: "points", line: verb === "purchase" && !best, x: { title: verb === "purchase" ? "USD an hour of what is bought" : "USD per hour of training" },
      y: { title: "tokens a second" }, pick: (at) => open(drawn[at]),
      points: drawn.map(({ row, name, cost }) => ({ name, x: costOf({ row, cost }), y: row.tokens_per_s, low: row.tokens_per_s_low,
        high: row.tokens_per_s_high, detail: days(row.days_to_train) })) }
      : { kind: "bars", unit: "tokens a second", pick: (at) => open(drawn[at]), bars: drawn.map(({ row, name }) => ({ name,
        parts: [{ name: "tokens a second", value: row.tokens_per_s }] })) });
  };
  const whole = h("form", { onsubmit: search.ask },
    h("fieldset", {}, h("legend", {}, "What to buy"), which.element, offers.element, nothing.element, form.element, traced.element),
    h("details", {}, h("summary", {}, "What costs are worked out from"), economics.element, dropped.element),
    search.element);
  whole.whenShown = () => whole.prepend(setup.element);
  content.append(h("h1", {}, "What to buy"), h("p", {}, "The cluster is the fleet you have. Add node types from the hardware "
    + "tables; prices of your own make the costs whole."));
  return [whole, content];
}

function lead(planned) {
  if (!planned.length) return "No candidate has a plan.";
  const fastest = planned.map(({ row }) => row).reduce((a, b) => (a.tokens_per_s > b.tokens_per_s ? a : b));
  const priced = planned.map(({ row }) => row).filter((row) => row.usd_to_train);
  const cheapest = priced.length ? priced.reduce((a, b) => (a.usd_to_train < b.usd_to_train ? a : b)) : null;
  // Intervals of two that overlap leave it open which is faster; what errors they share, a report takes off.
  const near = planned.map(({ row }) => row).filter((row) => row !== fastest && row.tokens_per_s_high >= fastest.tokens_per_s_low);
  return (near.length ? `A tie for the fastest, as far as intervals tell: ${[fastest, ...near].map((row) => row.name).join(", ")} `
    + `(${days(fastest.days_to_train)} and up).` : `Fastest: ${fastest.name}, ${days(fastest.days_to_train)}.`)
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
