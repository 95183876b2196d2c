"""One tensor-parallel group with slow ranks: what pays at which link, by published and by unit migration."""

from tangram_sim.reliability.stragglers.tensor_shares import LayerCosts, even, hybrid
from tangram_sim.reliability.stragglers.tensor_traffic import (
    Linear,
    Traffic,
    published_traffic,
    unit_traffic,
)

# A block of ViT-1B on 8 V100 in 32 bits: products of 11.22 ms on a healthy rank.
hidden, ranks, tokens, width = 2048, 8, 4160, 4
linears = [
    Linear(3 * hidden / ranks, hidden, tokens),
    Linear(hidden, hidden / ranks, tokens),
    Linear(4 * hidden / ranks, hidden, tokens),
    Linear(hidden, 4 * hidden / ranks, tokens),
]
published, unit = published_traffic(linears, width), unit_traffic(linears, width, width)
print(f"a block, 28/32 sent, bytes: published {published.at(7 / 8):,.0f} a micro-batch,", end=" ")
print(f"unit migration {unit.at(7 / 8):,.0f} a step")


def costs(traffic: Traffic, gbytes_per_s: float) -> LayerCosts:
    """The block with so fast links between its ranks and 900 GB/s of memory; one micro-batch a step."""
    touched = width * sum(one.rows * one.inputs + one.weights for one in linears)
    rate = gbytes_per_s * 1e9
    return LayerCosts(
        0.01122, gather_s=touched / 900e9, send_s=traffic.whole / rate, share_s=traffic.listed / rate
    )


for slowness in ((2, 1, 1, 1, 1, 1, 1, 1), (8, 6, 4, 2, 1, 1, 1, 1)):
    for rate in (130, 10):
        lone = [hybrid(slowness, costs(traffic, rate), max_pruned=0.0) for traffic in (published, unit)]
        words = [f"{found.layer_s * 1e3:.2f} ms ({found.verdict})" for found in lone]
        start = f"ranks slowed {' '.join(map(str, slowness))} times, {rate} GB/s:"
        print(f"{start} even {even(slowness, costs(unit, rate)).layer_s * 1e3:.2f} ms,", end=" ")
        print(f"published {words[0]}, unit migration {words[1]}")

rates = (1, 3, 10, 30, 130, 450)
for name, traffic in (("published", published), ("unit migration", unit)):
    print(f"{name}: what 8 ranks do, two slow; up to 3 % of the group's columns pruned")
    print("  slower " + "".join(f"{rate:>5} GB/s" for rate in rates))
    for factor in (1.05, 1.2, 1.5, 2.0, 4.0, 8.0):
        x = (factor, factor**0.5, *[1.0] * 6)
        verdicts = [hybrid(x, costs(traffic, rate), max_pruned=0.03).verdict for rate in rates]
        print(f"  {factor:5.2f} x " + "".join(f"{verdict:>10}" for verdict in verdicts))
