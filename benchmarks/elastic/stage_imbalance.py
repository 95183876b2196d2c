"""How much longer the last stage of a measured pipeline takes than the others."""

import re

import numpy as np

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from benchmarks.elastic.what_if import analysed
from tangram_sim.reliability.stragglers.patterns import passes_s


def compute(figure: Figure, data: Data) -> Answer:
    """The last stage's mean pass over the mean of the others', forward or backward."""
    asked = re.fullmatch(r"last stage (forward|backward) over the others", figure.metric)
    if asked is None:
        raise RefusedError("only the last stage's pass over the others' can be told from a trace")
    trace = analysed(data.path(figure.inputs)).trace
    by_stage = passes_s(trace, "F" if asked[1] == "forward" else "B").mean(axis=(0, 1, 3))
    return Answer(float(by_stage[-1] / np.mean(by_stage[:-1])))
