"""Efficiency when every step is followed by a checkpoint that blocks."""

import re

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError

_BLOCK = re.compile(r"blocks ([\d.]+) s")
_STEP = re.compile(r"\bs = ([\d.]+)")


def compute(figure: Figure, data: Data) -> Answer:
    """s/(s + block), the step as the row's inputs say."""
    del data
    block, step = _BLOCK.search(figure.setting), _STEP.search(figure.inputs)
    if block is None or step is None:
        raise RefusedError("the row names no step or no seconds of blocking")
    return Answer(float(step[1]) / (float(step[1]) + float(block[1])))
