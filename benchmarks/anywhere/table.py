"""Figures over many seeds: distributions, steps beside the peers', the worst ones; as Markdown."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WORST = 10
WITHIN = 1.0  # per cent
SAME = 1e-9  # relative; a replayed step equals the planned one to this


@dataclass
class Case:
    """One world and its answers; an answer holds `step_s`, or `reason`, or `broke`."""

    seed: int
    words: str
    gpus: int
    nodes: int
    kinds: int
    cpu_s: float
    peak_bytes: float
    answer: dict[str, Any]
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    exhaustive: dict[str, Any] = field(default_factory=dict)  # Tangram's own, with all effort

    @property
    def step_s(self) -> float | None:
        """Seconds of Tangram's step, where it found a plan."""
        return self.answer.get("step_s")

    @property
    def gap(self) -> float | None:
        """Step over its bound, less one."""
        return self.step_s / self.answer["bound_s"] - 1 if self.step_s else None

    def gain(self, peer: str) -> float | None:
        """The peer's step over Tangram's; None where one of them has no plan."""
        step_s = self.peers.get(peer, {}).get("step_s")
        return step_s / self.step_s if step_s and self.step_s else None

    def over_exhaustive(self) -> float | None:
        """Tangram's step over that of a search with all effort, less one."""
        step_s = self.exhaustive.get("step_s")
        return self.step_s / step_s - 1 if step_s and self.step_s else None

    def best_gain(self) -> float | None:
        """The fastest peer's step over Tangram's."""
        gains = [gain for peer in self.peers if (gain := self.gain(peer)) is not None]
        return min(gains, default=None)

    @property
    def outcome(self) -> str:
        """`plan`, `reason`, `broke`; `replay` where the plan file does not give the same step again."""
        if "broke" in self.answer:
            return "broke"
        if self.step_s is None:
            return "reason"
        replayed = self.answer.get("replayed_s", self.step_s)
        return "plan" if math.isclose(replayed, self.step_s, rel_tol=SAME) else "replay"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of them do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]


def lines(cases: Sequence[Case], command: str, about: str) -> list[str]:
    """The Markdown page: `command` made it, `about` says on what machine and when."""
    found = ["# Clusters nobody looked at", "", f"`{command}`: {len(cases)} worlds. {about}", ""]
    found += _outcomes(cases)
    found += _spread(cases)
    found += _peers(cases)
    found += _exhaustive(cases)
    gaps = [(100 * case.gap, case) for case in cases if case.gap is not None]
    gains = [(gain, case) for case in cases if (gain := case.best_gain()) is not None]
    found += _worst("Slowest to plan", "CPU s", [(case.cpu_s, case) for case in cases])
    found += _worst("Widest gap to the bound", "% gap", gaps)
    return found + _worst("Least ahead of the best peer", "its step over Tangram's", gains, least=True)


def _exhaustive(cases: Sequence[Case]) -> list[str]:
    """How far the plans are from those of a search with all effort, worst first."""
    told = [(longer, case) for case in cases if (longer := case.over_exhaustive()) is not None]
    if not told:
        return []
    shares = [100 * longer for longer, _ in told]
    within = sum(share <= WITHIN for share in shares)
    rows = [f"| {case.seed} | {100 * longer:+.2f} % | {case.words} |" for longer, case in told]
    return [
        "",
        f"Beside a search with all effort: {within} of {len(told)} plans within {WITHIN:g} %, mean "
        f"{statistics.fmean(shares):+.2f} %, worst {max(shares):+.2f} %.",
        "",
        "| seed | longer than with all effort | world |",
        "|---|---|---|",
        *rows,
    ]


def _worst(title: str, unit: str, ranked: Sequence[tuple[float, Case]], least: bool = False) -> list[str]:
    """The ten largest (or least) figures, each with its world."""
    told = sorted(ranked, key=lambda pair: pair[0], reverse=not least)[:WORST]
    rows = [f"| {case.seed} | {figure:.3g} | {case.outcome} | {case.words} |" for figure, case in told]
    head = ["", f"## {title}", "", f"| seed | {unit} | outcome | world |", "|---|---|---|---|"]
    return [*head, *rows] if rows else []


def _outcomes(cases: Sequence[Case]) -> list[str]:
    counts = {name: [case for case in cases if case.outcome == name] for name in ("plan", "reason")}
    found = [f"{len(counts['plan'])} plans that replay to the same step, {len(counts['reason'])} reasons."]
    for case in cases:
        if case.outcome == "broke":
            found.append(f"- seed {case.seed} broke: {case.answer['broke']}; {case.words}")
        elif case.outcome == "replay":
            found.append(
                f"- seed {case.seed} replays to {case.answer['replayed_s']:.6g} s, planned "
                f"{case.step_s:.6g} s; {case.words}"
            )
        elif case.outcome == "reason":
            found.append(f"- seed {case.seed}: {case.answer['reason']}; {case.words}")
    return [*found, ""]


def _spread(cases: Sequence[Case]) -> list[str]:
    """CPU seconds, memory and gaps by size of the cluster."""
    found = [
        "| GPUs | worlds | CPU s median | 95 % | worst | peak MB median | worst | gap median | 90 % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    bands = ((1, 32), (33, 128), (129, 512), (513, 10**9), (1, 512), (1, 10**9))
    for low, high in bands:
        told = [case for case in cases if low <= case.gpus <= high]
        if not told:
            continue
        cpu, peak = [case.cpu_s for case in told], [case.peak_bytes / 1e6 for case in told]
        gaps = [100 * case.gap for case in told if case.gap is not None]
        gap = f"{statistics.median(gaps):.1f} % | {quantile(gaps, 0.9):.1f} %" if gaps else "- | -"
        name = f"{low} to {high}" if high < 10**9 else ("all" if low == 1 else f"over {low - 1}")
        found.append(
            f"| {name} | {len(told)} | {statistics.median(cpu):.1f} | {quantile(cpu, 0.95):.1f} | "
            f"{max(cpu):.1f} | {statistics.median(peak):.0f} | {max(peak):.0f} | {gap} |"
        )
    return found


def _peers(cases: Sequence[Case]) -> list[str]:
    """The peers' steps over Tangram's, under the one simulator."""
    names = list(dict.fromkeys(name for case in cases for name in case.peers))
    if not names:
        return []
    found = [
        "",
        "| peer's step over Tangram's | both answer | geometric mean | least | Tangram slower | peer alone |",
        "|---|---|---|---|---|---|",
    ]
    for name in [*names, "the best of them", "the best of them, 3 kinds or more"]:
        told = [case for case in cases if case.kinds >= 3] if name.endswith("more") else list(cases)
        gains = [case.best_gain() if name.startswith("the best") else case.gain(name) for case in told]
        both = [gain for gain in gains if gain is not None]
        alone = [
            case
            for case in told
            if case.step_s is None
            and any("step_s" in case.peers.get(item, {}) for item in (names if name not in names else [name]))
        ]
        if both:
            mean = math.exp(statistics.fmean(math.log(gain) for gain in both))
            slower = sum(gain < 1 - SAME for gain in both)
            found.append(f"| {name} | {len(both)} | {mean:.2f} | {min(both):.3f} | {slower} | {len(alone)} |")
        else:
            found.append(f"| {name} | 0 | - | - | - | {len(alone)} |")
    return found
