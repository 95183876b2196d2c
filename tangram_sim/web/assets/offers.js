// Node types that can be bought or rented, and what they cost as typed here.

import { h } from "./dom.js";
import { figure, fillIn, named, options } from "./fields.js";
import { keep, keyOf, kept } from "./kept.js";

const TYPED = "typed on the page";
const USUAL = [{ node: "DGX-H100", many: 2 }, { node: "DGX-A100-80GB", many: 4 }];

/** The offers, one a row. `entries()` gives [{node, many, capital, hour}]. */
export function makeOffers(offered) {
  const key = keyOf("offers"), wanted = [];
  const entries = () => wanted.map((one) => one.typed());
  const note = () => keep(key, entries());
  const rows = h("div", { oninput: () => note(), onchange: () => note() });
  const add = (typed) => {
    const mine = { kept: false };
    const node = named("Node type", offered.nodes.map((one) => [one.name, `${one.gpus} x ${one.gpu}`]), typed.node,
      { name: "offer", ...mine });
    const many = figure("Nodes", typed.many, { min: 1, step: 1, name: "many", ...mine });
    const capital = figure("USD to buy one", typed.capital ?? "", { min: 0, name: "capital", placeholder: "as known", ...mine });
    const hour = figure("USD an hour to rent one", typed.hour ?? "", { min: 0, name: "hour", placeholder: "as known", ...mine });
    const entry = { typed: () => ({ node: node.value(), many: Number(many.value()), capital: capital.value(), hour: hour.value() }) };
    const remove = entry.remove = () => {
      wanted.splice(wanted.indexOf(entry), 1);
      element.remove();
      note();
    };
    const element = h("div", { class: "group" }, many.element, node.element,
      h("button", { type: "button", "aria-label": "remove this offer", onclick: remove }, "\u00d7"),
      h("div", { class: "more fields" }, capital.element, hour.element));
    wanted.push(entry);
    rows.append(element);
  };
  for (const typed of kept(key) || USUAL) add(typed);
  const more = h("button", { type: "button", onclick: () => {
    add({ node: "DGX-B200", many: 1 });
    note();
  } }, "Add an offer");
  return { element: h("div", {}, rows, more), entries, fill: (entriesAsked) => {
    for (const one of [...wanted]) one.remove();
    entriesAsked.forEach(add);
    note();
  } };
}

/** What costs are worked out from besides: the economics of a file of prices. */
export function makeEconomics() {
  const fields = {
    amortisation_years: figure("Years until written off", "", { min: 0, name: "years" }),
    usd_per_kwh: figure("USD a kWh", "", { min: 0, name: "kwh" }),
    pue: figure("Power drawn over power of nodes (PUE)", "", { min: 1, name: "pue" }),
    utilisation: figure("Share of the time in training", "", { min: 0, max: 1, name: "utilisation", placeholder: "all of it" }),
  };
  return { fill: (said) => Object.entries(fields).forEach(([name, field]) => fillIn(field, said[name] ?? "")),
    element: h("div", { class: "fields" }, Object.values(fields).map((one) => one.element)),
    figures: () => Object.fromEntries(Object.entries(options(fields)).map(([name, value]) => [name, Number(value)])) };
}

/** What was typed of a file of prices that the page made: {nodes, economics}; null of any other file. */
export function typedPrices(text) {
  return text?.includes(`"source": "${TYPED}"`) ? JSON.parse(text) : null;
}

/** A file of prices from what was typed; "" where nothing was. JSON, which is YAML. */
export function pricesOf(entries, economics) {
  const said = { date: new Date().toISOString().slice(0, 10), source: TYPED };
  const nodes = {};
  for (const { node, capital, hour } of entries) {
    const figures = { ...(capital ? { capital_usd: Number(capital) } : {}), ...(hour ? { rent_usd_per_hour: Number(hour) } : {}) };
    if (Object.keys(figures).length) nodes[node] = { ...figures, ...said };
  }
  const found = { ...(Object.keys(nodes).length ? { nodes } : {}),
    ...(Object.keys(economics).length ? { economics: { ...economics, ...said } } : {}) };
  return Object.keys(found).length ? JSON.stringify(found, null, 1) : "";
}
