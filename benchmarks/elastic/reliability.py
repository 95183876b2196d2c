"""Figures of reliability studies from closed forms: MTTF, effective training time, interruptions."""

import csv
import math
import re

from benchmarks.elastic.figures import Answer, Data, Figure, RefusedError
from tangram_sim.reliability import periods
from tangram_sim.reliability.failures import load_failures

_GPUS = re.compile(r"([\d,]+)[ -]GPU")
_RATE = re.compile(r"\brf ([\d.]+)")
_WRITE = re.compile(r"write ([\d.]+) min")
_MTTI = re.compile(r"MTTI ([\d.]+) min")
_RESTART = re.compile(r"restart ([\d.]+) min")
_DAYS = re.compile(r"([\d.]+) days")
_GPUS_PER_NODE = 8
_GPUS_PER_REPLICA = 8192  # of the elastic run at 98,304 GPUs
_PER_NODE_S = 1e-3 / 86400.0  # one failure per 1,000 node-days
_SECONDS = {"h": 3600.0, "d": 86400.0, "s": 1.0, "min": 60.0}


def effective_training_ratio(failures_per_s: float, checkpoint_s: float, start_s: float) -> float:
    """Expected effective training time ratio of a long job, queueing left out.

    (1 - N r (u0 + dt/2)) / (1 + w/dt) with dt = sqrt(2 w/(N r)): Kokolis et al., arXiv:2410.21680 (form read
    in two summaries). `failures_per_s` is N r of the whole job, `start_s` u0, `checkpoint_s` w.
    """
    if failures_per_s <= 0:
        return 1.0
    interval = math.sqrt(2 * checkpoint_s / failures_per_s)
    lost = failures_per_s * (start_s + interval / 2)
    return max(0.0, 1 - lost) / (1 + (checkpoint_s / interval if interval else 0.0))


def compute(figure: Figure, data: Data) -> Answer:
    """The figure from the size and the rate that the row names; a rate it leaves out is that of RSC-1."""
    text = f"{figure.setting} {figure.metric}"
    gpus = _GPUS.search(text)
    nodes = int(gpus[1].replace(",", "")) / _GPUS_PER_NODE if gpus else 0.0
    rate = _RATE.search(text)
    per_node_s = float(rate[1]) * _PER_NODE_S if rate else load_failures("rsc-1").classes[0].per_node_s
    if "MTTF" in figure.metric:
        return Answer(1.0 / (nodes * per_node_s) / _SECONDS[figure.unit or "h"])
    if "ETTR" in figure.metric:
        write = _WRITE.search(text)
        if write is None:
            raise RefusedError("the setting names no seconds of a checkpoint")
        write_s = 60.0 * float(write[1])
        return Answer(effective_training_ratio(nodes * per_node_s, write_s, write_s))
    mtti = _MTTI.search(text)
    if mtti is not None:
        return _effective(figure, 60.0 * float(mtti[1]), nodes * _GPUS_PER_NODE, data)
    if "interruptions" in figure.metric:
        return _interruptions(text, nodes, data)
    raise RefusedError("the constants behind this figure are not published")


def _effective(figure: Figure, mtti_s: float, gpus: float, data: Data) -> Answer:
    """Share of time between interruptions that is left: by a whole restart, or by elastic replicas."""
    restart = _RESTART.search(figure.setting)
    if figure.metric.rstrip().endswith("restart") and restart is not None:
        return Answer((mtti_s - 60.0 * float(restart[1])) / mtti_s)
    with data.path("failures/recovery_times.csv").open(newline="") as file:
        rows = {
            row["case"]: float(row["seconds"]) for row in csv.DictReader(file) if row["kind"] == "elastic_dp"
        }
    stall = rows["all replicas stall per failure"]
    degraded = rows["degraded at (R-1)/R"]
    return Answer(periods.elastic_share(mtti_s, max(1, round(gpus / _GPUS_PER_REPLICA)), stall, degraded))


def _interruptions(text: str, nodes: float, data: Data) -> Answer:
    """Interruptions expected in so many days at the rate of the shipped failure model of that run."""
    del data
    days = _DAYS.search(text)
    if days is None or not nodes or "Llama 3" not in text:
        raise RefusedError("the row names no run, size and days with a shipped failure model")
    return Answer(float(days[1]) * 86400.0 / load_failures("llama3").mtbf_s({"H100": round(nodes)}))
