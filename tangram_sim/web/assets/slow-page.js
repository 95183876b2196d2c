// Slow ranks: a measured trace replayed with and without them; the last plan with something slow in it.

import { asking } from "./asking.js";
import { draw, seconds } from "./charts.js";
import { command, facts, h, notes, percent, section, table } from "./dom.js";
import { drop, fillIn, words } from "./fields.js";
import { headline, pipelines } from "./plan-view.js";
import { questionForm } from "./question-form.js";

export function slowPage(offered, setup, state) {
  const content = h("div", { id: "content", tabindex: -1 });
  let trace = null;
  const form = questionForm(offered.questions.stragglers, { without: ["plan", "sequences"], prefix: "slow-" });
  const dropped = drop("Trace: a table of operations (CSV) or a timeline (JSON): ", ".csv,.json", (name, text) => {
    trace = name && [name.endsWith(".json") ? "trace.json" : "trace.csv", text];
  });
  const replay = asking("Find slow ranks", {
    verbs: ["stragglers"], into: content,
    fill: ({ arguments: [name], options, files }) => {
      dropped.take(name, files[name]);
      form.fill(options);
    },
    request: () => {
      if (!trace) throw new Error("drop a trace first");
      return { verb: "stragglers", arguments: [trace[0]], options: form.options(), files: { [trace[0]]: trace[1] } };
    },
    show: (answer, asked) => showSlow(content, answer, asked),
  });
  const slow = words("What is slow", "n0=1.5", { placeholder: "n3=1.5,g0=1.1", name: "slow" });
  const again = asking("Play the last plan so", {
    verbs: ["simulate"], into: content,
    fill: ({ options, files }) => {
      fillIn(slow, options.slow);
      state.plan = { document: JSON.parse(files["plan.json"]), text: files["plan.json"] };
    },
    request: () => {
      if (!state.plan) throw new Error("plan something first");
      return { verb: "simulate", arguments: ["plan.json"], options: { slow: slow.value() }, files: { "plan.json": state.plan.text } };
    },
    show: (answer) => content.replaceChildren(...headline(answer.document), h("p", { class: "note" },
      `Without anything slow it takes ${seconds(state.plan.document.step_s)}.`), ...pipelines(answer.document), command(answer.command, ["plan.json"])),
  });
  const forms = h("div", {}, h("form", { onsubmit: replay.ask }, h("fieldset", {}, h("legend", {}, "A run that was measured"), dropped.element,
    form.element), replay.element),
  h("form", { onsubmit: again.ask }, h("fieldset", {}, h("legend", {}, "The last plan, with something slow"), slow.element), again.element));
  content.append(h("h1", {}, "Slow ranks"), h("p", {}, "What they cost in a run you measured, which they are, what helps."));
  return [forms, content];
}

function showSlow(content, answer, asked) {
  const found = answer.document, chart = h("div"), alone = h("div");
  content.replaceChildren(h("h1", {}, `Slow ranks make a step ${found.slowdown.toFixed(3)} times as long`),
    h("p", { class: "lead" }, `${percent(Math.max(found.waste, 0))} of the time is lost. Pattern: ${found.pattern} (${found.pattern_reason}).`),
    facts([["Measured", seconds(found.measured_step_s)], ["Replayed", seconds(found.replayed_step_s)], ["Without slow ranks", seconds(found.ideal_step_s)],
      ["Steps", String(found.steps)], ["Grid", `dp ${found.dp} x ${found.pp} stages`]]),
    section("Who is slow", h("p", { class: "note" }, "Passes of every worker over the mean of all: 1 is as everybody."), chart),
    section("Which group costs what, alone", alone),
    section("What helps", table([["remedy"], "step", "gain", "price", "paid back", ["what"]], found.remedies.map((one) => ({ cells: [one.name,
      seconds(one.step_s), `${one.gain.toFixed(3)} x`, seconds(one.price_s), one.payback_s === null ? "never" : seconds(one.payback_s), one.detail] })))),
    command(answer.command, Object.keys(asked.files)), section("Not priced", ...notes(found.remedies_left_out)));
  const values = Array.from({ length: found.dp }, () => Array(found.pp).fill(1));
  for (const one of found.workers) values[one.dp][one.stage] = one.compute_ratio;
  draw(chart, { kind: "grid", row: "dp", column: "stage", values });
  draw(alone, { kind: "bars", unit: "step over the ideal step", bars: Object.entries(found.alone).sort(([, a], [, b]) => b - a).slice(0, 12)
    .map(([name, value]) => ({ name, said: value.toFixed(4), parts: [{ name: "S", value }] })) });
}
