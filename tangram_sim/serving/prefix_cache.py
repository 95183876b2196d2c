"""The prefix cache of one replica in plain Python: how many use a text, and which one is dropped first."""

from collections import OrderedDict


class PrefixCache:
    """Blocks of shared texts by number; idle ones are evicted whole, least recently used first.

    Engines evict block by block from the tail; a whole text is what a trace lets us know.
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
        """Blocks of texts that some running request uses."""
        return sum(self.blocks.values()) - self.idle_blocks

    def pin(self, prefix: int) -> None:
        """One more running request uses the cached text `prefix`: it cannot be dropped."""
        self.users[prefix] = self.users.get(prefix, 0) + 1
        self.idle.pop(prefix, None)

    def unpin(self, prefix: int) -> None:
        """A request that used `prefix` is done; it may be dropped once none is left."""
        self.users[prefix] -= 1
        if not self.users[prefix]:
            self.idle[prefix] = None

    def evict(self) -> None:
        """Forget the idle text that was used longest ago."""
        prefix, _ = self.idle.popitem(last=False)
        del self.blocks[prefix]
