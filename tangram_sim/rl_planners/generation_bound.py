"""Lower bound on the time in which GPUs of several kinds generate a step, as cuts of a small linear program.

The n longest responses of a step have W tokens, each after a context; at most n of them run at a time. A
replica that runs b requests on `tp` GPUs yields b tokens an iteration, and any mix of such states of all
replicas is a point of

    max theta   sum_o y_o rate_o >= theta W        tokens
                sum_k q_k        >= theta X        contexts beyond the prompt
                sum_(o in k) y_o + e_k q_k <= c_k  GPUs of each kind
                sum_o y_o running_o <= n           requests that run at a time

with y_o the GPUs in state o and e_k the least GPU-seconds per token of context. No schedule ends before 1 /
theta, for any n: few responses cannot use many GPUs (the long tail), many are limited by the GPUs. Dual
solutions for one fleet are feasible for every other, so each solved program bounds all fleets.
"""

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from tangram_sim.errors import TangramError
from tangram_sim.post_training.asynchronous import STEPS, WARM
from tangram_sim.post_training.lengths import Floats
from tangram_sim.post_training.plan import RolloutReplicas
from tangram_sim.post_training.rollout import fleet_of
from tangram_sim.rl_planners.problem import Counts, RlProblem

LEAST_MEMORY, MOST_MEMORY = 0.6, 0.95  # of a card, that an engine could take
_EDGES_OF_LOOP = 0.97  # what was generated before a loop is measured may shorten its mean step by so much
_EDGES = 20  # of the hull of a kind's states


@dataclass(frozen=True)
class KindRates:
    """Upper hull of replica states on one GPU kind: requests per GPU, and tokens per second per GPU.

    `context_s`: least GPU-seconds per token of context; `token_s`: least seconds per token of a lone
    response. Empty arrays where no engine fits the kind.
    """

    running: Floats
    tokens_per_s: Floats
    context_s: float
    token_s: float


def kind_rates(problem: RlProblem, place: int) -> KindRates:
    """Rates of the GPU kind of one group, each state at its best tensor-parallel width."""
    work, extra, group = problem.work, problem.overheads, problem.fleet.groups[place]
    gpus = group.node.gpus * group.count
    widths = {*problem.widths(place, gpus, LEAST_MEMORY), *problem.widths(place, gpus, MOST_MEMORY)}
    running, rates, context_s, token_s = [np.zeros(1)], [np.zeros(1)], np.inf, np.inf
    for tp in sorted(widths):
        replicas = RolloutReplicas(
            group.node.gpu.name, 1, tp, engine=problem.engine, memory_fraction=MOST_MEMORY
        )
        try:
            fleet = fleet_of(work, [replicas], problem.hwdb, extra.rollout_scale, extra.rollout_iteration_s)
        except TangramError:
            continue
        table, rules = fleet[0].table, fleet[0].rules
        held = rules.blocks * rules.block_tokens / (work.prompt_tokens / work.samples + 1.0)
        most = int(min(len(table.decode_s) - 1, rules.seats, held))
        count = np.arange(1, most + 1)
        each_s = table.decode_s[1 : most + 1] + table.context_s[1 : most + 1] * count * work.prompt_tokens
        running.append(count / tp)
        rates.append(count / each_s / tp)
        context_s = min(context_s, float(table.context_s[1 : most + 1].min()) * tp)
        token_s = min(token_s, float(each_s[0]))
    points = _fewer(*_hull(np.concatenate(running), np.concatenate(rates)))
    return KindRates(*points, context_s=context_s if np.isfinite(context_s) else 0.0, token_s=token_s)


