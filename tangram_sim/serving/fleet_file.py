"""Reading a fleet: replicas of models on GPUs, with prices and engines.

A replica's time is computed by the cost layer from its GPUs, or from the user's own coefficients (`costs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tangram_sim.datafiles import read_json_or_yaml
from tangram_sim.errors import BadInputError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.batching import BatchingRules, batching_rules
from tangram_sim.serving.build import deployment_of, gpu_island, precision_of
from tangram_sim.serving.calibration import CalibrationTable
from tangram_sim.serving.costs import LayerStepCost
from tangram_sim.serving.deployment import Deployment, ReplicaStage, Speculation
from tangram_sim.serving.disaggregated import KvLink
from tangram_sim.serving.energy import capped
from tangram_sim.serving.engines import engine_defaults
from tangram_sim.serving.fleet import FleetReplica, Presence
from tangram_sim.serving.fleet_schema import FleetIn, OwnCostsIn, ReplicaIn, StageIn
from tangram_sim.serving.kv import kv_capacity
from tangram_sim.serving.plain_tables import linear_table, speculative
from tangram_sim.serving.spot import Steps, under_availability
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.transfer import prompt_kv_bytes
from tangram_sim.units import GIGA

_LINK_LATENCY_S = 1e-3


@dataclass(frozen=True, slots=True)
class ServedType:
    """Requests treated as one type: mean prompt and output tokens, and the model (empty: the only one)."""

    input_tokens: float
    output_tokens: float
    model: str = ""


@dataclass(frozen=True)
class ServiceFleet:
    """Replicas by role, the link between prefill and decode, a plan's shares by replica, and assumptions."""

    replicas: tuple[FleetReplica, ...]
    prefill: tuple[FleetReplica, ...]
    decode: tuple[FleetReplica, ...]
    link: KvLink | None
    shares: Mapping[str, tuple[float, ...]]  # of a replica by its name, by type of request
    gpus: Mapping[str, Mapping[str, int]]  # GPUs by kind of a replica by its name
    types: tuple[ServedType, ...]  # of requests, that the shares speak of
    assumptions: Mapping[str, Any]
    contexts: Mapping[str, int]  # the longest context of every model, in tokens

    @property
    def models(self) -> tuple[str, ...]:
        """Models named by the replicas."""
        return tuple(
            dict.fromkeys(fleet_replica.model for fleet_replica in self.everyone if fleet_replica.model)
        )

    @property
    def everyone(self) -> tuple[FleetReplica, ...]:
        """All replicas, prefill first."""
        return (*self.replicas, *self.prefill, *self.decode)

    def under(self, available: Mapping[str, Steps]) -> "ServiceFleet":
        """This fleet with replicas up only while enough GPUs of their kinds are available."""
        return replace(
            self,
            replicas=tuple(under_availability(self.replicas, self.gpus, available)),
            prefill=tuple(under_availability(self.prefill, self.gpus, available)),
            decode=tuple(under_availability(self.decode, self.gpus, available)),
        )


def load_fleet(path: Path, hwdb: Hwdb) -> ServiceFleet:
    """The fleet in a YAML or JSON file, or in the key `fleet` of a plan that `serve plan` wrote."""
    return read_fleet(fleet_data(path), hwdb, str(path))


def fleet_data(path: Path) -> Any:
    """The unchecked content of a fleet file, or of the key `fleet` of a plan that `serve plan` wrote."""
    data = read_json_or_yaml(path)
    if isinstance(data, dict) and isinstance(data.get("fleet"), dict):
        return data["fleet"]
    return data


