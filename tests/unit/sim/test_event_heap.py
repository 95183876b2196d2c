"""The heap of events: whichever slot's event changes, no slot stands above one whose event comes first."""

import numpy as np

from tangram_sim.sim.fluid_kernels import _settle


def test_every_change_leaves_a_heap() -> None:
    """By time, then op; ties among few times; the first slot is the least of all, by brute force."""
    draws, size = np.random.default_rng(1), 21
    at, running = draws.integers(0, 9, size).astype(np.float64), draws.permutation(size).astype(np.int32)
    heap, place = np.arange(size, dtype=np.int32), np.arange(size, dtype=np.int32)
    order = sorted(range(size), key=lambda slot: (at[slot], running[slot]))
    heap[:], place[order] = order, np.arange(size)
    for _ in range(500):
        slot = int(draws.integers(size))
        at[slot] = float(draws.integers(0, 9))
        _settle(slot, size, heap, place, at, running)
        keys = [(at[item], running[item]) for item in heap]
        assert all(keys[(child - 1) // 2] < keys[child] for child in range(1, size))
        assert keys[0] == min(keys)
        assert (heap[place] == np.arange(size)).all()
