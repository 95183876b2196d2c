// Serving: which GPUs and settings a service needs, what one replica gives under a load, a fleet file played.

import { save } from "./ask.js";
import { asking } from "./asking.js";
import { draw, seconds, short } from "./charts.js";
import { command, count, facts, h, noted, percent, section, table } from "./dom.js";
import { choice, drop } from "./fields.js";
import { launchFiles } from "./launch-files.js";
import { questionForm } from "./question-form.js";
import { clusterPicker, modelPicker } from "./setup.js";

export function servePage(offered) {
  const content = h("div", { id: "content", tabindex: -1 });
  const model = modelPicker(offered, "What to serve");
  const replica = questionForm(offered.questions["serve estimate"], { values: { gpu: "H100-SXM5-80GB", concurrency: 32 }, prefix: "replica-" });
  const estimate = asking("Estimate", {
    verbs: ["serve estimate"], into: content,
    fill: ({ arguments: [what], options, files }) => {
      model.fill(what, files);
      replica.fill(options);
    },
    request: () => {
      const given = replica.options();
      if (given.rate) delete given.concurrency;
      return { verb: "serve estimate", arguments: [model.argument()], options: given, files: model.files() };
    },
    show: (answer) => showEstimate(content, answer),
  });
  const offer = clusterPicker(offered);
  const service = questionForm(offered.questions["serve plan"], { without: ["fleet"], prefix: "service-",
    values: { rate: 10, workload: "496:200", slo: "ttft=1,tpot=0.05", objective: "cost" } });
  const plan = asking("Plan a service", {
    verbs: ["serve plan"], into: content,
    fill: ({ arguments: [what], options, files }) => {
      model.fill(what, files);
      offer.fill(options.fleet, files);
      service.fill(options);
    },
    request: () => ({ verb: "serve plan", arguments: [model.argument()], options: { ...service.options(), fleet: offer.argument(), output: "plan.json" },
      files: { ...model.files(), ...offer.files() } }),
    show: (answer, asked) => showService(content, answer, asked, offered),
  });
  let fleet = null, requests = null;
  const load = questionForm(offered.questions["serve simulate"], { values: { rate: 2, requests: 500 }, without: ["trace"], prefix: "play-" });
  const play = asking("Play", {
    verbs: ["serve simulate"], into: content,
    request: () => {
      if (!fleet) throw new Error("drop a fleet file first: docs/how-to/size-a-service.md says what stands in one");
      const given = load.options();
      if (requests) for (const name of ["rate", "isl", "osl", "requests"]) delete given[name];
      return { verb: "serve simulate", arguments: ["fleet.yaml"], options: { ...given, ...(requests ? { trace: "requests.csv" } : {}) },
        files: { "fleet.yaml": fleet, ...(requests ? { "requests.csv": requests } : {}) } };
    },
    show: (answer, asked) => showPlayed(content, answer, asked),
  });
  const forms = h("div", {},
    h("form", { onsubmit: plan.ask }, model.element, offer.element, h("fieldset", {}, h("legend", {}, "A service"), service.element), plan.element),
    h("form", { onsubmit: estimate.ask }, h("fieldset", {}, h("legend", {}, "One replica"), replica.element), estimate.element),
    h("form", { onsubmit: play.ask }, h("fieldset", {}, h("legend", {}, "A whole fleet"),
    drop("Fleet file, or a plan of `serve plan -o`: ", ".yaml,.yml,.json", (_, text) => {
      fleet = text;
    }).element, drop("Trace of requests (CSV): ", ".csv", (_, text) => {
      requests = text;
    }).element, load.element), play.element));
  content.append(h("h1", {}, "Serve a model"), h("p", {}, "Which GPUs keep what a good request is promised, at what "
    + "cost; latencies, throughput and memory of one replica, or of a fleet under a load."));
  return [forms, content];
}

