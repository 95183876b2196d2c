"""What a practitioner would warn of before fleets are ranked by their plans, and for which of them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tangram_sim.studies.cautions import NEARLY_FULL, OPEN, between_vendors, doubted

if TYPE_CHECKING:
    from tangram_sim.purchasing.rows import WhatIfRow
    from tangram_sim.studies.documents import PlanDocument


def cautions_of(rows: Sequence["WhatIfRow"]) -> list[str]:
    """Notes on rows that have a plan, the gravest first; each names its rows, unless it holds for all."""
    found: dict[tuple[int, str], dict[str, None]] = {}
    planned = [(row, row.document) for row in rows if row.document is not None]
    formats = {document.job.dtype for _, document in planned}
    for row, document in planned:
        for grave, said in enumerate(_said_of(row, document, formats)):
            if said:
                found.setdefault((grave, said), {})[row.name] = None
    names = dict.fromkeys(row.name for row, _ in planned)
    return [
        f"{where(of, names)}: {said}" for (_, said), of in sorted(found.items(), key=lambda item: item[0])
    ]


def doubts_of(rows: Sequence["WhatIfRow"], how: str) -> list[str]:
    """Kinds of GPUs whose efficiencies are assumed, or inherited (`how`), in the plans of these rows."""
    documents = [row.document for row in rows if row.document is not None]
    return doubted((kind for document in documents for kind in document.gpu_kinds), (how,))


def where(some: Iterable[str], every: Iterable[str]) -> str:
    """`every row`, or the names of some."""
    named = list(some)
    return "every row" if set(named) == set(every) else ", ".join(f"`{name}`" for name in named)


def _said_of(row: "WhatIfRow", document: "PlanDocument", formats: set[str]) -> Iterator[str]:
    """One sentence for each thing to warn of, always in this order; empty where it does not apply.

    `formats` are the number formats of all rows: `auto` keeps or leaves out old GPUs.
    """
    used = zip(row.fleet.members, row.uses, strict=True)
    vendors = {member.node.gpu.vendor for member, use in used if use.gpus_used}
    yield between_vendors(vendors).text if len(vendors) > 1 else ""
    full = max(stage.peak_memory_bytes / stage.memory_capacity_bytes for stage in document.stages)
    yield "the fullest GPU has less than 5 % of its memory free" if full > NEARLY_FULL else ""
    others = ", ".join(sorted(formats - {"fp16"}))
    yield (
        f"planned in fp16, with loss scaling, as GPUs without bf16 need it; the others in {others}"
        if others and document.job.dtype == "fp16"
        else ""
    )
    apart = document.step_s_high / document.step_s_low if document.step_s_low else 1.0
    yield (
        f"the ends of the interval are {OPEN:.0f} times apart or more: its rank is open; one measured step "
        "narrows it (`tangram calibrate run`)"
        if apart >= OPEN
        else ""
    )
