"""Catalogues: the nodes on offer, and the mixes of them that the limits allow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from tangram_sim.datafiles import read_json_or_yaml
from tangram_sim.errors import BadInputError, InfeasibleError
from tangram_sim.file_parts import FilePart, Name
from tangram_sim.hwdb import Hwdb
from tangram_sim.hwdb.inline_cluster import counted_nodes
from tangram_sim.hwdb.prices import NOT_RENTED, Rents
from tangram_sim.purchasing.billing import Terms, bill, idle_w, most_each_w, most_w_of, rents_of
from tangram_sim.purchasing.fleets import Fleet, Member, Purchase, named_purchase
from tangram_sim.purchasing.notes import price_file
from tangram_sim.purchasing.pricefile import Prices

MOST_MIXES = 1_000_000


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of node on offer, with at most `most` nodes; costs are per node."""

    name: str
    purchase: Purchase  # of one node
    most: int
    usd_per_hour: float  # of training, all of it: the least for a run of any length
    outlay_usd: float
    power_w: float  # that it may draw, with PUE where that is stated
    rack_units: float  # 0: not stated, and not asked about
    arrives: date | None  # None: at once, or not asked about
    rents: Rents = NOT_RENTED  # by the days of a run
    power_usd_per_hour: float = 0.0  # what of `usd_per_hour` is electricity: that of an idle node
    most_power_usd_per_hour: float = 0.0  # the same at the most that a node may draw or a plan reckons with
    hosting_usd_per_hour: float = 0.0  # what of `usd_per_hour` is hosting


@dataclass(frozen=True, slots=True)
class Limits:
    """What a purchase may take; inf or None: no limit."""

    budget_usd: float = float("inf")  # outlay
    budget_usd_per_hour: float = float("inf")
    power_w: float = float("inf")  # that all nodes may draw, old and new, with PUE where it is stated
    nodes: float = float("inf")
    rack_units: float = float("inf")
    deadline: date | None = None  # nodes that come later are left out


class _OfferIn(FilePart):
    node: Annotated[Name, Field(min_length=1)]
    most: Annotated[int, Field(ge=1, le=100_000)] = 4


class _CatalogueIn(FilePart):
    offers: Annotated[list[_OfferIn], Field(min_length=1, max_length=64)]


def load_catalogue(path: Path, hwdb: Hwdb) -> list[tuple[Purchase, int]]:
    """(one node, most that can be had) for every offer in a catalogue file, in order.

    A node is a row of hwdb/nodes.csv or a node file beside the catalogue. Instead of a file, nodes on one
    line are read: `p5.48xlarge:4+L40Sx8:2`. Raises BadInputError naming file and key, UnknownNameError for
    unknown nodes.
    """
    if path.suffix not in (".yaml", ".yml", ".json") and not path.exists():
        return _on_one_line(str(path), hwdb)
    data = read_json_or_yaml(path)
    if not isinstance(data, Mapping):
        raise BadInputError(
            f"{path}: a catalogue is a mapping with the key offers: [{{node: NAME, most: 4}}, ...]"
        )
    try:
        parsed = _CatalogueIn.model_validate(dict(data))
    except ValidationError as error:
        raise BadInputError("\n".join(f"{path}: {_in_words(item)}" for item in error.errors()[:5])) from None
    found: dict[str, tuple[Purchase, int]] = {}
    for index, offer in enumerate(parsed.offers):
        beside = path.parent / offer.node
        given = str(beside) if offer.node.endswith((".yaml", ".yml", ".json")) else offer.node
        try:
            purchase = named_purchase(given, 1, hwdb)
        except BadInputError as error:
            raise BadInputError(f"{path}: offers[{index}].node: {error}") from None
        except Exception as error:
            raise type(error)(f"{path}: offers[{index}].node: {error}") from None
        if purchase.name in found:
            raise BadInputError(
                f"{path}: offers[{index}].node: {purchase.name} is offered twice; add up `most`"
            )
        found[purchase.name] = (purchase, offer.most)
    return list(found.values())


def _on_one_line(given: str, hwdb: Hwdb) -> list[tuple[Purchase, int]]:
    """The offers in `NODE:MOST+...`; counts of a kind named twice are added."""
    found: dict[str, tuple[Purchase, int]] = {}
    for name, most, nics in counted_nodes(given, f"`catalogue={given}`"):
        purchase = named_purchase(name, 1, hwdb, nics)
        there, before = found.get(purchase.name, (purchase, 0))
        if there.node != purchase.node:
            raise BadInputError(f"`catalogue={given}`: {purchase.name} is offered with two kinds of NICs")
        found[purchase.name] = (purchase, before + most)
    return list(found.values())


