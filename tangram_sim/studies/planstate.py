"""A plan file with its state: nodes by GPU kind, full replicas, what each node holds."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tangram_sim.hwdb import Hwdb
from tangram_sim.placement.ranks import Placement
from tangram_sim.reliability.state import StateMap, state_of
from tangram_sim.reliability.survivors import lost_with_each, replicas_on_nodes
from tangram_sim.studies.documents import PlanDocument
from tangram_sim.studies.planfile import plan_from_document, read_plan
from tangram_sim.training.plan import Plan


@dataclass(frozen=True)
class PlanOnNodes:
    """A plan with its document, its state by node, and the speed lost with each node."""

    plan: Plan
    document: PlanDocument
    state: StateMap
    nodes_by_gpu: Mapping[str, int]
    lost_with_node: tuple[float, ...]  # share of the speed that goes with each of its nodes alone

    @property
    def replicas(self) -> int:
        """Copies of the whole model that work side by side: pipelines, or the least of any stage."""
        return replicas_of(self.plan)

    @property
    def most_held_bytes(self) -> float:
        """Bytes that the fullest node holds, and reads from a checkpoint."""
        return max(self.state.held_bytes().values(), default=0.0)


def replicas_of(plan: Plan) -> int:
    """Full replicas of a plan: for every pipeline the fewest data-parallel ranks of any stage, summed."""
    return sum(
        min(
            sum(part.layouts[0].layout.dp for part in stage.parts if part.sequences_per_microbatch)
            or stage.layout.dp
            for stage in pipeline.stages
        )
        for pipeline in plan.pipelines
    )


def plan_on_nodes(path: Path, hwdb: Hwdb) -> PlanOnNodes:
    """Read a plan file and lay its state out. Raises BadInputError as reading does."""
    document = read_plan(path)
    plan = plan_from_document(document, hwdb, str(path))
    node_of = Placement(plan.cluster, hwdb).node_of
    state = state_of(plan, node_of)
    group_of = plan.cluster.node_group
    kinds = Counter(plan.cluster.groups[group_of[node]].node.gpu.name for node in state.nodes)
    lost = lost_with_each(replicas_on_nodes(plan, node_of), state.nodes)
    return PlanOnNodes(plan, document, state, dict(sorted(kinds.items())), lost)
