"""The cost of a fleet per hour of training: a charge for each member, its basis, and missing figures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tangram_sim.cost.energy import gpu_power
from tangram_sim.errors import unknown_name
from tangram_sim.hwdb.prices import NOT_RENTED, TERM, Figure, Rents
from tangram_sim.purchasing import costs
from tangram_sim.purchasing.fleets import Member
from tangram_sim.purchasing.pricefile import Economics, Prices
from tangram_sim.studies.training_power import PowerTerms
from tangram_sim.units import HOUR_S

RENTED = ("rent", "reserved", "spot")
ACQUIRE = ("auto", "buy", *RENTED)
HOLD = ("auto", "owned", "rented")


@dataclass(frozen=True, slots=True)
class Terms:
    """How machines are paid for, and the power that training on them may draw.

    `acquire`: buy (capital, then power), rent (on demand, by the hour), reserved (all days of a term) or spot
    (by the hour, withdrawable); auto buys nodes with a capital price and rents nodes with a rent only,
    reserved where that is the only price or, by its term, the lower one for the run. `fleet`: owned (its
    capital is spent: only power is charged) or rented, on demand; auto rents nodes that have a rent. `power`:
    limits on power under which candidates are planned, and PUE and carbon; None: not asked about.
    """

    acquire: str = "auto"
    fleet: str = "auto"
    power: PowerTerms | None = None

    def __post_init__(self) -> None:
        if self.acquire not in ACQUIRE:
            raise unknown_name("way to acquire", self.acquire, ACQUIRE)
        if self.fleet not in HOLD:
            raise unknown_name("way to hold the fleet", self.fleet, HOLD)


@dataclass(frozen=True, slots=True)
class Charge:
    """One item of a bill."""

    member: str
    kind: str  # capital, power, hosting, or a way of RENTED
    usd_per_hour: float  # of training
    bought: bool
    basis: str  # the figures behind it, with their sources


@dataclass(frozen=True, slots=True)
class Lack:
    """A cost missing from a bill for one member of a fleet, and the figures needed to compute it.

    A figure is a key of the price file; `A or B` where either is enough.
    """

    member: str
    nodes: int
    running: int
    figures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bill:
    """What a fleet costs per hour, and which costs are unknown."""

    charges: tuple[Charge, ...]
    outlay_usd: float | None  # capital of what is bought; None: not all of it is stated
    lacks: tuple[Lack, ...]

    @property
    def missing(self) -> tuple[str, ...]:
        """Every missing figure, each once."""
        return tuple(dict.fromkeys(figure for lack in self.lacks for figure in lack.figures))

    @property
    def known(self) -> bool:
        """Whether no figure is missing."""
        return not self.lacks

    @property
    def usd_per_hour(self) -> float:
        """USD per hour of training, as far as known: a lower limit if figures are missing."""
        return sum(charge.usd_per_hour for charge in self.charges)

    def usd_per_hour_of(self, kind: str, *, bought: bool = True) -> float:
        """What of `usd_per_hour` are charges of a kind, of nodes that are bought or of those that stand."""
        charges = [each for each in self.charges if each.kind == kind and each.bought == bought]
        return sum(each.usd_per_hour for each in charges)

    def more_than(self, base: "Bill") -> float | None:
        """USD per hour above the bill `base`; None if the two leave out different costs."""
        if set(self.lacks) != set(base.lacks):
            return None
        return self.usd_per_hour - base.usd_per_hour


def bill(
    members: Sequence[Member],
    running: Sequence[int],
    prices: Prices,
    terms: Terms | None = None,
    each_w: Mapping[str, float] | None = None,
    days: float = math.inf,
) -> Bill:
    """The bill of a fleet; all nodes are paid for.

    `each_w`: watts of each GPU of a kind, its share of the host included, of which the electricity of all
    nodes is; where nobody knows them it is that of `running` nodes of each member at their nameplates.
    `days` of the run: what is rented costs what it does for so long (`Rents`).
    """
    charges: list[Charge] = []
    lacks: list[Lack] = []
    outlay: float | None = 0.0
    for member, nodes in zip(members, running, strict=True):
        watts = _watts(member, nodes, prices, each_w)
        lines, capital, lacking = _member(member, watts, prices, terms or Terms(), days)
        charges += lines
        outlay = None if outlay is None or capital is None else outlay + capital
        if lacking:
            lacks.append(Lack(member.label, member.nodes, nodes, tuple(lacking)))
    return Bill(tuple(charges), outlay, tuple(lacks))


def rent_of(member: Member, prices: Prices, way: str = "rent") -> Figure | None:
    """Rent of one node per hour, rented in this `way`: a dated price, else that of its file."""
    facts = prices.of(member)
    if way != "rent":
        return facts.spot_usd_per_hour if way == "spot" else facts.reserved_usd_per_hour
    if facts.rent_usd_per_hour is None and member.node.usd_per_hour > 0:
        return Figure(member.node.usd_per_hour, "cluster or node file")
    return facts.rent_usd_per_hour


def most_w_of(member: Member, prices: Prices) -> float:
    """Watts that one node may draw: the price file's figure, the node's own, else its GPUs' and hosts'."""
    stated = prices.of(member).power_w
    if stated or member.power_is_stated or not (prices.hwdb and member.node.gpu.power_w):
        return stated.value if stated else member.power_w
    return member.power_w + gpu_power(member.node.gpu, prices.hwdb).host_w * member.node.gpus


def most_each_w(member: Member, prices: Prices) -> dict[str, float]:
    """Watts of one GPU and its share of the host: as stated, or at the board's limit if higher."""
    gpu, gpus = member.node.gpu, member.node.gpus
    host_w = gpu_power(gpu, prices.hwdb).host_w if prices.hwdb else 0.0
    return {gpu.name: max(most_w_of(member, prices) / gpus, gpu.power_w + host_w)}


