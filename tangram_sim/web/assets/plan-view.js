// A plan taken apart: answer, pipeline, timeline, memory, where time goes, alternatives, downloads.

import { run, save } from "./ask.js";
import { draw, seconds, short } from "./charts.js";
import { clusterDrawing, colourOf, shapeOf } from "./cluster-drawing.js";
import { command, count, facts, failure, gib, h, inWords, noted, notes, percent, section, table } from "./dom.js";
import { choice } from "./fields.js";
import { launchFiles } from "./launch-files.js";
import { memoryChart, stageNames, timelineChart } from "./played.js";

export async function showPlan(content, offered, plan) {
  const { power } = plan.document;
  const parts = {
    limit: h("p", { role: "status" }), timeline: h("div"), memory: h("div"), why: h("div"), power: h("div"),
  };
  content.replaceChildren(
    ...headline(plan.document),
    parts.limit, launchable(plan),
    section("Who holds what", clusterDrawing(plan.document)),
    section("The pipeline over the islands", ...pipelines(plan.document)),
    section("When what runs", h("p", { class: "note" },
      "Drag, + and - or the arrow keys move through the step; Ctrl and the wheel zoom."), parts.timeline),
    section("Memory of a GPU over the step", parts.memory),
    ...(power ? [section("Throughput against power", parts.power)] : []),
    parts.why,
    ...alternatives(plan.document),
    downloads(offered, plan),
    command(plan.command, Object.keys(plan.asked.files)),
    ...found(plan.document));
  if (power) draw(parts.power, powerChart(power));
  content.focus({ preventScroll: true });
  if (matchMedia("(max-width: 50rem)").matches) content.scrollIntoView({ block: "start" });  // below the form
  const files = { "plan.json": plan.text };
  const [played, why] = await Promise.all([
    run({ verb: "simulate", arguments: ["plan.json"], options: { trace: "timeline.json", memory: "memory.csv" }, files }),
    run({ verb: "explain", arguments: ["plan.json"], files }),
  ]);
  if (played.code) parts.timeline.replaceChildren(failure(played.error));
  else {
    draw(parts.timeline, timelineChart(JSON.parse(played.files["timeline.json"])));
    draw(parts.memory, memoryChart(played.files["memory.csv"], plan.document));
  }
  if (why.code) parts.why.replaceChildren(failure(why.error));
  else {
    parts.limit.replaceChildren(...inWords(why.document.limited_by));
    explained(parts.why, why.document, plan.document);
  }
}

/** Notes that a reader may act on, and how the answer was found, folded away. */
function found(plan) {
  const told = (detail) => plan.findings.filter((one) => (one.severity === "detail") === detail).map((one) => one.text);
  const counts = plan.partial_plans;
  const details = [...told(true), ...(counts ? [`Searched: ${Object.entries(counts).map(([what, many]) => `${count(many)} ${what}`).join(", ")}; `
    + `${seconds(plan.planning_s || 0)}, ${seconds(plan.planning_cpu_s || 0)} of processors.`] : [])];
  return [noted(told(false)), details.length ? h("details", {}, h("summary", {}, "How it was found"), ...notes(details)) : ""];
}

/** What starts the plan; where nothing does, the fastest plan that something starts, one click away. */
function launchable(plan) {
  const near = plan.document.nearest_launchable, ready = plan.document.launchable_with || [];
  if (ready.length) return h("p", {}, `Can be launched with ${ready.join(", ")}: the launch files are below.`);
  if (!near) return h("p", {}, "No framework launches this plan.");
  return h("p", {}, `No framework launches this plan. ${near.frameworks.join(", ")} can launch one of ${seconds(near.step_s)} a step `
    + `(${near.ratio >= 1 ? "+" : ""}${percent(near.ratio - 1)}${near.told_apart ? "" : ", statistically tied"}): ${near.summary}. `,
  plan.planFor ? h("button", { type: "button", onclick: () => plan.planFor(near.frameworks[0]) }, `Plan for ${near.frameworks[0]}`) : "");
}

/** Throughput against kilowatts of the site; a point's name says the clocks. */
function powerChart(power) {
  const points = power.curve.map((at) => {
    const y = at.site_kw * 1000 / at.joules_per_token, clocks = Object.entries(at.clocks);
    const name = clocks.map(([gpu, clock]) => `${gpu} ${percent(clock)}`).join(", ");
    return { name, x: at.site_kw, y, low: y, high: y, chosen: at.step_s === power.chosen.step_s };
  });
  return { kind: "points", line: true, points, x: { title: "kW of the site" }, y: { title: "tokens a second" } };
}

