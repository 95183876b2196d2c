"""`tangram serve estimate`: one replica under a steady load, in closed form."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tangram_sim.cli import options as shared

if TYPE_CHECKING:
    from tangram_sim.studies.serving_answer import ServeEstimateDocument

Gpu = Annotated[str, typer.Option("--gpu", help="GPU kind (`tangram hw list`).")]
Engine = Annotated[str, typer.Option("--engine", help="vllm, sglang or trtllm.")]
Version = Annotated[str, typer.Option("--engine-version", help="Version of the engine, like 0.19.0.")]
Precision = Annotated[
    str, typer.Option("--precision", help="bf16, fp16, fp8, int8, fp4 (nvfp4, mxfp4), int4 or fp32.")
]
KvDtype = Annotated[str, typer.Option("--kv-dtype", help="auto, bf16, fp16, fp8, int8 or fp32.")]
Concurrency = Annotated[
    float, typer.Option("--concurrency", help="Requests in flight, each replaced as it ends.")
]
Rate = Annotated[
    float | None, typer.Option("--rate", help="Requests per second that arrive, instead of --concurrency.")
]
Isl = Annotated[float, typer.Option("--isl", help="Tokens of a prompt.")]
Osl = Annotated[float, typer.Option("--osl", help="Tokens of an output.")]
Cached = Annotated[float, typer.Option("--cached", help="Tokens of a prompt found in the prefix cache.")]
Tp = Annotated[int, typer.Option("--tp", help="Tensor-parallel degree.")]
Pp = Annotated[int, typer.Option("--pp", help="Pipeline stages.")]
Ep = Annotated[int, typer.Option("--ep", help="Ranks over which routed experts are spread.")]
AttentionDp = Annotated[
    int, typer.Option("--attention-dp", help="Groups of tp ranks with requests of their own.")
]
Seats = Annotated[int | None, typer.Option("--max-num-seqs", help="Requests that run at once.")]
Budget = Annotated[int | None, typer.Option("--max-num-batched-tokens", help="Tokens of one iteration.")]
Fraction = Annotated[
    float | None, typer.Option("--memory-fraction", help="Share of memory the engine takes.")
]
Sync = Annotated[
    bool, typer.Option("--no-async-scheduling", help="The host prepares an iteration after the last one.")
]
Drafts = Annotated[int, typer.Option("--drafts", help="Speculative tokens checked in one iteration.")]
Acceptance = Annotated[float, typer.Option("--acceptance", help="Chance that a draft is accepted.")]
Price = Annotated[
    float | None, typer.Option("--price", help="USD of one GPU for an hour, instead of dated price rows.")
]
PowerCap = Annotated[
    str,
    typer.Option("--power-cap", help="Most watts of each GPU, like 400W: lowers its clock until it fits."),
]


def command(
    model: shared.ModelArgument,
    gpu: Gpu,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    attention_dp: AttentionDp = 1,
    concurrency: Concurrency = 1.0,
    rate: Rate = None,
    isl: Isl = 1024.0,
    osl: Osl = 256.0,
    cached: Cached = 0.0,
    engine: Engine = "vllm",
    version: Version = "",
    precision: Precision = "bf16",
    kv_dtype: KvDtype = "auto",
    seats: Seats = None,
    budget: Budget = None,
    fraction: Fraction = None,
    sync: Sync = False,
    drafts: Drafts = 0,
    acceptance: Acceptance = 0.0,
    price: Price = None,
    power_cap: PowerCap = "",
    hwdb: shared.HwdbFolders = None,
    as_json: shared.AsJson = False,
) -> None:
    """Estimate one replica of MODEL under a steady load: TPOT, TTFT, tokens/s, KV memory, what limits it."""
    from tangram_sim.cli.console import print_json, print_line, print_notes, print_table
    from tangram_sim.errors import BadInputError
    from tangram_sim.studies.serving_estimate import ReplicaQuestion, estimate_service
    from tangram_sim.units import read_watts, show_seconds

    if rate is not None and not rate > 0:
        raise BadInputError(f"--rate {rate:g}: give requests per second above 0, or leave the option out")
    if price is not None and not 0 < price < float("inf"):
        raise BadInputError(f"--price {price:g}: give USD per GPU and hour above 0")
    question = ReplicaQuestion(
        model=model,
        gpu=gpu,
        tp=tp,
        pp=pp,
        ep=ep,
        attention_dp=attention_dp,
        engine=engine,
        version=version,
        precision=precision,
        kv_dtype=kv_dtype,
        concurrency=concurrency,
        rate=rate or 0.0,
        isl=isl,
        osl=osl,
        cached=cached,
        drafts=drafts,
        acceptance=acceptance,
        settings=_settings(seats, budget, fraction, sync),
        usd_per_gpu_hour=price or 0.0,
        power_cap_w=read_watts(power_cap, "--power-cap") if power_cap else 0.0,
    )
    found = estimate_service(question, shared.load_hwdb(hwdb))
    if as_json:
        print_json(found.model_dump())
        return
    load = f"{rate:g} requests/s" if rate else f"{concurrency:g} requests in flight"
    place = f"{found.gpus} x {found.assumptions['gpu']}"
    if found.verdict:
        print_line(found.verdict)
    print_line(f"{model} on {place}, {found.assumptions['engine']}: {load}, {isl:g} + {osl:g} tokens")
    print_line()
    print_table(("", "predicted", "90 % interval"), _summary(found), right=(1, 2))
    parts = sorted(found.parts_s.items(), key=lambda part: -part[1])[:4]
    spent = "   ".join(f"{name} {show_seconds(seconds)}" for name, seconds in parts)
    print_line(f"limited by {found.limited_by}; an iteration of {found.running:.3g} requests: {spent}")
    defaults = found.assumptions["engine_defaults"]
    print_line("assumed: " + "   ".join(f"{name} {value}" for name, value in defaults.items()))
    print_line(f"KV cache in {found.assumptions['precision']['kv']}; price: {found.assumptions['price']}")
    print_notes(found.notes)


def _settings(seats: int | None, budget: int | None, fraction: float | None, sync: bool) -> dict[str, Any]:
    """What a user set of the engine's options. Raises BadInputError."""
    from tangram_sim.errors import BadInputError

    found: dict[str, Any] = {}
    for option, name, value in (
        ("--max-num-seqs", "max_sequences", seats),
        ("--max-num-batched-tokens", "max_batched_tokens", budget),
    ):
        if value is not None:
            if value < 1:
                raise BadInputError(f"{option} {value}: give 1 or more")
            found[name] = value
    if fraction is not None:
        if not 0 < fraction <= 1:
            raise BadInputError(f"--memory-fraction {fraction:g}: give a share above 0 and up to 1")
        found["memory_fraction"] = fraction
    if sync:
        found["async_scheduling"] = False
    return found


