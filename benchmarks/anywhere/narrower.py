"""The law of narrower questions: what may be answered to less cannot be answered better than to more.

`python -m benchmarks anywhere --narrower` makes mixed clusters from seeds (strong kinds beside weak ones,
slow networks, mixtures of experts). Each is asked one open question for every kind of answer (any plan, a
plan for one framework) and a few narrower ones. The table says how often, by how much and for which family
of restrictions the narrower answer is better.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.anywhere.laws import NEVER, Question
from benchmarks.anywhere.worlds import World
from tangram_sim.errors import BadInputError, InfeasibleError, UnknownNameError
from tangram_sim.hwdb import Hwdb, cluster_from_dict, load_model
from tangram_sim.parallelizers.api import Constraints
from tangram_sim.planners.api import SearchOptions
from tangram_sim.planners.uniform.frameworks import FRAMEWORKS
from tangram_sim.studies import tried
from tangram_sim.training.job import Job

ALLOWED = 0.002  # by what share a narrower answer may be better
EFFORTS = ("quick", "normal", "exhaustive")
# GPU, GPUs of a node, link: what trains, and what stands beside it.
STRONG = (
    ("H100-SXM5-80GB", 8, "NVLink4"),
    ("H200-SXM-141GB", 8, "NVLink4"),
    ("A100-SXM4-80GB", 8, "NVLink3"),
    ("A100-SXM4-40GB", 8, "NVLink3"),
)
WEAK = (
    ("L40S", 4, "PCIe4x16"),
    ("RTX-6000-Ada", 8, "PCIe4x16"),
    ("A10G", 4, "PCIe4x16"),
    ("L4", 8, "PCIe4x16"),
    ("V100-SXM2-32GB", 8, "NVLink2"),
)
NIC_GBPS = (25, 100, 100, 200, 400, 1600)
DENSE = ("llama3-8b", "qwen3-14b", "qwen3-32b", "llama3-70b")
MIXTURES = ("qwen3-30b-a3b", "mixtral-8x7b", "glm-4.5-air", "gpt-oss-120b")
STATE_BYTES = 20.0  # of a parameter, about what training takes


@dataclass(frozen=True, slots=True)
class Comparison:
    """An open question and a narrower one: what was asked for, the restriction, the steps."""

    seed: int
    answer: str  # `free`, or the framework asked for
    family: str
    restriction: str
    open_s: float
    narrow_s: float
    words: str

    @property
    def better(self) -> float:
        """By what share of the open step the narrower answer is better; 0 where it is not."""
        if self.narrow_s == NEVER:
            return 0.0
        return 1.0 if self.open_s == NEVER else max(1.0 - self.narrow_s / self.open_s, 0.0)


@dataclass(frozen=True, slots=True)
class Narrower:
    """A restriction of a question, and the family that it is counted in."""

    family: str
    words: str
    question: Question


def mixed(seed: int, hwdb: Hwdb | None = None) -> World:
    """The world of a seed: two or three kinds of full boxes, one of them strong or more."""
    rng, hwdb, name = random.Random(f"mixed {seed}"), hwdb or Hwdb.load(), f"mixed-{seed}"
    strong = rng.sample(STRONG, rng.choice((1, 2, 2)))
    boxes = [*strong, *rng.sample(WEAK, 1 if len(strong) == 1 else rng.choice((0, 1, 1)))]
    usual_gbps = rng.choice(NIC_GBPS)
    nodes = [
        {
            "count": rng.choice((1, 2, 3, 4, 6)),
            "gpu": gpu,
            "gpus": gpus,
            "intra_link": link,
            "nic_gbps": rng.choice((usual_gbps, usual_gbps, rng.choice(NIC_GBPS))),
        }
        for gpu, gpus, link in rng.sample(boxes, len(boxes))
    ]
    facts: dict[str, Any] = {"name": name, "nodes": nodes}
    cluster = cluster_from_dict(facts, hwdb, name)
    memory = sum(group.count * group.node.gpus * group.node.gpu.memory_bytes for group in cluster.groups)
    kind = rng.choice((DENSE, MIXTURES, MIXTURES))
    able = [item for item in kind if load_model(item).parameters * STATE_BYTES < memory]
    model = rng.choice(able or DENSE[:1])
    job = Job(rng.choice((64, 128, 256, 512)), rng.choice((2048, 4096, 8192)))
    return World(seed, facts, model, cluster, load_model(model), job)


def restrictions(base: Question, rng: random.Random) -> Iterator[Narrower]:
    """Every family of restrictions once, with values drawn."""

    def asked(family: str, words: str, **fields: Any) -> Narrower:
        return Narrower(family, words, replace(base, wishes=replace(base.wishes, **fields)))

    groups = [group.name for group in base.cluster.groups]
    out = rng.choice(groups)
    yield asked("exclude", f"--exclude {out}", exclude=(out,))
    slowest = min(base.cluster.groups, key=lambda group: group.node.gpu.peak_flop_per_s("bf16"))
    if slowest.name != out:
        yield asked("exclude", f"--exclude {slowest.name}", exclude=(slowest.name,))
    tensor, experts = rng.choice((1, 2, 4)), rng.choice((4, 8))
    yield asked("fix", f"--fix tp={tensor}", constraints=Constraints(fixed=(("tp", tensor),)))
    both = (("tp", 1), ("ep", experts))
    yield asked("fix", f"--fix tp=1,ep={experts}", constraints=Constraints(fixed=both))
    name, value = rng.choice((("cp", 1), ("cp", 2), ("dp", 4), ("dp", 8), ("zero_stage", 1)))
    yield asked("fix", f"--fix {name}={value}", constraints=Constraints(fixed=((name, value),)))
    recompute = rng.choice(("none", "selective", "full"))
    yield asked("fix", f"--recompute {recompute}", constraints=Constraints(recompute=(recompute,)))
    shuffled = tuple(rng.sample(groups, len(groups)))
    yield asked("order", f"--order {','.join(shuffled)}", order=shuffled)
    yield asked("whole islands", "--whole-islands", sub_islands=False)
    yield asked("effort", "--effort quick", effort="quick")
    yield asked("one pipeline", "--one-pipeline", replicate=False)
    several = [place for place, group in enumerate(base.cluster.groups) if group.count > 1]
    if several:
        place = rng.choice(several)
        fewer = list(base.cluster.groups)
        fewer[place] = replace(fewer[place], count=fewer[place].count - 1)
        cluster = replace(base.cluster, groups=tuple(fewer))
        yield Narrower("nodes", f"a node of {groups[place]} less", replace(base, cluster=cluster))
    if not base.wishes.frameworks:
        framework = rng.choice(tuple(FRAMEWORKS))
        yield asked("for", f"--for {framework}", frameworks=(framework,))


def comparisons(
    seeds: Sequence[int], answers: Sequence[str], each: int, hwdb: Hwdb | None = None
) -> Iterator[Comparison]:
    """`each` narrower questions beside every open one, which asks for a `free` plan or one for a framework.

    Questions that contradict the world (`--order` over islands that join groups) are left out. All are
    answered within the memory margin of the open question.
    """
    hwdb = hwdb or Hwdb.load()
    for seed in seeds:
        world = mixed(seed, hwdb)
        for name in answers:
            rng = random.Random(f"{seed} {name}")
            wishes = SearchOptions(simple_within=0.0, frameworks=() if name == "free" else (name,))
            base = Question(world, world.cluster, world.job, wishes)
            open_s, margin = answered(base, hwdb, None)
            every = list(restrictions(base, rng))
            for narrower in rng.sample(every, min(each, len(every))):
                try:
                    narrow_s, _ = answered(narrower.question, hwdb, margin)
                except (BadInputError, UnknownNameError):
                    continue
                yield Comparison(seed, name, narrower.family, narrower.words, open_s, narrow_s, world.words())


def answered(question: Question, hwdb: Hwdb, margin: float | None) -> tuple[float, float | None]:
    """The step of the plan shown (NEVER where there is none) and the memory margin that it leaves."""
    wishes = replace(question.wishes, memory_margin=margin)
    try:
        found = tried.plan(question.world.model, question.cluster, question.job, wishes=wishes, hwdb=hwdb)
    except InfeasibleError:
        return NEVER, margin
    return found.document.step_s, found.document.memory_margin


def table(compared: Sequence[Comparison]) -> list[str]:
    """Lines of a Markdown table: by kind of answer and family, how many narrower answers are better."""
    lines = [
        f"| answer | restriction | asked | better by over {ALLOWED:.1%} | worst |",
        "|---|---|---|---|---|",
    ]
    keys = sorted({(comparison.answer, comparison.family) for comparison in compared})
    for answer, family in [*keys, ("all", "all")]:
        some = [
            comparison
            for comparison in compared
            if (answer, family) in ((comparison.answer, comparison.family), ("all", "all"))
        ]
        over = [comparison for comparison in some if comparison.better > ALLOWED]
        worst = max((comparison.better for comparison in some), default=0.0)
        lines.append(f"| {answer} | {family} | {len(some)} | {len(over)} | {worst:.2%} |")
    return lines


def as_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as one JSON object; a step that is not there is null."""
    return {name: None if value == NEVER else value for name, value in asdict(comparison).items()} | {
        "better": comparison.better
    }
