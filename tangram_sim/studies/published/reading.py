"""Rows of published training runs as nouns: model, cluster, job, layout, what was assumed, what was measured."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import read_text
from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.hwdb import Hwdb
from tangram_sim.jobs import OPTIMIZER_STATE_BYTES, RECIPES, Job
from tangram_sim.layouts import RECOMPUTE
from tangram_sim.models import Model
from tangram_sim.planners.uniform import Uniform
from tangram_sim.studies.published import defaults, shapes
from tangram_sim.studies.published.cells import CellError, Cells
from tangram_sim.studies.published.machines import cluster_of
from tangram_sim.units import GIB, GIGA

HARD = ("gpu", "gpus", "layers", "hidden", "seq_len", "gbs", "tp", "pp", "dp")  # what no default can replace
WIDTH = "row width"  # column that marks a row whose cells do not match the header


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that cannot be predicted, and why."""

    id: str
    source_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row reports; 0.0 where it does not."""

    step_s: float = 0.0
    peak_bytes: float = 0.0
    allocated: bool = False  # the peak counts tensors; else what the allocator or the driver holds


@dataclass(frozen=True, slots=True)
class Run:
    """One row, ready to be predicted."""

    id: str
    source_id: str
    table: str
    tier: str
    gpu: str  # as the row writes it
    model_name: str  # groups rows into sweeps; never looked up
    software: defaults.Software
    model: Model
    cluster: Cluster
    job: Job
    layout: Uniform
    recompute: str  # "" = unstated: none, then selective, then the fewest full layers that fit
    full_layers: int  # of every stage, under recompute "full"; 0 = all
    assumed: tuple[str, ...]
    measured: Measured


def read_table(path: Path) -> list[dict[str, str]]:
    """Rows of the file as text.

    A row of the wrong width is kept and marked, to be reported as one. Raises BadInputError for a file that
    is no CSV or has hardly any of the columns of published runs.
    """
    text = read_text(path).removeprefix("\ufeff")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [cell.strip() for cell in next(reader, [])]
        lines = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise BadInputError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
    known = [column for column in HARD if column in header]
    if len(known) * 2 < len(HARD):
        raise BadInputError(
            f"{path}: not a table of training runs: its header has {', '.join(known) or 'none'} of the columns "
            f"{', '.join(HARD)}"
        )
    rows = []
    for line, cells in lines:
        row = dict(zip(header, cells, strict=False))
        if len(cells) != len(header):
            row[WIDTH] = f"line {line} has {len(cells)} cells where the header has {len(header)} columns"
        rows.append(row)
    return rows


def read_runs(rows: Sequence[Mapping[str, str]], hwdb: Hwdb) -> list[Run | Problem]:
    """Every row as a run, or as a problem with its reason; order kept."""
    return [read_run(row, hwdb, number) for number, row in enumerate(rows, 1)]


def read_run(row: Mapping[str, str], hwdb: Hwdb, number: int = 1) -> Run | Problem:
    """One row; `number` names it where its id is blank."""
    cells = Cells(row)
    name = cells.text("id") or f"row {number}"
    try:
        return _run(name, cells, hwdb)
    except (CellError, TangramError) as error:
        return Problem(name, cells.text("source_id"), str(error))


def _run(name: str, cells: Cells, hwdb: Hwdb) -> Run:
    if cells.text(WIDTH):
        raise CellError(cells.text(WIDTH))
    if cells.text("tier").upper() == "X":
        raise CellError(f"tier X: the source contradicts itself {cells.text('flags')}".strip())
    if not cells.text("gpu"):
        raise CellError("gpu not stated, and nothing else in the row says it")
    gpus, tp, pp, dp, gbs, seq = cells.needed("gpus", "tp", "pp", "dp", "gbs", "seq_len")
    cp, ep = cells.count("cp") or 1, cells.count("ep") or 1
    if tp * pp * cp * dp != gpus:
        raise CellError(
            f"tp {tp} x pp {pp} x cp {cp} x dp {dp} = {tp * pp * cp * dp}, the row has {gpus} GPUs"
        )
    run_by = defaults.software(cells.text("framework"), cells.text("date"))
    cluster = _cluster(cells, gpus, hwdb)
    model = _model(cells, run_by, tp, seq)
    per_rank = cells.count("mbs")
    if per_rank is None:
        per_rank = _per_rank(cells, gbs, dp)
    if gbs % (per_rank * dp):
        raise CellError(f"gbs {gbs} is no multiple of mbs {per_rank} x dp {dp}")
    vpp, schedule = _schedule(cells, run_by, model.layers, pp, gbs // (per_rank * dp))
    job = _job(cells, run_by, cluster, gbs, seq, schedule)
    recompute, full_layers = _recompute(cells)
    layout = Uniform(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=_expert_degree(cells, ep, tp),
        vpp=vpp,
        zero_stage=_zero_stage(cells, run_by),
        micro_batch=per_rank,
        sequence_parallel=_sequence_parallel(cells, run_by, tp),
    )
    return Run(
        name,
        cells.text("source_id"),
        cells.text("table"),
        cells.text("tier"),
        cells.text("gpu"),
        cells.text("model"),
        run_by,
        model,
        cluster,
        job,
        layout,
        recompute,
        full_layers,
        tuple(cells.assumed),
        _measured(cells, gpus, gbs, seq),
    )


def _cluster(cells: Cells, gpus: int, hwdb: Hwdb) -> Cluster:
    gpu = hwdb.gpu(cells.text("gpu"))
    nodes, per_node = cells.count("nodes"), cells.count("gpus_per_node")
    if per_node is None:
        per_node = -(-gpus // nodes) if nodes else min(gpus, 8)
        cells.assume("gpus_per_node", per_node, "gpus / nodes, else the usual node of 8")
    if nodes is None:
        nodes = -(-gpus // per_node)
    if gpus > nodes * per_node or (nodes > 1 and gpus != nodes * per_node):
        raise CellError(f"{nodes} nodes of {per_node} GPUs do not make {gpus} GPUs")
    cluster, assumed = cluster_of(
        gpu, gpus, per_node, nodes, cells.text("intra_link"), cells.text("inter_link"), hwdb
    )
    cells.assumed += assumed
    return cluster


def _model(cells: Cells, run_by: defaults.Software, tp: int, seq: int) -> Model:
    layers, hidden = cells.needed("layers", "hidden")
    heads, kv_heads = cells.count("heads"), cells.count("kv_heads")
    if heads is None:
        heads, why = defaults.heads(hidden)
        cells.assume("heads", heads, why)
    if kv_heads is None:
        kv_heads = heads
        cells.assume("kv_heads", heads, "as many as heads")
    if heads % tp:
        whole = -(-heads // tp) * tp
        cells.assume("heads", whole, f"{heads} is no multiple of tp {tp}")
        heads, kv_heads = whole, whole if kv_heads == heads else kv_heads
    experts, active, expert_ffn = (cells.count(name, 0) or 0 for name in ("experts", "topk", "moe_ffn"))
    kind = cells.text("ffn_kind").lower()
    if kind not in ("plain", "gated", ""):
        raise CellError(f"ffn_kind is {kind!r}; known are plain and gated")
    if not kind:
        kind = "gated" if experts or kv_heads < heads else "plain"
        cells.assume("ffn_kind", kind, "gated goes with grouped key heads or experts")
    ffn = cells.count("ffn")
    if ffn is None and not experts:
        ffn = 4 * hidden if kind == "plain" else -(-8 * hidden // 3 // 256) * 256
        cells.assume("ffn", ffn, "4 x hidden; gated 8/3 x hidden, rounded up to 256")
    if experts and not expert_ffn:
        expert_ffn = ffn or 4 * hidden
        cells.assume("moe_ffn", expert_ffn, "as the dense feed-forward")
    if experts and not active:
        active = min(2, experts)
        cells.assume("topk", active, "usual")
    vocab = cells.count("vocab")
    if vocab is None:
        vocab, why = defaults.vocab(run_by, kind == "gated", tp)
        cells.assume("vocab", vocab, why)
    if max(layers, hidden, heads) > 1_000_000 or heads > hidden:
        raise CellError(f"{layers} layers of {hidden} columns in {heads} heads is no model")
    if shapes.latent(hidden, heads, experts > 0):
        cells.assume("attention", "latent", "heads too narrow for their number: DeepSeek's MLA sizes")
    masked = "mlm" in cells.text("task").lower()
    return shapes.model_of(
        layers,
        hidden,
        heads,
        kv_heads,
        ffn or 0,
        kind == "gated",
        vocab,
        seq,
        experts,
        active,
        expert_ffn,
        masked,
    )


def _per_rank(cells: Cells, gbs: int, dp: int) -> int:
    """Sequences per data-parallel rank and microbatch, from the accumulation steps if they are stated."""
    steps = cells.count("grad_accum")
    if steps:
        return max(gbs // (steps * dp), 1)
    cells.assume("mbs", defaults.MICROBATCH, "usual of large models")
    return defaults.MICROBATCH


def _schedule(
    cells: Cells, run_by: defaults.Software, layers: int, pp: int, microbatches: int
) -> tuple[int, str]:
    """(chunks per stage, schedule)."""
    text = cells.text("schedule").lower()
    vpp = cells.count("vpp")
    if vpp is None and text in ("1f1b", "gpipe"):
        vpp = 1
    if vpp is None:
        vpp, why = defaults.chunks(run_by, layers, pp, microbatches)
        cells.assume("vpp", vpp, why)
    if vpp > 1 and pp == 1:
        cells.assume("vpp", 1, f"{vpp} is stated, which means nothing without a pipeline")
        vpp = 1
    if vpp > 1 and pp * vpp > layers:
        fewer = max(layers // pp, 1)
        cells.assume("vpp", fewer, f"{vpp} x pp {pp} is more than the {layers} layers: ends hold embedding or head alone")
        vpp = fewer
    if vpp > 1:
        return vpp, "interleaved"
    return 1, "gpipe" if "gpipe" in text else "zb-h1" if text.startswith(("zb", "zero")) else "1f1b"


def _job(cells: Cells, run_by: defaults.Software, cluster: Cluster, gbs: int, seq: int, schedule: str) -> Job:
    gpu = cluster.groups[0].node.gpu
    recipe = cells.text("dtype").lower()
    if not recipe:
        recipe, why = defaults.dtype(run_by, gpu)
        cells.assume("dtype", recipe, why)
    if recipe not in RECIPES:
        raise CellError(f"dtype is {recipe!r}; known are {', '.join(RECIPES)}")
    optimizer = cells.text("optimizer").lower()
    if not optimizer:
        optimizer, why = defaults.optimizer(run_by)
        cells.assume("optimizer", optimizer, why)
    if optimizer not in OPTIMIZER_STATE_BYTES:
        raise CellError(f"optimizer is {optimizer!r}; known are {', '.join(OPTIMIZER_STATE_BYTES)}")
    job = Job(
        gbs,
        seq,
        recipe,
        optimizer,
        schedule,
        gradient_bytes=0.0 if recipe in ("fp32", "tf32") else defaults.gradient_bytes(run_by),
        flash_attention=defaults.flash_attention(run_by),
    )
    if "lora" not in cells.text("task").lower():
        return job
    share = cells.number("trainable")
    if share is None:
        share = defaults.TRAINABLE_SHARE
        cells.assume("trainable", share, "adapters of rank 16")
    return replace(job, trainable=min(share, 1.0))


def _recompute(cells: Cells) -> tuple[str, int]:
    """(kind or "" for unstated, full layers of a stage or 0)."""
    text = cells.text("recompute").lower()
    if not text:
        cells.assume("recompute", "ladder", "none, then selective, then the fewest full layers that fit")
        return "", 0
    kind = text.split()[0].strip("(,;:")
    if kind in ("no", "off", "false"):
        kind = "none"
    if kind not in RECOMPUTE:
        raise CellError(f"recompute is {text!r}; known are {', '.join(RECOMPUTE)} and full on N layers")
    some = re.search(r"on (\d+) layers", text)
    return kind, int(some[1]) if some else 0


def _expert_degree(cells: Cells, ep: int, tp: int) -> int:
    """Expert parallelism over dp x cp: where experts are not split by tp (etp 1), part of ep lies across tp."""
    etp = cells.count("etp") or tp
    if ep == 1 or etp == tp:
        return ep
    across = max(min(tp // etp, ep), 1)
    cells.assume(
        "ep", ep // across, f"{ep} with etp {etp}: {across} of it across tp, priced as splitting experts"
    )
    return max(ep // across, 1)


def _zero_stage(cells: Cells, run_by: defaults.Software) -> int:
    text = cells.text("sharding").lower()
    if not text:
        stage, why = defaults.zero_stage(run_by)
        cells.assume("zero_stage", stage, why)
        return stage
    if found := re.search(r"zero[-_ ]?(?:stage)?[-_ ]?(\d)", text):
        stage = int(found[1])
        if stage > 3:
            raise CellError(f"sharding is {text!r}; ZeRO has stages 0 to 3")
        return stage
    if text.startswith("none"):
        return 0
    if "fsdp" in text or "fully" in text:
        return 3
    if "optimizer" in text:
        return 1
    raise CellError(f"sharding is {text!r}; give none, zero1, zero2 or zero3")


def _sequence_parallel(cells: Cells, run_by: defaults.Software, tp: int) -> bool:
    text = cells.text("seq_parallel").lower()
    if text in ("yes", "true", "on", "1"):
        return tp > 1
    if text in ("no", "false", "off", "0"):
        return False
    if text:
        raise CellError(f"seq_parallel is {text!r}; give yes or no")
    on, why = defaults.sequence_parallel(run_by, tp)
    if tp > 1:
        cells.assume("seq_parallel", "yes" if on else "no", why)
    return on


def _measured(cells: Cells, gpus: int, gbs: int, seq: int) -> Measured:
    step = cells.number("iter_time_s") or cells.number("iter_time_s_derived")
    if not step and (rate := cells.number("tokens_per_s_per_gpu")):
        step = gbs * seq / (rate * gpus)
    if not step and (rate := cells.number("samples_per_s")):
        step = gbs / rate
    kind = cells.text("mem_kind").lower()
    peak = (cells.number("peak_mem_gb") or 0.0) * (GIB if "gib" in kind else GIGA)
    return Measured(step or 0.0, peak, "alloc" in kind or "max_mem" in kind)
