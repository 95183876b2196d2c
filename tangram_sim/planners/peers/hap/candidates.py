"""HAP's programs for a model on a cluster, with shares of whole sequences, converted to plans."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tangram_sim.layers.atoms import atom_kinds
from tangram_sim.layouts import Layout
from tangram_sim.models import Model
from tangram_sim.parallelizers.layouts import divisors, head_counts
from tangram_sim.planners.coarse.profile import LayerTable, Profile
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.peers.hap.graph import Operation, by_class, graph_of
from tangram_sim.planners.peers.hap.machine import Machine
from tangram_sim.planners.peers.hap.ratios import Balanced, balanced, in_turn
from tangram_sim.planners.peers.hap.rules import (
    DATA,
    EXCHANGE,
    FEATURE,
    GATHER,
    GATHERED,
    REDUCE,
    SCATTER,
    ProgramSpace,
)
from tangram_sim.planners.peers.hap.synthesis import SynthesizedProgram, Synthesizer, spliced
from tangram_sim.training.job import Job
from tangram_sim.training.plan import Pipeline, Share, pipeline_of_shares


@dataclass(frozen=True)
class ProgramCandidate:
    """A program that a plan can express: a family for every block, sequences for every GPU kind.

    `sequences` is empty where all devices have equal shares, because features are split.
    """

    seconds: float  # of a step, by HAP's cost
    microbatches: int
    microbatch: int
    families: tuple[str, ...]
    sequences: tuple[int, ...]

    def rank(self) -> tuple[float, int, str]:
        """Sort key: seconds to nine digits, then the number of microbatches, fewer first."""
        return float(f"{self.seconds:.9g}"), self.microbatches, str(self)

    def __str__(self) -> str:
        runs = [f"{len(list(run))}x{family}" for family, run in groupby(self.families)]
        return (
            f"{self.microbatches} x {self.microbatch}: {' '.join(runs)} on {self.sequences or 'equal shares'}"
        )


def candidates(
    model: Model, job: Job, profile: Profile, deadline: Deadline | None = None
) -> Iterator[ProgramCandidate]:
    """The cheapest programs for every number of microbatches: data-parallel, and with features split.

    Ends early when the deadline passes.
    """
    deadline = deadline or Deadline()
    devices = sum(kind.gpus for kind in profile.kinds)
    wide = devices > 1 and all(heads % devices == 0 for heads in head_counts(model))
    programs: list[SynthesizedProgram] | None = None
    for microbatches in divisors(job.global_batch):
        if deadline.over():
            return
        microbatch = job.global_batch // microbatches
        ops = graph_of(model, job, microbatch)
        machine = machine_of(ops, model, job, profile, microbatches)
        if machine is None:
            continue
        for item in _of_data(ops, machine):
            rounded = _in_whole(item, machine, microbatch)
            if rounded is not None:
                yield rounded
        if wide:
            if programs is None:  # what they cost per step hardly depends on the number of microbatches
                programs = _of_features(ops, machine)
            for program in programs:
                found = _in_equal(SynthesizedProgram(ops, program.choices), machine, microbatch)
                if found is not None:
                    yield found


def machine_of(
    ops: Sequence[Operation], model: Model, job: Job, profile: Profile, microbatches: int
) -> Machine | None:
    """The cluster in HAP's terms, from a profile of layers; None where a kind has no table."""
    devices = sum(kind.gpus for kind in profile.kinds)
    microbatch = job.global_batch // microbatches
    each = max(1, round(microbatch / devices))
    tables = [profile.layers(kind, 1, each) for kind in range(len(profile.kinds))]
    rows = [table for table in tables if table is not None]
    if len(rows) < len(tables):
        return None
    part = each / microbatch
    read = part * sum(ops[source].output_bytes for op in ops for source in op.inputs)
    weights = sum(op.weight_bytes for op in ops)
    return Machine(
        tuple(kind.gpus for kind in profile.kinds),
        _speeds(ops, model, rows, part),
        rates := _rates(ops, profile),
        {name: rates[name] for name in (GATHER, SCATTER)},
        microbatches=microbatches,
        memory_bytes=tuple(table.memory_bytes for table in rows),
        state_factor=max(table.states[-1] for table in rows) / weights,
        stored_factor=tuple(table.activations[-1] / read for table in rows),
    )


def _speeds(
    ops: Sequence[Operation], model: Model, rows: Sequence[LayerTable], part: float
) -> tuple[tuple[float, ...], ...]:
    """FLOP/s by (kind of atom, kind of GPU), from the profile's times of the share `part` of a microbatch."""
    kinds, work = atom_kinds(model), dict(by_class(ops))
    found = []
    for index in range(max(kinds) + 1):
        atoms = [atom for atom, kind in enumerate(kinds) if kind == index]
        spent = [sum(table.forward_s[atom] + table.backward_s[atom] for atom in atoms) for table in rows]
        found.append(tuple(part * max(work.get(index, 0.0), 1.0) / seconds for seconds in spent))
    return tuple(found)


def _rates(ops: Sequence[Operation], profile: Profile) -> dict[str, float]:
    """Bytes/s per device of each collective: of a ring over all devices; of an exchange, a node's share."""
    kinds = range(len(profile.kinds))
    size = max(op.output_bytes for op in ops)
    across = min(profile.rate(a, b, size, 1) for a in kinds for b in kinds)
    inside = [profile.inside_rate(kind, size) for kind in kinds if profile.kinds[kind].gpus_per_node > 1]
    several = sum(kind.nodes for kind in profile.kinds) > 1
    ring = min([across, *inside] if several else inside or [across])
    widest = max(kind.gpus_per_node for kind in profile.kinds)
    exchange = min([across / widest, *inside] if several else inside or [across])
    return {GATHER: ring, SCATTER: ring, REDUCE: ring, EXCHANGE: exchange}