def _summary(found: "ServeEstimateDocument") -> list[tuple[str, str, str]]:
    """Rows of a table to print: (what, value, 90 % interval)."""
    from tangram_sim.units import show_bytes, show_seconds

    low_high = found.intervals
    admitted = ", once admitted" if found.overloaded else ""
    lines = [
        (title, show_seconds(getattr(found, name)), " to ".join(map(show_seconds, low_high[name])))
        for title, name in (
            ("TPOT", "tpot_s"),
            (f"TTFT{admitted}", "ttft_s"),
            (f"end to end{admitted}", "e2e_s"),
        )
    ]
    low, high = low_high["output_tok_s"]
    lines.append(("output", f"{found.output_tok_s:,.0f} tokens/s", f"{low:,.0f} to {high:,.0f}"))
    if found.usd_per_million_output_tokens is not None:
        low, high = low_high["usd_per_million_output_tokens"]
        price = f"${found.usd_per_million_output_tokens:.2f} per million tokens"
        lines.append(("cost", price, f"${low:.2f} to ${high:.2f}"))
    if found.gpu_w:
        low, high = low_high["gpu_w"]
        lines.append(("power of GPUs", f"{found.gpu_w:,.0f} W", f"{low:,.0f} to {high:,.0f}"))
        low, high = low_high["joules_per_output_token"]
        energy = f"{found.joules_per_output_token:.3g} J per token"
        lines.append(("energy", energy, f"{low:.3g} to {high:.3g}"))
    low, high = low_high["kv_tokens"]
    lines.append(("KV cache", f"{found.kv_tokens:,} tokens", f"{low:,.0f} to {high:,.0f}"))
    kept = found.assumptions["weights_bytes_per_gpu"]
    lines.append(("weights", f"{show_bytes(kept)} per GPU", ""))
    return lines
