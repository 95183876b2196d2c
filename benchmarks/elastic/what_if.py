"""Figures of the published what-if analysis of measured step traces (arXiv 2505.05713), from the traces."""

import re
from functools import cache
from pathlib import Path

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.reliability.stragglers.whatif import StragglerCost, analyse
from tangram_sim.reliability.traces.tables import read_table

_ALONE = re.compile(r"S of (stage|dp rank|dp)?\s*(\S+) alone")
_WHOLE = {
    "measured step": "measured_step_s",
    "T, replayed step": "replayed_step_s",
    "T_ideal": "ideal_step_s",
    "S": "slowdown",
    "waste": "waste",
    "measured over replayed": "measured_over_replayed",
    "M_W": "worker_share",
    "M_S": "last_stage_share",
}


def compute(figure: Figure, data: Data) -> Answer:
    """The metric of the trace named in `inputs`."""
    found = analysed(data.path(figure.inputs))
    if figure.metric in _WHOLE:
        return Answer(float(getattr(found, _WHOLE[figure.metric])))
    group = _ALONE.fullmatch(figure.metric)
    if group is None:
        raise RefusedError(f"metric {figure.metric!r} is none of {', '.join(_WHOLE)}, S of GROUP alone")
    name = f"{(group[1] or '').replace(' rank', '')} {group[2]}".strip()
    if name not in found.alone:
        raise RefusedError(f"the trace has no group {name!r}; it has {', '.join(found.alone)}")
    return Answer(found.alone[name])


@cache
def analysed(path: Path) -> StragglerCost:
    """The analysis of a trace, once a run."""
    return analyse(read_table(path))
