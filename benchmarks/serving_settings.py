"""Engine settings that `serve tune` finds, beside the best of many random ones, on seeded random services.

    python -m benchmarks.serving_settings [SERVICES] [SETTINGS] [SEED]

A service is a model on GPUs that hold it, lengths, an objective and, for half of them, the acceptance of
draft tokens; degrees (tensor, data-parallel attention, expert) are settings of models with experts. Settings
are found on some requests and played on others of the same kind. Random settings are drawn from the same
ranges, and the best of them is the best on those other requests, which favours them. A service that no
settings can serve is drawn again.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tangram_sim.errors import InfeasibleError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.serving.fleet_file import read_fleet
from tangram_sim.serving.outcome import Slo
from tangram_sim.serving.synthetic import LengthMix, synthetic
from tangram_sim.serving.workload import Workload
from tangram_sim.studies.serving_rates import greatest_rate, replica_keeps
from tangram_sim.studies.serving_tuning import (
    Setting,
    degrees_of,
    tune_service,
    with_settings,
)

MODELS = {"llama3-8b": (1, 2), "qwen3-14b": (1, 2), "qwen3-32b": (2, 4), "llama3-70b": (4, 8)}
MODELS |= {"qwen3-30b-a3b": (2, 4), "mixtral-8x7b": (4, 8), "gpt-oss-120b": (4, 8)}
GPUS = ("A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM-141GB", "L40S", "B200-HGX")
CHOICES: dict[str, list[Setting]] = {"kv_precision": ["auto", "fp8"], "memory_fraction": [0.85, 0.9, 0.95]}
REQUESTS = 1000


@dataclass(frozen=True)
class DrawnService:
    """A replica as a fleet file has it, requests by seed, and the objective."""

    data: dict[str, Any]
    mix: tuple[LengthMix, ...]
    slo: Slo

    def requests(self, seed: int) -> Workload:
        """Requests at one a second; the rate is changed when they are played."""
        return synthetic(REQUESTS, 1.0, self.mix, seed)


def services(chance: np.random.Generator) -> Iterator[DrawnService]:
    """Random services without end."""
    while True:
        model = str(chance.choice(list(MODELS)))
        tp = int(chance.choice(MODELS[model]))
        prompt, output = np.exp(chance.uniform(np.log((128, 32)), np.log((6000, 1000)))).round()
        slo = Slo(float(chance.choice([0.5, 1.0, 2.0, 5.0])), float(chance.choice([0.02, 0.03, 0.05, 0.1])))
        replica: dict[str, Any] = {"gpu": str(chance.choice(GPUS)), "tp": tp}
        if chance.random() < 0.5:
            replica["acceptance"] = float(chance.choice([0.5, 0.65, 0.8]))
        mix = (LengthMix(float(prompt), float(output), 1.0, float(chance.choice([0.0, 0.5, 1.0]))),)
        yield DrawnService({"model": model, "replicas": [replica]}, mix, slo)


def choices_of(service: DrawnService) -> dict[str, list[Setting]]:
    """What is chosen besides the two limits: formats, memory, drafts and degrees where they apply."""
    (replica,) = service.data["replicas"]
    degrees: list[Setting] = [*degrees_of(load_model(service.data["model"]), replica)]
    drafts: list[Setting] = [0, 1, 2, 4] if "acceptance" in replica else []
    return CHOICES | {key: values for key, values in (("degrees", degrees), ("drafts", drafts)) if values}


def random_settings(choices: dict[str, list[Setting]], chance: np.random.Generator) -> dict[str, Any]:
    """Settings between the least and the most that the search tries."""
    return {
        "max_sequences": int(np.exp(chance.uniform(np.log(4), np.log(1025)))),
        "max_batched_tokens": int(np.exp(chance.uniform(np.log(256), np.log(16385)))),
        **{name: values[int(chance.integers(len(values)))] for name, values in choices.items()},
    }


def best_random(
    service: DrawnService, work: Workload, hwdb: Hwdb, count: int, chance: np.random.Generator
) -> float:
    """Requests/s of the best of so many random settings on these requests."""
    best, choices = 0.0, choices_of(service)
    for _ in range(count):
        replica = with_settings(service.data["replicas"][0], random_settings(choices, chance))
        try:
            fleet_replica = read_fleet({**service.data, "replicas": [replica]}, hwdb).replicas[0]
        except InfeasibleError:
            continue
        best = max(best, greatest_rate(replica_keeps(fleet_replica, work, service.slo), 1.0, best * 1.001))
    return best


def main(wanted: int = 30, settings: int = 500, seed: int = 1) -> None:
    """Print a line for each service, and how often the share asked for is reached."""
    hwdb, shares = Hwdb.load(), list[float]()
    for number, service in enumerate(services(np.random.default_rng(seed))):
        begun = time.process_time()
        try:
            tuned = tune_service(service.data, service.requests(0), service.slo, hwdb, choices_of(service))
        except InfeasibleError:
            continue
        took = time.process_time() - begun
        work = service.requests(1)
        fleet_replica = read_fleet(tuned.fleet, hwdb).replicas[0]
        mine = greatest_rate(replica_keeps(fleet_replica, work, service.slo), tuned.goodput_rps)
        other = best_random(service, work, hwdb, settings, np.random.default_rng(number))
        shares.append(mine / other if other else 1.0)
        replica, (mix,) = service.data["replicas"][0], service.mix
        print(
            f"{service.data['model']} on {replica['tp']} x {replica['gpu']}, {mix.input_tokens:.0f} + "
            f"{mix.output_tokens:.0f} tokens (cv {mix.cv:g}), TTFT {service.slo.ttft_s:g} s, TPOT "
            f"{service.slo.tpot_s * 1e3:g} ms: tuned {mine:.4g}, best of {settings} {other:.4g} requests/s, "
            f"{shares[-1]:.3f}, {tuned.replicas[0].settings}; defaults "
            f"{tuned.default_goodput_rps / tuned.goodput_rps:.3f} and bound "
            f"{tuned.bound_rps / tuned.goodput_rps:.2f} of it, {took:.1f} CPU-s",
            flush=True,
        )
        if len(shares) == wanted:
            break
    reached = sum(share >= 0.98 for share in shares)
    print(
        f"{reached} of {len(shares)} at .98 or more; least {min(shares):.3f}, median {np.median(shares):.3f}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
