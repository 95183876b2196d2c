// Form fields. Each has `element` and `value()`; the names are those of the verbs' options.

import { h } from "./dom.js";

let number = 0;

export function choice(label, values, chosen, given = {}) {
  const input = h("select", given, values.map((one) => {
    const [value, words] = Array.isArray(one) ? one : [one, one];
    return h("option", { value, selected: value === chosen }, words);
  }));
  return { element: h("label", {}, label, input), input, value: () => input.value };
}

/** Text with suggestions. */
export function named(label, names, chosen, given = {}) {
  const key = `names${(number += 1)}`;
  const list = h("datalist", { id: key }, names.map(([value, words]) => h("option", { value }, words || "")));
  const input = h("input", { value: chosen, list: key, autocomplete: "off", spellcheck: "false", ...given });
  input.addEventListener("focus", () => input.select());
  return { element: h("label", {}, label, input, list), input, value: () => input.value.trim() };
}

export function figure(label, chosen, given = {}) {
  const input = h("input", { type: "number", value: chosen, step: "any", ...given });
  return { element: h("label", {}, label, input), input, value: () => input.value };
}

export function words(label, chosen, given = {}) {
  const input = h("input", { value: chosen, spellcheck: "false", autocomplete: "off", ...given });
  return { element: h("label", { class: given.class }, label, input), input, value: () => input.value.trim() };
}

export function toggle(label, chosen) {
  const input = h("input", { type: "checkbox", checked: chosen });
  return { element: h("label", { class: "switch" }, input, label), input, value: () => input.checked };
}

/** A place to drop one text file or to choose it. `took(name, text)` hears of it. */
export function drop(label, accept, took) {
  const said = h("span", { role: "status" });
  const read = async (file) => {
    if (!file) return;
    if (file.size > 48 * 2 ** 20) {
      said.textContent = ` ${file.name} is too long for the page`;
      return;
    }
    took(file.name, await file.text());
    said.textContent = ` ${file.name}`;
  };
  // Emptied at every click, so that the same file, edited meanwhile, is read again.
  const input = h("input", { type: "file", accept, onchange: () => read(input.files[0]), onclick: () => {
    input.value = "";
  } });
  const element = h("label", { class: "drop wide",
    ondragover: (event) => {
      event.preventDefault();
      element.classList.add("over");
    },
    ondragleave: () => element.classList.remove("over"),
    ondrop: (event) => {
      event.preventDefault();
      element.classList.remove("over");
      read(event.dataTransfer.files[0]);
    } }, label, input, said);
  return { element };
}

/** Options of a verb from fields by name: what is left empty, or at `unless`, is not said. */
export function options(fields, unless = {}) {
  const found = {};
  for (const [name, field] of Object.entries(fields)) {
    const value = field.value();
    if (value === "" || value === false || String(value) === String(unless[name])) continue;
    found[name] = typeof value === "boolean" ? value : String(value);
  }
  return found;
}
