"""Calibration of serving engines: fitted factors on kernel times and some seconds, each with its error.

A parameter's value is a product: the row of the engine (of any engine where it has none), times the rows of
its version and of the model as served on a GPU kind in a precision, where these exist.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tangram_sim.errors import BadInputError, unknown_name
from tangram_sim.hwdb import Hwdb, Row
from tangram_sim.hwdb.serving import serving_rows
from tangram_sim.serving.deployment import Deployment

# Parameter -> (what it stands for where no row does, what it is).
PARAMETERS: Mapping[str, tuple[float, str]] = {
    "gemm": (1.0, "factor on dense products"),
    "experts": (1.0, "factor on products of experts"),
    "experts_blocks": (1.0, "the same where experts are in fp8 with a scale for each block"),
    "cache": (1.0, "factor on decode attention"),
    "attention": (1.0, "factor on prompt attention"),
    "memory": (1.0, "factor on kernels that move data"),
    "reduce": (1.0, "factor on tensor-parallel reductions"),
    "exchange": (1.0, "factor on expert-parallel exchanges"),
    "kernel_s": (2.5e-6, "seconds between two kernels of a CUDA graph"),
    "launch_s": (5e-6, "seconds of the host to launch one kernel outside CUDA graphs"),
    "handshake_s": (5e-6, "seconds of a reduction beside moving its bytes"),
    "host_s": (3e-4, "seconds of an iteration that no GPU work hides"),
    "request_s": (1e-5, "the same for each request of the iteration"),
    "hidden_host_s": (1e-3, "seconds of the host's work on an iteration, hidden by asynchronous scheduling"),
    "hidden_request_s": (5e-6, "the same for each request of the iteration"),
    "serial_host_s": (3.4e-3, "seconds between two iterations that an engine does not prepare ahead"),
    "serial_request_s": (5.3e-5, "the same for each request of the iteration"),
    "prefill": (1.0, "factor on what prompts add to an iteration"),
    "time_scale": (1.0, "factor on the seconds of an iteration, host included"),
    "experts_floor": (1.0, "least seconds of products of experts, in those computed of their arithmetic"),
    "server_s": (5e-3, "seconds a request spends outside iterations"),
    "client_s": (2e-2, "the same in a closed loop, its client included"),
    "first_token": (1.0, "factor on queue and prefill of a closed loop's first tokens"),
    "wave": (0.1, "share of a closed loop's clients that prefill at once, and so wait for each other"),
    "wave_apart": (0.5, "share of clients who prefill at once where prompts have replicas of their own"),
    "ttft_scale": (1.0, "factor on a closed loop's first tokens"),
    "memory_base_bytes": (9e8, "memory beside weights and KV cache: context, workspaces, graphs"),
    "memory_logit_bytes": (11.0, "bytes for each seat and entry of the vocabulary"),
    "memory_group_bytes": (1.9e9, "buffers of tensor parallelism"),
}
# Parameters that only intervals depend on: standard deviations of log errors, of steady loads, of bursts, and
# of prompts and outputs on replicas of their own.
RESIDUALS = (
    *("residual_tpot", "residual_ttft", "residual_e2e", "residual_output_tok_s", "residual_kv_tokens"),
    *("residual_burst_tpot", "residual_burst_ttft", "residual_burst_e2e", "residual_burst_output_tok_s"),
    *("residual_apart_tpot", "residual_apart_ttft"),
)
SAME_DIE = 0.02  # largest difference between the peaks of kinds with one die
SUBJECTS = ("version", "served", "gpu", "model")
SEEN = "seen"  # of a kind of GPU or a model: how many runs of it are among those fitted
# How many times wider errors are on kinds, of models and from sources without any (as everybody's own service
# is one; overlays of own runs have 1), by metric that kernels decide: KV tokens are not among them.
METRICS = ("tpot", "ttft", "e2e", "output_tok_s")
WIDER = tuple(f"{novelty}_{name}" for novelty in ("unseen", "new_model", "new_source") for name in METRICS)


def served(gpu: str, model: str, precision: str) -> str:
    """The `subject` of calibration rows for a model served on a GPU kind in a precision."""
    return f"served:{gpu}/{model}/{precision}"


@dataclass(frozen=True)
class EngineFit:
    """Values of all PARAMETERS for an engine, model and GPU; `assumed` lists those that were not fitted."""

    values: Mapping[str, float]
    residuals: Mapping[str, float]
    assumed: tuple[str, ...] = ()
    known: frozenset[str] = field(default_factory=frozenset)  # version, model, precision, gpu: has rows

    def __getitem__(self, parameter: str) -> float:
        return self.values[parameter]


class CalibrationTable:
    """Index of calibration rows: an overlay replaces the database, a later row an earlier one."""

    __slots__ = ("_best", "_sisters")

    def __init__(
        self, rows: Iterable[tuple[int, Row]], sisters: Mapping[str, tuple[str, ...]] | None = None
    ) -> None:
        """`sisters`: for each GPU kind, the kinds with the same die, most similar first (`sister_kinds`)."""
        self._sisters = sisters or {}
        best: dict[tuple[str, str, str], tuple[int, Row]] = {}
        for layer, row in rows:
            _check(row)
            key = (row["engine"], row["subject"], row["parameter"])
            if key not in best or layer >= best[key][0]:
                best[key] = (layer, row)
        self._best = {key: row for key, (_, row) in best.items()}

    @classmethod
    def load(cls, hwdb: Hwdb) -> "CalibrationTable":
        """The table of shipped rows and of the overlays, which take precedence."""
        return cls(serving_rows(hwdb, "calibration"), sister_kinds(hwdb))

    def rows(self) -> list[Row]:
        """The rows that are not replaced by others."""
        return list(self._best.values())

    def fit(
        self, engine: str, version: str = "", model: str = "", precision: str = "", gpu: str = ""
    ) -> EngineFit:
        """The fitted parameters of an engine that serves a model in a precision on a GPU kind.

        Errors are larger for a GPU kind without fitted runs. Rows of a model as served on a sister kind also
        apply to this one. Empty names: not known.
        """
        values, assumed = {}, []
        known: set[str] = set()
        kinds = (gpu, *self._sisters.get(gpu, ()))
        subjects = {
            ("version",): [f"version:{version}"],
            ("model", "precision"): [served(kind, model, precision) for kind in kinds],
        }
        for parameter, (otherwise, words) in PARAMETERS.items():
            row = self._find(engine, "*", parameter)
            value = row.number("value") if row else otherwise
            if row is None or row["source"].startswith("assumed"):
                assumed.append(f"{parameter} {value:g} ({words})")
            for names, alike in subjects.items():
                keys = ((engine, subject, parameter) for subject in alike)
                own = next((self._best[key] for key in keys if key in self._best), None)
                if own is not None:
                    value *= own.number("value")
                    known.update(names)
            values[parameter] = value
        asked = {"unseen": ("gpu", gpu), "new_model": ("model", model)}
        novel = [word for word, subject in asked.items() if self._is_new(*subject)]
        if gpu and "unseen" not in novel:
            known.add("gpu")
        residuals = {}
        for parameter in RESIDUALS:
            row = self._find(engine, "*", parameter)
            spread = row.number("value") if row else 0.3
            # A source is new in both, as those left out were; what kind and model add beyond is independent.
            source = self._wider(engine, parameter, "new_source") ** 2
            more = (self._wider(engine, parameter, kind) ** 2 - source for kind in novel)
            residuals[parameter] = spread * (source + sum(max(added, 0.0) for added in more)) ** 0.5
        return EngineFit(values, residuals, tuple(assumed), frozenset(known))

    def fit_of(self, deployment: Deployment, version: str = "") -> EngineFit:
        """The fitted parameters for a deployment.

        With several GPU kinds, those of the first kind without fitted runs, if there is one.
        """
        kinds = list(dict.fromkeys(stage.island.gpu.name for stage in deployment.stages))
        unseen = [kind for kind in kinds if self._is_new("gpu", kind)]
        gpu = (unseen or kinds)[0] if unseen or len(kinds) == 1 else ""
        names = (deployment.model.name, deployment.precision.name)
        return self.fit(deployment.engine.engine, version, *names, gpu)

    def _is_new(self, kind: str, name: str) -> bool:
        """Whether subjects of this `kind` (gpu or model) have fitted runs, and `name` has none."""
        seen = {subject for _, subject, parameter in self._best if parameter == SEEN}
        return (
            bool(name) and any(item.startswith(f"{kind}:") for item in seen) and f"{kind}:{name}" not in seen
        )

    def _wider(self, engine: str, residual: str, novelty: str) -> float:
        """Factor by which a residual is larger for a kind, model or source (`novelty`) without fitted runs.

        Where it was not measured for this residual, that of the time per output token. 1 for residuals
        outside METRICS (bursts, prompts and outputs separately), for which no runs were held out.
        """
        metric = residual.removeprefix("residual_")
        names = (f"{novelty}_{metric}", f"{novelty}_tpot") if metric in METRICS else ()
        row = next((found for name in names if (found := self._find(engine, "*", name))), None)
        return row.number("value") if row else 1.0

    def _find(self, engine: str, subject: str, parameter: str) -> Row | None:
        return self._best.get((engine, subject, parameter)) or self._best.get(("*", subject, parameter))


@lru_cache(maxsize=8)
def sister_kinds(hwdb: Hwdb) -> dict[str, tuple[str, ...]]:
    """For each GPU kind, the others of its architecture with nearly its peak, nearest first.

    These have the same die with different memory: kernels compute alike on an H100 and an H200.
    """
    gpus = [hwdb.gpu(name) for name in hwdb.gpu_names()]
    peaks = {gpu.name: max((peak for _, peak in gpu.peaks), default=0.0) for gpu in gpus}
    found = {}
    for gpu in gpus:
        apart = {
            other.name: abs(peaks[other.name] / peaks[gpu.name] - 1.0)
            for other in gpus
            if other.name != gpu.name and other.architecture == gpu.architecture and peaks[gpu.name]
        }
        alike = [name for name, difference in apart.items() if difference <= SAME_DIE]
        found[gpu.name] = tuple(sorted(alike, key=lambda name: apart[name]))
    return found


def _check(row: Row) -> None:
    """Raise BadInputError unless a row's parameter and subject are known."""
    where = row.origins["parameter"]
    known = (*PARAMETERS, *RESIDUALS, *WIDER, SEEN)
    if row["parameter"] not in known:
        problem = unknown_name("parameter of serving", row["parameter"], known)
        raise BadInputError(f"{where}, column parameter: {problem}")
    kind, _, name = row["subject"].partition(":")
    if row["subject"] != "*" and (kind not in SUBJECTS or not name):
        raise BadInputError(
            f"{where}, column subject: {row['subject']!r} given; write * or one of "
            f"{', '.join(f'{known}:NAME' for known in SUBJECTS)}"
        )
