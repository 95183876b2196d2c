"""Generates the JSON Schemas of documents and questions: `python -m tangram_sim.cli.schemas docs/schema`."""

import json
import sys
from pathlib import Path

from tangram_sim import registry
from tangram_sim.datafiles import write_whole
from tangram_sim.export.rankmap import RankMapDocument
from tangram_sim.purchasing.day_documents import SharedPurchaseDocument, SharedWhatIfDocument
from tangram_sim.purchasing.documents import PurchaseDocument, WhatIfDocument
from tangram_sim.purchasing.recommendation_document import RecommendationDocument
from tangram_sim.purchasing.served_candidates import ServedPurchaseDocument
from tangram_sim.questions.question import QUESTIONS, question_schema, question_type
from tangram_sim.studies.comparison import ComparisonDocument
from tangram_sim.studies.documents import (
    Document,
    IslandsDocument,
    ModelDocument,
    PlanDocument,
)
from tangram_sim.studies.goodput_documents import GoodputDocument
from tangram_sim.studies.parameters import ParametersDocument
from tangram_sim.studies.replaying import ReplayDocument
from tangram_sim.studies.rl_documents import (
    RlCompareDocument,
    RlPlanDocument,
    RlSimulateDocument,
    RlWhatIfDocument,
)
from tangram_sim.studies.serving_answer import ServeEstimateDocument
from tangram_sim.studies.serving_comparison import ServiceComparisonDocument
from tangram_sim.studies.serving_plan import ServePlanDocument
from tangram_sim.studies.serving_purchase import ServePurchaseDocument
from tangram_sim.studies.serving_replan import ServeReplanDocument
from tangram_sim.studies.serving_simulation import ServeSimulationDocument
from tangram_sim.studies.serving_tuning import ServeTuneDocument
from tangram_sim.studies.serving_whatif import ServeWhatIfDocument
from tangram_sim.studies.serving_workload import RatesDocument, WorkloadDocument
from tangram_sim.studies.stragglers import StragglersDocument

DOCUMENTS: dict[str, type[Document]] = {
    "plan": PlanDocument,
    "islands": IslandsDocument,
    "model": ModelDocument,
    "parameters": ParametersDocument,
    "what-if": WhatIfDocument,
    "purchase": PurchaseDocument,
    "purchase-goal": RecommendationDocument,
    "what-if-share": SharedWhatIfDocument,
    "purchase-share": SharedPurchaseDocument,
    "purchase-serve": ServedPurchaseDocument,
    "rankmap": RankMapDocument,
    "compare": ComparisonDocument,
    "goodput": GoodputDocument,
    "rl-plan": RlPlanDocument,
    "rl-compare": RlCompareDocument,
    "rl-what-if": RlWhatIfDocument,
    "rl-simulate": RlSimulateDocument,
    "serve-estimate": ServeEstimateDocument,
    "serve-plan": ServePlanDocument,
    "serve-compare": ServiceComparisonDocument,
    "serve-replan": ServeReplanDocument,
    "serve-simulate": ServeSimulationDocument,
    "serve-purchase": ServePurchaseDocument,
    "serve-tune": ServeTuneDocument,
    "serve-what-if": ServeWhatIfDocument,
    "serve-rates": RatesDocument,
    "serve-workload": WorkloadDocument,
    "stragglers": StragglersDocument,
    "replay-trace": ReplayDocument,
    **{name: registry.load(registry.DOCUMENTS, name) for name in registry.names(registry.DOCUMENTS)},
}


ASKED = {f"question-{verb.replace(' ', '-')}": verb for verb in QUESTIONS}
NAMES = (*DOCUMENTS, *ASKED)


def schema_text(name: str) -> str:
    """The JSON Schema of one document or question, as text."""
    asked = ASKED.get(name)
    found = DOCUMENTS[name].model_json_schema() if asked is None else question_schema(question_type(asked))
    return json.dumps(found, indent=2) + "\n"


def main(folder: Path) -> None:
    """Write all schemas into `folder`."""
    for name in NAMES:
        write_whole(folder / f"{name}.schema.json", schema_text(name))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
