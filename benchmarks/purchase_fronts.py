"""Fronts of purchases against `plan` and against brute force, on generated catalogues of rented nodes.

    python -m benchmarks.purchase_fronts listed [FLEETS] [FROM]
    python -m benchmarks.purchase_fronts missing [CATALOGUES] [FROM]
    python -m benchmarks.purchase_fronts full

`listed` holds every row of fronts beside `plan` on the same nodes written on one line, searched anew, until
so many rows were compared: by how much is a row slower? `missing` plans every mix of small catalogues by
itself: which undominated ones does the front lack? Both print a line a row or catalogue and the totals;
catalogues are generated from the number FROM on. `full` plans the fronts of three offers of up to eight nodes
(`FULL`) to the end and prints their CPU seconds.
"""

import random
import sys
import time
from collections import Counter
from datetime import date
from itertools import count

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.hwdb.prices import Figure
from tangram_sim.models import Attention, Block, FeedForward, Model
from tangram_sim.planners.api import SearchOptions
from tangram_sim.purchasing import cases
from tangram_sim.purchasing.catalogue import Limits, mixes
from tangram_sim.purchasing.fleets import Fleet, Purchase, named_purchase, standing_fleet
from tangram_sim.purchasing.pricefile import NodeFacts, Prices, load_prices
from tangram_sim.purchasing.purchase import PurchaseStudy, purchase
from tangram_sim.purchasing.search import ModelToTrain
from tangram_sim.studies import api
from tangram_sim.training.job import Job

USD = {  # an hour of a node, about; each catalogue multiplies them by 0.3 to 3
    "H100-SXM5-80GBx8": 32.0, "H200-SXM-141GBx8": 40.0, "A100-SXM4-80GBx8": 16.0, "A100-SXM4-40GBx4": 6.0,
    "V100-SXM2-32GBx8": 10.0, "L40Sx4": 5.0, "A10x4": 2.5, "T4x4": 1.2,
}  # fmt: skip
MODELS = ("gpt3-1.3b", "llama3-8b", "gpt3-6.7b")
BLOCK = Block(Attention(16, 16, 128, 128), FeedForward(8192, gated=False))
SMALL = ModelToTrain(Model("small", "gpt2", 2048, 8192, (BLOCK,) * 4), Job(global_batch=256, seq=2048))
ALLOWED = 0.005  # by which `plan` may beat a row
FULL = (  # model, nodes that stand, offers at their shipped prices, or at the lowest rent of their kind
    ("llama3-8b", "none", ("H100x8", "A100-80GBx8", "L40Sx8")),
    ("llama3-8b", "none", ("p5.48xlarge", "p4d.24xlarge", "g6e.48xlarge")),
    ("gpt3-6.7b", "A100-80GBx8:2", ("H100x8", "A100-80GBx8", "L40Sx8")),
    ("gpt3-6.7b", "none", ("H100x8", "A100-80GBx8", "V100x8")),
)


def generated(seed: int, most: int, hwdb: Hwdb) -> tuple[str, list[tuple[Purchase, int]], Prices]:
    """The nodes that stand, two or three kinds on offer (among them perhaps those that stand), and rents."""
    rng = random.Random(seed)
    names = rng.sample(sorted(USD), rng.choice((2, 3)))
    own = rng.choice((*names, *sorted(USD)))
    catalogue = [(named_purchase(name, 1, hwdb), rng.randint(1, most)) for name in names]
    facts = {
        item.name: NodeFacts(rent_usd_per_hour=Figure(USD[name] * rng.uniform(0.3, 3.0), "made up"))
        for name, (item, _) in zip(names, catalogue, strict=True)
    }
    return f"{own}:{rng.choice((1, 1, 2))}", catalogue, Prices(facts)


def asked(
    work: ModelToTrain, own: str, catalogue: list[tuple[Purchase, int]], prices: Prices, nodes: int,
    effort: str, hwdb: Hwdb,
) -> PurchaseStudy:  # fmt: skip
    """The front of a catalogue beside the nodes that stand."""
    return purchase(
        [work], Fleet.of(load_cluster(own, hwdb)), catalogue, Limits(nodes=nodes), prices,
        ordered=date(2026, 11, 1), wishes=SearchOptions(effort=effort), hwdb=hwdb,
    )  # fmt: skip


def on_one_line(own: str, study: PurchaseStudy, mix: tuple[int, ...]) -> str:
    """The nodes of a mix beside those that stand, written as one types them: equal ones added up."""
    name, _, number = own.rpartition(":")
    nodes = Counter({name: int(number)})
    for offer, bought in zip(study.offers, mix, strict=True):
        nodes[offer.name] += bought
    return "+".join(f"{kind}:{number}" for kind, number in sorted(nodes.items()) if number)


def planned_tokens_per_s(work: ModelToTrain, fleet: str, effort: str, hwdb: Hwdb) -> float:
    """Tokens/s of what `plan` answers, by a parallelizer that has priced nothing; 0 without a plan."""
    try:
        found = api.plan(
            work.model, load_cluster(fleet, hwdb), work.job, wishes=SearchOptions(effort=effort), hwdb=hwdb
        )
    except InfeasibleError:
        return 0.0
    return found.document.tokens_per_s


