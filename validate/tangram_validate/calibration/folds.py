"""Which runs belong together: those of one configuration, and those of one setting that differ by plan."""

import hashlib

from tangram_validate.published.reading import Run

FOLDS = 5


def configuration(run: Run) -> int:
    """A number that equal configurations share, whatever the row, the source and the model are called."""
    layout = run.layout
    degrees = (layout.tp, layout.pp, layout.dp, layout.cp, layout.ep, layout.vpp, layout.layers)
    how = (layout.zero_stage, run.job.shard_ranks, layout.micro_batch, layout.sequence_parallel)
    return _number((_work(run), degrees, how, run.job.schedule, run.recompute, run.full_layers))


def setting(run: Run) -> int:
    """A number that runs of one sweep share: a source's job on one cluster, whatever the layout.

    The stack is part of the job; schedule, recomputation and over how many replicas ZeRO cuts are the plan's.
    """
    return _number((run.source_id, run.table, _work(run)))


def _work(run: Run) -> tuple[object, ...]:
    """What is trained on what, as named facts: another field of a model or a job changes no number."""
    model, job, group = run.model, run.job, run.cluster.groups[0]
    attention = model.blocks[-1].attention
    shape = (model.layers, model.hidden, attention.heads, model.vocab, model.parameters)
    wanted = (job.global_batch, job.seq, job.dtype, job.optimizer, job.trainable, job.stack)
    machine = (group.node.gpu.name, group.count, group.node.gpus, group.node.intra.name)
    return (*shape, *wanted, *machine, f"{group.node.nic_bytes_per_s:.4g}")


def _number(facts: object) -> int:
    return int(hashlib.sha256(repr(facts).encode()).hexdigest()[:12], 16)
