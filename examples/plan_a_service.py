"""Which GPUs should a service rent? A problem with measured throughputs, its plan, rivals and proof."""

from tangram_sim.serving_planners.problem_file import read_problem
from tangram_sim.studies.serving_plan import plan_problem

problem, _ = read_problem(
    {
        "kind": "cost",
        "gpus": {
            "H100": {"price_per_hour": 2.99, "available": 4},
            "L40S": {"price_per_hour": 0.9, "available": 8},
        },
        "configurations": [
            {"name": "H100", "gpus": {"H100": 1}, "throughput": [9.0, 2.4]},
            {"name": "L40S", "gpus": {"L40S": 1}, "throughput": [3.1, 0.5]},
        ],
        "workload": [
            {"rate": 12, "isl": 496, "osl": 18},
            {"rate": 4, "isl": 824, "osl": 253},
        ],
        "utilisation": 0.8,
    }
)
found = plan_problem(problem)
print(f"{found.cost_per_hour:.2f} USD/h, {found.status}; no plan below {found.bound:.2f}")
for used in found.replicas:
    shares = ", ".join(f"{share:.0%}" for share in found.shares[used.configuration])
    print(f"{used.count} x {used.configuration}: {shares} of the two types")
for rival in found.rivals:
    if rival.capped:
        print(f"{rival.gpu} alone: " + (f"{rival.value:.2f} USD/h" if rival.value else "cannot"))
