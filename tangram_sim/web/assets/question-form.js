// Forms made from the fields of a verb's question: the server says what they are about, nothing is stated here again.

import { h } from "./dom.js";
import { choice, figure, fillIn, named, options, toggle, wanted, words } from "./fields.js";

function made(one, value, prefix) {
  const given = { name: prefix + one.name, placeholder: one.unset, title: one.help };
  const start = value ?? one.default ?? "";
  if (one.kind === "switch") return toggle(one.label, Boolean(start));
  if (one.kind === "choice") return choice(one.label, one.choices, start, given);
  if (one.kind === "figure") return (one.required ? wanted : figure)(one.label, start, { ...given, min: one.least, max: one.most, step: one.whole ? 1 : "any" });
  if (one.choices.length) return named(one.label, one.choices.map((name) => [name]), start, given);
  return words(one.label, start, given);
}

/** The fields of a question in groups, those that few need folded away. `values`: what stands in some at first;
 * `without`: options that the page asks for elsewhere; `prefix`: of the names of its inputs, where a page has several
 * forms. `options()` says what differs from the defaults. */
export function questionForm(fields, { values = {}, without = [], prefix = "" } = {}) {
  const shown = fields.filter((one) => !without.includes(one.name));
  const held = Object.fromEntries(shown.map((one) => [one.name, made(one, values[one.name], prefix)]));
  const elements = (some) => h("div", { class: "fields" }, some.map((one) => held[one.name].element));
  const more = shown.filter((one) => !one.basic), groups = [...new Set(more.map((one) => one.group))];
  const switches = shown.filter((one) => one.kind === "switch"), others = shown.filter((one) => one.kind !== "switch");
  const defaults = Object.fromEntries(others.map((one) => [one.name, one.default ?? ""]));
  const switched = () => Object.fromEntries(switches.filter((one) => held[one.name].value() !== Boolean(one.default))
    .map((one) => [one.default ? one.off : one.name, true]));
  return {
    element: h("div", {}, elements(shown.filter((one) => one.basic)), more.length ? h("details", {}, h("summary", {}, "Advanced"),
      groups.map((group) => h("fieldset", {}, h("legend", {}, group), elements(more.filter((one) => one.group === group))))) : ""),
    options: () => ({ ...options(Object.fromEntries(others.map((one) => [one.name, held[one.name]])), defaults), ...switched() }),
    field: (name) => held[name],
    /** Put the options of a question into the fields, the defaults where it says nothing. */
    fill: (asked) => shown.forEach((one) => fillIn(held[one.name], one.kind === "switch"
      ? Boolean(asked[one.name] ?? (asked[one.off] ? false : one.default)) : asked[one.name] ?? one.default ?? "")),
  };
}