export function headline(plan) {
  const interval = plan.step_s_high ? `${seconds(plan.step_s_low)} to ${seconds(plan.step_s_high)}` : "";
  const job = plan.job;
  const assumed = plan.gpu_kinds.filter((kind) => !kind.measured).map((kind) => kind.gpu);
  return [
    h("h1", {}, `${plan.model.name} on ${plan.cluster.name}`),
    h("p", { class: "note" }, `${count(job.global_batch)} sequences of ${count(job.seq)} tokens a step, ${job.dtype}, `
      + `${job.optimizer}, ${plan.schedule}`),
    plan.feasible ? "" : failure("This does not fit the memory: see the notes."),
    h("p", { class: "lead" }, `A step takes ${seconds(plan.step_s)}`
      + (interval ? ` (in nine cases of ten ${interval})` : "") + `: ${count(plan.tokens_per_s)} tokens a second.`),
    assumed.length ? h("p", { class: "note" }, `Not measured, but assumed or inherited from kin: ${assumed.join(", ")}.`) : "",
    facts([
      ["Step", seconds(plan.step_s), interval], ["Tokens a second", count(plan.tokens_per_s)],
      ["Of the peak (MFU)", percent(plan.mfu), `${percent(plan.mfu_cluster)} of all`],
      ["GPUs used", `${plan.gpus_used} of ${plan.gpus_total}`],
      ["Waiting", percent(plan.bubble_fraction)],
      ["Lower bound", seconds(plan.work_bound_step_s || plan.lower_bound_step_s)],
      ...(plan.run ? [["The run", `${short(plan.run.days)} days`, `${short(plan.run.days_low)} to ${short(plan.run.days_high)}`],
        ...(plan.run.usd === null ? [] : [["Rent", `$${short(plan.run.usd)}`, `${short(plan.run.usd_low)} to ${short(plan.run.usd_high)}`]])] : []),
      ...(plan.power ? [["Power of the site", `${short(plan.power.chosen.site_kw)} kW`]] : []),
    ]),
  ];
}

/** Stages side by side, front to back, in the colours of all drawings. */
export function pipelines(plan) {
  const paces = plan.stages.map((stage) => stage.forward_s + stage.backward_s);
  const slowest = paces.indexOf(Math.max(...paces));
  const names = stageNames(plan);
  return plan.pipelines.map((pipeline, number) => {
    const stages = plan.stages.filter((stage) => stage.pipeline === number);
    const row = h("div", { class: "pipeline", role: "group", "aria-label": `pipeline ${number}` });
    stages.forEach((stage, at) => {
      const aside = at && stages[at - 1].stage === stage.stage;  // another part of the stage
      const sent = at && !aside && stages[at - 1].send_s ? seconds(stages[at - 1].send_s) : "";
      if (at) row.append(h("div", { class: "arrow" }, aside ? "+" : "\u2192", h("br"), sent));
      row.append(stageBox(stage, names.get(stage), shapeOf(plan, stage.gpu), plan.stages.indexOf(stage) === slowest));
    });
    return h("div", {}, plan.pipelines.length > 1
      ? h("p", { class: "note" }, `Pipeline ${number}: ${pipeline.microbatches} microbatches of ${pipeline.microbatch}`) : "", row);
  });
}

function stageBox(stage, name, shape, slowest) {
  const colour = colourOf(stage), used = stage.peak_memory_bytes / stage.memory_capacity_bytes;
  const fill = h("i", { class: `fill${used > 0.95 ? 4 : colour}` });
  fill.style.width = `${Math.min(used, 1) * 100}%`;
  const box = h("div", { class: slowest ? "stage slowest" : "stage" },
    h("div", { class: "note" }, `stage ${name}`),
    h("b", {}, shape, ` ${stage.gpus} \u00d7 ${stage.gpu}`),
    h("div", {}, [stage.embedding ? "embedding" : "", blocks(stage), stage.head ? "head" : ""].filter(Boolean).join(" + ")),
    h("div", {}, layout(stage)),
    h("div", { class: "note" }, `forward ${seconds(stage.forward_s)}, backward ${seconds(stage.backward_s)}, `
      + `idle ${percent(stage.idle_fraction, 0)}${slowest ? "; the slowest" : ""}`),
    h("div", { class: "fill", role: "img", "aria-label": `memory ${percent(used, 0)}` }, fill),
    h("div", { class: "note" }, `${gib(stage.peak_memory_bytes)} of ${gib(stage.memory_capacity_bytes)}, island ${stage.island}`));
  box.style.borderTopColor = `var(--c${colour})`;
  return box;
}

