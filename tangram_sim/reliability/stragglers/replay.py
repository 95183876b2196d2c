"""Replay of a step trace: dependencies between operations, as a graph that the engines simulate.

The rules are those of the published what-if analysis (arXiv 2505.05713; results of its repository are
reproduced to 1e-5): per rank one stream of passes, one for each kind of point-to-point transfer, one for the
collectives over replicas. Operations that several ranks start together begin when the last rank starts, and
each then takes its own transfer time. Gaps between operations that no dependency explains (launch delays) are
not replayed.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tangram_sim.errors import BadInputError
from tangram_sim.opgraph import FloatArray, OpGraph, op_graph
from tangram_sim.reliability.traces.kinds import KINDS, StartScope
from tangram_sim.reliability.traces.trace import StepTrace
from tangram_sim.sim.timeline import Timeline

# A rank's clock may be off: its end can lie before another's start by that much, and counts as is.
_SKEW_S = 10e-3

_STREAMS = {
    "F": "compute", "B": "compute", "FS": "forward send", "FR": "forward receive", "BS": "backward send",
    "BR": "backward receive", "AG": "replicas", "RS": "replicas",
}  # fmt: skip
_TAIL = ("LN", "EM", "RS", "CL", "OP")  # one after the other, in the order of the trace


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A trace as an op graph; op `place[i]` is operation i of the trace, other ops are synchronisation
    points."""

    trace: StepTrace
    graph: OpGraph
    place: np.ndarray  # [n]
    work_s: FloatArray  # [steps, n]: seconds an operation takes once all that start it together have come

    def timeline(self, work_s: FloatArray) -> Timeline:
        """Simulated timeline of one step whose operations take work_s [n]."""
        from tangram_sim.sim.fast import play

        durations = np.zeros(len(self.graph))
        durations[self.place] = np.maximum(work_s, 0.0)
        return play(self.graph.with_durations(durations))

    def steps_s(self, work_s: FloatArray) -> FloatArray:
        """Simulated seconds [K] of steps whose operations take work_s [K, n]."""
        from tangram_sim.sim.fast import makespans

        durations = np.zeros((len(work_s), len(self.graph)))
        durations[:, self.place] = work_s
        return makespans(self.graph, durations)


def replay_of(trace: StepTrace) -> Replay:
    """The replay of a trace; raises `BadInputError` where its operations depend on each other in a cycle."""
    groups = _groups(trace)
    graph, place = _graph(trace, groups)
    return Replay(trace, graph, place, _work(trace, groups))


def _groups(trace: StepTrace) -> list[list[int]]:
    """Groups of operations that start together; every operation is in one group, which may hold it alone."""
    found: dict[tuple[object, ...], list[int]] = defaultdict(list)
    columns = zip(
        trace.rank_dp.tolist(),
        trace.rank_stage.tolist(),
        trace.kind.tolist(),
        trace.seq.tolist(),
        strict=True,
    )
    for index, (dp, stage, kind, seq) in enumerate(columns):
        code, scope = KINDS[kind].code, KINDS[kind].scope
        if scope is StartScope.NEIGHBOURS:
            # A transfer is named after its sender: the stage before a forward receive, after a backward one.
            sender = {"FR": stage - 1, "BR": stage + 1}.get(code, stage)
            found[code[0], dp, sender, seq].append(index)
        elif scope is StartScope.ENDS:
            found[code, dp].append(index)
        elif scope is StartScope.REPLICAS:
            found[code, stage].append(index)
        elif scope is StartScope.ALL:
            found[code,].append(index)
        else:
            found[index,].append(index)
    return list(found.values())


def _work(trace: StepTrace, groups: list[list[int]]) -> FloatArray:
    """Seconds [steps, n] from the last start in an operation's group to its own end."""
    began = trace.start_s.copy()
    for group in groups:
        if len(group) > 1:
            began[:, group] = trace.start_s[:, group].max(axis=1, keepdims=True)
    work = trace.end_s - began
    return np.asarray(np.where(work <= -_SKEW_S, 0.0, work), dtype=np.float64)


def _graph(trace: StepTrace, groups: list[list[int]]) -> tuple[OpGraph, np.ndarray]:
    n = len(trace)
    waits, streams = _waits(trace)
    meeting = {}  # operation -> its group's meeting point, a node behind the n operations
    after: list[list[int]] = [list(w) for w in waits]
    for group in groups:
        if len(group) == 1:
            continue
        node = len(after)
        after.append(sorted({w for member in group for w in waits[member]}))
        for member in group:
            meeting[member] = node
    for member, node in meeting.items():
        after[member] = [node]
    order = _topological(after)
    at = np.empty(len(after), dtype=np.int64)
    at[order] = np.arange(len(after))
    resources: dict[tuple[object, ...], int] = {}
    names: list[str] = []
    resource = np.empty(len(after), dtype=np.int32)
    for node in order:
        key = streams[node] if node < n else ("meet", node)
        if key not in resources:
            resources[key] = len(names)
            names.append("/".join(str(part) for part in key))
        resource[at[node]] = resources[key]
    pred_ptr, pred = [0], list[int]()
    for node in order:
        pred.extend(sorted(int(at[w]) for w in after[node]))
        pred_ptr.append(len(pred))
    graph = op_graph(
        resource=resource,
        kind=np.array([trace.kind[node] if node < n else len(KINDS) for node in order], dtype=np.int32),
        kinds=(*(kind.code for kind in KINDS), "meet"),
        duration_s=np.zeros(len(after)),
        pred_ptr=pred_ptr,
        pred=pred,
        resources=names,
    )
    return graph, at[:n]


