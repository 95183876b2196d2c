"""Fields that several questions have, stated once."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangram_sim.errors import BadInputError
from tangram_sim.fields import LIMITS, SOFTWARE, about, option, part
from tangram_sim.questions.power import PowerOptions
from tangram_sim.questions.question import Question
from tangram_sim.training.job import Job
from tangram_sim.units import amount_of, days_of, percent
from tangram_sim.written import seconds

if TYPE_CHECKING:
    from tangram_sim.hwdb import Hwdb
    from tangram_sim.studies.training_run import WantedRun


def models() -> Iterable[str]:
    """Every shipped model."""
    from tangram_sim.hwdb import model_names

    return model_names()


def clusters() -> Iterable[str]:
    """Every shipped cluster."""
    from tangram_sim.hwdb import Hwdb, cluster_names

    return cluster_names(Hwdb.load())


def nodes() -> Iterable[str]:
    """Every node of the hardware tables, as additions name them."""
    from tangram_sim.hwdb import Hwdb

    return Hwdb.load().node_names()


def model_argument() -> Any:
    """The required argument for the model."""
    return field(
        metadata=about(
            "A shipped name (`tangram models list`), a config.json, a model.yaml or a plan.",
            positional="MODEL",
            suggested=models,
        )
    )


def cluster_argument() -> Any:
    """The required argument for the cluster."""
    return field(
        metadata=about(
            "A shipped name, nodes like H100x8:4+L40Sx4:2 (H100x8:4@400: NICs of 400 Gbit/s), "
            "a YAML file or a plan.",
            positional="CLUSTER",
            suggested=clusters,
        )
    )


def plan_argument() -> Any:
    """The required argument for the plan file."""
    return field(metadata=about("A file written by `tangram plan -o`.", positional="PLAN"))


def slow_option() -> Any:
    """The option for slow parts of the cluster."""
    return option(
        (),
        "What runs slow: a file, or WHERE=FACTOR pairs, e.g. n3=1.5 (node 3, 1.5 times slower); "
        "pairs may be given several times.",
        label="What runs slow",
        group=SOFTWARE,
    )


def dask_option() -> Any:
    """The option for the Dask cluster that runs a search."""
    return option(
        None,
        "Address HOST:PORT of a Dask scheduler on whose workers the search runs (with the extra dask).",
        group=LIMITS,
        on_page=False,
    )


def limit_option(help: str, unset: str = "none") -> Any:  # noqa: A002
    """The option for the time limit in seconds; None if it is not given."""
    return option(
        None,
        help,
        label="Seconds at most",
        unit="seconds",
        least=0,
        spelled="--time-limit",
        reads=seconds,
        unset=unset,
        group=LIMITS,
        basic=True,
    )


def schedules() -> Iterable[str]:
    """Every schedule that a job may name."""
    from tangram_sim.training.schedules.named import schedule_names

    return schedule_names()


# A job as it is asked about where the software is not.
JOB = part("global_batch", "seq", "dtype", "optimizer", "schedule", schedule={"suggested": schedules})
FINE_TUNING = ("trainable", "frozen", "packed")
TRAINING_JOB = part(
    *("global_batch", "seq", "dtype", "optimizer", "schedule", *FINE_TUNING),
    schedule={"suggested": schedules},
)
JOB_AND_SOFTWARE = part(
    *("global_batch", "seq", "dtype", "optimizer", "schedule", *FINE_TUNING, "stack", "flash_attention"),
    "dropout",
    schedule={"suggested": schedules},
)


def job_words(job: Job) -> str:
    """A job in words, defaults too: `128 sequences of 2,048 tokens, adamw, 1f1b`."""
    dtype = "" if job.dtype == "auto" else f", {job.dtype}"
    batch = f"{job.global_batch:,} sequence{'' if job.global_batch == 1 else 's'}"
    tuned = f", {percent(job.trainable, 2)} of the weights trained" if job.trainable < 1.0 else ""
    tuned += f", frozen ones in {job.frozen}" if job.frozen else ""
    tuned += f", documents of {job.packed:g} tokens packed" if job.packed else ""
    return f"{batch} of {job.seq:,} tokens{dtype}, {job.optimizer}, {job.schedule}{tuned}"


def _days(text: str) -> float:
    """A time in days. Raises BadInputError."""
    return days_of(text, "`finish_within=`")


def finish_within_option(help: str) -> Any:  # noqa: A002
    """The option for the days that training the tokens may take."""
    return option(None, help, label="Days it may take", unit="time", reads=_days, group=LIMITS)


@dataclass(frozen=True, slots=True)
class Run:
    """The training run that a plan is for: tokens, time limit, limits on power."""

    tokens: float | None = option(
        None,
        "Tokens to train on, e.g. 300B: say days, dollars and megawatt hours.",
        label="Tokens to train on",
        unit="tokens",
        reads=amount_of,
        basic=True,
    )
    finish_within: float | None = finish_within_option(
        "Time that training them may take, e.g. 14d, 36h, 2w: say whether it does."
    )
    power: PowerOptions = field(default=PowerOptions(), metadata=part())

    @property
    def wanted(self) -> "WantedRun | None":
        """The run that is asked about; None if no tokens are given. Raises BadInputError."""
        from tangram_sim.studies.training_run import wanted_run

        return wanted_run(self.tokens, self.finish_within)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Folders with rows of hardware data, added to the shipped ones."""

    hwdb: tuple[Path, ...] = option(
        (),
        "Folder with rows of your own; may be given several times, last wins.",
        group=SOFTWARE,
        on_page=False,
    )

    def load(self) -> "Hwdb":
        """The shipped hardware tables, overridden by the rows in the folders."""
        from tangram_sim.hwdb import Hwdb

        return Hwdb.load(self.hwdb)


@dataclass(frozen=True, slots=True)
class OnCluster(Question):
    """Base of questions about training a model on a cluster."""

    model: str = model_argument()
    cluster: str = cluster_argument()
    job: Job = field(default=Job(), metadata=JOB)
    hardware: Hardware = field(default=Hardware(), metadata=part())


@dataclass(frozen=True, slots=True)
class OnTrainingCluster(OnCluster):
    """Base of questions about training all weights, or adapters instead."""

    job: Job = field(default=Job(), metadata=TRAINING_JOB)
    lora_rank: int | None = option(
        None, "Train only LoRA adapters of this rank on the attention projections."
    )

    @property
    def trained(self) -> Job:
        """The job, with `trainable` set to the share of the adapters. Raises BadInputError."""
        return self.trained_on(self.model)

    def trained_on(self, model: str) -> Job:
        """The job for `model`, with `trainable` set to the share of the adapters. Raises BadInputError."""
        job = self.job
        if self.lora_rank is not None:
            from tangram_sim.hwdb import load_model
            from tangram_sim.models import lora_share

            job = replace(job, trainable=lora_share(load_model(model), self.lora_rank, job.trainable))
        if job.frozen and job.trainable >= 1.0:
            why = "is of weights that are not trained: give `lora_rank=16`, or `trainable=` below 1"
            raise BadInputError(f"`frozen={job.frozen}` {why}")
        return job
