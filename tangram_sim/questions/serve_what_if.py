"""The questions of `serve what-if` and `serve purchase`: what more GPUs, or budgets, gain for a service."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from tangram_sim.errors import BadInputError, UnknownNameError
from tangram_sim.fields import about, described, option, part
from tangram_sim.questions.gpu_prices import price_option, usd_by_gpu
from tangram_sim.questions.service_goal import GoalOptions, OfService
from tangram_sim.questions.shared_fields import nodes
from tangram_sim.written import name_list

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.models import Model
    from tangram_sim.serving_planners.offer_file import Offers
    from tangram_sim.studies.serving_purchase import ServePurchaseDocument
    from tangram_sim.studies.serving_whatif import GpuPurchase, ServeWhatIfDocument

_GOAL = part(
    *("slo", "engine", "precision", "utilisation", "scenario", "link_gb_per_s"),
    *("drafts", "acceptance"),
    *("power_cap_w", "pue", "carbon"),
)


@dataclass(frozen=True, slots=True)
class _OnOffers(OfService):
    """Base of questions about a service on existing or offered GPUs."""

    goal: GoalOptions = field(default=GoalOptions(), metadata=_GOAL)
    price: tuple[str, ...] = price_option()
    fleet: str = field(
        kw_only=True,
        metadata=about(
            "GPUs that are there, or on offer: YAML with `gpus` (price_per_hour, available, gpus_per_node); "
            "or a cluster: a name, a file, nodes like H100x8:4+L40Sx4:2.",
            label="GPUs",
            argument="FLEET",
            basic=True,
        ),
    )


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWhatIfQuestion(_OnOffers):
    """Plan the fleet with each --add: requests/s within --slo, tokens/s, dollars per million tokens."""

    VERB: ClassVar[str] = "serve what-if"

    add: tuple[str, ...] = option(
        (),
        "A candidate: nodes like H100x8:2 (H100x8:2@400: NICs of 400 Gbit/s), or single GPUs, L40S:4; "
        "A:2+B:4 for several kinds. May be given several times.",
        label="Candidates to add",
        suggested=nodes,
        group="Additions",
        basic=True,
    )

    def answer(self, *, left_s: float | None = None) -> "ServeWhatIfDocument":
        """The fleet unchanged and with every addition. Raises BadInputError, UnknownNameError.

        `left_s`: seconds left of the time limit.
        """
        from tangram_sim.serving_planners.offer_file import load_offers
        from tangram_sim.studies.serving_whatif import what_if_serving

        hwdb = self.hardware.load()
        offers = load_offers(self.fleet, hwdb, priced=not self.price)
        added = {text: purchases(text, hwdb) for text in self.add}
        kinds = {gpu.name for gpu in offers.gpus} | {each.gpu for many in added.values() for each in many}
        usd = usd_by_gpu(self.price, kinds, hwdb)
        offers = _priced(offers, usd)
        notes = [note for text in self.add for note in notes_on(text, hwdb)]
        found = what_if_serving(
            _loaded(self.model),
            replace(offers, notes=(*offers.notes, *notes)),
            {
                text: [replace(each, usd_per_hour=usd.get(each.gpu, each.usd_per_hour)) for each in many]
                for text, many in added.items()
            },
            workload=self.requests.made("goodput"),
            hwdb=hwdb,
            goal=self.goal.goal(hwdb),
            time_limit_s=self.time_limit_s if left_s is None else left_s,
        )
        return self.with_answer(found)


@described
@dataclass(frozen=True, slots=True, kw_only=True)
class ServePurchaseQuestion(_OnOffers):
    """Plan what each of --budgets rents: requests/s within --slo, tokens/s, dollars per million tokens."""

    VERB: ClassVar[str] = "serve purchase"

    budgets: str = field(
        metadata=about("USD an hour, like 10,20,40: a plan for each.", label="USD an hour", basic=True),
    )

    def answer(self, *, left_s: float | None = None) -> "ServePurchaseDocument":
        """A plan for each budget. Raises BadInputError, UnknownNameError.

        `left_s`: seconds left of the time limit.
        """
        from tangram_sim.serving_planners.offer_file import load_offers
        from tangram_sim.studies.serving_purchase import purchase_serving

        hwdb, budgets = self.hardware.load(), _budgets(self.budgets)
        offers = load_offers(self.fleet, hwdb, priced=not self.price)
        usd = usd_by_gpu(self.price, {gpu.name for gpu in offers.gpus}, hwdb)
        found = purchase_serving(
            _loaded(self.model),
            _priced(offers, usd),
            budgets,
            workload=self.requests.made("goodput"),
            hwdb=hwdb,
            goal=self.goal.goal(hwdb),
            time_limit_s=self.time_limit_s if left_s is None else left_s,
        )
        return self.with_answer(found)


def _loaded(models: str) -> "dict[str, Model]":
    """Models by the names they were asked for with."""
    from tangram_sim.hwdb import load_model

    return {name: load_model(name) for name in name_list(models)}


def _priced(offers: "Offers", usd: dict[str, float]) -> "Offers":
    """The offers at these prices, USD per GPU-hour. Raises BadInputError if a kind has no price."""
    gpus = tuple(
        replace(gpu, usd_per_hour=usd[gpu.name], priced=True) if gpu.name in usd else gpu
        for gpu in offers.gpus
    )
    for gpu in gpus:
        if not gpu.priced:
            raise BadInputError(
                f"what does a {gpu.name} cost? No price is known; give `price={gpu.name}=2.5`"
            )
    about_others = tuple(note for note in offers.notes if not any(f" {name}" in note for name in usd))
    return replace(offers, gpus=gpus, notes=about_others)


def _budgets(text: str) -> list[float]:
    try:
        found = [float(part_) for part_ in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each < float("inf") for each in found):
        raise BadInputError(f"`budgets={text}`: USD an hour, each above 0, are wanted, like 10,20,40")
    return found


def purchases(text: str, hwdb: "Hwdb") -> "tuple[GpuPurchase, ...]":
    """Purchases of GPUs, from nodes such as `H100x8:2@400` or single GPUs such as `L40S:4`.

    A number after the @ of a single GPU is its price in USD per hour (an old notation). Raises BadInputError,
    UnknownNameError.
    """
    from tangram_sim.hwdb.inline_cluster import counted_nodes
    from tangram_sim.studies.serving_whatif import GpuPurchase

    found = []
    for name, count, nics in counted_nodes(text, f"`add={text}`"):
        gpu, per_node = _gpus(name, hwdb)
        usd = float(nics.get("nic_gbps", 0.0)) if per_node is None else 0.0
        found.append(GpuPurchase(gpu, count * (per_node or 1), usd))
    return tuple(found)


def notes_on(text: str, hwdb: "Hwdb") -> list[str]:
    """Notes on an addition: the old notation for prices, and NIC speeds that are ignored."""
    from tangram_sim.hwdb.inline_cluster import counted_nodes

    found = []
    for name, _, nics in counted_nodes(text, f"`add={text}`"):
        single = _gpus(name, hwdb)[1] is None
        if nics and single:
            usd = nics["nic_gbps"]
            found.append(f"{text}: @{usd:g} is read as USD an hour of a GPU; write `price={name}={usd:g}`")
        elif nics:
            found.append(f"{text}: plans of services assume usual NICs; the figure behind @ is not used")
    return found


def _gpus(name: str, hwdb: "Hwdb") -> tuple[str, int | None]:
    """(GPU kind, GPUs per node) for a name; None if the name is that of a single GPU."""
    from tangram_sim.hwdb.inline_cluster import node_keys

    try:
        return hwdb.gpu(name).name, None
    except UnknownNameError as error:
        try:
            keys = node_keys(name, hwdb)
        except UnknownNameError:
            raise error from None
    if "node" in keys:
        node = hwdb.node(keys["node"])
        return node.gpu.name, node.gpus
    return str(keys["gpu"]), int(keys["gpus"])
