"""How many GPUs for so many requests a second? One replica in closed form, then a fleet played."""

from tangram_sim.hwdb import Hwdb
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.synthetic import LengthMix, synthetic
from tangram_sim.studies.serving_simulation import simulate_service

hwdb = Hwdb.load()
work = synthetic(2000, 20.0, [LengthMix(800, 200, 0.6, 0.5), LengthMix(300, 40, 0.4, 0.5)], seed=0)
for count in (1, 2, 3):
    fleet = read_fleet(
        {
            "model": "llama3-8b",
            "replicas": [{"gpu": "L40S", "count": count, "usd_per_hour": 0.9}],
        },
        hwdb,
    )
    found, _ = simulate_service(fleet, work, router="least_outstanding", slo=Slo(ttft_s=1.0, tpot_s=0.06))
    per_million = found.usd_per_million_good_tokens
    print(
        f"{count} x L40S: TTFT p99 {found.ttft_s.p99:.2f} s, TPOT p99 {found.tpot_s.p99 * 1e3:.0f} ms, "
        f"{found.good_share:.0%} good, "
        + (f"{per_million:.2f} USD per million good tokens" if per_million else "no good token")
    )
