"""Fleets: a cluster with nodes added or removed, and which member of the fleet each node group is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tangram_sim.clusters import Cluster, GroupLimit, Network, Node, NodeGroup
from tangram_sim.datafiles import read_json_or_yaml
from tangram_sim.errors import BadInputError, UnknownNameError, unknown_name
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_cluster
from tangram_sim.hwdb.inline_cluster import counted_nodes, node_keys

MOST_ADDED = 100_000
NONE = "none"  # the fleet of who owns nothing
_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Purchase:
    """`count` nodes of one kind; `name` is an hwdb row, GPUxN, or the name in a node file."""

    name: str
    node: Node
    count: int

    def __str__(self) -> str:
        return f"{self.count} x {self.name}"


@dataclass(frozen=True, slots=True)
class Member:
    """One node group of a fleet: its label, and whether it is newly bought."""

    label: str
    name: str  # key of its prices
    nodes: int
    bought: bool
    node: Node

    @property
    def power_w(self) -> float:
        """Power of one node in watts: as stated, else the sum of its GPUs only."""
        return self.node.power_w or self.node.gpus * self.node.gpu.power_w

    @property
    def power_is_stated(self) -> bool:
        """Whether the power of the whole node is stated, and not only that of its GPUs."""
        return self.node.power_w > 0


@dataclass(frozen=True)
class Fleet:
    """A cluster, and the members (existing or bought nodes) that its node groups consist of.

    Bought nodes join a group of equal nodes, so that a plan treats all of them alike.
    """

    cluster: Cluster
    members: tuple[Member, ...]
    group_of: tuple[int, ...]  # of each member: its node group, which holds its members' nodes in their order

    @classmethod
    def of(cls, cluster: Cluster) -> "Fleet":
        """The fleet that consists of a cluster, with nothing bought."""
        return cls(
            cluster,
            tuple(
                Member(group.name, group.node.name or group.name, group.count, bought=False, node=group.node)
                for group in cluster.groups
            ),
            tuple(range(len(cluster.groups))),
        )

    @classmethod
    def none(cls) -> "Fleet":
        """A fleet without nodes, for buyers who own nothing."""
        return cls(Cluster(NONE, ()), (), ())

    def with_purchases(self, purchases: Sequence[Purchase]) -> "Fleet":
        """The fleet with the purchases added; no network limit between them and the old nodes is assumed.

        Purchases join the first group of equal nodes that no network limit concerns.
        """
        groups, places = list(self.cluster.groups), list(self.group_of)
        bought = [purchase for purchase in purchases if purchase.count]
        for purchase in bought:
            place = self._equal(groups, purchase.node)
            if place == len(groups):
                groups.append(NodeGroup(f"g{place}", purchase.count, purchase.node))
            else:
                groups[place] = replace(groups[place], count=groups[place].count + purchase.count)
            places.append(place)
        members = tuple(
            Member(f"+{purchase.name}", purchase.name, purchase.count, bought=True, node=purchase.node)
            for purchase in bought
        )
        name = (
            self.cluster.name
            if self.members
            else "+".join(f"{purchase.name}:{purchase.count}" for purchase in bought) or NONE
        )
        cluster = replace(self.cluster, name=name, groups=tuple(groups))
        return Fleet(cluster, (*self.members, *members), tuple(places))

    def _equal(self, groups: Sequence[NodeGroup], node: Node) -> int:
        """Index of the first group of equal nodes without a network limit; else the number of groups."""
        network = self.cluster.network
        held = {group for limit in network.between for group in limit.groups}
        if network.oversubscription > 1:  # every standing group has an uplink of its own
            held |= set(self.group_of)
        alike = (at for at, group in enumerate(groups) if group.node == node and at not in held)
        return next(alike, len(groups))

    def without(self, retired: dict[str, int]) -> "Fleet":
        """The fleet without `retired` nodes; groups are renumbered, limits between the others remain."""
        left = [member.nodes - retired.get(member.label, 0) for member in self.members]
        if not any(count > 0 for count in left):
            raise BadInputError("`remove=` leaves no node of the fleet; keep one or buy one")
        of_group = Counter[int]()
        for group, count in zip(self.group_of, left, strict=True):
            of_group[group] += max(count, 0)
        place = {group: new for new, group in enumerate(sorted(+of_group))}
        groups = tuple(
            NodeGroup(f"g{place[group]}", of_group[group], self.cluster.groups[group].node) for group in place
        )
        between = tuple(
            GroupLimit(
                _pair(place[limit.groups[0]], place[limit.groups[1]]), limit.bytes_per_s, limit.latency_s
            )
            for limit in self.cluster.network.between
            if limit.groups[0] in place and limit.groups[1] in place
        )
        network = Network(self.cluster.network.oversubscription, between)
        kept = [
            (member, place[group], count)
            for member, group, count in zip(self.members, self.group_of, left, strict=True)
            if count > 0
        ]
        return Fleet(
            Cluster(self.cluster.name, groups, network),
            tuple(replace(member, nodes=count) for member, _, count in kept),
            tuple(group for _, group, _ in kept),
        )

    def ranks(self) -> tuple[range, ...]:
        """The ranks of every member, numbered group by group, in a group member by member."""
        first, found = 0, [range(0)] * len(self.members)
        for number in sorted(range(len(self.members)), key=self.group_of.__getitem__):
            gpus = self.members[number].nodes * self.members[number].node.gpus
            found[number] = range(first, first + gpus)
            first += gpus
        return tuple(found)

    def used(self, ranks: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Per member: (GPUs, nodes) that hold any of `ranks`."""
        taken, found = set(ranks), []
        for member, own in zip(self.members, self.ranks(), strict=True):
            hits = [rank - own.start for rank in own if rank in taken]
            found.append((len(hits), len({hit // member.node.gpus for hit in hits})))
        return tuple(found)


def standing_fleet(given: str, hwdb: Hwdb) -> Fleet:
    """The existing fleet: a cluster as for `load_cluster`, whose errors it raises, or `none`."""
    return Fleet.none() if given.strip().lower() == NONE else Fleet.of(load_cluster(given, hwdb))


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a <= b else (b, a)


def parse_retired(items: Sequence[str], fleet: Fleet) -> dict[str, int]:
    """Nodes to retire by group label, from `GROUP[:COUNT]` items; a group alone means all of it."""
    known = {member.label: member.nodes for member in fleet.members}
    retired: dict[str, int] = {}
    for item in items:
        name, _, text = item.partition(":")
        if name not in known:
            raise unknown_name("node group", name, known, "Groups are g0, g1, ... in file order.")
        count = _count(f"`remove={item}`", text, "`remove=g0:2`") if text else known[name]
        retired[name] = retired.get(name, 0) + count
        if retired[name] > known[name]:
            raise BadInputError(f"`remove={item}`: {name} has {known[name]} nodes")
    return retired


def parse_purchases(item: str, hwdb: Hwdb) -> tuple[Purchase, ...]:
    """The purchases in one `--add`: nodes as in a one-line cluster, or node files with counts."""
    return tuple(
        named_purchase(name, count, hwdb, nics) for name, count, nics in counted_nodes(item, f"`add={item}`")
    )


def _count(option: str, text: str, example: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_ADDED):
        raise BadInputError(
            f"{option}: {text!r} is no count of nodes; give 1 to {MOST_ADDED}, e.g. {example}"
        )
    return int(text)


def named_purchase(name: str, count: int, hwdb: Hwdb, extra: dict[str, Any] | None = None) -> Purchase:
    """`count` nodes of a row of hwdb/nodes.csv, of a GPU kind (`H100x8`) or of a node file.

    `extra` keys override the row's.

    Raises BadInputError or UnknownNameError.
    """
    if name.endswith(_SUFFIXES):
        if extra:
            raise BadInputError(f"{name}: the file says what its NICs are: change nic_gbps there, not by @")
        return _from_file(Path(name), count, hwdb)
    try:
        keys = node_keys(name, hwdb)
    except UnknownNameError as error:
        raise UnknownNameError(f"{error} Or give a file with a node (.yaml or .json).") from None
    canonical = str(keys["node"] if "node" in keys else f"{keys['gpu']}x{keys['gpus']}")
    entry = {"nodes": [{"count": count, **keys, **(extra or {})}]}
    group = cluster_from_dict(entry, hwdb, f"node {canonical}").groups[0]
    return Purchase(canonical, group.node, count)


def _from_file(path: Path, count: int, hwdb: Hwdb) -> Purchase:
    """The purchase in a node file: a cluster file's `nodes` entry, optionally `name` and `hardware`."""
    data = read_json_or_yaml(path)
    if not isinstance(data, dict) or "nodes" in data:
        raise BadInputError(
            f"{path}: a node file holds the keys of one node (gpu, gpus, intra_link, nic_gbps, ...), "
            "not a cluster"
        )
    entry = {key: value for key, value in data.items() if key not in ("name", "hardware", "count")}
    whole: dict[str, Any] = {"nodes": [{"count": count, **entry}]}
    if "hardware" in data:
        whole["hardware"] = data["hardware"]
    name = data.get("name", path.stem)
    if not isinstance(name, str) or not name:
        raise BadInputError(f"{path}: name: {name!r} given; text is wanted")
    return Purchase(name, cluster_from_dict(whole, hwdb, str(path)).groups[0].node, count)