function showService(content, answer, asked, offered) {
  const engines = offered.questions["serve export"].find((one) => one.name === "to").choices, plan = answer.files["plan.json"] || "";
  const launch = launchFiles("serve export", choice("Engine", engines, asked.options.engine || "vllm", { name: "engine", kept: false }), { "plan.json": plan });
  const found = answer.document, asks = found.types.map((one) => `${count(one.input_tokens)}:${count(one.output_tokens)}`);
  const values = Object.fromEntries(found.rivals.filter((one) => one.capped).map((one) => [one.gpu, one.value]));
  const said = (value) => (value === null ? "no plan" : found.objective === "cost" ? `$${short(value)} an hour` : short(value));
  content.replaceChildren(h("h1", {}, `$${short(found.cost_per_hour)} an hour`),
    h("p", { class: "lead" }, Object.entries(found.gpus_used).filter(([, many]) => many).map(([gpu, many]) => `${many} ${gpu}`).join(", ")
      + (found.replay ? `; played: ${short(found.replay.played)} requests a second, ${percent(found.replay.good_share)} of them good.` : ".")),
    facts([["Requests a second", short(found.throughput_rps ?? 0)], ["No plan is below", said(found.bound)],
      ...(found.replay ? [["First token, 99 % within", seconds(found.replay.ttft_p99_s)], ["Between tokens, 99 % within", seconds(found.replay.tpot_p99_s)]] : []),
      ...(found.energy ? [["Site", `${short(found.energy.site_w / 1000)} kW`, `${short(found.energy.joules_per_output_token)} J a token`]] : [])]),
    section("Replicas", table([["replica"], "how many", "USD an hour", ...asks.map((one) => `${one}, share`)], found.replicas.map((one) => ({ cells: [
      one.configuration, String(one.count), short(one.cost_per_hour * one.count), ...(found.shares[one.configuration] || []).map((share) => percent(share))] })))),
    section("One kind of GPU alone", table([["kind"], "at best"], Object.entries(values).map(([gpu, value]) => ({ cells: [gpu, said(value)] })))),
    plan ? section("Take it along", h("div", { class: "act" }, h("button", { type: "button", onclick: () => save("plan.json", plan) }, "Plan file"),
      launch.buttons), launch.shown) : "",
    command(answer.command, Object.keys(asked.files)), noted(found.notes));
}

function showEstimate(content, answer) {
  const found = answer.document, parts = h("div");
  const range = (name) => (found.intervals[name] ? found.intervals[name].map(seconds).join(" to ") : "");
  content.replaceChildren(
    h("h1", {}, `${found.gpus} x ${found.assumptions.gpu || "GPU"}`),
    found.verdict ? h("p", { class: "error" }, found.verdict) : "",
    h("p", { class: "lead" }, `A token every ${seconds(found.tpot_s)}, the first after ${seconds(found.ttft_s)}`
      + `${found.overloaded ? " once admitted" : ""}; `
      + `${count(found.output_tok_s)} tokens a second in all. ${found.limited_by} limits it.`),
    facts([["Between tokens", seconds(found.tpot_s), range("tpot_s")], ["First token", seconds(found.ttft_s), range("ttft_s")],
      ["A whole request", seconds(found.e2e_s), range("e2e_s")], ["Tokens a second", count(found.output_tok_s)],
      ["Requests a second", short(found.request_rate), `at most ${short(found.greatest_request_rate)}`],
      ["KV cache", `${count(found.kv_tokens)} tokens`],
      ["USD a million tokens", found.usd_per_million_output_tokens === null ? "-" : short(found.usd_per_million_output_tokens)]]),
    section("Where the time between two tokens goes", parts), command(answer.command), noted(found.notes));
  draw(parts, { kind: "bars", unit: "seconds", bars: [{ name: "between two tokens", said: seconds(found.tpot_s),
    parts: Object.entries(found.parts_s).map(([name, value]) => ({ name, value })) }] });
}

function showPlayed(content, answer, asked) {
  const found = answer.document, chart = h("div");
  const spreads = [["first token", found.ttft_s], ["between tokens", found.tpot_s], ["whole request", found.e2e_s], ["queue", found.queue_s]];
  content.replaceChildren(h("h1", {}, `${count(found.requests.completed)} of ${count(found.requests.arrived)} requests served`),
    h("p", { class: "lead" }, `${percent(found.good_share)} of the requests were good, ${short(found.throughput_rps)} a second, `
      + `${count(found.output_tok_s)} tokens a second, $${short(found.cost_usd)}.`),
    section("Latencies", table([["of"], "mean", "half within", "90 % within", "99 % within"], spreads.map(([name, one]) => (
      { cells: [name, seconds(one.mean), seconds(one.p50), seconds(one.p90), seconds(one.p99)] })))),
    section("How busy each replica was", chart), command(answer.command, Object.keys(asked.files)),
    noted(found.notes));
  draw(chart, { kind: "bars", unit: "share of its time", mark: "all of it", bars: found.replicas.slice(0, 40).map((one) => (
    { name: one.name, mark: 1, said: percent(one.busy_share, 0), parts: [{ name: "busy", value: one.busy_share }] })) });
}
