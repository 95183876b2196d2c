// What `simulate` wrote about the played step, as charts.

import { opColour, opWords } from "./op-colours.js";

const GIB = 2 ** 30;

/** The timeline that `--trace` writes (Chrome's trace format, times in microseconds). */
export function timelineChart(trace) {
  const names = new Map(), tracks = [], kinds = [], place = new Map();
  const events = trace.traceEvents || trace;
  for (const one of events) {
    if (one.ph === "M" && one.name === "process_name") names.set(`${one.pid}`, one.args.name);
    if (one.ph === "M" && one.name === "thread_name") names.set(`${one.pid}.${one.tid}`, one.args.name);
  }
  const busy = new Map(events.filter((one) => one.ph === "X" && one.dur).map((one) => [`${one.pid}.${one.tid}`, one]));
  for (const [key, one] of [...busy].sort(([, a], [, b]) => a.pid - b.pid || a.tid - b.tid)) {
    place.set(key, tracks.length);
    tracks.push(`${names.get(`${one.pid}`) || one.pid}: ${names.get(key) || one.tid}`);
  }
  const ops = [];
  let until = 0;
  for (const one of events) {
    if (one.ph !== "X" || !one.dur) continue;
    const key = `${one.pid}.${one.tid}`, kind = one.cat || one.name;
    if (!kinds.includes(kind)) kinds.push(kind);
    ops.push([place.get(key), kinds.indexOf(kind), one.ts / 1e6, (one.ts + one.dur) / 1e6]);
    until = Math.max(until, (one.ts + one.dur) / 1e6);
  }
  return { kind: "timeline", tracks, kinds: kinds.map(opWords), colours: kinds.map(opColour), ops, until };
}

/** What the parts of a plan are called by, as the verbs call them: `0`, of several pipelines `1.0`, of several
 * parts `0a`. */
export function stageNames(plan) {
  const several = plan.stages.some((one) => one.pipeline !== plan.stages[0].pipeline);
  return new Map(plan.stages.map((one) => {
    const mixed = plan.stages.filter((other) => other.pipeline === one.pipeline && other.stage === one.stage).length > 1;
    const part = one.part < 26 ? String.fromCharCode(97 + one.part) : `/${one.part}`;
    return [one, `${several ? `${one.pipeline}.` : ""}${one.stage}${mixed ? part : ""}`];
  }));
}

/** Rows `time_s,stage,what,bytes`: what one GPU of every stage holds in all, under its capacity. */
export function memoryChart(csv, plan) {
  const series = new Map();
  for (const line of csv.trim().split("\n").slice(1)) {
    const [time, stage, what, bytes] = line.split(",");
    if (what !== "total") continue;
    if (!series.has(stage)) series.set(stage, []);
    series.get(stage).push([Number(time), Number(bytes) / GIB]);
  }
  return { kind: "steps", x: { title: "seconds of the step" }, y: { title: "GiB" }, until: plan.step_s,
    series: [...series].map(([stage, points]) => {
      const row = plan.stages.find((one) => one.pipeline === 0 && String(one.stage) === stage);
      return { colour: Number(stage.split(".").pop()) % 8, name: `stage ${stage}${row ? ` ${row.gpu}` : ""}`, points, limit: row ? row.memory_capacity_bytes / GIB : 0 };
    }) };
}
