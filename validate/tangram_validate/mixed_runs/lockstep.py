"""The step of DeepSpeed's pipeline engine: neighbours meet before every pass to exchange what is due.

Source: microsoft/DeepSpeed deepspeed/runtime/pipe/schedule.py (`TrainSchedule`): 2 (m + p - 1) rounds; in a
round even stages run forward passes while odd ones run backward passes, or the other way round. Before its
pass a stage exchanges with one neighbour, both blocked: a gradient back, then an activation on, each computed
in the round before. Reductions and the optimizer follow the last round. With equal stages and free transfers
this takes as long as 1F1B; unequal neighbours wait for each other, and every transfer stops both.
"""

from tangram_sim.graph_builder import GraphBuilder
from tangram_sim.opgraph import OpGraph
from tangram_sim.training.step.lowered import LoweredStep


def pass_of(round_: int, stage: int, stages: int) -> tuple[int, bool]:
    """(microbatch, whether forward) of a stage in a round; the microbatch may lie outside the step."""
    half = round_ // 2
    if round_ % 2 == stage % 2:
        return half - stage // 2, True
    if stage % 2:
        return half - stages + (stage + 1) // 2, False
    return half - stages + 1 + stage // 2, False


def lockstep_graph(step: LoweredStep) -> OpGraph:
    """The op graph of one pipeline of one chunk per stage under the engine's rounds."""
    times, stages, count = step.times, len(step.prices), step.pipeline.microbatches
    forward = times.forward_s.reshape(-1)
    backward = (times.backward_input_s + times.backward_weight_s).reshape(-1)
    builder, last = GraphBuilder(), [list[int]() for _ in range(stages)]

    def meet(source: int, target: int, kind: str, seconds: float, microbatch: int) -> None:
        op = builder.op(
            kind,
            f"stage {source}/compute",
            seconds,
            (*last[source], *last[target]),
            label=f"{kind}{microbatch}",
        )
        last[source] = last[target] = [op]

    for round_ in range(2 * (count + stages - 1)):
        for stage in range(stages - 1):
            due, runs_forward = pass_of(round_ - 1, stage, stages)
            back, _ = pass_of(round_ - 1, stage + 1, stages)
            if not runs_forward:
                continue  # it exchanges with the stage before it
            if 0 <= back < count:
                meet(stage + 1, stage, "SEND_B", float(times.send_backward_s[stage]), back)
            if 0 <= due < count:
                meet(stage, stage + 1, "SEND_F", float(times.send_forward_s[stage]), due)
        for stage in range(stages):
            microbatch, runs_forward = pass_of(round_, stage, stages)
            if 0 <= microbatch < count:
                kind, seconds = ("F", forward[stage]) if runs_forward else ("B", backward[stage])
                name = f"stage {stage}/compute"
                last[stage] = [
                    builder.op(kind, name, float(seconds), last[stage], label=f"{kind}{microbatch}")
                ]
    if times.tied_s and stages > 1:
        meet(0, stages - 1, "TIED", times.tied_s, 0)
    for stage in range(stages):
        name = f"stage {stage}/compute"
        reduced = builder.op("SYNC", name, float(times.sync_s[stage]), last[stage], label="SYNC")
        builder.op("OPTIMIZER", name, float(times.optimizer_s[stage]), [reduced], label="OPTIMIZER")
    return builder.freeze()
