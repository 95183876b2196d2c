"""Layers placed on nodes one by one, as Helix, Petals and SWARM do it: every node batches what waits there.

A request goes through nodes that hold one range of layers after another, once for its prompt and once for
each further token. Nodes that hold the same layers take requests in turn. A node that is free works on all
that has reached it by then. Played hop by hop, since stages of unlike nodes have no common iteration.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from tangram_sim.cost.kernels import Floats
from tangram_sim.errors import BadInputError


@dataclass(frozen=True)
class NodeLayerTimes:
    """Seconds of one layer by batch size in tokens, for prompts and for decoding; at least `least_s`."""

    prompt_tokens: Floats
    prompt_s: Floats
    decode_tokens: Floats
    decode_s: Floats
    least_s: float = 0.0  # what the host takes to launch one layer's kernels

    def layer_s(self, prompt: int, decode: int) -> float:
        """Seconds of one layer for a batch of both, worked on one after the other."""
        seconds = 0.0
        if prompt:
            seconds += max(self.least_s, float(np.interp(prompt, self.prompt_tokens, self.prompt_s)))
        if decode:
            seconds += max(self.least_s, float(np.interp(decode, self.decode_tokens, self.decode_s)))
        return seconds


@dataclass(frozen=True, eq=False)
class LayerNode:
    """A node that holds layers `first` to `end` - 1."""

    name: str
    first: int
    end: int
    times: NodeLayerTimes


@dataclass(frozen=True, slots=True)
class HopLink:
    """The link over which activations go from one node to the next."""

    latency_s: float
    bytes_per_s: float
    token_bytes: float

    def seconds(self, tokens: int) -> float:
        """Seconds of one transfer."""
        return self.latency_s + tokens * self.token_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class PlacedRequest:
    """A request: arrival in seconds (ignored in a closed loop), prompt and output tokens."""

    arrival_s: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class PlacedOutcome:
    """Measured after the warm-up: decoded tokens/s, mean seconds per token and of prompts."""

    tokens_per_s: float
    token_s: float
    prompt_s: float


@dataclass(slots=True)
class _Journey:
    request: PlacedRequest
    path: list[LayerNode]
    sent_s: float
    stage: int = 0
    tokens: int = 0
    last_s: float = 0.0


@dataclass
class _Run:
    """The state of one run: what waits at every node, and the events to come."""

    nodes: Sequence[LayerNode]
    layers: int
    link: HopLink
    events: list[tuple[float, int, str, object]] = field(default_factory=list)
    waiting: dict[LayerNode, list[_Journey]] = field(default_factory=lambda: defaultdict(list))
    busy: set[LayerNode] = field(default_factory=set)
    turns: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    number: "count[int]" = field(default_factory=count)

    def push(self, time_s: float, what: str, which: object) -> None:
        heappush(self.events, (time_s, next(self.number), what, which))

    def path(self) -> list[LayerNode]:
        """Nodes from the first layer to the last; those that hold the same layers are taken in turn."""
        at, found = 0, []
        while at < self.layers:
            able = [node for node in self.nodes if node.first == at]
            if not able:
                raise BadInputError(f"no node's layers begin at layer {at} of {self.layers}")
            found.append(able[self.turns[at] % len(able)])
            self.turns[at] += 1
            at = found[-1].end
        return found

    def start(self, request: PlacedRequest, time_s: float) -> None:
        journey = _Journey(request, self.path(), time_s)
        self.push(time_s + self.link.seconds(request.prompt), "reach", journey)

    def work(self, node: LayerNode, time_s: float) -> None:
        """A node that is free starts a batch of everything that waits for it."""
        batch = self.waiting.pop(node, [])
        if not batch:
            self.busy.discard(node)
            return
        prompt = sum(journey.request.prompt for journey in batch if not journey.tokens)
        decode = sum(1 for journey in batch if journey.tokens)
        seconds = (node.end - node.first) * node.times.layer_s(prompt, decode)
        self.push(time_s + seconds, "done", (node, batch))

    def pass_on(self, batch: list[_Journey], time_s: float) -> None:
        for journey in batch:
            rows = 1 if journey.tokens else journey.request.prompt
            journey.stage += 1
            last = journey.stage == len(journey.path)
            self.push(time_s + self.link.seconds(1 if last else rows), "token" if last else "reach", journey)


def play_placed(
    nodes: Sequence[LayerNode],
    layers: int,
    link: HopLink,
    requests: Sequence[PlacedRequest],
    *,
    clients: int = 0,
    warm_s: float,
    end_s: float,
) -> PlacedOutcome:
    """Play until `end_s`: requests as they come, or `clients` in flight at all times from the list in turn.

    Raises BadInputError for nodes that do not hold all layers.
    """
    run = _Run(nodes, layers, link)
    following = count()
    if clients:
        for _ in range(clients):
            run.start(requests[next(following) % len(requests)], 0.0)
    else:
        for request in requests:
            run.push(request.arrival_s, "come", request)
    decoded, token_s, prompt_s = 0, [], []
    while run.events:
        now_s, _, what, which = heappop(run.events)
        if now_s > end_s:
            break
        if isinstance(which, PlacedRequest):
            run.start(which, now_s)
        elif isinstance(which, LayerNode):
            run.work(which, now_s)
        elif isinstance(which, tuple):
            node, batch = which
            run.pass_on(batch, now_s)
            run.work(node, now_s)
        elif isinstance(which, _Journey) and what == "reach":
            node = which.path[which.stage]
            run.waiting[node].append(which)
            if node not in run.busy:  # after all that reaches it at this moment
                run.busy.add(node)
                run.push(now_s, "work", node)
        elif isinstance(which, _Journey):
            if now_s > warm_s and which.tokens:
                decoded += 1
                token_s.append(now_s - which.last_s)
            elif now_s > warm_s:
                prompt_s.append(now_s - which.sent_s)
            which.tokens, which.last_s, which.stage = which.tokens + 1, now_s, 0
            if which.tokens < which.request.output:
                run.push(now_s + link.seconds(1), "reach", which)
            elif clients:
                run.start(requests[next(following) % len(requests)], now_s)
    mean = [float(np.mean(item)) if item else float("nan") for item in (token_s, prompt_s)]
    return PlacedOutcome(decoded / (end_s - warm_s), mean[0], mean[1])
