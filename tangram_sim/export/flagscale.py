"""FlagScale 0.8.0, heterogeneous mode: the `train` section of its configuration, and the flags made from it.

A mesh is a run of stages with the same degrees, five numbers (tp, cp, ep, dp, pp) each; meshes tile the ranks
in order (`flagscale/train/hetero/parallel_context.py`). All ranks carry one device label, so that the launch
script alone decides which GPU is which rank.
"""

from typing import Any

import yaml

from tangram_sim.errors import BadInputError
from tangram_sim.export.megatron import DTYPES, training_words
from tangram_sim.export.megatron_model import model_words
from tangram_sim.planners.uniform.meshes import Mesh, meshes_of
from tangram_sim.training.plan import Plan

FILE = "train.yaml"
_LABEL = "planned"  # of every rank's device: the order of ranks is the launch script's
_WIDTH = 5  # numbers of a mesh


def write(plan: Plan) -> tuple[str, tuple[str, ...], list[str]]:
    """(file text, arguments of `flagscale/train/train_gpt.py`, notes); the plan must meet the rules."""
    pipeline, meshes = plan.pipelines[0], meshes_of(plan)
    first = meshes[0].layout
    model, notes = model_words(plan.model, max(mesh.layout.tp for mesh in meshes))
    hetero: dict[str, Any] = {
        "enable_hetero": True,
        "hetero_process_meshes": [number for mesh in meshes for number in mesh.numbers],
        "hetero_pipeline_layer_split": [layers for mesh in meshes for layers in mesh.layers],
        "hetero_device_types": [_LABEL] * len(meshes),
        "hetero_current_device_type": _LABEL,
        "expert_tensor_parallel_size_per_process_mesh": [mesh.layout.tp for mesh in meshes],
    }
    if plan.model.tied and first.dp != meshes[-1].layout.dp:
        hetero["use_partial_reduce_for_shared_embedding"] = True
    system: dict[str, Any] = {
        "tensor_model_parallel_size": first.tp,
        "pipeline_model_parallel_size": len(pipeline.stages),
        "context_parallel_size": 1,
        "expert_model_parallel_size": first.ep,
        "hetero": hetero,
    }
    if any(mesh.layout.tp > 1 for mesh in meshes):
        system["sequence_parallel"] = True
    if any(stage.layout.zero_stage for stage in pipeline.stages):
        system["use_distributed_optimizer"] = True
    system |= _recomputed(plan) | _keys(dict(DTYPES[plan.job.dtype]))
    sections = {
        "system": system,
        "model": _keys(model)
        | _keys(training_words(plan.job, plan.model))
        | {"micro_batch_size": pipeline.microbatch // first.dp},
    }
    return yaml.safe_dump(sections, sort_keys=False, width=110), arguments(sections), notes


def _keys(words: dict[str, Any]) -> dict[str, Any]:
    """Flags as keys of FlagScale's configuration; a switch becomes true."""
    return {name[2:].replace("-", "_"): True if value is None else value for name, value in words.items()}


def _recomputed(plan: Plan) -> dict[str, Any]:
    """Full-recomputation flags (whole layers only); rows [stages, micro-batches, value] if stages differ."""
    pipeline = plan.pipelines[0]
    full = [int(stage.layout.recompute == "full") for stage in pipeline.stages]
    if not any(full):
        return {}
    found: dict[str, Any] = {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    }
    if not all(full):
        rows = [[1, pipeline.microbatches, item] for item in full]
        found["recompute_granularity_per_stage_micro_batch"] = rows
        found["recompute_method_per_stage_micro_batch"] = [[1, pipeline.microbatches, 0] for _ in full]
        found["recompute_num_layers_per_stage_micro_batch"] = [[1, pipeline.microbatches, 1] for _ in full]
    return found


def arguments(sections: dict[str, Any]) -> tuple[str, ...]:
    """The flags that FlagScale's runner makes of sections; each row of a table is one word."""
    found: list[str] = []
    for key, value in sections.items():
        if isinstance(value, dict):
            found += arguments(value)
        elif value is True:
            found.append(f"--{key.replace('_', '-')}")
        elif isinstance(value, list):
            found += [f"--{key.replace('_', '-')}", *map(str, value)]
        elif value is not False and value is not None:
            found += [f"--{key.replace('_', '-')}", str(value)]
    return tuple(found)


def read(text: str) -> tuple[list[tuple[int, ...]], list[int], int]:
    """(meshes, blocks of every stage, sequences of one micro-batch). Raises BadInputError.

    The rules of `FSTrainArguments.pre_validate_args` are checked: see `broken`.
    """
    try:
        sections = yaml.safe_load(text)
        hetero, model = sections["system"]["hetero"], sections["model"]
        numbers = [int(number) for number in hetero["hetero_process_meshes"]]
        split = [int(layers) for layers in hetero["hetero_pipeline_layer_split"]]
        size = int(model["micro_batch_size"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise BadInputError(f"{FILE}: malformed: {error}") from None
    rules = broken(sections)
    if rules:
        raise BadInputError(f"{FILE}: {'; '.join(rules)}")
    meshes = [tuple(numbers[start : start + _WIDTH]) for start in range(0, len(numbers), _WIDTH)]
    return meshes, split, size * meshes[0][3]


def broken(sections: dict[str, Any]) -> list[str]:
    """FlagScale's own checks on the heterogeneous mode that a configuration fails, in words."""
    system, model = sections["system"], sections["model"]
    hetero = system["hetero"]
    numbers, split = hetero["hetero_process_meshes"], hetero["hetero_pipeline_layer_split"]
    if len(numbers) % _WIDTH:
        return [f"{len(numbers)} numbers of meshes are no multiple of {_WIDTH}"]
    tp, cp, ep, dp, pp = (numbers[place::_WIDTH] for place in range(_WIDTH))
    sequences = dp[0] * model["micro_batch_size"]
    stages, tied = (
        system["pipeline_model_parallel_size"],
        not model.get("untie_embeddings_and_output_weights"),
    )
    share = hetero.get("use_partial_reduce_for_shared_embedding")
    expert = hetero.get("expert_tensor_parallel_size_per_process_mesh")
    labels = hetero["hetero_device_types"]
    rules = {
        "meshes and their expert tensor degrees differ in number": expert is not None
        and len(expert) != len(tp),
        "a mesh's dp does not divide dp x micro-batch of the first": any(sequences % item for item in dp),
        "context-parallel degrees are not all 1": any(item != 1 for item in cp),
        "stages of meshes do not add up to the pipeline": stages != sum(pp),
        "first and last tp differ, with one matrix for embedding and head": tied and tp[0] != tp[-1],
        "first and last dp differ, with one matrix for both, and no partial reduce": tied
        and dp[0] != dp[-1]
        and bool(system.get("use_distributed_optimizer"))
        and not (share and not max(dp[0], dp[-1]) % min(dp[0], dp[-1])),
        "layers of stages do not add up": sum(split) != model["num_layers"] or len(split) != stages,
        "a mesh has no label": len(labels) != len(tp),
        "this device's label is none of the meshes'": hetero["hetero_current_device_type"] not in labels,
        "stages hold several chunks": "num_layers_per_virtual_pipeline_stage" in system,
        "a mesh's ranks do not share its experts": any(
            (t * d * p) % (inner * e * p)
            for t, e, d, p, inner in zip(tp, ep, dp, pp, expert or tp, strict=False)
        ),
    }
    return [rule for rule, broken_here in rules.items() if broken_here]


def same(text: str, plan: Plan, ranks: tuple[int, ...]) -> bool:
    """Whether a file and the launch order of ranks describe the plan's meshes."""
    meshes, split, sequences = read(text)
    planned: tuple[Mesh, ...] = meshes_of(plan)
    return (
        meshes == [mesh.numbers for mesh in planned]
        and split == [layers for mesh in planned for layers in mesh.layers]
        and sequences == plan.pipelines[0].microbatch
        and ranks == tuple(rank for mesh in planned for rank in mesh.ranks)
    )
