// Plan: constraints, the search with its progress, and the plan taken apart.

import { asking } from "./asking.js";
import { h } from "./dom.js";
import { choice, figure, options, toggle, words } from "./fields.js";
import { showPlan } from "./plan-view.js";

export function planPage(offered, setup, state) {
  const fields = {
    for: choice("Launched with", [["", "whatever is fastest"], "megatron", "torchtitan", "deepspeed", "any"], ""),
    effort: choice("Effort", ["quick", "normal", "exhaustive"], "normal", { name: "effort" }),
    "time-limit": figure("Seconds at most", "", { min: 0, placeholder: "no limit" }),
    fix: words("Fixed degrees", "", { placeholder: "tp=4, zero=1" }),
    recompute: choice("Recompute", [["", "what is best"], "none", "selective", "full"], ""),
    order: words("Islands, front to back", "", { placeholder: "g1,g0" }),
    exclude: words("Islands not to use", "", { placeholder: "g2" }),
    "memory-margin": words("Memory to leave free", "auto", {}),
    slow: words("What runs slow", "", { placeholder: "n3=1.5" }),
    stack: choice("Software", offered.stacks, "generic"),
  };
  const oneIsland = toggle("stages on one island each", false);
  const onePipeline = toggle("one pipeline only", false);
  const content = h("div", { id: "content", tabindex: -1 });
  const search = asking("Plan", {
    into: content,
    request: () => {
      const given = options(fields, { effort: "normal", "memory-margin": "auto", stack: "generic" });
      // Switches of the verb that turn something off have names of their own.
      if (oneIsland.value()) given["island-stages"] = true;
      if (onePipeline.value()) given["one-pipeline"] = true;
      return setup.request("plan", { ...given, ...(given.slow ? {} : { top: 4 }), output: "plan.json" });
    },
    show: (answer, asked) => {
      state.plan = { document: answer.document, text: answer.files["plan.json"], asked, command: answer.command };
      return showPlan(content, offered, state.plan);
    },
  });
  const form = h("form", { onsubmit: search.ask },
    h("details", {}, h("summary", {}, "Constraints"),
      h("fieldset", {}, h("legend", {}, "Constraints"),
        h("div", { class: "fields" }, Object.values(fields).map((one) => one.element),
          onePipeline.element, oneIsland.element))),
    search.element);
  form.takeSetup = () => form.prepend(setup.element);
  content.append(h("h1", {}, "Plan a training run"),
    h("p", {}, "Choose a model and a cluster, or drop files of your own, and press Plan. The answer says which GPUs take "
      + "which layers, what a step takes, and why not otherwise."));
  return [form, content];
}
