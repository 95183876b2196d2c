"""The verbs of `tangram rl` that ask a question; their options are the question's fields."""

from tangram_sim.cli.asked import asked
from tangram_sim.cli.rl.words import show_compare, show_plan, show_simulate, show_what_if
from tangram_sim.questions.rl import (
    RlCompareQuestion,
    RlEstimateQuestion,
    RlPlanQuestion,
    RlPurchaseQuestion,
    RlSimulateQuestion,
    RlWhatIfQuestion,
)

plan = asked(RlPlanQuestion, show_plan, reader="rl simulate")
estimate = asked(RlEstimateQuestion, show_plan)
compare = asked(RlCompareQuestion, show_compare)
what_if = asked(RlWhatIfQuestion, show_what_if)
purchase = asked(RlPurchaseQuestion, show_what_if)
simulate = asked(RlSimulateQuestion, show_simulate)
