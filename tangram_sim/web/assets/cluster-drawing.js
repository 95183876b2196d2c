// The cluster with who holds what: a shape for each kind of GPU, a colour for each stage, lines for links.

import { h } from "./dom.js";
import { stageNames } from "./played.js";

const STEP = 22, LINK = 34, NETWORK = 66;  // pixels: between GPUs, down to the link inside a node, to the network
const SHAPES = ["M-7,-7H7V7H-7Z", "M-8,0A8,8 0 1 1 8,0A8,8 0 1 1 -8,0Z", "M0,-9L9,7H-9Z", "M0,-10L10,0L0,10L-10,0Z",
  "M-9,0L-5,-8H5L9,0L5,8H-5Z", "M-3,-9H3V-3H9V3H3V9H-3V3H-9V-3H-3Z"];

function svg(name, given = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The colour of a stage, the same in every drawing and plot. */
export const colourOf = (stage) => stage.stage % 8;

/** The kinds of GPU of a plan's cluster, in its order: their places are their shapes. */
export const kindsOf = (plan) => [...new Set(plan.cluster.nodes.map((group) => group.gpu))];

/** The shape of a kind, small, to stand in a line of text; none for what is of several kinds. */
export function shapeOf(plan, gpu) {
  const place = kindsOf(plan).indexOf(gpu);
  return place < 0 ? "" : svg("svg", { viewBox: "-11 -11 22 22", class: "shape", "aria-hidden": "true" },
    svg("path", { d: SHAPES[place % SHAPES.length] }));
}

/** Which stage each GPU of the cluster holds, by rank: ranks are counted node by node in the order of the cluster. */
function holders(plan) {
  const names = stageNames(plan), found = new Map();
  plan.pipelines.forEach((pipeline, number) => pipeline.stages.forEach((stage, place) => stage.parts.forEach((part, at) => {
    const told = plan.stages.find((one) => one.pipeline === number && one.stage === place && one.part === at);
    if (told) for (const rank of part.ranks) found.set(rank, { stage: told, name: names.get(told) });
  })));
  return found;
}

export function clusterDrawing(plan) {
  const held = holders(plan);
  let rank = 0;
  const groups = plan.cluster.nodes.map((group, number) => {
    const nodes = [];  // equal neighbours are drawn once
    for (let node = 0; node < group.count; node += 1) {
      const gpus = Array.from({ length: group.gpus }, (_, at) => held.get(rank + at));
      const key = gpus.map((one) => (one ? one.name : "-")).join();
      rank += group.gpus;
      if (nodes.length && nodes.at(-1).key === key) nodes.at(-1).until = node;
      else nodes.push({ key, gpus, from: node, until: node });
    }
    const links = [group.gpus > 1 ? `${group.intra_link} inside` : "", group.nic_gbps ? `${group.nic_gbps} Gbit/s of NICs each` : ""];
    return h("figure", { class: "group-of-nodes" }, h("figcaption", {}, shapeOf(plan, group.gpu),
      ` g${number}: ${group.count} ${group.count > 1 ? "nodes" : "node"} of ${group.gpus} \u00d7 ${group.gpu}`,
      h("span", { class: "note" }, ` ${links.filter(Boolean).join(", ")}`)),
    h("div", { class: "nodes" }, nodes.map((node) => drawn(plan, group, node))));
  });
  return h("div", { class: "drawing" }, groups, h("p", { class: "note" }, "Shapes are kinds of GPU, numbers and colours stages, hollow shapes idle "
    + "GPUs; the upper line is the link inside a node (dashed: PCIe), the lower one the network."));
}

function drawn(plan, group, { gpus, from, until }) {
  const many = until - from + 1, words = many > 1 ? `nodes ${from}-${until}: ${many} alike` : `node ${from}`;
  const width = Math.max(gpus.length * STEP + 14, words.length * 7 + 12), x = (at) => 18 + at * STEP;
  const runs = [];  // GPUs side by side that hold the same
  gpus.forEach((one, at) => {
    if (runs.length && runs.at(-1).one?.name === one?.name) runs.at(-1).to = at;
    else runs.push({ one, from: at, to: at });
  });
  const holds = runs.map(({ one, from: first, to }) => `${to - first + 1} ${group.gpu}: ${one ? `stage ${one.name}` : "idle"}`).join(", ");
  const last = x(gpus.length - 1);
  return svg("svg", { class: "chart node", width, height: NETWORK + 4, role: "img", "aria-label": `${words}: ${holds}` },
    svg("title", {}, holds), svg("text", { x: 8, y: 14, class: "small soft" }, words),
    svg("path", { class: /pcie/i.test(group.intra_link) ? "wire dashed" : "wire", d: `M${x(0)},${LINK}H${last}` }),
    svg("path", { class: "wire", d: `M${x(0)},${LINK}V${NETWORK}M0,${NETWORK}H${width}` }),
    ...gpus.map((one, at) => svg("path", { class: one ? `gpu fill${colourOf(one.stage)}` : "gpu idle", transform: `translate(${x(at)},${LINK})`,
      d: SHAPES[kindsOf(plan).indexOf(group.gpu) % SHAPES.length] })),
    ...runs.filter(({ one }) => one).map(({ one, from: first, to }) => svg("text", { x: (x(first) + x(to)) / 2, y: NETWORK - 8, class: "small middle" },
      to - first > 2 ? `stage ${one.name}` : one.name)));
}
