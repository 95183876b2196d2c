"""What two purchases would do to a small fleet: which of its GPUs stay useful, and at what rent."""

import tangram_sim as ts
from tangram_sim.hwdb import Hwdb
from tangram_sim.purchasing.fleets import Fleet, parse_purchases
from tangram_sim.purchasing.pricefile import load_prices
from tangram_sim.purchasing.whatif import what_if

hwdb = Hwdb.load()
study = what_if(
    ts.load_model("gpt3-1.3b"),
    Fleet.of(ts.load_cluster("azure-c1-t4x4-v100x4", hwdb)),
    [parse_purchases("p4d.24xlarge:1", hwdb), parse_purchases("ND96asr_v4:1", hwdb)],
    job=ts.Job(global_batch=32),
    prices=load_prices(None, hwdb),
    hwdb=hwdb,
)
for row in study.rows:
    print(f"{row.name}: {row.throughput.tokens_per_s:,.0f} tokens/s")
    for use in row.uses:
        print(f"  {use.label}: {use.gpus_used} of {use.gpus} x {use.gpu}")
    for charge in row.bill.charges:
        print(f"  {charge.kind} of {charge.member}: {charge.usd_per_hour:.2f} USD/h")
