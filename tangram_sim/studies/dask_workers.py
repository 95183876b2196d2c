"""Workers of a Dask cluster in place of processes of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from tangram_sim.errors import BadInputError


@contextmanager
def dask_client(address: str) -> Iterator[Any]:
    """Context of a Dask connection. Raises BadInputError if no scheduler answers or the extra is missing."""
    if find_spec("joblib") is None or find_spec("distributed") is None:
        raise BadInputError(f'`dask={address}` needs distributed: pip install "tangram-sim[dask]"')
    from distributed import Client

    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError, TypeError) as error:
        raise BadInputError(f"`dask={address}`: no Dask scheduler answers there: {error}") from None
    with client:
        yield client


def dask_threads(address: str) -> int:
    """Number of threads over all workers, at least two: the number of questions to run at once."""
    with dask_client(address) as client:
        return max(2, int(sum(client.nthreads().values())))


@contextmanager
def processes(address: str | None, jobs: int) -> Iterator[int]:
    """Context in which joblib runs on the Dask cluster at `address` (None: this machine).

    Yields the number of jobs. `jobs` 0 or 1 means all threads of the cluster.
    """
    if address is None:
        yield jobs
        return
    from joblib import parallel_config

    with dask_client(address) as client, parallel_config(backend="dask"):
        yield jobs if jobs > 1 else max(2, sum(client.nthreads().values()))
