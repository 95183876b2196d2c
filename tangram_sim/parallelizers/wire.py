"""JSON form of requests and proposals: the messages to and from a parallelizer in another process."""

from dataclasses import replace
from typing import Any

from tangram_sim.layers.atoms import Embedding
from tangram_sim.layouts import RECOMPUTE, Layout
from tangram_sim.models import Block, Experts
from tangram_sim.parallelizers.api import Request
from tangram_sim.training.plan import LayoutRun
from tangram_sim.training.stage.setting import Setting

VERSION = 1
_DEGREES = ("tp", "dp", "cp", "ep", "zero_stage", "slices")

# A layout for all atoms (one run), or runs of atoms and their layouts; pp counts inner stages.
Proposal = tuple[LayoutRun, ...]


def question_of(request: Request) -> dict[str, Any]:
    """A request as JSON in SI units, bytes and seconds; without `pace_s`, which changes no price.

    Raises InfeasibleError where the GPU has no units for the dtype.
    """
    part, job, island, fixed = request.slice, request.job, request.island, request.constraints
    model, precision = part.model, job.precision
    rates = Setting(model, island, job, request.microbatch, (), request.hwdb).rates
    return {
        "version": VERSION,
        "model": {"name": model.name, "hidden": model.hidden, "vocab": model.vocab, "layers": model.layers},
        "slice": {
            "start": part.start,
            "stop": part.stop,
            "atoms": [_atom(atom, model.hidden) for atom in part.atoms],
        },
        "island": {
            "gpu": island.gpu.name,
            "nodes": island.nodes,
            "gpus_per_node": island.gpus_per_node,
            "memory_bytes": rates.usable_memory_bytes,
            "peak_flop_per_s": island.gpu.peak_flop_per_s(precision.compute),
            "intra_bytes_per_s": island.intra.bytes_per_s,
            "intra_latency_s": island.intra.latency_s,
            "nic_bytes_per_s": island.nic_bytes_per_s,
            "nic_latency_s": island.nic_latency_s,
        },
        "job": {
            "global_batch": job.global_batch,
            "seq": job.seq,
            "dtype": job.dtype,
            "optimizer": job.optimizer,
            "schedule": job.schedule,
            "weight_bytes": precision.weight_bytes,
            "gradient_bytes": job.recipe.gradient_bytes,
            "optimizer_bytes": job.optimizer_bytes,
            "activation_bytes": precision.activation_bytes,
        },
        "microbatch": request.microbatch,
        "microbatches": request.microbatches,
        "constraints": {
            "fixed": dict(fixed.fixed),
            "recompute": list(fixed.recompute),
            "microbatch_per_rank": fixed.microbatch_per_rank,
            "sequence_parallel": fixed.sequence_parallel,
            "zero_stages": list(fixed.zero_stages),
            "copies": fixed.copies,
        },
    }


def _atom(atom: Any, hidden: int) -> dict[str, Any]:
    if not isinstance(atom, Block):
        kind = "embedding" if isinstance(atom, Embedding) else "head"
        return {"kind": kind, "parameters": atom.parameters}
    inner, attention = atom.feed_forward, atom.attention
    found: dict[str, Any] = {
        "kind": "block",
        "parameters": atom.parameters(hidden),
        "heads": attention.heads,
        "kv_heads": attention.kv_heads,
        "head_dim": attention.head_dim,
        "width": inner.width,
        "gated": inner.gated,
    }
    if isinstance(inner, Experts):
        found |= {"experts": inner.experts, "active": inner.active}
    return found


def _layout_of(given: dict[str, Any], pp: int) -> Layout:
    known = {*_DEGREES, "recompute", "sequence_parallel", "fsep", "atoms"}
    if unknown := sorted(set(given) - known):
        raise ValueError(f"unknown key {unknown[0]!r}")
    degrees = {name: given[name] for name in _DEGREES if name in given}
    if any(type(value) is not int or value < (name != "zero_stage") for name, value in degrees.items()):
        raise ValueError("degrees are whole numbers from 1")
    layout = Layout(
        **degrees,
        pp=pp,
        recompute=given.get("recompute", "none"),
        sequence_parallel=given.get("sequence_parallel", False),
        fsep=given.get("fsep", False),
    )
    if layout.recompute not in RECOMPUTE or layout.zero_stage > 3:
        raise ValueError("recompute is none, selective or full, zero_stage 0 to 3")
    if not (isinstance(layout.sequence_parallel, bool) and isinstance(layout.fsep, bool)):
        raise ValueError("sequence_parallel and fsep are true or false")  # noqa: TRY004 - a value of the file
    return layout


def proposal_of(request: Request, given: Any) -> Proposal:
    """A program's proposal as runs. Raises KeyError, TypeError or ValueError if it is not understood."""
    start, stop = request.slice.start, request.slice.stop
    given = dict(given)
    pp = given.pop("pp", 1)
    if type(pp) is not int or pp < 1:
        raise ValueError("pp is a whole number from 1")
    if "runs" not in given:
        return (LayoutRun(start, stop, _layout_of(given, pp)),)
    runs = []
    for run in given.pop("runs"):
        low, high = map(int, run["atoms"])
        runs.append(LayoutRun(low, high, _layout_of(run, pp)))
    if given:
        raise ValueError(f"unknown key {sorted(given)[0]!r} beside runs")
    ends = [start, *(run.stop for run in runs)]
    if ends[:-1] != [run.start for run in runs] or ends[-1] != stop or ends != sorted(set(ends)):
        raise ValueError(f"runs must tile atoms [{start}, {stop}) in order")
    joined: list[LayoutRun] = []
    for run in runs:
        if joined and joined[-1].layout == run.layout:
            joined[-1] = replace(joined[-1], stop=run.stop)
        else:
            joined.append(run)
    return tuple(joined)
