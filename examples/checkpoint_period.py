"""How often to save, and what failures leave: from four numbers, by formula and by playing failures."""

from tangram_sim.reliability.periods import best_period_s, daly_s, useful_share
from tangram_sim.studies.goodput import goodput_document
from tangram_sim.studies.goodput_settings import FailureFreeRate, setting_of_scalars

MTBF_S, CHECKPOINT_S, DOWNTIME_S, RECOVERY_S = 11_000.0, 30.0, 60.0, 300.0
for name, period_s in (
    ("exact", best_period_s(MTBF_S, CHECKPOINT_S)),
    ("daly", daly_s(MTBF_S, CHECKPOINT_S, DOWNTIME_S, RECOVERY_S)),
    ("hourly", 3600.0),
):
    share = useful_share(MTBF_S, period_s, CHECKPOINT_S, DOWNTIME_S, RECOVERY_S)
    print(f"{name:7} every {period_s:5.0f} s: {share:.4f} of the time is useful")
setting = setting_of_scalars(MTBF_S, CHECKPOINT_S, DOWNTIME_S, RECOVERY_S, 0.0, float("nan"))
played = goodput_document(setting, FailureFreeRate(), sample=50_000, seed=1)
if played.sample is not None:
    print(f"played  {played.sample.failures:,} failures: {played.sample.useful_share:.3f}")
for worth in played.worth:
    print(f"one second less of {worth.constant}: {worth.gain:+.1e}")
