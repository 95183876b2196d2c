"""Numba compiles its kernels once per run: before the processes of `-n` start, not in each of them."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Plan something small ahead of several processes; they find its compiled code on disk."""
    is_worker = hasattr(config, "workerinput")
    if is_worker or not getattr(config.option, "numprocesses", None) or config.option.collectonly:
        return
    from tangram_sim.planners.api import Wishes
    from tangram_sim.planners.tangram import tangram
    from tests.planning import HWDB, random_instance

    instance = random_instance(1)
    wishes = Wishes(constraints=instance.constraints)
    tangram(instance.model, instance.cluster, instance.job, HWDB, wishes)
