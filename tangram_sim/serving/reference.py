"""The reference player: simulates one replica iteration by iteration, request by request, in simple code.

Its rules are described in docs/models/serving-simulator.md; the fast player must agree with it.
"""

from collections import deque
from dataclasses import dataclass
from math import isnan

from tangram_sim.serving.batching import (
    DECODE_COUNTS,
    FIRST_RATIO,
    LEAST_RATIO,
    LONGEST_RESERVED,
    PROMPT_COUNTS,
    RATIO_FALL,
    RETRACT_STEPS,
    SAME_S,
    BatchingRules,
)
from tangram_sim.serving.prefix_cache import PrefixCache
from tangram_sim.serving.replica import Ints, ReplicaPlayer, RequestLedger
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.workload import Workload


@dataclass(slots=True, eq=False)
class _Admitted:
    """A running request: its progress, and the KV blocks that it holds."""

    number: int
    prompt: int  # tokens to work on before the next output token: the prompt, and outputs whose KV is lost
    done: int  # tokens whose KV is in memory
    hit: int  # of these, found in a cache
    blocks: int  # that are its own
    shared_blocks: int  # at its beginning, that belong to the prefix cache
    pinned: bool  # it uses an entry of the prefix cache
    decoding: bool
    chunk: int = 0  # prompt tokens worked on in this iteration


