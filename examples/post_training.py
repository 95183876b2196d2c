"""Should H20 generate and H800 train? A plan, its rivals, and the price of a million trained tokens."""

import tangram_sim as ts

step = {"prompts": 32, "samples": 8, "response_tokens": 800.0, "cap": 3200}
prices = ["H800=5", "H20=1.75"]
plan = ts.rl.plan("qwen2.5-7b", "H800x8:1+H20x8:2", price=prices, **step)
for pool in plan.pools:
    print(f"{pool.role}: {pool.gpus} GPUs, {', '.join(pool.nodes)}, idle {pool.idle_share:.0%} of a step")
best = max(plan.kinds, key=lambda one: one.ratio or 0.0)
print(f"best at rollout by comparison: {best.gpu}")

compared = ts.rl.compare("qwen2.5-7b", "H800x8:1+H20x8:2", **step)
naive = next(rule for rule in compared.rules if rule.rule == "all-colocated")
print(f"all colocated: {'does not fit' if naive.slower_by is None else f'{naive.slower_by:.0%} slower'}")

more = ts.rl.what_if("qwen2.5-7b", "H800x8:1+H20x8:2", ["H20x8:2"], price=prices, **step)
print(f"two more nodes of H20 pay for themselves: {more.offers[0].pays}")