def idle_w(members: Sequence[Member], prices: Prices) -> dict[str, float] | None:
    """Watts of one idle GPU of each kind with its share of the host: a lower bound for any plan.

    None where the power of one of the kinds is not known.
    """
    gpus = {member.node.gpu.name: member.node.gpu for member in members}
    if prices.hwdb is None or not all(gpu.power_w for gpu in gpus.values()):
        return None
    powers = {name: gpu_power(gpu, prices.hwdb) for name, gpu in gpus.items()}
    return {name: float(power.idle_w) + power.host_w for name, power in powers.items()}


def drawn_w(
    members: Sequence[Member],
    running: Sequence[int],
    prices: Prices,
    each_w: Mapping[str, float] | None,
) -> float:
    """Watts of all members together, without PUE; arguments as of `bill`."""
    return sum(_watts(*pair, prices, each_w) for pair in zip(members, running, strict=True))


def _watts(member: Member, running: int, prices: Prices, each_w: Mapping[str, float] | None) -> float:
    """Watts of the nodes of one member."""
    if each_w is None:
        return most_w_of(member, prices) * running
    return each_w[member.node.gpu.name] * member.node.gpus * member.nodes


def rents_of(member: Member, prices: Prices, terms: Terms) -> Rents:
    """Rents of one node by the days of a run; 0 if it is owned or bought."""
    way, facts = _held(member, prices, terms), prices.of(member)
    if way not in ("cheaper", *RENTED):
        return NOT_RENTED
    reserved = facts.reserved_usd_per_hour if way in ("cheaper", "reserved") else None
    rent = None if way == "reserved" else rent_of(member, prices, "rent" if way == "cheaper" else way)
    least, most = (getattr(facts, name) for name in TERM)
    return Rents.of(rent, reserved, least, most, prices.economics.utilisation.value)


def way_of(member: Member, prices: Prices, terms: Terms, days: float = math.inf) -> str:
    """How a member is paid for: owned, buy or a way of RENTED; `unpriced` where no price is stated.

    Whether a rented node is reserved or on demand may depend on the `days` of the run.
    """
    way = _held(member, prices, terms)
    if way != "cheaper":
        return way
    return "reserved" if rents_of(member, prices, terms).is_reserved(days) else "rent"


def _held(member: Member, prices: Prices, terms: Terms) -> str:
    """As `way_of`, but `cheaper` where the days of the run decide between on demand and reserved."""
    rent = rent_of(member, prices)
    if not member.bought:
        if terms.fleet == "auto":
            return "owned" if rent is None else "rent"
        return "owned" if terms.fleet == "owned" else "rent"
    if terms.acquire == "auto":
        if prices.of(member).capital_usd:
            return "buy"
        priced = rent or prices.of(member).reserved_usd_per_hour
        return "cheaper" if priced else "unpriced"
    return terms.acquire


def _member(
    member: Member, watts: float, prices: Prices, terms: Terms, days: float
) -> tuple[list[Charge], float | None, list[str]]:
    """(charges, purchase cost in USD, missing figures) of one member; the cost is None if not stated."""
    way, economics = way_of(member, prices, terms, days), prices.economics
    where = f"nodes.{member.name or member.label}"
    if way == "unpriced":
        return [], None, [f"{where}.rent_usd_per_hour or {where}.capital_usd"]
    if way in RENTED:
        rent = rent_of(member, prices, way)
        if rent is None:
            return [], 0.0, [f"{where}.{way}_usd_per_hour"]
        rents, basis = rents_of(member, prices, terms), f"{way} {rent}"
        usd = float(rents.usd_per_hour(days))
        basis += rents.beside_the_price(days) if way == "reserved" else ""
        return [Charge(member.label, way, usd * member.nodes, member.bought, basis)], 0.0, []
    lines, lacking = _power(member, watts, prices)
    lines += _hosting(member, prices)
    if way == "owned":
        return lines, 0.0, lacking
    capital = prices.of(member).capital_usd
    outlay = None if capital is None else capital.value * member.nodes
    if capital is None:
        lacking.append(f"{where}.capital_usd")
    if economics.amortisation_years is None:
        lacking.append("economics.amortisation_years")
    if capital is None or economics.amortisation_years is None:
        return lines, outlay, lacking
    rate = costs.owned_usd_per_hour(
        capital.value,
        economics.amortisation_years.value,
        economics.upkeep_per_year.value,
        economics.utilisation.value,
    )
    basis = f"capital {capital}, over {economics.amortisation_years} years"
    lines.insert(0, Charge(member.label, "capital", rate * member.nodes, member.bought, basis))
    return lines, outlay, lacking