class ReferenceReplica(ReplicaPlayer):
    """A replica simulated in plain Python, iteration by iteration; the methods are ReplicaPlayer's."""

    def __init__(
        self, rules: BatchingRules, table: StepTable, workload: Workload, ledger: RequestLedger
    ) -> None:
        super().__init__(rules, table, workload, ledger)
        self.now_s, self.halt_s, self.ratio = 0.0, float("inf"), FIRST_RATIO
        self.pending: deque[tuple[int, float]] = deque()
        self.waiting: deque[int] = deque()
        self.held: deque[int] = deque()  # requests of clients who wait for another one to be served
        self.pause_s = 0.0
        self.unseen = rules.recv_interval  # what passed since the last look at new requests
        self.running: list[_Admitted] = []  # in the order of admission
        self.cache = PrefixCache()
        self._peak, self._busy_s, self._processed, self._events = 0, 0.0, 0, 0
        self._left: list[tuple[float, int]] = []  # when requests were through, and their tokens

    def push(self, request: int, ready_s: float) -> None:
        """See ReplicaPlayer."""
        self.ledger.ready_s[request] = ready_s
        self.pending.append((request, ready_s))

    def hold(self, requests: Ints, pause_s: float) -> None:
        """See ReplicaPlayer."""
        self.held.extend(requests.tolist())
        self.pause_s = pause_s

    def halt_at(self, time_s: float) -> None:
        """See ReplicaPlayer."""
        self.halt_s = time_s

    def advance(self, until_s: float) -> None:
        """See ReplicaPlayer."""
        until_s = min(until_s, self.halt_s)
        while True:
            while self._looks() and self.pending and self.pending[0][1] <= self.now_s + SAME_S:
                self.waiting.append(self.pending.popleft()[0])
            if not self.running and not self.waiting:
                self.ratio = FIRST_RATIO
                self.unseen = self.rules.recv_interval  # an idle engine looks all the time
                if not self.pending or self.pending[0][1] + SAME_S >= until_s:
                    return
                self.now_s = max(self.now_s, self.pending[0][1])
            elif self.now_s + SAME_S >= until_s or not self._iterate():
                return

    def _looks(self) -> bool:
        """Whether the engine polls for new requests before the next iteration."""
        return self.unseen >= self.rules.recv_interval

    def _iterate(self) -> bool:
        """Run one iteration; False if the replica goes down before its end."""
        self._events += 1
        if self._looks():
            self.unseen = 0
        self._admit_imported()
        if self.rules.mixed:
            preempted = self._make_room()
            decoding = self._decoding()
            chunks = self._chunks(self.rules.budget_tokens - len(decoding), admit=not preempted)
        else:
            chunks = self._chunks(self.rules.budget_tokens, admit=True)
            if not chunks:
                self._make_room()
            decoding = [] if chunks else self._decoding()
        self.unseen += PROMPT_COUNTS if chunks else DECODE_COUNTS
        if not chunks and not decoding:
            return True  # all had to go; the next iteration lets the first one in again
        contexts, rows = sum(admitted.done + 1 for admitted in decoding), sum(chunk.chunk for chunk in chunks)
        if chunks:
            scores = sum(chunk.chunk * (chunk.done + 0.5 * chunk.chunk) for chunk in chunks)
            step_s = self.table.mixed_step_s(rows, scores, len(decoding), contexts)
        else:
            step_s = self.table.decode_step_s(len(decoding), contexts)
            self.ratio = max(LEAST_RATIO, self.ratio - RATIO_FALL)
        if self.now_s + step_s > self.halt_s:
            self.now_s = self.halt_s
            return False
        self.now_s += step_s
        self._busy_s += step_s
        self._processed += rows + len(decoding)
        self._peak = max(self._peak, self._used())
        for admitted in decoding:
            admitted.done += 1
            self._deliver(admitted)
        for chunk in chunks:
            chunk.done += chunk.chunk
            if chunk.done == chunk.prompt:
                self._share(chunk, int(self.workload.prefix_tokens[chunk.number]))
                chunk.decoding = True
                self._deliver(chunk)
        return True

    def _decoding(self) -> list[_Admitted]:
        return [admitted for admitted in self.running if admitted.decoding]

    def _deliver(self, admitted: _Admitted) -> None:
        """Deliver an output token; after the last one the request leaves."""
        number, ledger = admitted.number, self.ledger
        ledger.generated[number] += 1
        if ledger.generated[number] == 1:
            ledger.first_s[number] = self.now_s
        if ledger.generated[number] == self.workload.output_tokens[number]:
            ledger.finish_s[number] = self.now_s
            self._left.append((self.now_s, self._longest(number) + 1))
            if self.held:
                self.push(self.held.popleft(), self.now_s + self.pause_s)
            if self.workload.keeps[number]:
                self._share(admitted, admitted.done)
            self._leave(admitted)

    # Admission

    def _admit_imported(self) -> None:
        """Start decoding queued requests whose KV was imported, while there is room for their next token."""
        while self.waiting and len(self.running) < self.rules.seats:
            number = self.waiting[0]
            if not self.ledger.imported[number]:
                return
            done = int(self.workload.input_tokens[number] + self.ledger.generated[number]) - 1
            wanted = self.rules.holds(self._longest(number) if self.rules.reserves else done + 1)
            if wanted + self._need() > self._available():
                return
            self.waiting.popleft()
            blocks = wanted if self.rules.reserves else self.rules.holds(done)
            self._evict(blocks)
            hit = int(self.ledger.cached[number])
            self.running.append(_Admitted(number, done, done, hit, blocks, 0, pinned=False, decoding=True))
            self._start(number)

    def _chunks(self, budget: int, *, admit: bool) -> list[_Admitted]:
        """Requests whose prompts are processed now: those already started, then newly admitted ones."""
        chunks = [admitted for admitted in self.running if not admitted.decoding]
        for chunk in chunks:
            chunk.chunk = min(chunk.prompt - chunk.done, budget)
            budget -= chunk.chunk
        while admit and budget > 0 and self.waiting and len(self.running) < self.rules.seats:
            new = self._admitted(self.waiting[0])
            if new is None:
                break
            self.waiting.popleft()
            new.chunk = min(new.prompt - new.done, budget)
            budget -= new.chunk
            self.running.append(new)
            chunks.append(new)
        return chunks

    def _admitted(self, number: int) -> _Admitted | None:
        """Admit the request `number`, the head of the queue, with KV blocks; None while it must wait."""
        if self.ledger.imported[number]:
            return None
        work, rules = self.workload, self.rules
        prompt = int(work.input_tokens[number] + self.ledger.generated[number])
        prefix = int(work.prefix[number])
        whole = rules.holds(self._longest(number) if rules.reserves else prompt)
        shared, claimed = 0, 0
        if rules.prefix_cache and prefix in self.cache.blocks:
            reusable = min(int(work.prefix_tokens[number]), prompt - 1) // rules.block_tokens
            shared = min(reusable, self.cache.blocks[prefix])
            # An idle entry that is used from now on cannot be evicted to make room: then better without it.
            claimed = self.cache.blocks[prefix] if shared and prefix in self.cache.idle else 0
            if claimed and whole - shared + claimed > self._available():
                shared, claimed = 0, 0
        blocks = whole - shared
        if blocks + claimed > self._available() or not self._ratio_allows(number, prompt, shared, claimed):
            return None
        if shared:
            self.cache.pin(prefix)
        self._evict(blocks)
        hit = max(shared * rules.block_tokens, min(int(work.cached_tokens[number]), prompt - 1))
        self._start(number)
        self.ledger.cached[number] = hit
        return _Admitted(number, prompt, hit, hit, blocks, shared, pinned=shared > 0, decoding=False)

    def _ratio_allows(self, number: int, prompt: int, shared: int, claimed: int) -> bool:
        """Whether SGLang would admit a request: room for its prompt, its outputs and part of others' outputs.

        `prompt` is in tokens, `shared` and `claimed` are blocks of a cached prefix: those reused, and those
        that are no longer evictable. `self.ratio` is the share of the running requests' outputs that must
        fit.
        """
        if self.rules.admission != "reserve_ratio" or not self.running:
            return True
        outputs = self.workload.output_tokens - self.ledger.generated
        ahead = sum(int(outputs[admitted.number]) for admitted in self.running)
        wanted = prompt - shared * self.rules.block_tokens + min(int(outputs[number]), LONGEST_RESERVED)
        room = (self._available() - claimed) * self.rules.block_tokens
        return wanted + self.ratio * ahead < room

    def _start(self, number: int) -> None:
        if isnan(self.ledger.start_s[number]):
            self.ledger.start_s[number] = self.now_s

    # Blocks

    def _longest(self, number: int) -> int:
        """Tokens in the KV cache when a request finishes: prompt and outputs, less the last output token."""
        return int(self.workload.input_tokens[number] + self.workload.output_tokens[number]) - 1

    def _used(self) -> int:
        """KV blocks of running requests and of the prefixes that they use."""
        return sum(admitted.blocks for admitted in self.running) + self.cache.used_blocks

    def _available(self) -> int:
        """KV blocks that can be allocated: free ones, and those of cached prefixes that no request uses."""
        return self.rules.blocks - self._used()

    def _evict(self, blocks: int) -> None:
        """Evict prefixes until `blocks` KV blocks are free."""
        while self._used() + self.cache.idle_blocks + blocks > self.rules.blocks:
            self.cache.evict()

    def _need(self) -> int:
        """New KV blocks that the decoding requests need for this iteration."""
        return 0 if self.rules.reserves else sum(self._grows(admitted) for admitted in self.running)

    def _grows(self, admitted: _Admitted) -> bool:
        return admitted.decoding and admitted.done % self.rules.block_tokens == 0

    def _make_room(self) -> bool:
        """Give each decoding request the KV block for its next token; True if that preempted requests."""
        need = self._need()
        preempted = need > self._available()
        if preempted and self.rules.exhaustion == "retract":
            self._retract()
        while self._need() > self._available():
            last = self.running[-1]
            self._preempt(last)
            self.waiting.appendleft(last.number)
        self._evict(self._need())
        if not self.rules.reserves:
            for admitted in self.running:
                admitted.blocks += self._grows(admitted)
        return preempted

    def _retract(self) -> None:
        """Preempt as SGLang does when blocks run out, then set the ratio by which it reserves for outputs.

        Requests with the fewest output tokens go to the end of the queue until the others have room for some
        steps.
        """
        outputs, prompts = self.ledger.generated, self.workload.input_tokens
        while True:
            decoding = self._decoding()
            room = self._available() * self.rules.block_tokens
            enough = self._need() <= self._available() and room >= RETRACT_STEPS * len(decoding)
            if len(decoding) <= 1 or enough:
                break
            # Of equals the one admitted last: min() takes the first of equals.
            victim = min(
                reversed(decoding), key=lambda admitted: (outputs[admitted.number], -prompts[admitted.number])
            )
            self._preempt(victim)
            self.waiting.append(victim.number)
        given = sum(int(outputs[admitted.number]) for admitted in decoding)
        longest = sum(int(self.workload.output_tokens[admitted.number]) for admitted in decoding)
        self.ratio = min(1.0, (given + RETRACT_STEPS * len(decoding)) / (longest + 1))

    def _preempt(self, admitted: _Admitted) -> None:
        """Preempt a running request: free its KV blocks and its slot; it must be admitted again."""
        self._lose(admitted)
        self.ledger.preemptions[admitted.number] += 1
        self._leave(admitted)

    def _lose(self, admitted: _Admitted) -> None:
        """Count the tokens computed for a request as wasted."""
        self.ledger.wasted[admitted.number] += admitted.done - admitted.hit
        self.ledger.imported[admitted.number] = False

    def _leave(self, admitted: _Admitted) -> None:
        self.running.remove(admitted)
        if admitted.pinned:
            self.cache.unpin(int(self.workload.prefix[admitted.number]))

    def _share(self, admitted: _Admitted, tokens: int) -> None:
        """Move the whole blocks of a request's first `tokens` that are not cached yet to the prefix cache."""
        prefix = int(self.workload.prefix[admitted.number])
        blocks = tokens // self.rules.block_tokens
        if not self.rules.prefix_cache or prefix < 0 or not blocks:
            return
        known = self.cache.blocks.get(prefix, 0)
        if blocks <= known or (known and not admitted.pinned):
            return  # nothing new, or another request brought it in meanwhile
        self.cache.blocks[prefix] = blocks
        if not admitted.pinned:
            self.cache.pin(prefix)
            admitted.pinned = True
        admitted.blocks -= blocks - known
        admitted.shared_blocks += blocks - known

    # What a fleet asks

    def unfinished(self) -> list[int]:
        """See ReplicaPlayer."""
        for admitted in self.running:
            self._lose(admitted)
        here = [*self.waiting, *(number for number, _ in self.pending), *self.held]
        for number in here:
            if self.ledger.imported[number]:
                done = int(self.workload.input_tokens[number] + self.ledger.generated[number]) - 1
                self.ledger.wasted[number] += done - self.ledger.cached[number]
                self.ledger.imported[number] = False
        left = [admitted.number for admitted in self.running] + here
        self.running.clear()
        self.waiting.clear()
        self.pending.clear()
        self.held.clear()
        return left

    def finished_tokens(self, time_s: float) -> int:
        """See ReplicaPlayer."""
        return sum(tokens for left_s, tokens in self._left if left_s <= time_s + SAME_S)

    @property
    def peak_blocks(self) -> int:
        """See ReplicaPlayer."""
        return self._peak

    @property
    def busy_s(self) -> float:
        """See ReplicaPlayer."""
        return self._busy_s

    @property
    def processed_tokens(self) -> int:
        """See ReplicaPlayer."""
        return self._processed

    @property
    def events(self) -> int:
        """See ReplicaPlayer."""
        return self._events
