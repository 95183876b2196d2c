"""The contract of every whole-cluster planner, as a check that third parties run on their own planners.

In a plug-in's tests, with any test runner:

    from tangram_sim.planners.contract import check_planner

    def test_contract():
        check_planner(MyPlanner, [price, another_price])

Make each `Price` of a model, a cluster and a job (dtype settled): some that fit easily, one that fits
nowhere, one with several GPU kinds.
"""

from collections.abc import Iterable

from tangram_sim.errors import InfeasibleError, TangramError
from tangram_sim.planners.whole_cluster import Price, WholeClusterPlanner
from tangram_sim.training.plan import Plan, holds_batch


def check_planner(planner: type[WholeClusterPlanner], prices: Iterable[Price]) -> None:
    """Check a planner against the contract on each question; raises AssertionError naming the broken clause.

    1. It is made by calling the class without arguments; `name` and `limits` are not empty.
    2. Its plan is for the model, cluster and job asked about; the decisions are consistent, every layer is
       held once and in order, ranks are the cluster's and used once, and the whole batch is processed.
    3. Its plan fits memory as simulated.
    4. Equal questions get equal plans, also from a new instance and fresh prices.
    5. Without a plan it raises an InfeasibleError whose message is more than a word; nothing else is raised.
    """
    asked = 0
    for price in prices:
        asked += 1
        first = _answer(planner, price)
        again = _answer(planner, Price(price.model, price.cluster, price.job, price.hwdb))
        _require(first == again, f"{planner.name} answers the same question differently: {first} / {again}")
        if isinstance(first, Plan):
            _check_plan(planner, first, price)
    _require(asked > 0, "no question given: nothing was checked")


def _answer(planner: type[WholeClusterPlanner], price: Price) -> Plan | str:
    """The planner's plan, or the message of its InfeasibleError, which must not be trivial."""
    made = planner()
    _require(bool(made.name and made.limits), f"{planner.__name__} states no name or no limits")
    try:
        return made.plan(price.model, price.cluster, price.job, price)
    except InfeasibleError as error:
        _require(len(str(error)) > 10, f"{made.name} says only {error!s} where it has no plan")
        return str(error)


def _check_plan(planner: type[WholeClusterPlanner], plan: Plan, price: Price) -> None:
    name = planner.name
    _require(plan.model == price.model, f"{name} planned another model")
    _require(plan.cluster == price.cluster, f"{name} planned another cluster")
    _require(plan.job == price.job, f"{name} planned another job")
    _require(holds_batch(plan.pipelines, plan.job.global_batch), f"{name} does not process the whole batch")
    for pipeline in plan.pipelines:
        position = 0
        for chunk in range(max(len(stage.chunks) for stage in pipeline.stages)):
            for stage in pipeline.stages:
                if chunk < len(stage.chunks):
                    start, stop = stage.chunks[chunk]
                    _require(start == position < stop, f"{name}: layers {start} to {stop} after {position}")
                    position = stop
        _require(position == price.model.layers, f"{name} places {position} of {price.model.layers} layers")
    ranks = [rank for pipeline in plan.pipelines for stage in pipeline.stages for rank in stage.ranks]
    _require(len(ranks) == len(set(ranks)), f"{name} uses a rank twice")
    _require(set(ranks) <= set(range(price.cluster.gpus)), f"{name} uses ranks that the cluster lacks")
    try:
        fits = price.lowered(plan).fits()
    except TangramError as error:
        raise AssertionError(f"planner contract: {name}'s plan does not hold together: {error}") from error
    _require(fits, f"{name}'s plan does not fit memory")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(f"planner contract: {message}")
