"""`tangram serve estimate`: one replica under a steady load, in closed form."""

from typing import TYPE_CHECKING

from tangram_sim.cli.asked import asked
from tangram_sim.cli.console import print_line, print_notes, print_table
from tangram_sim.questions.serve_estimate import ServeEstimateQuestion
from tangram_sim.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from tangram_sim.studies.serving_answer import ServeEstimateDocument


def _show(question: ServeEstimateQuestion, found: "ServeEstimateDocument") -> None:
    """Print the load, then what the replica achieves, where its time goes, and what is assumed."""
    asked, rate = question.replica, question.rate
    load = f"{rate:g} requests/s" if rate else f"{asked.concurrency:g} requests in flight"
    place = f"{found.gpus} x {found.assumptions['gpu']}"
    if found.verdict:
        print_line(found.verdict)
    print_line(
        f"{asked.model} on {place}, {found.assumptions['engine']}: {load}, "
        f"{asked.isl:g} + {asked.osl:g} tokens"
    )
    print_line()
    print_table(("", "predicted", "90 % interval"), _summary(found), right=(1, 2))
    parts = sorted(found.parts_s.items(), key=lambda part: -part[1])[:4]
    spent = "   ".join(f"{name} {show_seconds(seconds)}" for name, seconds in parts)
    print_line(f"limited by {found.limited_by}; an iteration of {found.running:.3g} requests: {spent}")
    defaults = found.assumptions["engine_defaults"]
    print_line("assumed: " + "   ".join(f"{name} {value}" for name, value in defaults.items()))
    print_line(f"KV cache in {found.assumptions['precision']['kv']}; price: {found.assumptions['price']}")
    print_notes(found.notes)


def _summary(found: "ServeEstimateDocument") -> list[tuple[str, str, str]]:
    """Rows of a table to print: (what, value, 90 % interval)."""
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


command = asked(ServeEstimateQuestion, _show, of_both=True)
