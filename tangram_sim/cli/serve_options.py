"""Options of `what-if` and `purchase` for fleets that serve, all day or some hours of it."""

from dataclasses import dataclass, fields
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from tangram_sim.cli import options as shared
from tangram_sim.cli.serving import workload_options as asked
from tangram_sim.cli.serving.goal_options import GoalOptions, PlannedRequests
from tangram_sim.errors import BadInputError

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.purchasing.served_day import DayTerms
    from tangram_sim.purchasing.served_fleets import ServiceDemand


@dataclass(frozen=True, slots=True)
class ServedOptions:
    """Options on serving: the requests, and for how many hours of a day; in the others nodes train."""

    serve: Annotated[
        str | None,
        typer.Option(
            "--serve",
            help="Judge fleets by what they serve: a trace (CSV), or a mix like 2455:510:0.3,496:18:0.7.",
        ),
    ] = None
    share: Annotated[
        float | None,
        typer.Option("--share", help="Hours a day that serve; MODEL is trained by what is free, and then."),
    ] = None
    serve_model: Annotated[
        str | None,
        typer.Option("--serve-model", help="MODEL[,MODEL] that are served.  [default: MODEL itself]"),
    ] = None
    rate: asked.Rate = None
    requests: asked.Requests = 1000
    where: asked.Where = None
    seed: asked.Seed = 0
    slo: asked.SloOption = None
    engine: Annotated[str, typer.Option("--engine", help="That serves: vllm, sglang or trtllm.")] = "vllm"
    serve_precision: Annotated[
        str, typer.Option("--serve-precision", help="That serves: bf16, fp8, int4, ...")
    ] = "bf16"
    utilisation: Annotated[float, typer.Option("--utilisation", help="How busy serving replicas may be.")] = (
        0.8
    )
    load_s: Annotated[
        float, typer.Option("--load-s", help="Of --share: seconds until replicas serve in the morning.")
    ] = 120.0

    @property
    def given(self) -> bool:
        """Whether --serve is given. Raises BadInputError if it is not, but an option that needs it is."""
        if self.serve is not None:
            return True
        plain = ServedOptions()
        for one in fields(self):
            if getattr(self, one.name) != getattr(plain, one.name):
                name = one.name.replace("_", "-")
                raise BadInputError(f"--{name} belongs to fleets that serve; say what with --serve WORKLOAD")
        return False

    def days(self) -> "DayTerms | None":
        """Hours of serving a day and seconds to load a model; None: all day. Raises BadInputError."""
        from tangram_sim.purchasing.served_day import DayTerms

        if self.share is None:
            return None
        if not isfinite(self.share) or not isfinite(self.load_s):
            raise BadInputError("--share, --load-s: give finite numbers")
        return DayTerms(self.share, self.load_s)

    def demand(self, trained: str, hwdb: "Hwdb") -> "ServiceDemand":
        """Models and requests to serve; without --serve-model the model `trained`. Raises BadInputError."""
        from tangram_sim.hwdb import load_model
        from tangram_sim.purchasing.served_fleets import ServiceDemand

        names = shared.names("--serve-model", self.serve_model or trained)
        requests = PlannedRequests(self.serve, self.rate, self.requests, self.where, self.seed)
        goal = GoalOptions(
            None, self.slo, "goodput", self.engine, self.serve_precision, self.utilisation
        ).goal(hwdb)
        return ServiceDemand({name: load_model(name) for name in names}, requests.made("goodput"), goal)
