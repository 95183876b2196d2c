"""Options of `tangram plan` that no other verb has: who plans, what is fixed, how long a search may take."""

from pathlib import Path
from typing import Annotated

import typer

Parallelizer = Annotated[
    str,
    typer.Option("--parallelizer", help="Who plans one slice on one island; auto: try grid and galvatron."),
]
PlanSchedule = Annotated[
    str,
    typer.Option(
        "--schedule",
        help="1f1b, gpipe, zb-h1, interleaved, zb-v, dualpipe-v, or an added one; auto: try the fast ones.",
    ),
]
Planner = Annotated[
    str, typer.Option("--planner", help="Who plans the cluster: tangram, or a peer that `compare` names.")
]
Objective = Annotated[str, typer.Option("--objective", help="What is best: throughput.")]
Fix = Annotated[
    list[str] | None,
    typer.Option("--fix", help="Fix degrees of every stage: tp=4, dp, cp, ep, pp (inner), zero."),
]
PerRank = Annotated[
    int | None,
    typer.Option(
        "--microbatch-per-rank", help="Sequences of a microbatch per data-parallel rank.  [default: free]"
    ),
]
Recompute = Annotated[
    str | None, typer.Option("--recompute", help="Allow only these: none, selective, full.  [default: all]")
]
Order = Annotated[
    str | None, typer.Option("--order", help="Islands front to back, e.g. g1,g0; others stay idle.")
]
Exclude = Annotated[str | None, typer.Option("--exclude", help="Islands not to use, e.g. g2.")]
Preset = Annotated[
    str | None,
    typer.Option(
        "--preset", help="tangram-paper or tangram-paper-moe: microbatch per rank 1 or 4, and no ZeRO."
    ),
]
Top = Annotated[int, typer.Option("--top", help="Show this many plans, and what they trade.")]
Candidates = Annotated[
    Path | None, typer.Option("--candidates", help="Write every partial plan considered to this CSV file.")
]
SubIslands = Annotated[
    bool, typer.Option("--sub-islands/--whole-islands", help="Whether islands may be split.")
]
NoPrune = Annotated[
    str | None,
    typer.Option(
        "--no-prune", help="Policies off: redundancy, imbalance, infeasibility, incompatibility; or all."
    ),
]
Window = Annotated[
    str,
    typer.Option("--window", help="Ask only about loads from 1/N to N. auto: what provably loses nothing."),
]
Ablation = Annotated[
    bool, typer.Option("--ablation", help="Plan with policies on and off; print a table, no plan.")
]
Replicate = Annotated[
    bool,
    typer.Option(
        "--replicate/--one-pipeline",
        help="Whether pipelines may stand side by side, and stages on several islands.",
    ),
]
Spanning = Annotated[
    bool,
    typer.Option("--spanning/--island-stages", help="Whether a stage may take GPUs of several islands."),
]
ComputeTolerance = Annotated[
    float | None,
    typer.Option("--compute-tolerance", help="Cut islands by this spread of compute.  [default: free]"),
]
MemoryTolerance = Annotated[
    float | None,
    typer.Option("--memory-tolerance", help="Cut islands by this spread of memory.  [default: free]"),
]
LinkTolerance = Annotated[
    float | None,
    typer.Option("--link-tolerance", help="Cut islands by this spread of links.  [default: free]"),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        help="Seconds after which to take the best plan so far; 0: of tangram the best uniform one, over all "
        "GPUs or one island.  [default: none]",
    ),
]
Jobs = Annotated[int, typer.Option("--jobs", help="Processes of the search (0: all cores).")]

Without = Annotated[
    str | None,
    typer.Option("--without", help="Plan without these nodes, e.g. n3,n7, and say what must move for it."),
]
Losses = Annotated[
    float | None,
    typer.Option(
        "--losses",
        metavar="PER_HOUR",
        help="Rank by liveput: the speed after so many losses of nodes in an hour.",
    ),
]
Bound = Annotated[
    bool,
    typer.Option(
        "--bound",
        help="Large clusters: also prove what no fleet of pipelines beats (a minute; more for many experts).",
    ),
]
For = Annotated[
    str | None,
    typer.Option(
        "--for", help="Only plans that this can launch: megatron, torchtitan, deepspeed or any of them."
    ),
]
SimpleWithin = Annotated[
    float | None,
    typer.Option(
        "--simple-within",
        help="A plan that a framework can launch wins if it takes so much longer at most and cannot be told "
        "apart.  [default: 0.01, 0.03 where all nodes are alike]",
    ),
]
