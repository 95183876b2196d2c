// Post-training: which GPUs generate and which train, and what each of them waits for.

import { asking } from "./asking.js";
import { draw, seconds, short } from "./charts.js";
import { command, count, facts, gib, h, noted, percent, section, table } from "./dom.js";
import { questionForm } from "./question-form.js";
import { clusterPicker, modelPicker } from "./setup.js";

export function rlPage(offered) {
  const content = h("div", { id: "content", tabindex: -1 });
  const model = modelPicker(offered, "The policy"), fleet = clusterPicker(offered);
  const form = questionForm(offered.questions["rl plan"], { prefix: "rl-" });
  const ask = asking("Place roles", {
    verbs: ["rl plan"], into: content,
    fill: ({ arguments: [what, where], options, files }) => {
      model.fill(what, files);
      fleet.fill(where, files);
      form.fill(options);
    },
    request: () => ({ verb: "rl plan", arguments: [model.argument(), fleet.argument()], options: form.options(),
      files: { ...model.files(), ...fleet.files() } }),
    show: (answer, asked) => showPlacement(content, answer, asked),
  });
  content.append(h("h1", {}, "Post-train a model"), h("p", {}, "Reinforcement learning by turns of generation and training: "
    + "which GPUs do which, how stale, and what a step waits for."));
  return [h("form", { onsubmit: ask.ask }, model.element, fleet.element, h("fieldset", {}, h("legend", {}, "A step"), form.element),
    ask.element), content];
}

function showPlacement(content, answer, asked) {
  const found = answer.document, waits = h("div"), ratios = h("div");
  const phases = Object.entries(found.phases_s).filter(([, one]) => one > 0);
  const money = found.usd_per_million_trained_tokens;
  content.replaceChildren(h("h1", {}, `A step takes ${seconds(found.step_s)}`),
    h("p", { class: "lead" }, `${found.decisions.placement}, ${found.decisions.mode.replaceAll("-", " ")}: `
      + `${count(found.trained_tokens_per_s)} trained tokens a second; nine times in ten between ${seconds(found.step_s_low)} and `
      + `${seconds(found.step_s_high)}.`),
    facts([["Long tail", seconds(found.long_tail_s), "after nine of ten responses"], ["No step is below", seconds(found.lower_bound_s)],
      ["Age of sequences", short(found.ages.mean), `at most ${found.ages.most}`],
      ["USD a million trained tokens", money === null ? "-" : short(money)]]),
    section("Who does what", table([["pool"], "GPUs", "busy", "idle", "memory", ["nodes or GPUs"]], found.pools.map((one) => ({ cells: [
      one.role, String(one.gpus), seconds(one.busy_s), percent(one.idle_share, 0),
      `${gib(one.memory_bytes)} of ${gib(one.memory_capacity_bytes)}`,
      Object.entries(one.nodes).map(([name, many]) => `${many} ${name}`).join(", ")] })))),
    section("What a step waits for", waits),
    section("What each kind is best at", table([["kind"], "GPUs", "steps trained a second", "generated a second", "ratio"],
      found.kinds.map((one) => ({ cells: [one.gpu, String(one.gpus), short(one.trains_per_s), short(one.generates_per_s), short(one.ratio)] })))),
    section("Other placements", table([["placement"], "step"], Object.entries(found.alternatives).map(([name, step]) => ({
      cells: [name, seconds(step)] })))),
    section("Ratios of the same GPUs", ratios), command(answer.command, Object.keys(asked.files)), noted(found.assumptions));
  draw(waits, { kind: "bars", unit: "seconds", bars: phases.map(([name, value]) => ({ name: name.replaceAll("_", " "), said: seconds(value),
    parts: [{ name: "a step waits", value: found.exposed_s[name] }, { name: "hidden", value: value - found.exposed_s[name] }] })) });
  draw(ratios, { kind: "bars", unit: "seconds", bars: found.curve.map((one) => ({
    name: `${one.training_gpus} train, ${one.rollout_gpus} generate`, said: seconds(one.step_s), parts: [{ name: "step", value: one.step_s }] })) });
}
