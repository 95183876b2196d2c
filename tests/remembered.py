"""Searches remembered between tests: one question to the planner is searched for once.

What is not the search (islands, replay, the plan file, all that is printed) runs every time. That equal
questions get equal answers is tested elsewhere (`tests/unit/cli/test_cli_output.py`), and that a memory in
use changes none (`tests/unit/planners/test_search_memory.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tangram_sim.clusters import Cluster
from tangram_sim.datafiles import shipped
from tangram_sim.hwdb import Hwdb
from tangram_sim.models import Model
from tangram_sim.planners.api import Found, SearchOptions
from tangram_sim.planners.deadline import Deadline
from tangram_sim.planners.tangram.engine import tangram
from tangram_sim.studies import format_choice
from tangram_sim.training.job import Job

SHIPPED = (shipped("hwdb"),)


@contextmanager
def searched_once() -> Iterator[None]:
    """Within it, `plan` on the shipped hardware data, without a time limit, asks only what is new."""
    search, kept, tables = tangram, dict[object, Found](), Hwdb.load().edition[0]

    def remembered(
        model: Model,
        cluster: Cluster,
        job: Job,
        hwdb: Hwdb,
        wishes: SearchOptions,
        *more: object,
        **named: Any,
    ) -> Found:
        deadline = named.get("deadline") or Deadline()
        own = hwdb.folders != SHIPPED or hwdb.edition[0] is not tables
        more_asked = named.keys() - {"deadline", "known", "below_s", "halves"}
        if more_asked or own or deadline.left_s() < float("inf"):
            return search(model, cluster, job, hwdb, wishes, *more, **named)
        key = (
            model,
            cluster,
            job,
            hwdb.edition[1:],
            wishes,
            tuple(named.get("known", ())),
            named.get("below_s"),
            named.get("halves"),
        )
        if key not in kept:
            kept[key] = search(model, cluster, job, hwdb, wishes, *more, **named)
        found = kept[key]  # whoever gets it may write into it
        return replace(
            found,
            ranked=[*found.ranked],
            counts=replace(found.counts),
            findings=[*found.findings],
            candidates=[*found.candidates],
        )

    with patch.object(format_choice, "tangram", remembered):
        yield


@contextmanager
def searched_anew() -> Iterator[None]:
    """Within it, every question is searched for, whatever is remembered: for tests of the search itself."""
    with patch.object(format_choice, "tangram", tangram):
        yield
