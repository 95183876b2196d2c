"""Findings of the Tangram planner."""

from tangram_sim.findings import Severity, declare

KNOWN_IS_BEST = declare(
    "known-plan-is-fastest",
    Severity.DETAIL,
    "the plan that was known before the search is the fastest found",
)
LIKELIEST_ISLANDS = declare(
    "islands-left-out-of-search",
    Severity.NOTE,
    "{islands} islands: pipelines were searched on the {searched} that do most of the work",
)
NOTHING_SEARCHED = declare(
    "nothing-searched", Severity.STOPPED, "time limit 0: the best uniform layout, nothing was searched"
)
NO_CANDIDATES = declare(
    "candidates-not-recorded",
    Severity.NOTE,
    "`every_candidate=True`: partial plans of patterns are not recorded; the file is empty",
)
MICROBATCHES_LEFT_OUT = declare(
    "microbatches-left-out-of-search",
    Severity.DETAIL,
    "effort {effort}: microbatches of {microbatches:listed} were not searched node by node",
)
WINDOW = declare(
    "imbalance-window",
    Severity.NOTE,
    "imbalance window {window:g} as asked: {pairs} pairs left out, at most {lost:percent1} of the step lost "
    "to it",
)
SIDE_BY_SIDE = declare(
    "gain-side-by-side",
    Severity.DETAIL,
    "{pipelines} pipelines side by side are {gain:percent1} faster than the best single one found",
)
_LOOKED = "{apart}{slices} slices on {joint} joint islands looked at: "
SPANNING_FAR = declare(
    "joint-stages-far", Severity.DETAIL, _LOOKED + "no plan within {within:percent} of the best one"
)
SPANNING_ALONE = declare(
    "joint-stages-needed",
    Severity.DETAIL,
    _LOOKED + "{stages:joined} takes {step_s:.4g} s; without such stages there is no plan",
)
SPANNING_FASTER = declare(
    "joint-stages-faster",
    Severity.DETAIL,
    _LOOKED + "{stages:joined} takes {step_s:.4g} s, {gain:percent1} faster than the best plan without "
    "({others_s:.4g} s)",
)
SPANNING_SLOWER = declare(
    "joint-stages-no-faster",
    Severity.DETAIL,
    _LOOKED + "{stages:joined} takes {step_s:.4g} s, no faster than the best plan without ({others_s:.4g} s)",
)
