"""tangram-sim: plan and simulate LLM training and serving on clusters of unequal GPUs.

Every name below is resolved on first use, so that `import tangram_sim` loads nothing that computes. Type
checkers see the real signatures.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tangram_sim.version import __version__ as __version__

if TYPE_CHECKING:
    from tangram_sim.clusters import Cluster as Cluster
    from tangram_sim.errors import BadInputError as BadInputError
    from tangram_sim.errors import InfeasibleError as InfeasibleError
    from tangram_sim.errors import TangramError as TangramError
    from tangram_sim.errors import UnknownNameError as UnknownNameError
    from tangram_sim.hwdb import Hwdb as Hwdb
    from tangram_sim.hwdb import load_cluster as load_cluster
    from tangram_sim.hwdb import load_model as load_model
    from tangram_sim.layouts import Layout as Layout
    from tangram_sim.models import Model as Model
    from tangram_sim.parallelizers.constraints import Constraints as Constraints
    from tangram_sim.planners.search_memory import SearchMemory as SearchMemory
    from tangram_sim.planners.search_options import SearchOptions as SearchOptions
    from tangram_sim.planners.uniform.degrees import Uniform as Uniform
    from tangram_sim.purchasing.recommend import Recommendation as Recommendation
    from tangram_sim.purchasing.recommend import recommend as recommend
    from tangram_sim.questions.compare import CompareQuestion as CompareQuestion
    from tangram_sim.questions.estimate import EstimateQuestion as EstimateQuestion
    from tangram_sim.questions.explain import ExplainQuestion as ExplainQuestion
    from tangram_sim.questions.export import ExportQuestion as ExportQuestion
    from tangram_sim.questions.goodput import GoodputQuestion as GoodputQuestion
    from tangram_sim.questions.islands import IslandsQuestion as IslandsQuestion
    from tangram_sim.questions.plan import PlanQuestion as PlanQuestion
    from tangram_sim.questions.purchase import PurchaseQuestion as PurchaseQuestion
    from tangram_sim.questions.question import read_question as read_question
    from tangram_sim.questions.replay import ReplayTraceQuestion as ReplayTraceQuestion
    from tangram_sim.questions.rl import RlCompareQuestion as RlCompareQuestion
    from tangram_sim.questions.rl import RlEstimateQuestion as RlEstimateQuestion
    from tangram_sim.questions.rl import RlExportQuestion as RlExportQuestion
    from tangram_sim.questions.rl import RlPlanQuestion as RlPlanQuestion
    from tangram_sim.questions.rl import RlPurchaseQuestion as RlPurchaseQuestion
    from tangram_sim.questions.rl import RlSimulateQuestion as RlSimulateQuestion
    from tangram_sim.questions.rl import RlWhatIfQuestion as RlWhatIfQuestion
    from tangram_sim.questions.serve_estimate import ServeEstimateQuestion as ServeEstimateQuestion
    from tangram_sim.questions.serve_export import ServeExportQuestion as ServeExportQuestion
    from tangram_sim.questions.serve_plan import ServeCompareQuestion as ServeCompareQuestion
    from tangram_sim.questions.serve_plan import ServePlanQuestion as ServePlanQuestion
    from tangram_sim.questions.serve_replan import ServeReplanQuestion as ServeReplanQuestion
    from tangram_sim.questions.serve_simulate import ServeSimulateQuestion as ServeSimulateQuestion
    from tangram_sim.questions.serve_what_if import ServePurchaseQuestion as ServePurchaseQuestion
    from tangram_sim.questions.serve_what_if import ServeWhatIfQuestion as ServeWhatIfQuestion
    from tangram_sim.questions.serve_workload import ServeWorkloadQuestion as ServeWorkloadQuestion
    from tangram_sim.questions.simulate import SimulateQuestion as SimulateQuestion
    from tangram_sim.questions.stragglers import StragglersQuestion as StragglersQuestion
    from tangram_sim.questions.what_if import WhatIfQuestion as WhatIfQuestion
    from tangram_sim.studies.api import estimate as estimate
    from tangram_sim.studies.api import estimate_many as estimate_many
    from tangram_sim.studies.api import plan as plan
    from tangram_sim.studies.api import simulate as simulate
    from tangram_sim.studies.comparison import compare_planners as compare_planners
    from tangram_sim.studies.documents import PlanDocument as PlanDocument
    from tangram_sim.studies.explain import explain as explain
    from tangram_sim.studies.replica_question import ReplicaQuestion as ReplicaQuestion
    from tangram_sim.studies.results import Result as Result
    from tangram_sim.studies.serving_comparison import compare_services as compare_services
    from tangram_sim.studies.serving_estimate import estimate_service as estimate_service
    from tangram_sim.studies.serving_model_plan import plan_service as plan_service
    from tangram_sim.studies.serving_purchase import purchase_serving as purchase_serving
    from tangram_sim.studies.serving_question import ServiceGoal as ServiceGoal
    from tangram_sim.studies.serving_question import ServiceQuestion as ServiceQuestion
    from tangram_sim.studies.serving_replan import follow_market as follow_market
    from tangram_sim.studies.serving_simulation import simulate_service as simulate_service
    from tangram_sim.studies.serving_whatif import what_if_serving as what_if_serving
    from tangram_sim.training.job import Job as Job
    from tangram_sim.training.plan import Plan as Plan

# Name -> module that defines it.
_PUBLIC = {
    "BadInputError": "tangram_sim.errors",
    "Cluster": "tangram_sim.clusters",
    "CompareQuestion": "tangram_sim.questions.compare",
    "Constraints": "tangram_sim.parallelizers.constraints",
    "EstimateQuestion": "tangram_sim.questions.estimate",
    "ExplainQuestion": "tangram_sim.questions.explain",
    "ExportQuestion": "tangram_sim.questions.export",
    "GoodputQuestion": "tangram_sim.questions.goodput",
    "Hwdb": "tangram_sim.hwdb",
    "InfeasibleError": "tangram_sim.errors",
    "IslandsQuestion": "tangram_sim.questions.islands",
    "Job": "tangram_sim.training.job",
    "Layout": "tangram_sim.layouts",
    "Model": "tangram_sim.models",
    "Plan": "tangram_sim.training.plan",
    "PlanDocument": "tangram_sim.studies.documents",
    "PlanQuestion": "tangram_sim.questions.plan",
    "PurchaseQuestion": "tangram_sim.questions.purchase",
    "Recommendation": "tangram_sim.purchasing.recommend",
    "ReplayTraceQuestion": "tangram_sim.questions.replay",
    "ReplicaQuestion": "tangram_sim.studies.replica_question",
    "Result": "tangram_sim.studies.results",
    "RlCompareQuestion": "tangram_sim.questions.rl",
    "RlEstimateQuestion": "tangram_sim.questions.rl",
    "RlExportQuestion": "tangram_sim.questions.rl",
    "RlPlanQuestion": "tangram_sim.questions.rl",
    "RlPurchaseQuestion": "tangram_sim.questions.rl",
    "RlSimulateQuestion": "tangram_sim.questions.rl",
    "RlWhatIfQuestion": "tangram_sim.questions.rl",
    "SearchMemory": "tangram_sim.planners.search_memory",
    "SearchOptions": "tangram_sim.planners.search_options",
    "ServeCompareQuestion": "tangram_sim.questions.serve_plan",
    "ServeEstimateQuestion": "tangram_sim.questions.serve_estimate",
    "ServeExportQuestion": "tangram_sim.questions.serve_export",
    "ServePlanQuestion": "tangram_sim.questions.serve_plan",
    "ServePurchaseQuestion": "tangram_sim.questions.serve_what_if",
    "ServeReplanQuestion": "tangram_sim.questions.serve_replan",
    "ServeSimulateQuestion": "tangram_sim.questions.serve_simulate",
    "ServeWhatIfQuestion": "tangram_sim.questions.serve_what_if",
    "ServeWorkloadQuestion": "tangram_sim.questions.serve_workload",
    "ServiceGoal": "tangram_sim.studies.serving_question",
    "ServiceQuestion": "tangram_sim.studies.serving_question",
    "SimulateQuestion": "tangram_sim.questions.simulate",
    "StragglersQuestion": "tangram_sim.questions.stragglers",
    "TangramError": "tangram_sim.errors",
    "Uniform": "tangram_sim.planners.uniform.degrees",
    "UnknownNameError": "tangram_sim.errors",
    "WhatIfQuestion": "tangram_sim.questions.what_if",
    "compare_planners": "tangram_sim.studies.comparison",
    "compare_services": "tangram_sim.studies.serving_comparison",
    "estimate": "tangram_sim.studies.api",
    "estimate_many": "tangram_sim.studies.api",
    "estimate_service": "tangram_sim.studies.serving_estimate",
    "explain": "tangram_sim.studies.explain",
    "follow_market": "tangram_sim.studies.serving_replan",
    "load_cluster": "tangram_sim.hwdb",
    "load_model": "tangram_sim.hwdb",
    "plan": "tangram_sim.studies.api",
    "plan_service": "tangram_sim.studies.serving_model_plan",
    "purchase_serving": "tangram_sim.studies.serving_purchase",
    "read_question": "tangram_sim.questions.question",
    "recommend": "tangram_sim.purchasing.recommend",
    "simulate": "tangram_sim.studies.api",
    "simulate_service": "tangram_sim.studies.serving_simulation",
    "what_if_serving": "tangram_sim.studies.serving_whatif",
}

__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604 - names of a literal table


_MODULES = ("rl",)  # verbs of a workload: `ts.rl.plan(...)`


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tangram_sim.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tangram_sim' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted((*__all__, "__doc__"))
