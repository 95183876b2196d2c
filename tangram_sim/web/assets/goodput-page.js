// Months: what failures and checkpoints leave of a plan, and policies on a history of nodes that come and go.

import { asking } from "./asking.js";
import { draw, seconds, short } from "./charts.js";
import { command, count, facts, h, noted, percent, section, table } from "./dom.js";
import { choice, drop, fillIn } from "./fields.js";
import { questionForm } from "./question-form.js";
import { SETUP } from "./setup.js";

export function goodputPage(offered, setup, state) {
  const content = h("div", { id: "content", tabindex: -1 });
  const form = questionForm(offered.questions.goodput, { values: { "mtbf-s": 36000, "checkpoint-s": 60, "recovery-s": 300 } });
  const whose = choice("Of", [["plan", "the last plan"], ["job", "any job"]], "job", { name: "goodput-of" });
  const ask = asking("Goodput", {
    verbs: ["goodput"], into: content,
    fill: ({ arguments: [plan], options, files }) => {
      form.fill(options);
      fillIn(whose, plan ? "plan" : "job");
      if (plan) state.plan = { document: JSON.parse(files[plan]), text: files[plan] };
    },
    request: () => {
      const given = form.options(), plan = whose.value() === "plan";
      if (plan && !state.plan) throw new Error("plan something first, or ask about any job");
      if (given.failures) delete given["mtbf-s"];
      return { verb: "goodput", arguments: plan ? ["plan.json"] : [], options: given, files: plan ? { "plan.json": state.plan.text } : {} };
    },
    show: (answer, asked) => showGoodput(content, answer, asked),
  });
  let history = null, speeds = null, costs = null;
  const replayed = questionForm(offered.questions["train replay"], { prefix: "replay-", without: [...SETUP, "speeds", "costs"] });
  const dropped = {
    history: drop("History (CSV: time_s,event,node): ", ".csv", (_, text) => {
      history = text;
    }),
    speeds: drop("Speeds of layouts (CSV); without, the setup's model and cluster are planned: ", ".csv", (_, text) => {
      speeds = text;
    }),
    costs: drop("Seconds of changing over (CSV): ", ".csv", (_, text) => {
      costs = text;
    }),
  };
  const replay = asking("Replay", {
    verbs: ["train replay"], into: content,
    fill: ({ arguments: [model, , cluster], options, files }) => {
      dropped.history.fill("trace.csv", files["trace.csv"]);
      dropped.speeds.fill("speeds.csv", files[options.speeds]);
      dropped.costs.fill("costs.csv", files[options.costs]);
      if (!options.speeds) setup.fill({ arguments: [model, cluster], options, files });
      replayed.fill(options);
    },
    request: () => {
      if (!history) throw new Error("drop a history of nodes first");
      const request = speeds ? { verb: "train replay", arguments: ["model", "trace.csv"], options: { speeds: "speeds.csv" }, files: { "speeds.csv": speeds } }
        : setup.request("train replay");
      if (!speeds) request.arguments.splice(1, 0, "trace.csv");
      for (const name of ["schedule"]) delete request.options[name];
      return { ...request, options: { ...request.options, ...replayed.options(),
        ...(costs ? { costs: "costs.csv" } : {}) },
        files: { ...request.files, "trace.csv": history, ...(costs ? { "costs.csv": costs } : {}) } };
    },
    show: (answer, asked) => showReplay(content, answer, asked),
  });
  const forms = h("div", {}, h("form", { onsubmit: ask.ask }, h("fieldset", {}, h("legend", {}, "Failures and checkpoints"), whose.element,
    form.element), ask.element),
  h("form", { onsubmit: replay.ask }, h("fieldset", {}, h("legend", {}, "Nodes that come and go"),
    dropped.history.element, dropped.speeds.element, dropped.costs.element, replayed.element), replay.element));
  content.append(h("h1", {}, "Months"), h("p", {}, "What failures and checkpoints leave of a plan, how often to save, and which way of "
    + "living with nodes that come and go pays."));
  return [forms, content];
}

function showGoodput(content, answer, asked) {
  const found = answer.document, chart = h("div"), tokens = found.tokens_per_s !== null;
  const [low, high] = found.interval;
  content.replaceChildren(h("h1", {}, `${percent(found.goodput)} of the time is useful`),
    h("p", { class: "lead" }, (tokens ? `${count(found.tokens_per_s)} tokens a second are left (${count(low)} to ${count(high)}). `
      : `In nine windows of ten between ${percent(low)} and ${percent(high)}. `) + `A checkpoint every ${seconds(found.best_period_s)} is best.`),
    facts([["A failure in", seconds(found.mtbf_s)], ["Best period", seconds(found.best_period_s)],
      ...(found.spares ? [["Spare nodes", String(found.spares.nodes), `enough with ${percent(found.spares.quantile, 0)}`]] : [])]),
    section("Where the time goes", chart),
    section("What one second less is worth", table([["of"], "now", "share gained", "tokens a day"], found.worth.map((one) => ({ cells: [one.constant,
      seconds(one.seconds), `${short(one.gain * 100)} %`, one.tokens_per_day === null ? "-" : count(one.tokens_per_day)] })))),
    command(answer.command, Object.keys(asked.files)), noted(found.notes));
  draw(chart, { kind: "bars", unit: "share of the time", bars: [{ name: "of all the time", said: `${percent(found.goodput)} useful`,
    parts: Object.entries(found.accounts).filter(([, share]) => share > 0).map(([name, value]) => ({ name: name.replaceAll("_", " "), value })) }] });
}

function showReplay(content, answer, asked) {
  const found = answer.document, chart = h("div"), best = found.policies[found.best];
  const level = Object.entries(found.policies).filter(([, one]) => Math.abs(one.useful_share - best.useful_share) < 5e-4);
  content.replaceChildren(h("h1", {}, level.length > 1 ? `Best on this history, all alike: ${level.map(([name]) => name).join(", ")}`
    : `Best on this history: ${found.best}`),
    h("p", { class: "note" }, `${found.events} events, ${found.losses} losses, ${short(found.mean_nodes)} nodes on average over ${seconds(found.duration_s)}.`),
    section("Policies", table([["policy"], "of the bound", "useful", "changes", "USD"], Object.entries(found.policies).map(([name, one]) => ({
      cells: [name, percent(one.of_upper_bound), percent(one.useful_share), String(one.changes), one.usd === null ? "-" : short(one.usd)] })))),
    section("Where each one's time goes", chart), command(answer.command, Object.keys(asked.files)), noted(found.notes));
  draw(chart, { kind: "bars", unit: "seconds", bars: Object.entries(found.policies).map(([name, one]) => ({ name, said: percent(one.of_upper_bound),
    parts: Object.entries(one.accounts).filter(([, s]) => s > 0).map(([what, value]) => ({ name: what.replaceAll("_", " "), value })) })) });
}