def read_fleet(data: Any, hwdb: Hwdb, source: str = "fleet") -> ServiceFleet:
    """The fleet in a mapping. Raises BadInputError, InfeasibleError where a replica does not fit its GPUs."""
    if not isinstance(data, dict):
        raise BadInputError(f"{source}: a fleet is a mapping with `model` and `replicas`")
    try:
        given = FleetIn.model_validate(data)
    except ValidationError as error:
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise BadInputError(f"{source}: {_in_words(error.errors(include_url=False)[0])}{more}") from None
    build = _FleetBuilder(given, hwdb, source)
    by_role: dict[str, list[FleetReplica]] = {"both": [], "prefill": [], "decode": []}
    shares, gpus = {}, {}
    for place, replica in enumerate(given.replicas):
        label = _label(replica)
        for number in range(replica.count):
            name = f"{place}: {label}" if replica.count == 1 else f"{place}.{number}: {label}"
            by_role[replica.role].append(build.replica(replica, name))
            gpus[name] = _gpus(replica, label)
            if replica.shares is not None and len(replica.shares) != max(1, len(given.types)):
                raise BadInputError(
                    f"{source}: {name} has {len(replica.shares)} shares, `types` has {len(given.types)}; "
                    "give one share for each type, or one for all requests"
                )
            if replica.shares is not None:
                shares[name] = tuple(share / replica.count for share in replica.shares)
    if bool(by_role["prefill"]) != bool(by_role["decode"]):
        raise BadInputError(f"{source}: replicas for prefill need others for decode, and the other way round")
    if by_role["both"] and by_role["prefill"]:
        raise BadInputError(
            f"{source}: replicas for both beside some for prefill and decode; use one or the other"
        )
    own = [replica.model is not None for replica in given.replicas]
    if any(own) and not all(own):
        raise BadInputError(
            f"{source}: some replicas have a `model` of their own and others do not; give it to all or none"
        )
    link = build.link() if by_role["prefill"] else None
    return ServiceFleet(
        replicas=tuple(by_role["both"]),
        prefill=tuple(by_role["prefill"]),
        decode=tuple(by_role["decode"]),
        link=link,
        shares=shares,
        gpus=gpus,
        types=tuple(ServedType(*item) for item in given.types),
        assumptions=build.assumptions,
        contexts=build.contexts,
    )


def _in_words(problem: Any) -> str:
    """Message for a validation problem: the key's path, the value given, the allowed values."""
    *above, key = problem["loc"] or ("document",)
    if above and above[0] == "types":  # a pair or a triple: where it fits neither, the place is one in both
        return (
            f"types.{[*above[1:], key][0]}: prompt and output tokens above zero are wanted, like "
            "[512, 128], and the model behind them where there are several"
        )
    path = ".".join(str(part) for part in (*above, key))
    if problem["type"] == "missing":
        return f"{path} is missing"
    if problem["type"] != "extra_forbidden":
        given = problem["input"]
        shown = repr(given)[:60] if not isinstance(given, (dict, list)) else "a mapping or list"
        return f"{path}: {shown} given; {problem['msg'].removeprefix('Value error, ').lower()}"
    parts: dict[str, type[BaseModel]] = {"costs": OwnCostsIn, "stages": StageIn, "replicas": ReplicaIn}
    known = next((part for name, part in parts.items() if name in above), FleetIn).model_fields
    near = get_close_matches(str(key), known, n=1)
    if near:
        return f"{path}: unknown key; did you mean {near[0]}?"
    if key in FleetIn.model_fields:
        return f"{path}: {key} is one for all replicas: write it beside `replicas`"
    return f"{path}: unknown key; known are {', '.join(known)}"


def _gpus(replica: ReplicaIn, label: str) -> dict[str, int]:
    """GPUs of a replica by kind; a replica with its own cost coefficients counts as a kind of its own."""
    found: dict[str, int] = {}
    for stage in replica.stages or ():
        found[stage.gpu] = found.get(stage.gpu, 0) + stage.tp
    return found or {replica.gpu or label: replica.tp * replica.pp * replica.attention_dp}


