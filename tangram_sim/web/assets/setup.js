// What is asked about: a model, a cluster, a job. The same on every page, so it is made once.

import { h } from "./dom.js";
import { choice, drop, figure, fillIn, named } from "./fields.js";
import { keep, keyOf, kept } from "./kept.js";
import { questionForm } from "./question-form.js";

/** The model: a shipped one, or a file that was dropped. */
export function modelPicker(offered, title = "What to train") {
  let file = null;
  const names = offered.models.map((one) => [one.name, `${(one.parameters / 1e9).toPrecision(3)} B parameters`]);
  const name = named("Model", names, "llama3-8b", { name: "model" });
  name.input.addEventListener("input", () => {
    file = null;
    dropped.forget();
  });
  const dropped = drop("or drop a config.json or model.yaml: ", ".json,.yaml,.yml", (given, text) => {
    file = given && [given.endsWith(".json") ? "config.json" : "model.yaml", text];
    name.input.value = file ? file[0] : "";
  });
  return {
    element: h("fieldset", {}, h("legend", {}, title), name.element, dropped.element),
    fill: (argument, files) => {
      fillIn(name, argument);
      if (argument in files) dropped.take(argument, files[argument]);
    },
    argument: () => (file ? file[0] : name.value()),
    files: () => (file ? { [file[0]]: file[1] } : {}),
  };
}

/** The cluster: shipped, dropped, or put together from the hardware tables. */
export function clusterPicker(offered) {
  const shipped = named("Cluster", offered.clusters.map((one) => [one.name, one.gpus]), "dgx-a100-h100", { name: "cluster" });
  const about = h("p", { class: "note" });
  const tell = () => {
    about.textContent = (offered.clusters.find((one) => one.name === shipped.value()) || { gpus: "" }).gpus;
  };
  shipped.input.addEventListener("input", tell);
  tell();
  const built = builder(offered);
  let file = null;
  const dropped = drop("Drop a cluster file: ", ".yaml,.yml,.json", (name, text) => {
    file = name && [name.endsWith(".json") ? "cluster.json" : "cluster.yaml", text];
  });
  const own = h("button", { type: "button", onclick: () => {
    which.input.value = "built";
    which.input.dispatchEvent(new Event("change", { bubbles: true }));
  } }, "Put my own together");
  const bodies = { shipped: h("div", {}, shipped.element, about, own), built: built.element, file: dropped.element };
  const body = h("div");
  const which = choice("Cluster from", [["shipped", "the examples"], ["built", "kinds of nodes put together here"],
    ["file", "a file of mine"]], "shipped", { name: "cluster-from", onchange: () => body.replaceChildren(bodies[which.value()]) });
  body.replaceChildren(bodies[which.value()]);
  const chosen = () => {
    if (which.value() === "built") return ["cluster.json", built.text()];
    if (which.value() === "file") {
      if (!file) throw new Error("drop a cluster file first, or choose another kind of cluster");
      return file;
    }
    return null;
  };
  return {
    element: h("fieldset", {}, h("legend", {}, "Where"), which.element, body),
    fill: (argument, files) => {
      fillIn(which, argument in files ? "file" : "shipped");
      if (argument in files) dropped.take(argument, files[argument]);
      else fillIn(shipped, argument);
    },
    argument: () => (chosen() || [shipped.value()])[0],
    files: () => (chosen() ? { [chosen()[0]]: chosen()[1] } : {}),
  };
}

function builder(offered) {
  const note = () => keep(key, groups.map((group) => group.typed()));
  const rows = h("div", { oninput: () => note(), onchange: () => note() }), key = keyOf("kinds of nodes");
  const groups = [];
  const add = (typed) => {
    const group = groupFields(offered, typed, () => {
      groups.splice(groups.indexOf(group), 1);
      group.element.remove();
      note();
    });
    groups.push(group);
    rows.append(group.element);
  };
  for (const typed of kept(key) || [{ kind: "DGX-H100" }, { kind: "DGX-A100-80GB" }]) add(typed);
  const limit = figure("Oversubscription of the network", 1, { min: 1 });
  return {
    element: h("div", {}, rows, h("div", { class: "fields" },
      h("button", { type: "button", name: "add-group", onclick: () => {
        add({ kind: "A100-SXM4-80GB" });
        note();
      } }, "Add a kind of node"), limit.element)),
    text: () => {
      const found = { name: "mine", nodes: groups.map((group) => group.value()) };
      if (Number(limit.value()) > 1) found.network = { oversubscription: Number(limit.value()) };
      return JSON.stringify(found, null, 1);
    },
  };
}

