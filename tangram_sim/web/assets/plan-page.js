// Plan: constraints, the search with its progress, and the plan taken apart.

import { asking } from "./asking.js";
import { h } from "./dom.js";
import { fillIn } from "./fields.js";
import { showPlan } from "./plan-view.js";
import { questionForm } from "./question-form.js";
import { SETUP } from "./setup.js";

export function planPage(offered, setup, state) {
  const constraints = questionForm(offered.questions.plan, { without: [...SETUP, "top"] });
  const content = h("div", { id: "content", tabindex: -1 });
  const search = asking("Plan", {
    verbs: ["plan"], into: content,
    fill: (asked) => {
      setup.fill(asked);
      constraints.fill(asked.options);
    },
    request: () => {
      const given = constraints.options();
      return setup.request("plan", { ...given, ...(given.slow ? {} : { top: 4 }), output: "plan.json" });
    },
    show: (answer, asked) => {
      state.plan = { document: answer.document, text: answer.files["plan.json"], asked, command: answer.command,
        planFor: (framework) => {
          fillIn(constraints.field("for"), framework);
          search.ask();
        } };
      return showPlan(content, offered, state.plan);
    },
  });
  const form = h("form", { onsubmit: search.ask },
    h("details", {}, h("summary", {}, "Constraints"),
      h("fieldset", {}, h("legend", {}, "Constraints"),
        constraints.element)),
    search.element);
  form.whenShown = () => form.prepend(setup.element);
  content.append(h("h1", {}, "Plan a training run"),
    h("p", {}, "Choose a model and a cluster, or drop files of your own, and press Plan. The answer says which GPUs take "
      + "which layers, what a step takes, and why not otherwise."));
  return [form, content];
}