def listed(fleets: int, first: int, hwdb: Hwdb) -> None:
    """Rows of fronts beside `plan`, at normal effort."""
    behind = list[float]()
    for seed in count(first):
        own, catalogue, prices = generated(seed, 2, hwdb)
        work = ModelToTrain(load_model(MODELS[seed % len(MODELS)]), Job(global_batch=128, seq=2048))
        begun = time.process_time()
        try:
            study = asked(work, own, catalogue, prices, 3, "normal", hwdb)
        except InfeasibleError as error:
            print(f"{seed}: {work.model.name} {own}: {error}", flush=True)
            continue
        spent = time.process_time() - begun
        front = study.front
        proven = sum(front.is_proven(at) for at in range(len(study.points)))
        print(
            f"{seed}: {work.model.name} {own}: {len(front.simulated)} of {front.mixes} mixes planned, "
            f"{proven} of {len(study.points)} gaps proven, {spent:.0f} CPU s",
            flush=True,
        )
        for point in study.front.points:
            fleet = on_one_line(own, study, point.mix)
            beside = planned_tokens_per_s(work, fleet, "normal", hwdb)
            behind.append(beside / point.tokens_per_s - 1.0)
            print(f"    {fleet}: {point.tokens_per_s:,.0f} tokens/s, plan {behind[-1]:+.3%}", flush=True)
        if len(behind) >= fleets:
            break
    beaten = sum(share > ALLOWED for share in behind)
    print(f"{beaten} of {len(behind)} listed fleets beaten by `plan` by over {ALLOWED:.1%}; by "
          f"{max(behind):+.3%} at most; {sum(share > 1e-9 for share in behind)} beaten at all")  # fmt: skip


def missing(catalogues: int, first: int, hwdb: Hwdb) -> None:
    """Undominated mixes that fronts of small catalogues lack, by planning every mix, at quick effort."""
    lacking = rows = unproven = 0
    for seed in range(first, first + catalogues):
        own, catalogue, prices = generated(seed, 2, hwdb)
        study = asked(SMALL, own, catalogue, prices, 2, "quick", hwdb)
        every = [
            (
                sum(offer.usd_per_hour * number for offer, number in zip(study.offers, mix, strict=True)),
                planned_tokens_per_s(SMALL, on_one_line(own, study, mix), "quick", hwdb),
                mix,
            )
            for mix in mixes(study.offers, study.limits)
        ]
        shown = [(point.cost, point.tokens_per_s) for point in study.front.points]
        lacks = [
            mix
            for usd, rate, mix in every
            if rate and not any(c <= usd * (1 + 1e-9) and r * (1 + ALLOWED) >= rate for c, r in shown)
        ]
        lacking, rows = lacking + len(lacks), rows + len(shown)
        unproven += not all(study.front.is_proven(at) for at in range(len(shown)))
        print(f"{seed}: {own} and {', '.join(offer.name for offer in study.offers)}: {len(every)} mixes, "
              f"{len(shown)} on the front, missing {lacks or 'none'}", flush=True)  # fmt: skip
    print(f"{lacking} undominated mixes missing from {catalogues} fronts of {rows} rows; "
          f"{unproven} fronts with open gaps")  # fmt: skip


def full(hwdb: Hwdb) -> None:
    """CPU seconds of the fronts of `FULL` to the end, and of the first plan."""
    prices = load_prices(None, hwdb)
    for name, own, names in FULL:
        cases.forget()
        begun, told = time.process_time(), list[float]()

        def tell(_: PurchaseStudy, told: list[float] = told) -> None:
            told.append(time.process_time())

        study = purchase(
            [ModelToTrain(load_model(name), Job(global_batch=256, seq=2048 if "gpt3" in name else 4096))],
            standing_fleet(own, hwdb), [(named_purchase(each, 1, hwdb), 8) for each in names],
            Limits(nodes=8), prices, ordered=date(2026, 11, 1), hwdb=hwdb, tell=tell,
        )  # fmt: skip
        front = study.front
        proven = sum(front.is_proven(at) for at in range(len(study.points)))
        print(
            f"{name} on {own} and {', '.join(names)}: first plan after {told[0] - begun:.1f}, all after "
            f"{time.process_time() - begun:.0f} CPU s: {len(front.simulated)} of {front.mixes} mixes "
            f"planned, the others bounded away; {proven} of {len(study.points)} gaps proven",
            flush=True,
        )


def main(arguments: list[str]) -> None:
    """Run one of the comparisons."""
    which, *numbers = arguments or ["listed"]
    amounts = [int(number) for number in numbers]
    if which == "full":
        full(Hwdb.load())
    elif which == "listed":
        listed(amounts[0] if amounts else 60, amounts[1] if len(amounts) > 1 else 0, Hwdb.load())
    else:
        missing(amounts[0] if amounts else 200, amounts[1] if len(amounts) > 1 else 0, Hwdb.load())


if __name__ == "__main__":
    main(sys.argv[1:])
