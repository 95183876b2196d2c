"""Comparisons for a post-training plan: other rules, added nodes, repeated simulation with other lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tangram_sim.clusters import Cluster, NodeGroup
from tangram_sim.errors import InfeasibleError, OutOfTimeError
from tangram_sim.hwdb import load_cluster
from tangram_sim.planners.deadline import Deadline
from tangram_sim.post_training.plan import RlPlan
from tangram_sim.post_training.step import StepOutcome, play_step
from tangram_sim.rl_planners.baselines import baselines
from tangram_sim.rl_planners.problem import RlProblem
from tangram_sim.rl_planners.search import RlSearch
from tangram_sim.studies.candidate_loop import STOPPED, CandidateJudge, judged_in_turn
from tangram_sim.studies.rl_documents import (
    RlCompareDocument,
    RlOfferDocument,
    RlPlanDocument,
    RlRuleDocument,
    RlSimulateDocument,
    RlWhatIfDocument,
)
from tangram_sim.studies.rl_plan import RlPrices, kinds_of, plan_document, rollout_kinds


def compared(problem: RlProblem, deadline: Deadline) -> RlCompareDocument:
    """The planner's plan and those of simple rules, in the same simulator. Raises InfeasibleError."""
    looked = RlSearch(problem, deadline)
    found = looked.run()
    best = found.best.step_s
    rules = [_rule("tangram", found.best.plan, best, best, "")]
    for rule in baselines():
        plan = rule.plan(problem, looked.pools, looked.judge)
        step_s = looked.judge.step_s(plan) if plan is not None else float("inf")
        rules.append(_rule(rule.name, plan, step_s, best, rule.claim))
    rules[1:] = sorted(rules[1:], key=lambda rl_rule: rl_rule.step_s or float("inf"))
    return RlCompareDocument(best_step_s=best, lower_bound_s=found.bound_s, rules=rules)


def _rule(name: str, plan: RlPlan | None, step_s: float, best: float, claim: str) -> RlRuleDocument:
    if plan is None or step_s == float("inf"):
        return RlRuleDocument(rule=name, claim=claim)
    return RlRuleDocument(
        rule=name,
        step_s=step_s,
        slower_by=step_s / best - 1.0,
        training=kinds_of(plan.training.cluster),
        rollout_gpus=rollout_kinds(plan),
        placement=plan.placement,
        mode=plan.mode.kind,
        claim=claim,
    )


def with_nodes(problem: RlProblem, added: str) -> RlProblem:
    """The problem with the nodes `added`, a cluster on one line, joined to its fleet."""
    extra = load_cluster(added, problem.hwdb)
    groups: list[NodeGroup] = list(problem.fleet.groups)
    for group in extra.groups:
        alike = next(
            (place for place, node_group in enumerate(groups) if node_group.node == group.node), None
        )
        if alike is None:
            groups.append(replace(group, name=f"g{len(groups)}"))
        else:
            groups[alike] = replace(groups[alike], count=groups[alike].count + group.count)
    fleet = Cluster(f"{problem.fleet.name}+{added}", tuple(groups), problem.fleet.network)
    return replace(problem, fleet=fleet)


class PostTrainedFleet(CandidateJudge[RlProblem, StepOutcome]):
    """Judge of post-training on a fleet: the shortest step is best."""

    def planned(self, subject: RlProblem, deadline: Deadline) -> StepOutcome:
        """The best placement, simulated."""
        return RlSearch(subject, deadline).run().best

    def value(self, found: StepOutcome) -> float:
        """Steps a second."""
        return 1.0 / found.step_s