def _in_words(problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    words = str(problem["msg"])
    return f"{path}: {words[:1].lower()}{words[1:]} (offers: [{{node: NAME, most: 4}}, ...])"


def priced_offers(
    catalogue: Sequence[tuple[Purchase, int]],
    prices: Prices,
    terms: Terms,
    limits: Limits,
    ordered: date,
    *,
    by_run: bool = True,
) -> tuple[list[Offer], list[str]]:
    """Offers with their costs, and notes on those left out for their delivery or for want of figures.

    `by_run`: costs are the least of a run of any length, of nodes that idle; otherwise those of a use without
    an end, at the watts that nodes may draw.
    Raises BadInputError naming every figure that is missing where no offer can be priced.
    """
    offers: list[Offer] = []
    notes: list[str] = []
    missing: dict[str, None] = {}
    unpriced: list[tuple[str, tuple[str, ...]]] = []
    for purchase, most in catalogue:
        member = Member(f"+{purchase.name}", purchase.name, 1, bought=True, node=purchase.node)
        least_w = idle_w([member], prices) if by_run else None
        charged, facts = bill([member], [1], prices, terms, least_w), prices.of(purchase)
        lacks = [*charged.missing]
        if limits.rack_units < float("inf") and facts.rack_units is None:
            lacks.append(f"nodes.{purchase.name}.rack_units")
        if limits.deadline is not None and facts.delivery_days is None:
            lacks.append(f"nodes.{purchase.name}.delivery_days")
        if lacks:
            missing |= dict.fromkeys(lacks)
            unpriced.append(
                (purchase.name, tuple(lack.replace(f"nodes.{purchase.name}.", "") for lack in lacks))
            )
            continue
        arrives = None
        if limits.deadline is not None and facts.delivery_days is not None:
            arrives = ordered + timedelta(days=facts.delivery_days.value)
            if arrives > limits.deadline:
                notes.append(f"{purchase.name} left out: it comes on {arrives}, after {limits.deadline}")
                continue
        drawing = bill([member], [1], prices, terms, least_w and most_each_w(member, prices))
        pue, rents = prices.economics.pue, rents_of(member, prices, terms) if by_run else NOT_RENTED
        offers.append(
            Offer(
                name=purchase.name,
                purchase=purchase,
                most=min(most, int(facts.available.value)) if facts.available else most,
                usd_per_hour=rents.least_usd_per_hour or charged.usd_per_hour,
                outlay_usd=charged.outlay_usd or 0.0,
                power_w=most_w_of(member, prices) * (pue.value if pue else 1.0),
                rack_units=facts.rack_units.value if facts.rack_units else 0.0,
                arrives=arrives,
                rents=rents,
                power_usd_per_hour=charged.usd_per_hour_of("power"),
                most_power_usd_per_hour=drawing.usd_per_hour_of("power"),
                hosting_usd_per_hour=charged.usd_per_hour_of("hosting"),
            )
        )
    for lacking in dict.fromkeys(each for _, each in unpriced):
        names = [name for name, each in unpriced if each == lacking]
        notes.append(f"not compared, for want of {', '.join(lacking)}: {', '.join(names)}")
    if missing and not offers:
        raise BadInputError(
            f"the catalogue cannot be priced without {', '.join(missing)}. Complete this and give it with "
            f"`prices=` FILE (docs/how-to/buy-gpus.md):\n{price_file(missing)}"
        )
    if not offers:
        raise InfeasibleError("nothing in the catalogue comes in time: " + "; ".join(notes))
    return offers, notes


def beside(limits: Limits, fleet: Fleet, prices: Prices) -> Limits:
    """The limits for new nodes next to an existing fleet, which draws part of the site's power."""
    pue = prices.economics.pue
    drawn = sum(most_w_of(member, prices) * member.nodes for member in fleet.members)
    return replace(limits, power_w=limits.power_w - drawn * (pue.value if pue else 1.0))


def mixes(offers: Sequence[Offer], limits: Limits) -> list[tuple[int, ...]]:
    """All counts of the offers within the limits, the empty mix included, in lexicographic order.

    Raises BadInputError where there are too many to list.
    """
    found = []
    for mix in _extend(offers, limits, ()):
        found.append(mix)
        if len(found) > MOST_MIXES:
            raise BadInputError(
                f"the limits allow more than {MOST_MIXES:,} mixes; lower `max_nodes=`, `budget=` or `most`"
            )
    return found


def _extend(offers: Sequence[Offer], limits: Limits, chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(chosen) == len(offers):
        yield chosen
        return
    for count in range(offers[len(chosen)].most + 1):
        longer = (*chosen, count)
        if not fits(offers, limits, longer):
            return  # every limit is a sum of what nodes take: more of it fits no better
        yield from _extend(offers, limits, longer)


def fits(offers: Sequence[Offer], limits: Limits, mix: Sequence[int]) -> bool:
    """Whether the counts of a mix, or of its first offers, stay within every limit."""
    pairs = list(zip(offers, mix, strict=False))
    taken = (
        (sum(offer.outlay_usd * count for offer, count in pairs), limits.budget_usd),
        (sum(offer.usd_per_hour * count for offer, count in pairs), limits.budget_usd_per_hour),
        (sum(offer.power_w * count for offer, count in pairs), limits.power_w),
        (sum(count for _, count in pairs), limits.nodes),
        (sum(offer.rack_units * count for offer, count in pairs), limits.rack_units),
    )
    return all(amount <= limit * (1 + 1e-12) for amount, limit in taken)


def bought(fleet: Fleet, offers: Sequence[Offer], mix: Sequence[int]) -> Fleet:
    """The fleet with the nodes of a mix added."""
    return fleet.with_purchases(
        [
            Purchase(offer.name, offer.purchase.node, count)
            for offer, count in zip(offers, mix, strict=True)
            if count
        ]
    )


NOTHING = "nothing"  # the mix that buys none
STANDS = "the fleet as it stands"  # what who buys nothing keeps


def mix_name(offers: Sequence[Offer], mix: Sequence[int]) -> str:
    """`2 x p5.48xlarge + 1 x DGX-H100`; NOTHING for the fleet as it stands."""
    parts = [f"{count} x {offer.name}" for offer, count in zip(offers, mix, strict=True) if count]
    return " + ".join(parts) or NOTHING


def in_a_sentence(mix: str) -> str:
    """A mix or candidate as named in a sentence; an empty purchase keeps the fleet as it stands."""
    return STANDS if mix in (NOTHING, "fleet") else mix