function blocks(stage) {
  const runs = stage.chunks.length ? stage.chunks : [stage.layers];
  const words = runs.filter(([start, stop]) => stop > start)
    .map(([start, stop]) => (stop - start > 1 ? `${start}-${stop - 1}` : `${start}`));
  return words.length ? `layers ${words.join(", ")}` : "";
}

export function layout(stage) {
  const words = ["tp", "dp", "cp", "ep"].filter((name) => stage[name] > 1).map((name) => `${name} ${stage[name]}`);
  if (stage.zero_stage) words.push(`ZeRO ${stage.zero_stage}`);
  if (stage.recompute !== "none") words.push(`recompute ${stage.recompute}`);
  if (stage.sequence_parallel) words.push("sequence parallel");
  return words.join(", ") || "no split";
}

function nameOf(plan, asked) {
  const names = stageNames(plan);
  return names.get(plan.stages.find((one) => ["pipeline", "stage", "part"].every((key) => one[key] === asked[key])));
}

function explained(into, found, plan) {
  const names = [...stageNames(plan).values()];
  const rows = found.critical_path.slice(0, 12).map((one) => (
    { cells: [one.cause, seconds(one.seconds), percent(one.seconds / found.step_s)] }));
  const bars = h("div");
  into.replaceChildren(
    section("Where the time goes", h("p", { class: "note" }, "Along the critical path of the step:"),
      table([["cause"], "time", "share"], rows), bars),
    section("Why not otherwise", h("p", { class: "note" }, "One stage changed, the whole step simulated:"),
      ...[...Map.groupBy(found.why_not, (one) => nameOf(plan, one))].map(([name, tried], at) => h(
        "details", { open: at === 0 }, h("summary", {}, `stage ${name}`),
        table([["layout"], ["verdict"]], tried.map((one) => ({ cells: [one.layout, one.verdict] })))))));
  draw(bars, { kind: "bars", unit: "seconds of one microbatch", bars: found.stages.map((shares, at) => ({
    name: `stage ${names[at]}, by kernel`, said: seconds(shares.reduce((sum, one) => sum + one.seconds, 0)),
    parts: shares.map((one) => ({ name: one.kernel.replaceAll("_", " "), value: one.seconds })),
  })) });
}

function alternatives(plan) {
  if (!plan.alternatives.length) return [];
  return [section("Alternatives", table(["step", "against the plan", "told apart", "GPUs", "fullest memory", ["what"]],
    plan.alternatives.map((one) => ({ cells: [
      seconds(one.step_s), `${percent(one.ratio_low - 1)} to ${percent(one.ratio_high - 1)}`,
      one.told_apart ? "yes" : "no: a tie", String(one.gpus_used), percent(one.peak_memory_fraction, 0), one.summary,
    ] }))))];
}

function downloads(offered, plan) {
  const said = h("div", { role: "status" });
  const files = { "plan.json": plan.text };
  const launch = launchFiles("export", choice("Framework", offered.formats, (plan.document.launchable_with || [])[0] || "rankmap",
    { name: "framework" }), files);
  const report = async () => {
    said.replaceChildren("writing the report");
    const found = await run({ verb: "simulate", arguments: ["plan.json"], options: { output: "report.html" }, files });
    said.replaceChildren(found.code ? failure(found.error) : "");
    if (!found.code) save("report.html", found.files["report.html"], "text/html");
  };
  return section("Take it along", h("div", { class: "act" },
    h("button", { type: "button", onclick: () => save("plan.json", plan.text, "application/json") }, "Plan file"),
    Object.keys(plan.asked.files).map((name) => h("button", { type: "button",
      onclick: () => save(name, plan.asked.files[name]) }, name)),
    h("button", { type: "button", onclick: report }, "Report"),
    launch.buttons), said, launch.shown);
}
