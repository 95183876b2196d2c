"""Peak bytes of tensors on a device without an allocator's counters: every storage, from first use to end."""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts storages that operations return until they are freed; torch's MemTracker knows one pass only."""

    def __init__(self, held: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()
        for tensor in held:
            self._note(tensor)

    def _note(self, tensor: Tensor) -> None:
        local = getattr(tensor, "_local_tensor", tensor)
        storage = local.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note what it returns."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return made


def peak_bytes(step: Callable[[], object], optimizer: torch.optim.Optimizer, device: str) -> float:
    """Peak bytes of tensors during `step`: CUDA's allocator, elsewhere a count of live storages."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        step()
        return float(torch.cuda.max_memory_allocated())
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    states = [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, Tensor)]
    with LiveBytes([*weights, *gradients, *states]) as live:
        step()
    return float(live.peak)
