"""Cluster model of HAP (speeds, a bandwidth per collective, memory) and the cost of a step on it.

A program's cost is linear in its load, so the load is all that the choice of shares needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tangram_sim.planners.peers.hap.graph import FORWARD_AND_BACKWARD, Operation
from tangram_sim.planners.peers.hap.rules import CUTS, DATA, EXCHANGE, FACTORS, GATHER, REDUCE, SCATTER, Rule


@dataclass(frozen=True)
class Machine:
    """The cluster in HAP's terms: `counts` of devices by kind, `speeds` in FLOP/s by (speed class, kind)."""

    counts: tuple[int, ...]
    speeds: tuple[tuple[float, ...], ...]
    bytes_per_s: dict[str, float]  # of every collective, per device
    grouped_bytes_per_s: dict[str, float] = field(default_factory=dict)  # whole buffers, device after device
    launch_s: float = 0.0  # of each device's piece of a grouped collective
    microbatches: int = 1  # of a step; gradients are reduced once
    memory_bytes: tuple[float, ...] = ()  # by kind; empty: not asked
    state_factor: float = 8.0  # bytes of state per byte of weights
    stored_factor: tuple[
        float, ...
    ] = ()  # by kind; bytes kept for the backward per byte that operations read

    @property
    def devices(self) -> int:
        """Number of devices of all kinds."""
        return sum(self.counts)

    def grouped_s(self, name: str, size: float, largest: float, times: int) -> float | None:
        """Seconds of `times` collectives, each as one broadcast or reduce per device; None: padding is
        faster. `size` bytes in total; padded shards are as large as the `largest` share. Grouped ones are
        faster where n x largest share > rate of the padded collective over that of the grouped one (HAP,
        section 5). None also where grouped ones were not measured."""
        if not largest or name not in self.grouped_bytes_per_s:
            return None
        padded_s = (self.devices - 1) * largest * size / self.bytes_per_s[name]
        grouped_s = size / self.grouped_bytes_per_s[name] + times * self.devices * self.launch_s
        return grouped_s if grouped_s < padded_s else None

    def even(self) -> tuple[float, ...]:
        """Share of the batch per device, by kind, when all devices have equal shares."""
        return (1.0 / self.devices,) * len(self.counts)

    def proportional(self, work: Sequence[float]) -> tuple[float, ...]:
        """Shares per device by kind, in proportion to its speed at this work (FLOP by speed class)."""
        pace = [
            1.0 / sum(flop / row[kind] for flop, row in zip(work, self.speeds, strict=True))
            for kind in range(len(self.counts))
        ]
        total = sum(count * item for count, item in zip(self.counts, pace, strict=True))
        return tuple(item / total for item in pace)


@dataclass
class DeviceLoad:
    """Load that a program puts on every device: FLOP and bytes in proportion to its share, and
    constant ones."""

    shared_flop: list[float]  # by class; a device does its share
    whole_flop: list[float]  # by class; every device does all
    padded_bytes: dict[str, float] = field(default_factory=dict)  # x (devices - 1) x the largest share
    moved_bytes: dict[str, float] = field(default_factory=dict)  # x the largest share
    fixed_s: float = 0.0
    fixed_state: float = 0.0  # bytes of memory on every device
    shared_state: float = 0.0  # x its share
    fixed_stored: float = 0.0  # bytes that operations read, on every device
    shared_stored: float = 0.0  # x its share

    def add(self, other: "DeviceLoad") -> None:
        """Add the load of `other` to this one."""
        for item, flop in enumerate(other.shared_flop):
            self.shared_flop[item] += flop
        for item, flop in enumerate(other.whole_flop):
            self.whole_flop[item] += flop
        for mine, others in (
            (self.padded_bytes, other.padded_bytes),
            (self.moved_bytes, other.moved_bytes),
        ):
            for name, size in others.items():
                mine[name] = mine.get(name, 0.0) + size
        self.fixed_s += other.fixed_s
        self.fixed_state += other.fixed_state
        self.shared_state += other.shared_state
        self.fixed_stored += other.fixed_stored
        self.shared_stored += other.shared_stored

    def padded_s(self, machine: Machine) -> float:
        """Seconds of collectives per unit of the largest share."""
        rates = machine.bytes_per_s
        padded = sum(size / rates[name] for name, size in sorted(self.padded_bytes.items()))
        moved = sum(size / rates[name] for name, size in sorted(self.moved_bytes.items()))
        return padded * (machine.devices - 1) + moved

    def whole_s(self, machine: Machine) -> float:
        """Seconds that do not depend on shares: work that every device does in full, and fixed transfers."""
        pairs = zip(self.whole_flop, machine.speeds, strict=True)
        return self.fixed_s + sum(flop / min(row) for flop, row in pairs)

    def seconds(self, machine: Machine, shares: Sequence[float]) -> float:
        """Seconds of a step: operations and collectives in sequence, each as slow as its slowest device.

        HAP's T(Q, B), per device of a kind: the sum over triples of max_d compute + max_d communication.
        """
        pairs = zip(self.shared_flop, machine.speeds, strict=True)
        computed = sum(
            flop * max(share / speed for share, speed in zip(shares, row, strict=True)) for flop, row in pairs
        )
        return computed + self.whole_s(machine) + self.padded_s(machine) * max(shares)

    def memory_of(self, machine: Machine, kind: int) -> tuple[float, float]:
        """(fixed bytes, bytes per unit of share) of memory on a device of this kind."""
        factor = machine.stored_factor[kind] if machine.stored_factor else 1.0
        return (
            self.fixed_state + factor * self.fixed_stored,
            self.shared_state + factor * self.shared_stored,
        )

    def fits(self, machine: Machine, shares: Sequence[float]) -> bool:
        """Whether state and stored activations fit the memory of every device under these shares."""
        for kind, (room, share) in enumerate(zip(machine.memory_bytes, shares, strict=False)):
            fixed, shared = self.memory_of(machine, kind)
            if fixed + shared * share > room:
                return False
        return True


