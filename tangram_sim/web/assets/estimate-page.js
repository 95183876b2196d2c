// Turn a knob, see the estimate: one uniform layout of the setup's model, cluster and job.

import { addressOf, atAddress, queryOf, questionOf } from "./address.js";
import { run } from "./ask.js";
import { showsAgain } from "./asking.js";
import { seconds } from "./charts.js";
import { command, failure, h, section } from "./dom.js";
import { choice, fillIn, toggle } from "./fields.js";
import { keep, keyOf, kept } from "./kept.js";
import { headline, pipelines } from "./plan-view.js";

function slider(label, values, usual, changed) {
  const key = keyOf(label), before = kept(key), chosen = values.includes(before) ? before : usual;
  const input = h("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: values.indexOf(chosen),
    name: label, "aria-valuetext": String(chosen) });
  const shown = h("output", {}, String(chosen));
  const value = () => values[Number(input.value)];
  const turn = (to) => fillIn({ input }, values.indexOf(values.includes(Number(to)) ? Number(to) : usual));
  input.addEventListener("input", () => {
    shown.textContent = String(value());
    input.setAttribute("aria-valuetext", String(value()));
    keep(key, value());
    changed();
  });
  return { element: h("label", { class: "slider" }, h("span", {}, `${label}: `, shown), input), value, turn };
}

const powers = (most) => Array.from({ length: Math.log2(most) + 1 }, (_, at) => 2 ** at);

export function estimatePage(offered, setup, state) {
  const content = h("div", { id: "content", tabindex: -1 });
  const answer = h("div", { role: "status" });
  let asking = false, again = false;
  // One question at a time; while it is under way only the newest knobs are remembered.
  const changed = async () => {
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    do {
      again = false;
      try {
        const asked = setup.request("estimate", options());
        show(await run(asked));
        atAddress("estimate", addressOf("estimate", asked), false);
      } catch (error) {
        answer.replaceChildren(failure(error.message));
      }
    } while (again);
    asking = false;
  };
  const knobs = {
    tp: slider("tp", powers(16), 1, changed), pp: slider("pp", [1, 2, 3, 4, 6, 8, 12, 16, 24, 32], 2, changed),
    cp: slider("cp", powers(16), 1, changed), ep: slider("ep", powers(64), 1, changed),
    vpp: slider("vpp", [1, 2, 3, 4, 6, 8], 1, changed), zero: slider("zero", [0, 1, 2, 3], 1, changed),
    "micro-batch": slider("micro-batch", powers(16), 1, changed),
  };
  const recompute = choice("Recompute", ["none", "selective", "full"], "none", { onchange: changed });
  const sequence = toggle("sequence parallel", false);
  sequence.input.addEventListener("change", changed);
  const options = () => {
    const found = Object.fromEntries(Object.entries(knobs).map(([name, knob]) => [name, knob.value()]));
    if (found.vpp === 1) delete found.vpp;
    return { ...found, recompute: recompute.value(), ...(sequence.value() ? { "sequence-parallel": true } : {}) };
  };
  showsAgain("estimate", (asked, _, files) => {
    if (files) return;  // those that were dropped stand in the form, or are needed again
    setup.fill(asked);
    for (const [name, knob] of Object.entries(knobs)) knob.turn(asked.options[name]);
    fillIn(recompute, asked.options.recompute ?? "none");
    fillIn(sequence, Boolean(asked.options["sequence-parallel"]));
  });
  const show = (found) => {
    if (found.code) {
      answer.replaceChildren(failure(found.error));
      return;
    }
    const plan = found.document, best = state.plan && state.plan.document;
    const same = best && best.model.name === plan.model.name && best.cluster.name === plan.cluster.name
      && best.job.global_batch === plan.job.global_batch && best.job.seq === plan.job.seq;
    answer.replaceChildren(...headline(plan),
      same ? h("p", { class: "note" }, `The plan found takes ${seconds(best.step_s)}: this is `
        + `${(plan.step_s / best.step_s).toFixed(2)} times that.`) : "",
      section("The pipeline", ...pipelines(plan)), command(found.command));
  };
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    changed();
  }, onchange: (event) => {
    if (event.target.closest(".setup")) changed();
  } }, h("fieldset", {}, h("legend", {}, "Layout, the same in every stage"),
    h("div", { class: "fields" }, Object.values(knobs).map((one) => one.element), recompute.element, sequence.element)),
  h("button", { class: "main", type: "submit" }, "Estimate"));
  form.whenShown = (query) => {
    form.prepend(setup.element);
    if (questionOf(query).files && query !== queryOf("estimate")) {
      answer.replaceChildren(h("p", { class: "note" },
        "This estimate is of files that were dropped on the page: drop them again, then press Estimate."));
    } else changed();
  };
  content.append(answer);
  return [form, content];
}
