"""The prefix cache of one replica in plain Python: users of each prefix, and the order of eviction."""

from collections import OrderedDict


class PrefixCache:
    """Cached blocks of shared prefixes by number; unused ones are evicted whole, least recently used first.

    Real engines evict block by block from the tail; traces identify whole prefixes only.
    """

    def __init__(self) -> None:
        self.blocks: dict[int, int] = {}
        self.users: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    @property
    def idle_blocks(self) -> int:
        """Blocks that may be evicted."""
        return sum(self.blocks[prefix] for prefix in self.idle)

    @property
    def used_blocks(self) -> int:
        """Blocks of prefixes that some running request uses."""
        return sum(self.blocks.values()) - self.idle_blocks

    def pin(self, prefix: int) -> None:
        """Count one more running request that uses the cached prefix, so that it cannot be evicted."""
        self.users[prefix] = self.users.get(prefix, 0) + 1
        self.idle.pop(prefix, None)

    def unpin(self, prefix: int) -> None:
        """Count one request less that uses `prefix`; without any it may be evicted."""
        self.users[prefix] -= 1
        if not self.users[prefix]:
            self.idle[prefix] = None

    def evict(self) -> None:
        """Evict the least recently used unused prefix."""
        prefix, _ = self.idle.popitem(last=False)
        del self.blocks[prefix]
