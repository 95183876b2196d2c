"""Hard cells that a row leaves blank or contradicts, filled with what else it says, or with what is usual.

Every value put in is listed as assumed, and adds to the doubt about the step.
"""

import math
import re
from dataclasses import dataclass

from tangram_sim.clusters import Gpu
from tangram_sim.errors import UnknownNameError
from tangram_sim.hwdb import Hwdb, load_model
from tangram_sim.hwdb.models import shipped_name
from tangram_sim.models import Experts, Model, has_experts
from tangram_validate.published import defaults
from tangram_validate.published.cells import CellError, Cells

DEGREES_DOUBT = 0.15  # log standard deviation of a step whose parallel degrees nobody states
BATCH_DOUBT = 0.05  # of one whose batch or sequence length is the usual one; a rate hardly depends on it
FILLED = 0.6  # of a GPU's memory that weights, gradients and optimizer state take in a usual layout
TOKENS = 4_000_000  # of a usual step of pre-training on many GPUs
_CUT = re.compile(r"[-_ ](\d+)\s?l(?:ayers?)?$", re.IGNORECASE)
# Words of a GPU's name that say nothing of the chip: vendors, kinds of memory, watts, forms.
_IDLE = re.compile(r"nvidia|amd|intel|tesla|instinct|geforce|hbm\d*e?|gddr\d*x?|\d+w|gpu|tensorcore|oam|hgx")
_MEMORY = re.compile(r"(\d+)\s?gi?b?")


@dataclass(frozen=True, slots=True)
class Degrees:
    """Parallel degrees and batch of a row, and how doubtful they make its step (log standard deviation)."""

    gpus: int
    tp: int
    pp: int
    dp: int
    cp: int
    gbs: int
    doubt: float


def gpu_of(cells: Cells, hwdb: Hwdb) -> Gpu:
    """The GPU that a row names; words that say nothing of the chip may stand around its name.

    Raises UnknownNameError for a name that means no GPU of hwdb.
    """
    text = cells.text("gpu")
    gpu, plain = named_gpu(text, hwdb, cells.number("gpu_mem_gb") or 0.0)
    if not plain:
        cells.assume("gpu", gpu.name, f"written {text}")
    return gpu


def named_gpu(text: str, hwdb: Hwdb, memory_gb: float = 0.0) -> tuple[Gpu, bool]:
    """(the GPU that `text` names, whether the database has that very name); see `gpu_of`."""
    try:
        return hwdb.gpu(text), True
    except UnknownNameError:
        words = [
            word for word in re.split(r"[-_\s/(),:]+", text.lower()) if word and not _IDLE.fullmatch(word)
        ]
        sizes = [word for word in words if _MEMORY.fullmatch(word)]
        chip = [word for word in words if word not in sizes]
        sizes += [f"{memory_gb:g}gb"] if memory_gb else []
        for size in [*sizes, ""]:
            try:
                return hwdb.gpu("-".join([*chip, size] if size else chip)), False
            except UnknownNameError:
                continue
        raise


def named_model(cells: Cells) -> Model | None:
    """The shipped model that a row names, cut to the layers that were run; None where it states a shape.

    A shape that a row states, its layers and hidden size, decides; its name does not.
    """
    layers, hidden = cells.count("layers"), cells.count("hidden")
    if layers and hidden:
        return None
    text = cells.text("model")
    cut = _CUT.search(text)
    found = shipped_name(text) or (shipped_name(text[: cut.start()]) if cut else None)
    if found is None:
        return None
    model = load_model(found)
    run = layers or (int(cut[1]) if cut else model.layers)
    cells.assume("model", found, "its shape, which the row does not state")
    if run == model.layers:
        return model
    blocks = tuple(model.blocks[number % model.layers] for number in range(run))
    return Model(model.name, model.family, model.hidden, model.vocab, blocks, tied=model.tied)


def sequence(cells: Cells, run_by: defaults.Software) -> int:
    """Tokens of a sequence, as stated, or usual and no more than the model of that name was made for."""
    stated = cells.count("seq_len")
    if stated is None:
        named = shipped_name(cells.text("model"))
        stated = defaults.sequence(run_by, load_model(named).max_seq if named else 0)
        cells.assume("seq_len", stated, "usual of that time")
    return stated


