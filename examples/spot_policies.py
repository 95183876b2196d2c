"""Which way of living with spot capacity pays: a history from rates and a seed, speeds from a formula."""

from tangram_sim.reliability.spot.generate import SpotRates, describe, generate
from tangram_sim.reliability.spot.speeds import LayoutTable
from tangram_sim.reliability.spot.transitions import FixedTransitions
from tangram_sim.studies.replaying import ReplayQuestion, replay_document

# Samples/s of D pipelines of P nodes: 256 sequences a step in microbatches of 4, slots of 0.4 s over P.
speeds = LayoutTable(
    {
        (d, p): 256 / ((256 / 4 / d + p - 1) * 0.4 * 6 / p + 0.3 * (d > 1))
        for d in range(1, 9)
        for p in range(3, 13)
    },
    256.0,
    4.0,
)
costs = FixedTransitions(restart_s=90, migrate_s=25, block_s=8, every_steps=20, keeps_all=False)
for losses in (0.1, 1.0):
    history = generate({"": 24}, {"": SpotRates(losses, 900.0, burst=0.5)}, 12 * 3600.0, seed=1)
    told = describe(history)
    document, _ = replay_document(
        ReplayQuestion(history, speeds, costs), ("wait", "restart", "shrink", "replan", "hold")
    )
    print(
        f"{told.losses_per_node_hour:.2f} losses per node-hour, {told.mean_nodes:.1f} of 24 nodes in the mean"
    )
    for name, policy in document.policies.items():
        print(f"  {name:8} {policy.samples:>12,.0f} samples, {policy.of_upper_bound:.1%} of the bound")