def bill_of_rule(
    op: Operation, rule: Rule, inputs: Sequence[Operation], machine: Machine, largest: float = 0.0
) -> DeviceLoad:
    """Load of an operation under a rule: FLOP, gradient reduction, state and stored activations.

    Sufficient factors: every device gathers the inputs and output gradients of all devices and computes the
    whole weight gradient itself, a third of the operation's FLOP; gradients are then not reduced.
    """
    classes = len(machine.speeds)
    bill = DeviceLoad([0.0] * classes, [0.0] * classes)
    flop = FORWARD_AND_BACKWARD * op.flop * machine.microbatches
    if rule.family == FACTORS:
        bill.whole_flop[op.speed] += flop / FORWARD_AND_BACKWARD
        flop -= flop / FORWARD_AND_BACKWARD
        for tensor in (*inputs, op):
            bill.add(bill_of_conversion(tensor, (GATHER,), machine, largest))
    (bill.shared_flop if rule.shared else bill.whole_flop)[op.speed] += flop
    devices = machine.devices
    turns = (devices - 1) / devices
    state = op.weight_bytes * machine.state_factor
    if rule.family == DATA:
        bill.fixed_s += 2.0 * turns * op.gradient_bytes / machine.bytes_per_s[REDUCE]
    if rule.weights == "gathered":  # weights put together forward and backward, gradients scattered
        gathered = 2.0 * turns * op.weight_bytes / machine.bytes_per_s[GATHER]
        scattered = turns * op.gradient_bytes / machine.bytes_per_s[SCATTER]
        bill.fixed_s += machine.microbatches * (gathered + scattered)
        bill.fixed_state += state / devices
    elif rule.weights == "cut":
        bill.shared_state += state
    else:
        bill.fixed_state += state
    kept = sum(operation.output_bytes for operation in inputs)
    if inputs and rule.needs[0] in CUTS:
        bill.shared_stored += kept
    else:
        bill.fixed_stored += kept
    return bill


def bill_of_conversion(
    tensor: Operation, collectives: Sequence[str], machine: Machine, largest: float = 0.0
) -> DeviceLoad:
    """Load of the collectives that convert a tensor, each run once per microbatch.

    Uneven shards are padded to the `largest` share, or gathered device after device where that is faster
    (`Machine.grouped_s`); 0: padded.
    """
    classes = len(machine.speeds)
    bill = DeviceLoad([0.0] * classes, [0.0] * classes)
    size = tensor.output_bytes * machine.microbatches
    turns = (machine.devices - 1) / machine.devices
    for name in collectives:
        if name == REDUCE:
            bill.fixed_s += 2.0 * turns * size / machine.bytes_per_s[REDUCE]
        elif name == EXCHANGE:
            bill.moved_bytes[name] = bill.moved_bytes.get(name, 0.0) + turns * size
        elif grouped := machine.grouped_s(name, size, largest, machine.microbatches):
            bill.fixed_s += grouped
        else:
            bill.padded_bytes[name] = bill.padded_bytes.get(name, 0.0) + size
    return bill
