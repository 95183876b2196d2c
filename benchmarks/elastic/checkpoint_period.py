"""Checkpoint periods of a table of MTBFs, from the closed forms."""

import re

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.reliability import periods

_MTBF = re.compile(r"MTBF ([\d,]+(?:\.\d+)?(?:e\d+)?) s")
# The table's own constants, named in its column `source`, which modules do not see: C = R = 600 s, D = 60 s.
_CHECKPOINT_S, _DOWNTIME_S, _RECOVERY_S = 600.0, 60.0, 600.0


def compute(figure: Figure, data: Data) -> Answer:
    """The period of the row's kind at its MTBF, seconds."""
    del data
    found = _MTBF.search(figure.setting)
    if found is None:
        raise RefusedError("the setting names no MTBF")
    mtbf_s = float(found[1].replace(",", ""))
    kinds = {
        "young": lambda: periods.young_s(mtbf_s, _CHECKPOINT_S),
        "daly": lambda: periods.daly_s(mtbf_s, _CHECKPOINT_S, _DOWNTIME_S, _RECOVERY_S),
        "rfo": lambda: periods.refined_s(mtbf_s, _CHECKPOINT_S, _DOWNTIME_S, _RECOVERY_S),
        "optimal": lambda: periods.best_period_s(mtbf_s, _CHECKPOINT_S),
    }
    if figure.metric not in kinds:
        raise RefusedError(f"no period is called {figure.metric!r}; known: {', '.join(kinds)}")
    return Answer(kinds[figure.metric]())