def _waits(trace: StepTrace) -> tuple[list[list[int]], list[tuple[object, ...]]]:
    """(the operations that each operation waits for on its own rank, the stream that each runs on)."""
    waits: list[list[int]] = [[] for _ in range(len(trace))]
    streams: list[tuple[object, ...]] = [()] * len(trace)
    ranks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, rank in enumerate(zip(trace.rank_dp.tolist(), trace.rank_stage.tolist(), strict=True)):
        ranks[rank].append(index)
    codes = [KINDS[kind].code for kind in trace.kind.tolist()]
    seqs = trace.seq.tolist()
    rank_of = [tuple(rank) for rank in zip(trace.rank_dp.tolist(), trace.rank_stage.tolist(), strict=True)]
    at = {(*rank_of[index], codes[index], seqs[index]): index for index in range(len(trace))}
    for (dp, stage), program in ranks.items():
        last: dict[str, int] = {}
        for index in program:
            stream = _STREAMS.get(codes[index], "tail")
            streams[index] = (f"dp {dp}, stage {stage}", stream)
            if stream in last:
                waits[index].append(last[stream])
            last[stream] = index
        own = {(codes[index], seqs[index]): index for index in program}
        passes = [index for index in program if codes[index] in "FB"]
        for direction, neighbour in (("F", stage - 1), ("B", stage + 1)):
            _link_transfers(direction, [i for i in passes if codes[i] == direction], seqs, own, waits)
            if not 0 <= neighbour < trace.stages:
                continue
            for index in passes:
                if codes[index] == direction and (f"{direction}R", seqs[index]) not in own:
                    # No receive is recorded: the sender's transfer brings what the pass needs, or its pass
                    # does.
                    send, sender = (
                        (dp, neighbour, code, seqs[index]) for code in (f"{direction}S", direction)
                    )
                    waits[index].append(at.get(send, at[sender]))
        _link_ends(program, passes, codes, own, waits)
    return waits, streams


def _link_transfers(
    direction: str,
    passes: list[int],
    seqs: list[int],
    own: dict[tuple[str, int], int],
    waits: list[list[int]],
) -> None:
    """Add dependencies between one direction's passes and transfers: a receive follows the previous pass."""
    for before, this in zip([None, *passes], passes, strict=False):
        receive, send = own.get((f"{direction}R", seqs[this])), own.get((f"{direction}S", seqs[this]))
        if receive is not None:
            waits[this].append(receive)
            if before is not None:
                waits[receive].append(before)
        if send is not None:
            waits[send].append(this)


def _link_ends(
    program: list[int],
    passes: list[int],
    codes: list[str],
    own: dict[tuple[str, int], int],
    waits: list[list[int]],
) -> None:
    """Add dependencies before the first pass, around the first backward pass and after the last pass of one
    rank."""
    backward = next(place for place, index in enumerate(passes) if codes[index] == "B")
    # Transfers of gradients are posted once the warm-up is all but over.
    posted = passes[backward - 2 : backward - 1] if backward >= 2 else []
    for code in ("BS", "BR"):
        for index in [index for index in program if codes[index] == code][:1]:
            waits[index].extend(posted)
    if ("AG", 0) in own:
        waits[passes[0]].append(own["AG", 0])
    previous = passes[-1]
    for index in program:
        if codes[index] in _TAIL:
            waits[index].append(previous)
            previous = index


def _topological(after: list[list[int]]) -> list[int]:
    """Nodes in topological order; ties by number. Raises `BadInputError` for cycles."""
    missing = [len(waited) for waited in after]
    followers: list[list[int]] = [[] for _ in after]
    for node, waited in enumerate(after):
        for w in waited:
            followers[w].append(node)
    ready = [node for node, left in enumerate(missing) if not left]
    for node in ready:  # grows while it is walked
        for follower in followers[node]:
            missing[follower] -= 1
            if not missing[follower]:
                ready.append(follower)
    if len(ready) < len(after):
        raise BadInputError(
            f"the trace's operations wait for each other in a circle ({len(after) - len(ready)} of "
            f"{len(after)}): its order of passes, taken from dp 0 of the first step, is not one "
            "that a pipeline can run."
        )
    return ready
