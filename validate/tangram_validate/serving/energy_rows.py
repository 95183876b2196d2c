"""Rows of measured energy: the columns of the ML.ENERGY leaderboard as collected in `energy_serving.csv`."""

from collections.abc import Mapping

from tangram_sim.models import Model
from tangram_sim.precision import Precision
from tangram_validate.serving.cells import RowError, number
from tangram_validate.serving.runs import ENERGY, JOULES, JOULES_AT_SPEED, WATTS, ServedRun

VERSION = "0.11.1"  # of vLLM (docs/overview.md of github.com/ml-energy/benchmark, table of runtimes)
# Prompt tokens by task, of which the leaderboard tells none: what the gaps between the median time of a token
# and seats / throughput come to, in round numbers. Any other task: PROMPT.
PROMPTS: Mapping[str, float] = {
    "lm-arena-chat": 200.0,
    "gpqa": 300.0,
    "sourcegraph-fim": 3000.0,
    "video-chat": 1500.0,
    "image-chat": 1000.0,
    "audio-chat": 500.0,
}
PROMPT = 500.0
UNSTATED_PROMPT = "the row does not say how long prompts are: read as those of its task"


def is_energy(row: Mapping[str, str]) -> bool:
    """Whether a row has the columns of energy tables."""
    return "avg_power_w_all_gpus" in row or "energy_per_token_j" in row


def energy_run(line: int, row: dict[str, str], gpu: str, model: Model, precision: Precision) -> ServedRun:
    """The row as a run; `gpu` and `model` are those that its cells name. Raises RowError.

    The source lists one rank of tensor parallelism where experts are spread; attention is then split over the
    GPUs that attention data parallelism leaves (vLLM's `--enable-expert-parallel`).
    """
    gpus = max(int(number(row, "gpus")), 1)
    attention_dp = max(int(number(row, "dp")), 1)
    if gpus % attention_dp:
        raise RowError(f"dp {attention_dp} does not divide {gpus} GPUs")
    clients = number(row, "avg_batch") or number(row, "max_num_seqs") or number(row, "concurrency")
    output = number(row, "avg_output_len") or number(row, "osl")
    if not clients or output < 1:
        raise RowError("the row does not say how many requests run at once, or how long outputs are")
    speed, watts = number(row, "output_tok_s"), number(row, "avg_power_w_all_gpus")
    joules = number(row, "energy_per_token_j") or (watts / speed if watts and speed else 0.0)
    prompt = number(row, "avg_input_len") or number(row, "isl")
    measured = {
        "tpot": number(row, "median_itl_ms") / 1e3,
        "output_tok_s": speed,
        WATTS: watts,
        JOULES: joules,
        JOULES_AT_SPEED: joules if speed else 0.0,
    }
    kept = tuple((name, value) for name, value in measured.items() if value > 0)
    if not kept:
        raise RowError("the row has none of tokens/s, watts and joules per token to compare with")
    return ServedRun(
        line=line,
        gpu=gpu,
        model=model,
        precision=precision,
        engine="vllm",
        version=VERSION,
        tp=gpus // attention_dp,
        pp=1,
        attention_dp=attention_dp,
        ep=max(int(number(row, "ep")), 1),
        load=ENERGY,
        clients=clients,
        rate=0.0,
        isl=prompt or PROMPTS.get(row.get("task", ""), PROMPT),
        osl=output,
        cached=0.0,
        source=row.get("source", "")[:60],
        measured=kept,
        max_sequences=int(number(row, "max_num_seqs")),
        assumed=() if prompt else (UNSTATED_PROMPT,),
    )
