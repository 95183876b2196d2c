"""Errors of real runs, in words a person can act on; the command line exits 2 with them."""

from tangram_sim.errors import TangramError

INSTALL = "pip install 'tangram-sim[validate]'"


class TestbedError(TangramError):
    """The emulated cluster cannot be built, or a rank of it failed."""

    __test__ = False  # not a test class, whatever its name suggests to pytest


class RankDiedError(TestbedError):
    """A rank ended before its run did."""


def require_torch() -> None:
    """Raise TangramError with what to install where torch is missing."""
    import os
    from importlib.util import find_spec

    # Ranks in namespaces have no host names, which c10d warns about at every connection.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    if find_spec("torch") is None:
        raise TangramError(f"this verb runs real training steps and needs torch: {INSTALL}")