def _power(member: Member, watts: float, prices: Prices) -> tuple[list[Charge], list[str]]:
    """(electricity charges, missing figures) of nodes that draw `watts`."""
    economics: Economics = prices.economics
    if not watts:
        return [], []
    needed = {"economics.pue": economics.pue, "economics.usd_per_kwh": economics.usd_per_kwh}
    lacking = [name for name, figure in needed.items() if figure is None]
    if economics.pue is None or economics.usd_per_kwh is None:
        return [], lacking
    rate = costs.power_usd_per_hour(watts, economics.pue.value, economics.usd_per_kwh.value)
    basis = f"{watts / 1000:.4g} kW, PUE {economics.pue}, USD/kWh {economics.usd_per_kwh}"
    return [Charge(member.label, "power", rate, member.bought, basis)], lacking


def _hosting(member: Member, prices: Prices) -> list[Charge]:
    """The hosting charge for all nodes of a member, running or not; [] where no fee is stated."""
    fee = prices.economics.hosting_usd_per_kw_month
    if fee is None or not fee.value:
        return []
    watts = most_w_of(member, prices) * member.nodes
    rate = watts / 1000.0 * fee.value * 12.0 / costs.HOURS_PER_YEAR / prices.economics.utilisation.value
    return [
        Charge(member.label, "hosting", rate, member.bought, f"{watts / 1000:.4g} kW, a kW and month {fee}")
    ]


def break_even_of(member: Member, prices: Prices, each_w: Mapping[str, float] | None = None) -> float | None:
    """Hours of training after which buying a node has cost less than renting it on demand; inf: never.

    `each_w` as of `bill`. None where its capital price, its rent or the price of power is not stated.
    """
    capital, rent = prices.of(member).capital_usd, rent_of(member, prices)
    power, lacking = _power(member, _watts(replace(member, nodes=1), 1, prices, each_w), prices)
    if capital is None or rent is None or lacking:
        return None
    economics = prices.economics
    upkeep = (
        capital.value * economics.upkeep_per_year.value / costs.HOURS_PER_YEAR / economics.utilisation.value
    )
    return costs.break_even_hours(capital.value, rent.value, power[0].usd_per_hour + upkeep)


def failure_lacks(members: Sequence[Member], prices: Prices) -> list[str]:
    """Missing figures without which failures on these nodes cannot be included."""
    economics = prices.economics
    lacking = []
    if economics.mtbf_hours is None:
        # Preemptions of what is rented on spot are failures enough.
        asked = [member for member in members if not (member.bought and prices.preemption)]
        bare = [member.name for member in asked if prices.of(member).mtbf_hours is None]
        lacking += [f"economics.mtbf_hours (or nodes.{name}.mtbf_hours)" for name in bare[:1]]
    return lacking


def goodput_of(
    members: Sequence[Member],
    running: Sequence[int],
    prices: Prices,
    checkpoint_s: float,
    restart_s: float,
    replicas: int = 1,
) -> costs.Goodput | None:
    """Goodput of a job on the running nodes; None where no failure rate is stated.

    `checkpoint_s`, `restart_s`: seconds used where the economics state no others. `replicas`: number of full
    copies of the model, for policies that go on without one.
    """
    economics = prices.economics
    if failure_lacks(members, prices):
        return None
    nodes = [
        (count, mtbf.value * HOUR_S)
        for member, count in zip(members, running, strict=True)
        if (mtbf := prices.of(member).mtbf_hours or economics.mtbf_hours) is not None
    ]
    checkpoint_s = economics.checkpoint_s.value if economics.checkpoint_s else checkpoint_s
    restart_s = economics.restart_s.value if economics.restart_s else restart_s
    spot, rented = prices.preemption, [c for m, c in zip(members, running, strict=True) if m.bought]
    if spot is None or not sum(rented):
        return costs.goodput(costs.system_mtbf_s(nodes), checkpoint_s, restart_s)
    lost_s = HOUR_S / (spot.losses_per_node_hour * sum(rented))
    return costs.goodput_on_spot(
        costs.system_mtbf_s(nodes),
        lost_s,
        checkpoint_s,
        restart_s,
        spot.return_s,
        replicas if spot.policy == "shrink" else 1,
    )
