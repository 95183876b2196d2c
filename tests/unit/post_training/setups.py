"""Small post-training steps and plans that tests share."""

from tangram_sim.hwdb import Hwdb, load_cluster, load_model
from tangram_sim.planners.uniform.layouts import Uniform
from tangram_sim.post_training.lengths import lognormal
from tangram_sim.post_training.overheads import Overheads
from tangram_sim.post_training.plan import COLOCATED, SPLIT, Mode, RlPlan, RolloutReplicas, TrainingPool
from tangram_sim.post_training.workload import PostTraining

HWDB = Hwdb.load()
NOTHING = Overheads(host_bytes_per_s=1e30, gather_bytes_per_s=1e30, broadcast_bytes_per_s=1e30)


def work(prompts: int = 16, samples: int = 4, mean: float = 200, cap: int = 800, **more) -> PostTraining:
    return PostTraining(load_model("qwen2.5-7b"), prompts, samples, 100, lognormal(mean, cap), **more)


def training(cluster: str = "H100x8:1", **layout) -> TrainingPool:
    pool = Uniform(**{"zero_stage": 1, "recompute": "full", "tp": 2, **layout})
    return TrainingPool(load_cluster(cluster, HWDB), pool, pack_tokens=2048, offload=True)


def colocated(gpu: str = "H100-SXM5-80GB", cluster: str = "H100x8:1") -> RlPlan:
    replicas = RolloutReplicas(gpu, 8, memory_fraction=0.6)
    return RlPlan(training(cluster), (replicas,), COLOCATED)


def split(mode: Mode | None = None, gpu: str = "H20-96GB", count: int = 8) -> RlPlan:
    replicas = RolloutReplicas(gpu, count, memory_fraction=0.85)
    return RlPlan(training(), (replicas,), SPLIT, mode or Mode())
