"""What mixing kinds is worth: requests/s of Llama-3-70B over the best single kind within the same limits.

    python -m benchmarks.serving_gains

Prices and the four sets of caps are those of arXiv 2502.00722; requests are mixes of its nine shapes, in
steady throughput. Single kinds are capped as the mix is; beside them, each kind without caps.
"""

import time
from collections.abc import Sequence
from statistics import mean

from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.synthetic import LengthMix, synthetic
from tangram_sim.serving_planners.answer import Rental
from tangram_sim.serving_planners.offer_file import Offers
from tangram_sim.serving_planners.offers import GpuOffer
from tangram_sim.serving_planners.rental import rent
from tangram_sim.studies.serving_question import GOODPUT, ServiceGoal, ServiceQuestion

PRICES = {"RTX-4090": 0.53, "A40": 0.55, "RTX-A6000": 0.83, "L40": 0.83, "A100": 1.75, "H100": 2.99}
CAPS = ((16, 12, 8, 12, 6, 8), (32, 8, 16, 16, 7, 12), (32, 16, 8, 8, 32, 8), (24, 24, 24, 16, 4, 8))
MIXES = {
    "long prompts": [LengthMix(2455, 510, 0.3), LengthMix(2455, 18, 0.5), LengthMix(824, 253, 0.2)],
    "chat": [LengthMix(824, 253, 0.4), LengthMix(496, 510, 0.3), LengthMix(496, 18, 0.3)],
    "all nine": [LengthMix(isl, osl, 1 / 9) for isl in (2455, 824, 496) for osl in (510, 253, 18)],
}


def gained(
    hwdb: Hwdb, mix: list[LengthMix], caps: Sequence[int], budget: float
) -> tuple[float, float, Rental]:
    """Gains over the best single kind, capped and free, and the plan that has them."""
    offers = Offers(
        tuple(
            GpuOffer(hwdb.gpu(kind).name, usd, float(cap))
            for (kind, usd), cap in zip(PRICES.items(), caps, strict=True)
        )
    )
    work = synthetic(2000, 10.0, mix, seed=0)
    question = ServiceQuestion.of(
        {"llama3-70b": load_model("llama3-70b")}, offers, work, ServiceGoal(GOODPUT, budget)
    )
    found = rent(question.rental(question.priced("milp", hwdb)[0]))
    assert found.plan is not None
    best = min(rival.value for rival in found.rivals if rival.capped) / found.plan.value
    freely = min(rival.value for rival in found.rivals if not rival.capped) / found.plan.value
    return best, freely, found.plan


def main() -> None:
    """Print a line for each mix, budget and set of caps, and the mean gain of every budget."""
    hwdb = Hwdb.load()
    for budget in (15.0, 30.0):
        capped, free = list[float](), list[float]()
        for name, mix in MIXES.items():
            for number, caps in enumerate(CAPS):
                begun = time.process_time()
                best, freely, plan = gained(hwdb, mix, caps, budget)
                capped.append(best)
                free.append(freely)
                print(
                    f"{budget:g} USD/h, {name}, caps {number + 1}: {best:.3f} x the best kind, "
                    f"{freely:.3f} x uncapped, gap {plan.gap:.4f}, "
                    f"{time.process_time() - begun:.1f} CPU-s",
                    flush=True,
                )
        print(f"{budget:g} USD/h: mean gain {mean(capped):.3f} capped, {mean(free):.3f} uncapped")


if __name__ == "__main__":
    main()