def _hull(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """The rising part of the upper hull of the points and the origin, as (x, y)."""
    kept: list[tuple[float, float]] = []
    for point in sorted(zip(x.tolist(), y.tolist(), strict=True)):
        while kept and (kept[-1][1] <= point[1] and kept[-1][0] == point[0]):
            kept.pop()
        while len(kept) > 1 and _below(kept[-2], kept[-1], point):
            kept.pop()
        kept.append(point)
    top = max(range(len(kept)), key=lambda place: kept[place][1])
    found = np.array(kept[: top + 1])
    return found[:, 0], found[:, 1]


def _fewer(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """A hull of about `_EDGES` edges around a concave one: some of its edges, extended until they meet."""
    edges = len(x) - 1
    if edges <= _EDGES:
        return x, y
    kept = np.unique(np.rint(np.geomspace(1, edges, _EDGES)).astype(np.int64) - 1)
    slope = (y[kept + 1] - y[kept]) / (x[kept + 1] - x[kept])
    rest = y[kept] - slope * x[kept]
    meet = (rest[1:] - rest[:-1]) / (slope[:-1] - slope[1:])
    return (
        np.concatenate([x[:1], meet, x[-1:]]),
        np.concatenate([y[:1], rest[1:] + slope[1:] * meet, y[-1:]]),
    )


def _below(left: tuple[float, float], middle: tuple[float, float], right: tuple[float, float]) -> bool:
    rise, run = right[1] - left[1], right[0] - left[0]
    return (middle[1] - left[1]) * run <= rise * (middle[0] - left[0])


def _powers(most: int) -> list[int]:
    """Powers of two below `most`, and `most` itself."""
    return sorted({*(2**power for power in range((most - 1).bit_length())), most})


@dataclass(frozen=True)
class _Longest:
    """Tokens and contexts of the longest responses, at most `running` at a time; cuts found so far."""

    tokens: float
    contexts: float
    running: float
    cuts: list[Floats] = field(default_factory=list)  # theta <= cut[:-1] @ gpus + cut[-1]


class GenerationBound:
    """Lower bounds on generation of one problem's step, for any numbers of GPUs by group of the fleet."""

    def __init__(self, problem: RlProblem) -> None:
        self.problem = problem
        known: dict[str, KindRates] = {}
        for place, kind in enumerate(problem.kinds):
            if kind not in known:
                known[kind] = kind_rates(problem, place)
        self.kinds = [known[kind] for kind in problem.kinds]
        work = problem.work
        lengths = np.sort(work.lengths.draw(work.prompts, work.samples, 0).reshape(-1))[::-1].astype(
            np.float64
        )
        tokens, contexts = np.cumsum(lengths - 1.0), np.cumsum(lengths * (lengths - 1.0) / 2.0)
        self.burst = [
            _Longest(float(tokens[count - 1]), float(contexts[count - 1]), count)
            for count in _powers(len(lengths))
        ]
        self.steady: dict[int, list[_Longest]] = {}
        self.longest: dict[int, float] = {}

    def burst_s(self, gpus: Counts, *, exact: bool = False) -> float:
        """Least seconds in which these GPUs generate a step whose responses all begin at once."""
        least = self._rates(self.burst, gpus, exact=exact).min()
        return self.problem.work.generated_share / least if least > 0 else float("inf")

    def lent_s(self, own: Counts, every: Counts, from_s: float, *, exact: bool = False) -> float:
        """Least seconds in which `own` GPUs, joined after `from_s` by all of `every`, generate a step."""
        share = self.problem.work.generated_share
        alone = self._rates(self.burst, own, exact=exact) / share
        together = self._rates(self.burst, every, exact=exact) / share
        if together.min() <= 0:
            return float("inf")
        done = np.minimum(alone * from_s, 1.0)
        ended = np.where(done < 1.0, from_s + (1.0 - done) / together, 1.0 / np.maximum(alone, 1e-30))
        return float(ended.max())

    def steady_s(self, gpus: Counts, eta: int, *, exact: bool = False) -> float:
        """Least seconds per step of GPUs that always generate, with eta + 1 steps of responses begun.

        Each n gives a bound: of the n longest responses of every step at most n (eta + 1) run at a time.
        """
        self._draw_steps(eta)
        least = self._rates(self.steady[eta], gpus, exact=exact).min()
        return _EDGES_OF_LOOP / least if least > 0 else float("inf")

    def longest_s(self, gpus: Counts, eta: int) -> float:
        """Least seconds of a step's longest response, averaged over the steps of a loop."""
        self._draw_steps(eta)
        alone = [kind.token_s for kind, count in zip(self.kinds, gpus, strict=True) if count]
        return _EDGES_OF_LOOP * (self.longest[eta] - 1.0) * min(alone, default=float("inf"))

    def _draw_steps(self, eta: int) -> None:
        """Draw the lengths of the steps that an asynchronous loop is measured on."""
        if eta in self.steady:
            return
        work = self.problem.work
        drawn = work.lengths.draw((STEPS + eta + 2) * work.prompts, work.samples, 0)
        steps = drawn.reshape(STEPS + eta + 2, -1)[WARM:STEPS].astype(np.float64)
        falling = np.sort(steps, axis=1)[:, ::-1]
        tokens = np.cumsum(falling - 1.0, axis=1).mean(axis=0)
        contexts = np.cumsum(falling * (falling - 1.0) / 2.0, axis=1).mean(axis=0)
        self.steady[eta] = [
            _Longest(float(tokens[count - 1]), float(contexts[count - 1]), count * (eta + 1))
            for count in _powers(work.sequences)
        ]
        self.longest[eta] = float(steps.max(axis=1).mean())

    def _rates(self, targets: list[_Longest], gpus: Counts, *, exact: bool) -> Floats:
        """Steps a second at most for each number of longest responses; `exact`: the least is solved."""
        rates = np.array([self._rate(target, gpus) for target in targets])
        solved = set[int]()
        while exact and (place := int(rates.argmin())) not in solved:
            rates[place] = self._rate(targets[place], gpus, exact=True)
            solved.add(place)
        return rates

    def _rate(self, target: _Longest, gpus: Counts, *, exact: bool = False) -> float:
        here = np.array([*gpus, 1.0])
        if exact or not target.cuts:
            cut = self._solved(target, gpus)
            if not any(np.array_equal(cut, item) for item in target.cuts):
                target.cuts.append(cut)
        return float(min(cut @ here for cut in target.cuts))

    def _solved(self, target: _Longest, gpus: Counts) -> Floats:
        """Cut (one factor per group, then a constant) from the dual on these GPUs, valid for any GPUs."""
        kinds = self.kinds
        running = np.concatenate([kind.running for kind in kinds])
        rates = np.concatenate([kind.tokens_per_s for kind in kinds])
        states, places = len(running), len(kinds)
        owner = np.repeat(np.arange(places), [len(kind.running) for kind in kinds])
        limits = np.zeros((places + 3, states + places + 1))
        limits[owner, np.arange(states)] = 1.0
        for place, kind in enumerate(kinds):  # contexts in units of their mean, seconds scaled alike
            limits[place, states + place] = kind.context_s * target.contexts
            if len(kind.running) == 1:
                limits[places + 1, states + place] = 0.0  # nothing runs there: no context either
            else:
                limits[places + 1, states + place] = -1.0
        limits[places, :states], limits[places, -1] = -rates / target.tokens, 1.0
        limits[places + 1, -1] = 1.0
        limits[places + 2, :states] = running
        room = np.array([*map(float, gpus), 0.0, 0.0, target.running])
        goal = np.zeros(states + places + 1)
        goal[-1] = -1.0
        found = linprog(goal, A_ub=limits, b_ub=room, bounds=(0, None), method="highs")
        duals = -np.asarray(found.ineqlin.marginals)
        return np.array([*duals[:places], duals[places + 2] * target.running]) * (1 + 1e-9) + 1e-15