def _space(*families: str) -> ProgramSpace:
    return ProgramSpace(families=families, sequence=False, by_block=True)


def _of_data(ops: Sequence[Operation], machine: Machine) -> list[Balanced]:
    """Data-parallel programs with weights kept, or gathered (ZeRO-3) for as few blocks as memory needs."""
    whole = in_turn(ops, machine, _space(DATA))
    gathered = in_turn(ops, machine, _space(GATHERED))
    if whole is not None or gathered is None:
        return [item for item in (whole, gathered) if item is not None]
    kept = Synthesizer(ops, machine, gathered.shares, _space(DATA)).best()
    few, many, best = 0, 1 + max(op.block for op in ops), gathered  # blocks gathered: too few, enough
    while kept is not None and many - few > 1:
        middle = (few + many) // 2
        found = balanced(spliced(gathered.program, kept, middle), machine)
        if found is None:
            few = middle
        else:
            many, best = middle, found
    return [gathered] if best is gathered else [best, gathered]


def _of_features(ops: Sequence[Operation], machine: Machine) -> list[SynthesizedProgram]:
    """Programs under equal shares that split the features of all blocks, or, if cheaper, of some."""
    shares = machine.even()
    everywhere = Synthesizer(ops, machine, shares, _space(FEATURE)).best()
    if everywhere is None:
        return []
    limit_s = everywhere.bill(machine).seconds(machine, shares) * (1 + 1e-9)
    mixed = Synthesizer(ops, machine, shares, _space(DATA, FEATURE)).best(limit_s)
    some = mixed is not None and set(mixed.families()) == {DATA, FEATURE}
    return [everywhere, mixed] if mixed is not None and some else [everywhere]


def _in_equal(program: SynthesizedProgram, machine: Machine, microbatch: int) -> ProgramCandidate | None:
    """A program under equal shares, required where features are split; None where it does not fit."""
    bill, shares, families = program.bill(machine), machine.even(), program.families()
    if not bill.fits(machine, shares) or (DATA in families and microbatch % machine.devices):
        return None
    return ProgramCandidate(bill.seconds(machine, shares), machine.microbatches, microbatch, families, ())


def _in_whole(one: Balanced, machine: Machine, microbatch: int) -> ProgramCandidate | None:
    """A program with whole sequences per kind, as slow as each kind's fullest device; None: no fit."""
    kinds = range(len(machine.counts))
    pace = [
        sum(flop / row[kind] for flop, row in zip(one.bill.shared_flop, machine.speeds, strict=True))
        for kind in kinds
    ]
    room = []
    for kind, memory in enumerate(machine.memory_bytes):
        fixed, shared = one.bill.memory_of(machine, kind)
        room.append(int(min(max(memory - fixed, 0.0) * microbatch / shared, microbatch)))
    taken = whole_sequences(one.shares, machine.counts, microbatch, pace, room)
    if taken is None:
        return None
    shares = [-(-count // n) / microbatch for count, n in zip(taken, machine.counts, strict=True)]
    seconds = one.bill.seconds(machine, shares)
    return ProgramCandidate(seconds, machine.microbatches, microbatch, one.program.families(), taken)


def whole_sequences(
    shares: Sequence[float],
    counts: Sequence[int],
    microbatch: int,
    pace: Sequence[float],
    room: Sequence[int],
) -> tuple[int, ...] | None:
    """Sequences of every GPU kind, `microbatch` in all: shares rounded down, the rest as they delay least.

    `pace` is the seconds of a device of each kind per unit of share, `room` the most sequences that a device
    holds. None where whole sequences do not fit.
    """
    kinds = range(len(counts))
    taken = [
        min(int(share * microbatch + 1e-9), most) * n
        for share, n, most in zip(shares, counts, room, strict=True)
    ]
    for _ in range(microbatch - sum(taken)):
        open_ = [kind for kind in kinds if taken[kind] < room[kind] * counts[kind]]
        if not open_:
            return None
        chosen = min(open_, key=lambda kind: (-(-(taken[kind] + 1) // counts[kind]) * pace[kind], kind))
        taken[chosen] += 1
    return tuple(taken)


def pipeline_of(candidate: ProgramCandidate, profile: Profile) -> Pipeline:
    """The candidate as a pipeline of one stage; devices without a sequence are left out."""
    parts = []
    if candidate.sequences:
        for kind, count in zip(profile.kinds, candidate.sequences, strict=True):
            replicas = min(kind.gpus, count)
            if replicas:
                parts.append(Share(kind.name, kind.ranks[:replicas], count, _runs(candidate, replicas)))
    else:
        ranks = tuple(rank for kind in profile.kinds for rank in kind.ranks)
        name = "+".join(kind.name for kind in profile.kinds)
        parts.append(Share(name, ranks, candidate.microbatch, _runs(candidate, len(ranks))))
    return pipeline_of_shares(candidate.microbatches, (0, len(candidate.families)), [parts])


def _runs(candidate: ProgramCandidate, ranks: int) -> tuple[tuple[int, Layout], ...]:
    """(stop, layout) of every run of consecutive blocks of one family."""
    layouts = {
        DATA: Layout(dp=ranks),
        GATHERED: Layout(dp=ranks, zero_stage=3),
        FEATURE: Layout(tp=ranks),
    }
    stop, found = 0, []
    for family, run in groupby(candidate.families):
        stop += len(list(run))
        found.append((stop, layouts[family]))
    return tuple(found)
