"""Tables of fleets: a row lists the replicas that served all requests, some of them on another kind of GPU.

As in HexGen-3's results: `placement_details` has groups of equal replicas with their tensor-parallel degree
and the requests that each group was sent; `throughput_rps` is of all of them. A fleet is done when its last
replica is, so the row is a burst on one replica of the group with most to do for its memory bandwidth.
"""

import re

from tangram_sim.hwdb import Hwdb
from tangram_validate.serving.cells import RowError, number
from tangram_validate.serving.unstated import read_gpu

NEEDED = {"model", "placement_details", "throughput_rps"}
# NVDA:GH200 x8 (TP=4, Total GPUs=32, Weight: 0.89, Reqs: 59322)
_GROUP = re.compile(r"(?:NVDA:)?(?P<gpu>.+?)\s+x(?P<replicas>[1-9]\d{0,5})\s*\((?P<said>[^)]*)\)")
_DEGREE, _REQUESTS = re.compile(r"\bTP\s*=\s*([1-9]\d{0,3})\b"), re.compile(r"\bReqs:\s*(\d{1,9})\b")


def row_of_replica(row: dict[str, str], hwdb: Hwdb) -> dict[str, str]:
    """The row of one replica, with columns as in `measurements.csv`. Raises TangramError."""
    groups = [_group(text.strip(), hwdb) for text in row["placement_details"].split(";")]
    whole = sum(requests for *_, requests in groups)
    output, speed = number(row, "mean_output_tokens_inferred"), number(row, "throughput_rps")
    if not (whole and output and speed):
        raise RowError("the row does not state requests, their mean output and requests a second")
    _, gpu, tp, replicas, requests = max(groups)
    return {
        **dict.fromkeys(("engine", "engine_version", "concurrency", "ttft_ms", "tpot_ms", "e2e_ms"), ""),
        **{"gpu": gpu, "model": row["model"], "tp": f"{tp}", "precision": "bf16"},
        **{"scenario": "burst of all requests at once", "requests": f"{requests / replicas:.0f}"},
        **{"isl": row.get("isl", ""), "osl": f"{output}", "source": row.get("source", "")},
        "output_tok_s": f"{speed * output * requests / whole / replicas:.6g}",
    }


def _group(text: str, hwdb: Hwdb) -> tuple[float, str, int, int, int]:
    """(seconds to read memory for its requests, but for a factor; GPU, degree, replicas, requests)."""
    match = _GROUP.fullmatch(text)
    degree, sent = (_DEGREE.search(match["said"]), _REQUESTS.search(match["said"])) if match else (None, None)
    if match is None or degree is None or sent is None:
        raise RowError(f"placement_details {text[:40]!r}: GPU xREPLICAS (TP=N, Reqs: N) is wanted")
    gpu, _ = read_gpu(match["gpu"].replace("_", "-").replace(":", "-"), hwdb)
    tp, replicas, requests = int(degree[1]), int(match["replicas"]), int(sent[1])
    return requests / (replicas * tp * gpu.memory_bytes_per_s), gpu.name, tp, replicas, requests