/** One kind of node: a row of the tables, or a GPU with its links and NICs. */
function groupFields(offered, typed, remove) {
  const nodes = new Map(offered.nodes.map((one) => [one.name, one]));
  const names = [...offered.nodes.map((one) => [one.name, `${one.gpus} x ${one.gpu}`]),
    ...offered.gpus.map((one) => [one.name, `${one.memory_gb} GB`])];
  const kind = named("Node type or GPU", names, typed.kind, { name: "kind", kept: false });
  const many = figure("Nodes", typed.many ?? 2, { min: 1, step: 1, name: "nodes", kept: false });
  const per = figure("GPUs a node", typed.per ?? 8, { min: 1, step: 1, name: "gpus", kept: false });
  const link = choice("Link inside", [["", "as usual for the GPU"], ...offered.links], typed.link ?? "", { name: "link", kept: false });
  const nic = figure("NICs of a node, Gbit/s", typed.nic ?? "", { min: 0.001, name: "nic", kept: false, placeholder: "as usual" });
  const more = h("div", { class: "more fields" });
  const settle = (event) => {
    const node = nodes.get(kind.value());
    if (node) more.replaceChildren(...(node.nic_gbps ? [] : [nic.element]));
    else {  // a GPU, by a name of the tables or one that the server knows, too: "H100"
      if (event) link.input.value = "";
      more.replaceChildren(per.element, link.element, nic.element);
    }
  };
  kind.input.addEventListener("input", settle);
  settle();
  return {
    element: h("div", { class: "group" }, many.element, kind.element,
      h("button", { type: "button", "aria-label": "remove this kind of node", onclick: remove }, "\u00d7"), more),
    typed: () => ({ kind: kind.value(), many: many.value(), per: per.value(), link: link.value(), nic: nic.value() }),
    value: () => {
      const node = nodes.get(kind.value()), count = Number(many.value());
      // What is left open is that of the machine the GPU is usually in; the answer's notes say so.
      const nics = nic.value() === "" ? {} : { nic_gbps: Number(nic.value()) };
      if (node) return { count, node: node.name, ...(node.nic_gbps ? {} : nics) };
      return { count, gpu: kind.value(), gpus: Number(per.value()), ...nics,
        ...(Number(per.value()) > 1 && link.value() ? { intra_link: link.value() } : {}) };
    },
  };
}

export const SETUP = ["global-batch", "seq", "dtype", "optimizer", "schedule"];  // options that the setup asks for

/** The job of one step: those fields of the question of a plan. */
export function jobFields(offered) {
  const asked = offered.questions.plan.filter((one) => SETUP.includes(one.name));
  const form = questionForm(asked.map((one) => ({ ...one, basic: true, required: one.kind === "figure" })),
    { values: { "global-batch": 256, seq: 8192 } });
  return { element: h("fieldset", {}, h("legend", {}, "Job"), form.element), options: form.options, fill: form.fill };
}

/** All three, as the beginning of a request. */
export function makeSetup(offered) {
  const model = modelPicker(offered), cluster = clusterPicker(offered), job = jobFields(offered);
  return {
    element: h("div", { class: "setup" }, model.element, cluster.element, job.element),
    fill: ({ arguments: [what, where], options, files }) => {
      model.fill(what, files);
      cluster.fill(where, files);
      job.fill(options);
    },
    request: (verb, more = {}) => ({
      verb, arguments: [model.argument(), cluster.argument()], options: { ...job.options(), ...more },
      files: { ...model.files(), ...cluster.files() },
    }),
  };
}
