"""Whether the fast player equals the reference on many random cases.

`python -m tests.unit.serving.agreement --cases N --seed S`: half of the cases are one replica (preemption,
prefix caches, KV from elsewhere, a replica that vanishes), half are services (routers, instances that come
and go, prefill and decode apart). Tests try a few hundred; this says what a run of 10,000 found, and the seed
by which a case is made again.
"""

import argparse
import sys
import time

import numpy as np

from tests.unit.serving.players import assert_same, random_case
from tests.unit.serving.services import assert_same_service, random_service


def main(words: list[str]) -> int:
    """Exit code 1 at the first case in which they differ."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--cases", type=int, default=10_000)
    given.add_argument("--seed", type=int, default=0)
    asked = given.parse_args(words)
    begun = time.process_time()
    preempted = cached = failed = apart = 0
    for seed in range(asked.seed, asked.seed + asked.cases // 2):
        try:
            assert_same(random_case(seed))
            service = random_service(seed)
            played = assert_same_service(service)
        except AssertionError as error:
            sys.stdout.write(f"seed {seed}: the players differ: {error}\n")
            return 1
        preempted += int(played.ledger.preemptions.sum())
        cached += int(np.count_nonzero(played.ledger.cached))
        failed += len(played.failed)
        apart += service.link is not None
    sys.stdout.write(
        f"{asked.cases} cases from seed {asked.seed}: both players agree, {time.process_time() - begun:.0f} "
        f"CPU-s; of {asked.cases // 2} services {apart} had prefill and decode apart, with {preempted} "
        f"preemptions, {cached} cached prompts and {failed} failed requests\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
