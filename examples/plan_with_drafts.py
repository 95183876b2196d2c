"""Do speculative tokens pay? One service planned with drafts to choose from, and without."""

from tangram_sim.questions.question import question_of

ASKED = {
    "verb": "serve plan",
    "model": "llama3-70b",
    "fleet": "H100x8:2",
    "workload": "800:400:1",
    "rate": 6,
    "requests": 200,
    "slo": "ttft=2,tpot=0.03",
}

for words, more in (("without drafts", {}), ("drafts, 80 % accepted", {"drafts": "2,4", "acceptance": 0.8})):
    found = question_of({**ASKED, **more}).answer()
    replicas = ", ".join(f"{used.count} x {used.configuration}" for used in found.replicas)
    print(f"{words}: {found.cost_per_hour:.2f} USD/h, {replicas}")
    print(f"  replayed: {found.replay.tpot_p99_s * 1e3:.1f} ms a token in 99 % of requests")
