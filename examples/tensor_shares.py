"""One tensor-parallel group with slow ranks: equal shares, pruned columns, columns sent away, both."""

from tangram_sim.reliability.stragglers.tensor_shares import (
    LayerCosts,
    even,
    hybrid,
    lossless_bound_s,
    migrated,
    resized,
)

# A layer of 1 s on a healthy rank; sending costs 10 ms a sender and 100 ms for all its columns, per level.
costs = LayerCosts(columns_s=1.0, message_s=0.01, share_s=0.1)
for slowness in ((2, 1, 1, 1, 1, 1, 1, 1), (8, 6, 4, 2, 1, 1, 1, 1)):
    print(f"ranks slowed {' '.join(map(str, slowness))} times:")
    for way in (even, resized, migrated, hybrid):
        found = way(slowness, costs)
        print(f"  {way.__name__:9} {found.layer_s:.4f} s a layer, {found.pruned_share:.2%} pruned")
    print(f"  no lossless way takes less than {lossless_bound_s(slowness, costs):.4f} s")
