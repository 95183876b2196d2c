"""A service in closed form: one replica under a steady load, what limits it, its intervals, its cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.hwdb.prices import gpu_rent
from tangram_sim.serving.build import deployment_of, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.closed_form import ClosedClients, Load, Steady, closed_loop, open_loop, seats
from tangram_sim.serving.costs import PARTS, LayerStepCost
from tangram_sim.serving.deployment import Deployment, Speculation
from tangram_sim.serving.energy import CappedStepCost, replica_power
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.forward import emulated
from tangram_sim.serving.kv import kv_capacity, stage_memory
from tangram_sim.serving.stepcost import KvCapacity
from tangram_sim.studies.replica_question import ReplicaQuestion
from tangram_sim.studies.serving_answer import ServeEstimateDocument, interval
from tangram_sim.studies.serving_power import under_cap, with_power
from tangram_sim.units import HOUR_S, MEGA

MOST_TOKENS = 10_000_000  # of a prompt or an output
MOST_CLIENTS = 1_000_000
# Where the time of an iteration goes, in words.
LIMITS = {
    "gemm": "weights and dense products",
    "experts": "weights and products of experts",
    "cache": "reading the KV cache",
    "attention": "attention over prompts",
    "memory": "kernels that move data",
    "reduce": "tensor-parallel reductions",
    "exchange": "expert-parallel exchanges",
    "kernels": "gaps between kernels",
    "reductions": "latency of reductions",
    "host": "the host",
    "prompts": "prefill between decodes",
    "memory capacity": "KV memory: requests wait for it",
}


def service_cost(question: ReplicaQuestion, hwdb: Hwdb) -> tuple[LayerStepCost, KvCapacity]:
    """(cost of iterations, KV memory) of the replica in the question. Raises TangramError."""
    model = load_model(question.model)
    engine = engine_defaults(hwdb, question.engine, hwdb.gpu(question.gpu), question.version)
    precision = precision_of(question.precision, model, question.kv_dtype)
    if question.drafts < 0 or not 0 <= question.acceptance <= 1:
        raise BadInputError(
            f"`drafts={question.drafts}` `acceptance={question.acceptance:g}`: drafts are 0 or more, their "
            "acceptance a probability"
        )
    deployment = deployment_of(
        model,
        question.gpu,
        hwdb,
        replace(engine, **question.settings),
        precision=precision,
        tp=question.tp,
        pp=question.pp,
        ep=question.ep,
        attention_dp=question.attention_dp,
        speculation=Speculation(question.drafts, question.acceptance) if question.drafts else None,
    )
    fit = CalibrationTable.load(hwdb).fit_of(deployment, question.version)
    cost = LayerStepCost(deployment, hwdb, fit)
    return cost, kv_capacity(deployment, hwdb, fit, int(question.isl + question.osl))


def estimate_service(question: ReplicaQuestion, hwdb: Hwdb) -> ServeEstimateDocument:
    """One replica under one steady load. Raises TangramError where there is no answer."""
    check_load(question.isl, question.osl, question.cached, question.concurrency, question.rate)
    cost, capacity = service_cost(question, hwdb)
    load = Load.of(question.isl, question.osl, question.cached)
    longest = cost.deployment.model.max_seq
    if longest and question.isl + question.osl > longest:
        raise InfeasibleError(
            f"{question.isl + question.osl:,.0f} tokens of prompt and output given; "
            f"{cost.deployment.model.name} was made for {longest:,}"
        )
    room = seats(cost.deployment, capacity, load)
    if room[0] < 1:
        raise InfeasibleError(
            f"a request of {question.isl + question.osl:,.0f} tokens does not fit the KV cache of "
            f"{capacity.tokens:,}; give more `tp=` or `pp=`, fewer bits or `kv_dtype=fp8`"
        )
    free, answer = _steady(question, hwdb, cost, capacity, load)
    cap_w = question.power_cap_w
    if not cap_w and not all(stage.island.gpu.power_w for stage in cost.deployment.stages):
        unknown = f"watts are not known: the power limit of {question.gpu} is not in the database"
        return answer.model_copy(update={"notes": [*answer.notes, unknown]})
    if not cap_w:
        return with_power(answer, replica_power(cost, load, free))
    capped = CappedStepCost(cost.deployment, hwdb, cost.fit, cap_w)
    slowed, limited = _steady(question, hwdb, capped, capacity, load)
    capped.check(load, slowed.running)
    return with_power(under_cap(limited, answer, cap_w), replica_power(capped, load, slowed))


def _steady(
    question: ReplicaQuestion, hwdb: Hwdb, cost: LayerStepCost, capacity: KvCapacity, load: Load
) -> tuple[Steady, ServeEstimateDocument]:
    """(steady state of the replica under the question's load, the answer without power)."""
    most = open_loop(cost, cost.deployment, capacity, load, np.inf)
    if question.rate:
        found = open_loop(cost, cost.deployment, capacity, load, question.rate)
    else:
        habits = ClosedClients.of(cost.fit)
        found = closed_loop(cost, cost.deployment, capacity, load, question.concurrency, habits)
    room = float(seats(cost.deployment, capacity, load)[0])
    return found, _document(question, hwdb, cost, capacity, (load, found, most, room))


def check_load(isl: float, osl: float, cached: float, concurrency: float, rate: float) -> None:
    """Raise BadInputError for lengths (tokens), concurrency or rate (requests/s) that are not possible."""
    for name, value, least, largest in (
        ("isl", isl, 1, MOST_TOKENS),
        ("osl", osl, 1, MOST_TOKENS),
        ("concurrency", concurrency, 1, MOST_CLIENTS),
        ("cached", cached, 0, max(isl - 1, 0)),
        ("rate", rate, 0, MOST_CLIENTS),
    ):
        if not least <= value <= largest:
            raise BadInputError(f"`{name}={value:g}`: give a number from {least:g} to {largest:,.0f}")


def estimate_many(
    question: ReplicaQuestion, hwdb: Hwdb, loads: Mapping[str, Sequence[float] | Floats]
) -> dict[str, Floats]:
    """Predict many loads on one replica at once: `loads` has arrays isl, osl, concurrency or rate.

    Returns arrays tpot_s, ttft_s, e2e_s, output_tok_s, step_s, overloaded. Raises TangramError.
    """
    cost, capacity = service_cost(question, hwdb)
    isl, osl, cached = (
        np.asarray(loads.get(name, getattr(question, name)), dtype=np.float64)
        for name in ("isl", "osl", "cached")
    )
    load = Load.of(isl, osl, cached)
    if "rate" in loads:
        found = open_loop(cost, cost.deployment, capacity, load, np.asarray(loads["rate"]))
    else:
        clients = np.asarray(loads.get("concurrency", question.concurrency), dtype=np.float64)
        found = closed_loop(cost, cost.deployment, capacity, load, clients, ClosedClients.of(cost.fit))
    return {
        "tpot_s": found.tpot_s,
        "ttft_s": found.ttft_s,
        "e2e_s": found.e2e_s,
        "output_tok_s": found.request_rate * load.osl,
        "step_s": found.step_s,
        "overloaded": found.overloaded,
    }


def _document(
    question: ReplicaQuestion,
    hwdb: Hwdb,
    cost: LayerStepCost,
    capacity: KvCapacity,
    found: tuple[Load, Steady, Steady, float],
) -> ServeEstimateDocument:
    load, steady, most, room = found
    deployment, fit = cost.deployment, cost.fit
    output = float(steady.request_rate[0] * load.osl[0])
    price, priced = _price(question, hwdb)
    dollars = price * deployment.gpus / HOUR_S / output * MEGA if price and output else None
    values = {
        "tpot_s": float(steady.tpot_s[0]),
        "ttft_s": float(steady.ttft_s[0]),
        "e2e_s": float(steady.e2e_s[0]),
        "output_tok_s": output,
    }
    spreads = {
        "tpot_s": fit.residuals["residual_tpot"],
        "ttft_s": fit.residuals["residual_ttft"],
        "e2e_s": fit.residuals["residual_e2e"],
        "output_tok_s": fit.residuals["residual_output_tok_s"],
        "kv_tokens": fit.residuals["residual_kv_tokens"],
    }
    values["kv_tokens"] = float(capacity.tokens)
    if dollars is not None:
        values["usd_per_million_output_tokens"] = dollars
        spreads["usd_per_million_output_tokens"] = spreads["output_tok_s"]
    intervals = {name: interval(value, spreads[name]) for name, value in values.items()}
    # A server f times as slow is this one under f times the rate, its clock stretched: queues grow by more.
    for factor in interval(1.0, fit.residuals["residual_tpot"]) if question.rate else ():
        other = open_loop(cost, deployment, capacity, load, question.rate * factor)
        for name in ("tpot_s", "ttft_s", "e2e_s"):
            ends = (*intervals[name], float(getattr(other, name)[0]) * factor)
            intervals[name] = min(ends), max(ends)
    parts = _parts(cost, load, steady)
    waiting = not question.rate and question.concurrency > room
    limit = "memory capacity" if waiting else max(parts, key=lambda name: parts[name])
    return ServeEstimateDocument(
        verdict=_verdict(question, steady),
        tpot_s=values["tpot_s"],
        ttft_s=values["ttft_s"],
        e2e_s=values["e2e_s"],
        output_tok_s=output,
        request_rate=float(steady.request_rate[0]),
        kv_tokens=capacity.tokens,
        kv_blocks=capacity.blocks,
        step_s=float(steady.step_s[0]),
        prompt_s=float(steady.prompt_s[0]),
        running=float(steady.running[0]),
        seats=room,
        overloaded=bool(steady.overloaded[0]),
        greatest_request_rate=float(most.request_rate[0]),
        limited_by=LIMITS[limit],
        parts_s=parts,
        usd_per_million_output_tokens=dollars,
        gpus=deployment.gpus,
        intervals=intervals,
        assumptions=_assumptions(question, hwdb, cost, priced),
        notes=_notes(question, room) + _emulated(deployment),
    )


def _parts(cost: LayerStepCost, load: Load, steady: Steady) -> dict[str, float]:
    """Seconds between two output tokens by part, summed over the stages.

    The part `prompts` is the time spent on other requests' prompts, `host` the remainder.
    """
    fit, running = cost.fit, np.maximum(steady.running, 1.0)
    zero = np.zeros_like(running)
    passes = cost.passes(cost.work(zero, zero, running, running * load.context))
    scale = fit["time_scale"]
    parts = {
        part: float(sum(np.ravel(getattr(forward_times, part))[0] for forward_times in passes))
        * fit[part]
        * scale
        for part in PARTS
        if part != "attention"
    }
    for name, feature in (("kernel_s", "kernels"), ("handshake_s", "reductions")):
        parts[feature] = (
            float(sum(np.ravel(getattr(forward_times, feature))[0] for forward_times in passes))
            * fit[name]
            * scale
        )
    parts["prompts"] = float((steady.running / load.osl * steady.prompt_s)[0])
    rest = float(steady.step_s[0]) - sum(value for name, value in parts.items() if name != "prompts")
    parts["host"] = max(rest, 0.0)
    return parts


def _price(question: ReplicaQuestion, hwdb: Hwdb) -> tuple[float, str]:
    """(USD per GPU and hour, its source): as given, or the lowest dated price of nodes with this GPU."""
    if question.usd_per_gpu_hour:
        return question.usd_per_gpu_hour, "given"
    return gpu_rent(hwdb, question.gpu)


def _assumptions(question: ReplicaQuestion, hwdb: Hwdb, cost: LayerStepCost, priced: str) -> dict[str, Any]:
    deployment, fit = cost.deployment, cost.fit
    engine, island = deployment.engine, deployment.stages[0].island
    memory = stage_memory(deployment, deployment.stages[0], hwdb, fit)
    set_by_user = set(question.settings)
    defaults = {
        name: getattr(engine, name)
        for name in (
            *("max_batched_tokens", "max_sequences", "block_tokens", "memory_fraction", "memory_fraction_of"),
            *("prefill", "admission", "async_scheduling", "prefix_cache", "graph_batch"),
        )
    }
    precision = deployment.precision
    return {
        "engine": f"{engine.engine} {question.version}".strip(),
        "engine_defaults": {name: value for name, value in defaults.items() if name not in set_by_user},
        "engine_settings": {name: value for name, value in defaults.items() if name in set_by_user},
        "engine_source": engine.source,
        "precision": {
            "weights": precision.weights,
            "experts": precision.experts or precision.weights,
            "attention": precision.attention,
            "kv": precision.kv,
        },
        "calibrated_for": sorted(fit.known),
        "assumed_parameters": list(fit.assumed),
        "gpu": island.gpu.name,
        "links": island.intra.name,
        "weights_bytes_per_gpu": memory.weights,
        "kept_bytes_per_gpu": memory.kept,
        "gate": "uniform: every expert is as likely as another",
        "price": priced,
    }


def _emulated(deployment: Deployment) -> list[str]:
    words = emulated(deployment.stages[0].island.gpu, deployment.precision)
    return [words] if words else []


def _verdict(question: ReplicaQuestion, steady: Steady) -> str:
    """By how much the requested rate exceeds what the replica serves, in words; empty if it keeps up."""
    if not steady.overloaded[0]:
        return ""
    served = float(steady.request_rate[0])
    replicas = int(np.ceil(question.rate / served))
    return (
        f"cannot keep up: serves {served:.3g} of {question.rate:g} requests/s; the queue grows by "
        f"{(question.rate - served) * 60:,.0f} requests a minute; {replicas} such replicas keep up"
    )


def _notes(question: ReplicaQuestion, room: float) -> list[str]:
    notes = []
    if not question.rate and question.concurrency > room:
        notes.append(
            f"{question.concurrency:g} clients and seats for {room:,.0f}: the others wait, which the first "
            "token contains"
        )
    elif not question.rate:
        notes.append(
            "first tokens of a closed loop contain the waves in which benchmarks start their clients"
        )
    return notes
