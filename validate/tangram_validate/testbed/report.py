"""What a suite leaves behind: a CSV of every run, a CSV of plans, scores as JSON, a plot of both axes."""

import csv
import io
import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tangram_sim import __version__
from tangram_sim.datafiles import write_whole
from tangram_sim.errors import TangramError
from tangram_validate.testbed.scoring import score, score_document
from tangram_validate.testbed.suite import Candidate, Outcome, SuiteRun

FIRST = 3  # runs that are the measurement; later ones are kept beside


def machine(device: str = "cpu") -> dict[str, str]:
    """Machine and versions, without names of hosts or users."""
    import torch

    kind = {"gpu": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)} if device == "cuda" else {}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "system": " ".join((platform.system(), ".".join(platform.release().split(".")[:2]))),
        "cores": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "tangram_sim": __version__,
        **kind,
    }


def _text(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else ["empty"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def runs_csv(made: SuiteRun) -> str:
    """One row per run; `counted` marks the first three."""
    facts = machine()
    rows = [
        {
            "suite": made.suite,
            "cluster": outcome.candidate.scenario,
            "model": outcome.candidate.model,
            "global_batch": outcome.candidate.global_batch,
            "plan": outcome.candidate.name,
            "kind": "emulated" if outcome.emulated else "real",
            "run": number,
            "counted": int(number < FIRST),
            "predicted_step_s": f"{outcome.candidate.predicted_s:.6f}",
            "measured_step_s": f"{seconds:.6f}",
            "load": f"{outcome.load:.1f}",
            **facts,
        }
        for outcome in made.outcomes
        for number, seconds in enumerate(outcome.report.steps_s)
    ]
    return _text(rows)


def plan_row(outcome: Outcome) -> dict[str, Any]:
    """One plan: step, bubble, communication, memory; numbers per stage are parted by blanks."""
    document, report = outcome.candidate.result.document, outcome.report
    stages = range(len(document.stages))

    def joined(values: Sequence[float]) -> str:
        return " ".join(f"{value:.4f}" for value in values)

    peaks = [
        max((rank.peak_memory_bytes for rank in report.ranks if rank.stage == stage), default=0.0)
        for stage in stages
    ]
    return {
        "cluster": outcome.candidate.scenario,
        "model": outcome.candidate.model,
        "global_batch": outcome.candidate.global_batch,
        "plan": outcome.candidate.name,
        "kind": "emulated" if outcome.emulated else "real",
        "schedule": document.schedule,
        "stages": len(document.stages),
        "layouts": " | ".join(str(stage.layout) for stage in report.plan.pipelines[0].stages),
        "predicted_step_s": f"{outcome.candidate.predicted_s:.6f}",
        "measured_step_s": f"{report.step_s:.6f}",
        "error": f"{outcome.candidate.predicted_s / report.step_s - 1:.4f}",
        "spread": f"{report.spread:.4f}",
        "null_step_s": f"{outcome.point.null_s:.6f}",
        "predicted_compute_s": joined(
            [
                (stage_forecast.forward_s + stage_forecast.backward_s) * document.microbatches
                + stage_forecast.optimizer_s
                for stage_forecast in document.stages
            ]
        ),
        "measured_compute_s": joined([report.of_stage(stage, "compute_s") for stage in stages]),
        "predicted_idle_share": f"{document.bubble_fraction:.4f}",
        "measured_waiting_share": f"{outcome.waiting:.4f}",
        "measured_transfer_wait_s": joined([report.of_stage(stage, "transfer_wait_s") for stage in stages]),
        "predicted_sync_s": joined([stage_forecast.gradient_sync_s for stage_forecast in document.stages]),
        "measured_sync_s": joined([report.of_stage(stage, "sync_s") for stage in stages]),
        "predicted_peak_mb": joined(
            [stage_forecast.peak_memory_bytes / 1e6 for stage_forecast in document.stages]
        ),
        # Waits allocate nothing like activations: memory of emulated runs would mean nothing.
        "measured_peak_mb": "" if outcome.emulated else joined([peak / 1e6 for peak in peaks]),
        "load": f"{outcome.load:.1f}",
    }


def forecasts_text(candidates: Sequence[Candidate]) -> str:
    """What was predicted, before anything ran."""
    rows = [
        {"group": candidate.group, "plan": candidate.name, "predicted_step_s": candidate.predicted_s}
        for candidate in candidates
    ]
    return json.dumps(rows, indent=1) + "\n"


def score_of(made: SuiteRun) -> dict[str, Any]:
    """Scores over emulated and over real runs, apart."""
    found: dict[str, Any] = {"suite": made.suite, "machine": machine(), "notes": made.notes}
    for kind, emulated in (("emulated", True), ("real", False)):
        points = [outcome.point for outcome in made.outcomes if outcome.emulated == emulated]
        if points:
            found[kind] = score_document(score(points))
    return found


def plot_html(made: SuiteRun) -> str:
    """Predicted over measured, one mark per plan; raises TangramError without plotly."""
    try:
        from plotly import graph_objects
    except ModuleNotFoundError:
        raise TangramError("the plot needs plotly: pip install 'tangram-sim[validate]'") from None
    figure = graph_objects.Figure()
    for cluster in dict.fromkeys(outcome.candidate.scenario for outcome in made.outcomes):
        shown = [outcome for outcome in made.outcomes if outcome.candidate.scenario == cluster]
        figure.add_scatter(
            x=[outcome.report.step_s for outcome in shown],
            y=[outcome.candidate.predicted_s for outcome in shown],
            text=[outcome.candidate.name for outcome in shown],
            mode="markers",
            name=cluster,
        )
    most = max(outcome.report.step_s for outcome in made.outcomes) * 1.1
    figure.add_scatter(x=[0, most], y=[0, most], mode="lines", name="equal", line={"dash": "dot"})
    figure.update_layout(xaxis_title="measured step, s", yaxis_title="predicted step, s")
    return str(figure.to_html(include_plotlyjs=True, full_html=True))


def write_all(made: SuiteRun, folder: Path) -> list[Path]:
    """Write every file whole, or none half: the paths."""
    texts = {
        "predictions.json": forecasts_text([outcome.candidate for outcome in made.outcomes]),
        "runs.csv": runs_csv(made),
        "plans.csv": _text([plan_row(outcome) for outcome in made.outcomes]),
        "score.json": json.dumps(score_of(made), indent=1) + "\n",
        "predicted-vs-measured.html": plot_html(made),
    }
    for name, text in texts.items():
        write_whole(folder / name, text)
    return [folder / name for name in texts]