def what_if(
    problem: RlProblem, added: Sequence[str], prices: RlPrices, deadline: Deadline
) -> RlWhatIfDocument:
    """The best step without and with each addition of nodes, cheapest trained tokens first.

    Additions with which no placement fits are listed with the reason. Raises InfeasibleError where none fits
    with or without additions; OutOfTimeError if time ran out before the fleet itself had a plan.
    """
    fleets = [("", problem), *((nodes, with_nodes(problem, nodes)) for nodes in added)]
    base: RlPlanDocument | None = None
    offers, refused, not_planned = list[RlOfferDocument](), dict[str, str](), list[str]()
    for item in judged_in_turn(fleets, PostTrainedFleet(), deadline):
        if item.status == STOPPED and item.subject is problem:
            raise OutOfTimeError(item.reason)
        if item.status == STOPPED:
            not_planned.append(item.name)
        elif item.found is None:
            refused[item.name] = item.reason
        if item.found is None:
            continue
        document = plan_document(item.found, item.subject, prices)
        if item.subject is problem:
            base = document
        else:
            offers.append(_offer(item.name, document, item.found.plan, base))
    if base is None and not offers:
        raise InfeasibleError(refused[""])
    offers.sort(key=lambda offer: (offer.usd_per_million_trained_tokens or float("inf"), offer.step_s))
    return RlWhatIfDocument(
        step_s=base.step_s if base else None,
        usd_per_hour=base.usd_per_hour if base else None,
        usd_per_million_trained_tokens=base.usd_per_million_trained_tokens if base else None,
        offers=offers,
        infeasible={nodes: reason for nodes, reason in refused.items() if nodes},
        not_planned=not_planned,
        unpriced=prices.unpriced([kind for _, fleet in fleets for kind in fleet.kinds]),
    )


def _offer(
    nodes: str, document: RlPlanDocument, plan: RlPlan, base: RlPlanDocument | None
) -> RlOfferDocument:
    now = base.usd_per_million_trained_tokens if base else None
    then = document.usd_per_million_trained_tokens
    return RlOfferDocument(
        added=nodes,
        step_s=document.step_s,
        faster_by=1.0 - document.step_s / base.step_s if base else None,
        usd_per_hour=document.usd_per_hour,
        usd_per_million_trained_tokens=then,
        pays=then < now if then is not None and now is not None else None,
        generates=rollout_kinds(plan),
        trains=kinds_of(plan.training.cluster),
    )


def simulated(
    plan: RlPlan, problem: RlProblem, seeds: int, engine: str, first_seed: int = 0
) -> RlSimulateDocument:
    """A plan simulated with response lengths drawn `seeds` times. Raises TangramError if it does not fit."""
    outcomes = [
        play_step(
            problem.work,
            plan,
            problem.hwdb,
            overheads=problem.overheads,
            seed=first_seed + seed,
            engine=engine,
        )
        for seed in range(seeds)
    ]
    steps = np.array([outcome.step_s for outcome in outcomes])
    ages = np.concatenate([np.array(outcome.ages, dtype=np.float64) for outcome in outcomes])

    def means(tables: Sequence[Mapping[str, float]]) -> dict[str, float]:
        return {name: float(np.mean([table[name] for table in tables])) for name in tables[0]}

    draws = [
        problem.work.lengths.draw(problem.work.prompts, problem.work.samples, first_seed + seed).max()
        for seed in range(seeds)
    ]
    return RlSimulateDocument(
        seeds=seeds,
        step_s={
            "mean": float(steps.mean()),
            "low": float(np.quantile(steps, 0.05)),
            "high": float(np.quantile(steps, 0.95)),
            "standard_error": float(steps.std(ddof=1) / seeds**0.5) if seeds > 1 else 0.0,
        },
        phases_s=means([outcome.phases_s for outcome in outcomes]),
        exposed_s=means([outcome.exposed_s for outcome in outcomes]),
        idle=means([outcome.idle for outcome in outcomes]),
        longest_response=float(np.mean(draws)),
        preemptions=float(np.mean([outcome.rollout.preemptions for outcome in outcomes])),
        ages={"mean": float(ages.mean()), "most": float(ages.max())},
    )