def degrees(cells: Cells, run_by: defaults.Software, gpu: Gpu, model: Model, seq: int) -> Degrees:
    """Degrees and batch of a row of sequences of `seq` tokens. Raises CellError where they contradict."""
    tp, pp, cp, dp = (cells.count(name) for name in ("tp", "pp", "cp", "dp"))
    gpus = _gpus(cells, (tp, pp, cp, dp))
    doubt = 0.0 if cells.text("seq_len") else BATCH_DOUBT
    gbs = cells.count("gbs")
    if tp is None or pp is None:
        doubt = math.hypot(doubt, DEGREES_DOUBT)
        split = _split(cells, run_by, gpu, model, gpus)
        pp = pp or max(split // (tp or min(split, _per_node(cells, gpus))), 1)
        tp = tp or max(split // pp, 1)
        cells.assume("tp, pp", f"{tp}, {pp}", "the least under which weights and optimizer state fit")
    if cp is None:
        cp = 1
        while dp is None and gbs and gpus // (tp * pp * cp) > gbs and gpus % (2 * tp * pp * cp) == 0:
            cp *= 2
        if cp > 1:
            cells.assume("cp", cp, f"{gpus} GPUs share {gbs} sequences")
    dp = _replicas(cells, gpus, (tp, pp, cp), dp)
    if gbs is None:
        gbs, why = _batch(cells, dp, pp, gpus, seq)
        cells.assume("gbs", gbs, why)
        doubt = math.hypot(doubt, BATCH_DOUBT)
    return Degrees(gpus, tp, pp, dp, cp, gbs, doubt)


def _gpus(cells: Cells, stated: tuple[int | None, ...]) -> int:
    gpus = cells.count("gpus")
    if gpus:
        return gpus
    nodes, per_node = cells.count("nodes"), cells.count("gpus_per_node")
    if nodes and per_node:
        gpus, why = nodes * per_node, "nodes x gpus_per_node"
    elif stated[0] and stated[1] and stated[3]:
        gpus, why = math.prod(item or 1 for item in stated), "tp x pp x cp x dp"
    else:
        raise CellError("gpus not stated, and nothing else in the row says it")
    cells.assume("gpus", gpus, why)
    return gpus


def _per_node(cells: Cells, gpus: int) -> int:
    return min(cells.count("gpus_per_node") or 8, gpus)


def _replicas(cells: Cells, gpus: int, split: tuple[int, int, int], dp: int | None) -> int:
    """Data-parallel degree, with which all degrees multiply to the GPUs.

    Sources count context parallelism inside dp as well, and expert parallelism beside it.
    """
    tp, pp, cp = split
    ep = cells.count("ep") or 1
    if gpus % (tp * pp * cp) == 0:
        found = gpus // (tp * pp * cp)
        if dp in (found, None, found * cp) or (dp is not None and dp * ep == found):
            if dp != found:
                cells.assume("dp", found, "GPUs / (tp x pp x cp)" + ("" if dp is None else f"; written {dp}"))
            return found
    raise CellError(
        f"tp {tp} x pp {pp} x cp {cp} x dp {dp or 1} = {tp * pp * cp * (dp or 1)}, the row has {gpus} GPUs"
    )


def _split(cells: Cells, run_by: defaults.Software, gpu: Gpu, model: Model, gpus: int) -> int:
    """GPUs that share a model: the least power of two under which weights and state fill `FILLED` of each."""
    if run_by.family in ("fsdp", "jax", "deepspeed", "ddp", "torch") and "lora" not in cells.text("task"):
        return 1
    tuned = "lora" in cells.text("task").lower()
    recipe = cells.text("dtype") or defaults.dtype(run_by, gpu)[0]
    weights = 1.0 if re.search("fp8|fp4", recipe) else 2.0
    elements = float(model.parameters)
    spread = min(gpus, 8)
    if has_experts(model):
        experts = sum(
            block.feed_forward.expert_parameters(model.hidden)
            for block in model.blocks
            if isinstance(block.feed_forward, Experts)
        )
        elements -= experts * (1 - 1 / spread)
    needed = elements * (weights if tuned else weights + 4.0 + 12.0 / max(gpus // 8, 1))
    split = 1
    while needed / split > FILLED * gpu.memory_bytes and gpus % (2 * split) == 0:
        split *= 2
    return split


def _batch(cells: Cells, dp: int, pp: int, gpus: int, seq: int) -> tuple[int, str]:
    """(sequences of a step, why)."""
    per_rank, steps = cells.count("mbs"), cells.count("grad_accum")
    if per_rank and steps:
        return per_rank * steps * dp, "mbs x grad_accum x dp"
    if per_rank:
        passes = 8 * pp if pp > 1 else max(round(TOKENS / (seq * per_rank * dp)), 1) if gpus > 64 else 1
        return per_rank * dp * passes, "usual: eight microbatches a stage, else no accumulation"
    passes = 8 * pp if pp > 1 else 1
    return dp * passes, "one sequence a rank; eight microbatches a stage"


def fitted_batch(cells: Cells, gbs: int, per_rank: int, dp: int) -> tuple[int, int]:
    """(sequences of a step, of a microbatch) that divide each other, the nearest to those that are stated."""
    if gbs % (per_rank * dp) == 0:
        return gbs, per_rank
    if gbs % dp == 0:  # the batch holds: the largest microbatch that divides a rank's share
        fewer = max(size for size in range(1, per_rank + 1) if gbs // dp % size == 0)
        cells.assume("mbs", fewer, f"{per_rank} does not divide the {gbs // dp} sequences of a rank")
        return gbs, fewer
    whole = max(round(gbs / (per_rank * dp)), 1) * per_rank * dp
    if abs(whole / gbs - 1) > 0.5:
        raise CellError(f"gbs {gbs} is no multiple of mbs {per_rank} x dp {dp}")
    cells.assume("gbs", whole, f"{gbs} is no multiple of mbs {per_rank} x dp {dp}")
    return whole, per_rank
