"""`tangram serve plan`: which GPUs to use, which replicas run on them, and how requests are distributed."""

from functools import partial
from typing import TYPE_CHECKING

from tangram_sim.cli import command_clock
from tangram_sim.cli.derived import derived
from tangram_sim.cli.outputs import AnswerOutputs
from tangram_sim.errors import InfeasibleError
from tangram_sim.questions.serve_plan import ServePlanQuestion
from tangram_sim.reports.columns import ViewColumn, share

if TYPE_CHECKING:
    from tangram_sim.studies.serving_plan import PlanEnergyDocument, ServePlanDocument


def _layers(row: tuple[int, tuple[str, tuple[int, int] | None]]) -> str | None:
    held = row[1][1]
    return None if held is None else f"{held[0]}-{held[1] - 1}"


_PLACED = ViewColumn("node", "0", "{}"), ViewColumn("kind", "1.0"), ViewColumn("layers", _layers)
_PATHS = (
    ViewColumn("path", lambda path: " > ".join(map(str, path.nodes))),
    ViewColumn("share", "share", share(1)),
)
_RIVALS = (
    ViewColumn("one kind only", "gpu"),
    ViewColumn("of it", lambda rival: "available" if rival.capped else "any number"),
)


@derived
def command(question: ServePlanQuestion, outputs: AnswerOutputs) -> None:
    """Write the requested files, and print the answer."""
    from tangram_sim.cli.console import print_json
    from tangram_sim.reports.services import plan_report

    outputs.require_writable()
    found = question.answer(left_s=command_clock.left_s(question.time_limit_s))
    if found.status == "infeasible":
        if outputs.as_json:  # an answer with its reason: scripts read `status`
            print_json(found.model_dump())
        raise InfeasibleError(f"{question.model}: {found.reason}")
    outputs.show(found, print_plan, lambda: plan_report(found, question.model), "planning_cpu_s")


def _type(found: "ServePlanDocument", w: int) -> str:
    """The label of request type `w`: `PROMPT:OUTPUT` mean tokens if known, else `type w`."""
    if w >= len(found.types):
        return f"type {w}"
    planned_type = found.types[w]
    owner = f"{planned_type.model}=" if planned_type.model else ""
    return f"{owner}{planned_type.input_tokens:.0f}:{planned_type.output_tokens:.0f}"


def print_plan(found: "ServePlanDocument") -> None:
    """Print the plan as tables: replicas with shares or layers, other plans, possible improvements."""
    from tangram_sim.cli.console import print_columns, print_line, print_notes
    from tangram_sim.reports.services import rented_columns

    proof = "optimal" if found.status == "optimal" else f"gap {(found.gap or 0.0) * 100:.2g} %"
    bound = f"{proof}, bound {_value(found, found.bound)}"
    if found.replay is not None and found.replay.verdict:
        print_line(f"replayed by the simulator, this plan {found.replay.verdict}")
    if found.objective == "tokens":
        print_line(f"{_value(found, found.tokens_per_s)}   {bound}")
    elif found.objective == "goodput":
        print_line(
            f"{_value(found, found.throughput_rps)} of this mix   {_usd(found.cost_per_hour)} USD/h   {bound}"
        )
    elif found.objective == "makespan":
        print_line(
            f"{_value(found, found.makespan_s)} for all requests   {found.throughput_rps:.6g} requests/s   "
            f"{_usd(found.cost_per_hour)} USD/h   {bound}"
        )
    else:
        print_line(f"{_value(found, found.cost_per_hour)}   {found.throughput_rps:.6g} requests/s   {bound}")
    print_line()
    if found.replicas:
        used = [replica for replica in found.replicas if replica.count]
        print_columns(rented_columns(found, partial(_type, found)), used)
    if found.placement:
        print_columns(_PLACED, [*enumerate(zip(found.nodes, found.placement, strict=True))])
        print_columns(_PATHS, found.paths)
    if found.rivals:
        columns = (*_RIVALS, ViewColumn(found.objective, "value", partial(_value, found), unknown="no plan"))
        print_columns(columns, found.rivals)
    for name, lever in found.levers.items():
        words = name.replace("_", " ")
        if lever.value is None:
            print_line(f"without choosing {words}: no plan")
        else:
            print_line(
                f"without choosing {words}: {_value(found, lever.value)} "
                f"({(lever.worth or 0.0) * 100:+.1f} %)"
            )
    unit = " requests" if found.objective == "makespan" else " requests/s"
    for kind, planned_type in enumerate(found.types):
        print_line(f"{_type(found, kind)} tokens: {planned_type.amount:.4g}{unit}")
    for planned_type in found.assumptions.get("scenarios", ()):
        print_line(f"borne as well: {planned_type['name']}")
    for host in found.hosts:
        held = ", ".join(f"{count} x {name}" for name, count in host.replicas.items())
        print_line(f"{host.count} node{'s' * (host.count > 1)} of {host.gpus} {host.gpu}: {held}")
    if found.interval is not None:
        print_line(f"90 % of the time between {found.interval[0]:.4g} and {found.interval[1]:.4g}")
    if found.energy is not None:
        print_line(_energy(found.energy, "in all" if found.objective == "makespan" else "a day"))
    if found.replay is not None:
        unit = "s" if found.objective == "makespan" else "requests/s"
        print_line(
            f"replayed by the simulator: {found.replay.played:.6g} {unit}, "
            f"{found.replay.error * 100:+.1f} % of what is promised   "
            f"TTFT p99 {found.replay.ttft_p99_s:.3g} s   "
            f"TPOT p99 {found.replay.tpot_p99_s:.3g} s   {found.replay.good_share * 100:.1f} % good"
        )
    for played in found.scenario_replays:
        unit = "s" if found.objective == "makespan" else "requests/s"
        print_line(
            f"in {played.name}: replicas left {played.replicas}, replayed {played.played:.6g} {unit}, "
            f"{played.error * 100:+.1f} % of what is wanted   TTFT p99 {played.ttft_p99_s:.3g} s   "
            f"TPOT p99 {played.tpot_p99_s:.3g} s   {played.good_share * 100:.1f} % good"
        )
    print_notes(found.notes)


def _energy(energy: "PlanEnergyDocument", when: str) -> str:
    """Watts, joules per token and kWh in one line."""
    low, high = energy.intervals["joules_per_output_token"]
    carbon = "" if energy.kg_co2e is None else f"   {energy.kg_co2e:,.3g} kg CO2e {when}"
    return (
        f"power: {energy.gpu_w / 1e3:,.3g} kW of GPUs, {energy.site_w / 1e3:,.3g} kW of the site   "
        f"{energy.joules_per_output_token:.3g} J per token ({low:.3g} to {high:.3g})   "
        f"{energy.kwh:,.3g} kWh {when}{carbon}"
    )


def _usd(value: float | None) -> str:
    """USD per hour as text; `-` if the price of a kind in use is unknown."""
    return "-" if value is None else f"{value:.6g}"


def _value(found: "ServePlanDocument", value: float | None) -> str:
    unit = {"makespan": "s", "cost": "USD/h", "tokens": "tokens/s", "goodput": "requests/s"}[found.objective]
    return "-" if value is None else f"{value:.6g} {unit}"
