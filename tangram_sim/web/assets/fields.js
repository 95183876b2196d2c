// Form fields. Each has `element` and `value()`; the names are those of the verbs' options.

import { h } from "./dom.js";
import { keep, keyOf, kept } from "./kept.js";

let number = 0;

/** What is in the field stays when the page is loaded again; `{kept: false}`: somebody else keeps it. */
function remembered(field, label, given) {
  if (given.kept === false) return field;
  const { input } = field, key = keyOf(label), before = kept(key);
  const name = input.type === "checkbox" ? "checked" : "value";
  const known = before !== undefined && (!input.options || [...input.options].some((one) => one.value === before));
  if (known) input[name] = before;
  for (const event of ["input", "change"]) input.addEventListener(event, () => keep(key, input[name]));
  return field;
}

export function choice(label, values, chosen, given = {}) {
  const input = h("select", given, values.map((one) => {
    const [value, words] = Array.isArray(one) ? one : [one, one];
    return h("option", { value, selected: value === chosen }, words);
  }));
  return remembered({ element: h("label", {}, label, input), input, value: () => input.value }, label, given);
}

/** Text with suggestions. */
export function named(label, names, chosen, given = {}) {
  const key = `names${(number += 1)}`;
  const list = h("datalist", { id: key }, names.map(([value, words]) => h("option", { value }, words || "")));
  const input = h("input", { value: chosen, list: key, autocomplete: "off", spellcheck: "false", ...given });
  input.addEventListener("focus", () => input.select());
  return remembered({ element: h("label", {}, label, input, list), input, value: () => input.value.trim() }, label, given);
}

export function figure(label, chosen, given = {}) {
  const input = h("input", { type: "number", value: chosen, step: "any", ...given });
  const element = h("label", { class: given.class }, label, input);
  return remembered({ element, input, value: () => input.value }, label, given);
}

/** A number without which there is no question: an empty field is said to be empty, not taken as some default. */
export function wanted(label, chosen, given = {}) {
  const field = figure(label, chosen, { "aria-required": "true", ...given });
  const value = () => {
    const empty = field.input.value === "";
    field.input.setAttribute("aria-invalid", String(empty));
    if (empty) throw new Error(`${label}: empty; give a number`);
    return field.input.value;
  };
  return { ...field, value };
}

export function words(label, chosen, given = {}) {
  const input = h("input", { value: chosen, spellcheck: "false", autocomplete: "off", ...given });
  return remembered({ element: h("label", { class: given.class }, label, input), input, value: () => input.value.trim() },
    label, given);
}

export function toggle(label, chosen) {
  const input = h("input", { type: "checkbox", checked: chosen });
  return remembered({ element: h("label", { class: "switch" }, input, label), input, value: () => input.checked }, label, {});
}

/** Put a value into a field, as if it were typed. */
export function fillIn({ input }, value) {
  input[input.type === "checkbox" ? "checked" : "value"] = value;
  for (const event of ["input", "change"]) input.dispatchEvent(new Event(event, { bubbles: true }));
}

/** A place to drop one text file or to choose it. `took(name, text)` hears of it, and of one that was kept;
 * of one that is taken away again it hears `took(null, null)`. */
export function drop(label, accept, took) {
  const said = h("span", { role: "status" }), key = keyOf(label), before = kept(key);
  const away = h("button", { type: "button", class: "small", hidden: true, onclick: () => {
    forget();
    took(null, null);
  } }, "take away");
  const show = (name) => {
    said.textContent = name ? ` ${name} ` : "";
    away.hidden = !name;
  };
  const read = async (file) => {
    if (!file) return;
    if (file.size > 48 * 2 ** 20) {
      said.textContent = ` ${file.name} is too long for the page`;
      return;
    }
    take(file.name, await file.text());
  };
  const take = (name, text) => {
    took(name, text);
    keep(key, [name, text]);
    show(name);
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
    } }, label, input, said, away);
  const forget = () => {
    keep(key, undefined);
    input.value = "";
    show("");
  };
  if (before) {
    took(...before);
    show(before[0]);
  }
  /** Put a file in, or take away what lies there. */
  const fill = (name, text) => {
    if (text) return take(name, text);
    forget();
    return took(null, null);
  };
  return { element, forget, take, fill };
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