def _label(replica: ReplicaIn) -> str:
    """Label of a replica: its name if it has one, else its GPUs and degrees."""
    if replica.name:
        return replica.name
    if replica.stages:
        return " + ".join(f"{stage.gpu} tp{stage.tp} ({stage.layers} layers)" for stage in replica.stages)
    return (
        f"{replica.gpu} tp{replica.tp}" + (f" pp{replica.pp}" if replica.pp > 1 else "")
        if replica.gpu
        else "replica"
    )


class _FleetBuilder:
    """Builds replicas from the entries of a file; the costs of equal entries are computed once."""

    def __init__(self, given: FleetIn, hwdb: Hwdb, source: str) -> None:
        self.given, self.hwdb, self.source = given, hwdb, source
        self.assumptions: dict[str, Any] = {}
        self.contexts: dict[str, int] = {}
        self.deployments: list[tuple[str, Deployment]] = []
        self.priced = cache(self._priced)
        self.calibration = CalibrationTable.load(hwdb)

    def replica(self, one: ReplicaIn, name: str) -> FleetReplica:
        """The replica of an entry, with the periods in which it is up."""
        rules, table = self.priced(
            one.model_copy(update={"name": "", "count": 1, "up": [(0.0, None)]}).model_dump_json()
        )
        presences = []
        for begin, end in one.up:
            if end is not None and end <= begin:
                raise BadInputError(
                    f"{self.source}: {name}: up from {begin:g} s to {end:g} s; it must go after it came"
                )
            presences.append(Presence(begin, inf if end is None else end, one.boot_s))
        return FleetReplica(
            name,
            rules,
            table,
            one.usd_per_hour,
            presences=tuple(presences),
            notice_s=one.notice_s,
            model=one.model or "",
        )

    def _priced(self, text: str) -> tuple[BatchingRules, StepTable]:
        replica = ReplicaIn.model_validate_json(text)
        if sum(given is not None for given in (replica.gpu, replica.stages, replica.costs)) != 1:
            raise BadInputError(
                f"{self.source}: a replica has a `gpu`, `stages` or `costs` of its own; give one of them"
            )
        rules, table = self._own(replica) if replica.costs is not None else self._by_gpu(replica)
        if replica.kv_blocks:
            rules = replace(rules, blocks=replica.kv_blocks)
        return rules, table

    def _own(self, replica: ReplicaIn) -> tuple[BatchingRules, StepTable]:
        costs = replica.costs
        assert costs is not None
        rules = BatchingRules(
            budget_tokens=replica.max_batched_tokens or 8192,
            seats=min(replica.max_sequences or 256, replica.max_batched_tokens or 8192),
            block_tokens=costs.block_tokens,
            blocks=costs.kv_blocks,
            mixed=True,
            admission="whole_prompt",
            exhaustion="recompute",
            prefix_cache=True,
            recv_interval=replica.recv_interval or 1,
        )
        return rules, linear_table(
            rules.seats,
            step_s=costs.step_s,
            decode_s=costs.decode_s,
            context_s=costs.context_s,
            prompt_s=costs.prompt_s,
            score_s=costs.score_s,
            request_s=costs.request_s,
        )

    def _by_gpu(self, replica: ReplicaIn) -> tuple[BatchingRules, StepTable]:
        given = self.given
        name = replica.model or given.model
        if name is None:
            raise BadInputError(f"{self.source}: `model` is missing; replicas on GPUs need one")
        model = load_model(name)
        self.contexts[name] = model.max_seq
        gpu = self.hwdb.gpu(replica.stages[0].gpu if replica.stages else replica.gpu or "")
        engine = engine_defaults(self.hwdb, given.engine, gpu, given.engine_version)
        if replica.recv_interval and given.engine != "sglang":
            raise BadInputError(
                f"{self.source}: recv_interval: {given.engine} has no such setting; give it to sglang"
            )
        engine = replace(
            engine,
            max_batched_tokens=replica.max_batched_tokens or engine.max_batched_tokens,
            max_sequences=replica.max_sequences or engine.max_sequences,
            memory_fraction=replica.memory_fraction or engine.memory_fraction,
            recv_interval=replica.recv_interval or engine.recv_interval,
        )
        precision = precision_of(
            replica.precision or given.precision, model, replica.kv_precision or given.kv_precision
        )
        speculation = Speculation(replica.drafts, replica.acceptance) if replica.drafts else None
        if replica.stages:
            stages = self._stages(replica.stages, model.layers)
            deployment = Deployment(model, stages, precision, engine, speculation=speculation)
        else:
            deployment = deployment_of(
                model,
                gpu.name,
                self.hwdb,
                engine,
                precision=precision,
                tp=replica.tp,
                pp=replica.pp,
                ep=replica.ep,
                attention_dp=replica.attention_dp,
                speculation=speculation,
            )
        fit = self.calibration.fit_of(deployment, given.engine_version)
        capacity = kv_capacity(deployment, self.hwdb, fit)
        rules = batching_rules(engine, capacity)
        # No more requests can hold even one block each.
        rules = replace(rules, seats=min(rules.seats, rules.blocks))
        cost = capped(LayerStepCost(deployment, self.hwdb, fit), given.power_cap_w)
        table = cost.table(rules.seats, rules.budget_tokens)
        if deployment.speculation is not None:
            tokens = deployment.speculation.tokens
            table = speculative(table, tokens)
            if rules.recv_interval > 1:  # the engine counts iterations of so many of those played
                rules = replace(rules, recv_interval=round(rules.recv_interval * tokens))
        self.deployments.append((replica.role, deployment))
        self.assumptions[_label(replica)] = {
            "engine": f"{engine.engine} {engine.version}",
            "precision": replica.precision or given.precision,
            "budget_tokens": rules.budget_tokens,
            "seats": rules.seats,
            "kv_blocks": rules.blocks,
            "block_tokens": rules.block_tokens,
            "memory_fraction": engine.memory_fraction,
            "prefill": engine.prefill,
            "admission": engine.admission,
            "exhaustion": engine.exhaustion,
            "prefix_cache": rules.prefix_cache,
            **({"recv_interval": engine.recv_interval} if engine.recv_interval > 1 else {}),
            "fitted": list(fit.assumed),
        }
        return rules, table

    def _stages(self, given: list[StageIn], layers: int) -> tuple[ReplicaStage, ...]:
        """Consecutive stages that hold the whole model. Raises BadInputError if layers do not add up."""
        held = sum(stage.layers for stage in given)
        if held != layers:
            raise BadInputError(f"{self.source}: stages hold {held} layers, the model has {layers}")
        cut, first = [], 0
        for stage in given:
            island = gpu_island(stage.gpu, stage.tp, self.hwdb)
            cut.append(ReplicaStage(island, first, first + stage.layers, stage.tp))
            first += stage.layers
        return tuple(cut)

    def link(self) -> KvLink:
        """The link between the pools: as stated, else the sum of NICs of the pool with less bandwidth."""
        sides = {
            role: sum(
                stage.island.nic_bytes_per_s * stage.island.nodes
                for at, deployment in self.deployments
                for stage in deployment.stages
                if at == role
            )
            for role in ("prefill", "decode")
        }
        if self.given.link_gb_per_s is None and not self.deployments:
            raise BadInputError(f"{self.source}: `link_gb_per_s` is missing: the link from prefill to decode")
        rate = min(sides.values()) * self.hwdb.network_efficiency.value
        rate = rate if self.given.link_gb_per_s is None else self.given.link_gb_per_s * GIGA
        token = prompt_kv_bytes(self.deployments[0][1], 1.0) if self.deployments else 0.0
        self.assumptions["link"] = {
            "bytes_per_s": rate,
            "latency_s": _LINK_LATENCY_S,
            "kv_bytes_per_token": token,
        }
        return KvLink(rate, _LINK_LATENCY_S, token)
