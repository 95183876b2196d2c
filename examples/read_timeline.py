"""Where the time of a plan goes: its critical path by cause, and its timeline as a Perfetto trace."""

import json

import tangram_sim as ts
from tangram_sim.hwdb import Hwdb
from tangram_sim.sim import trace_json
from tangram_sim.studies.explain import explain

hwdb = Hwdb.load()
model, cluster = ts.load_model("gpt3-2.7b"), ts.load_cluster("azure-c1-t4x4-v100x4")
result = ts.plan(model, cluster, ts.Job(global_batch=32), hwdb=hwdb)
found = explain(result.forecast.plan, hwdb)

print(f"step {result.document.step_s:.2f} s, of which on the critical path:")
for share in found.path[:4]:
    print(f"  {share.cause}: {share.seconds / result.document.step_s:.0%}")

# Open that text at https://ui.perfetto.dev: one track per stream and link, memory as a counter.
events = json.loads(trace_json(result.forecast.timeline))["traceEvents"]
tracks = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
print(f"{sum(event['ph'] == 'X' for event in events)} ops on tracks such as {', '.join(sorted(set(tracks)))}")
