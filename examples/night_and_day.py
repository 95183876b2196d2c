"""One fleet that serves by day and trains by night, beside the same nodes as two fleets kept apart."""

import tangram_sim as ts
from tangram_sim.hwdb import Hwdb
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.purchasing.billing import Terms
from tangram_sim.purchasing.fleets import Fleet
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.search import ModelToTrain
from tangram_sim.purchasing.served_day import DayTerms
from tangram_sim.purchasing.served_fleets import ServiceDemand
from tangram_sim.purchasing.sharing import SharedWork, days_of
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.synthetic import LengthMix, synthetic
from tangram_sim.studies.serving_question import ServiceGoal
from tangram_sim.studies.sweep import Sweep

hwdb = Hwdb.load()
requests = synthetic(300, 20.0, [LengthMix(800, 200, 0.6), LengthMix(300, 40, 0.4)], seed=0)
demand = ServiceDemand(
    {"llama3-8b": ts.load_model("llama3-8b")},
    requests,
    ServiceGoal("goodput", slo=Slo(ttft_s=2.0, tpot_s=0.06)),
)
shared = SharedWork(
    work=ModelToTrain(ts.load_model("gpt3-1.3b"), ts.Job(global_batch=64)),
    demand=demand,
    terms=DayTerms(hours=14),
    prices=load_prices(None, hwdb),
    paid=Terms(),
    wishes=SearchOptions(),
    hwdb=hwdb,
    sweep=Sweep(jobs=1),
    deadline=Deadline(),
)
for day in days_of(shared, [("two nodes", Fleet.of(ts.load_cluster("p4d.24xlarge:2", hwdb)))]):
    serving = ", ".join(f"{count} node of {name}" for name, count in day.serving_nodes.items() if count)
    print(f"{day.name}: {serving} by day")
    print(f"  served {day.served_tokens / 1e6:,.0f} M good tokens a day")
    print(f"  trained {day.trained.shared / 1e6:,.0f} M tokens, {day.trained.apart / 1e6:,.0f} M kept apart")
