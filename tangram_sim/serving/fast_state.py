"""The state of the fast player as arrays, and compiled operations on it: queues, heap, prefixes.

A request is in one queue of one replica at a time, so the links of all queues are two columns by request.
Importing this module imports numba, so it is imported inside functions only.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tangram_sim.serving.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Places in `Now.counts`. Heads and tails of queues hold requests, or prefixes (LRU), -1 where empty.
PEND_HEAD, PEND_TAIL, WAIT_HEAD, WAIT_TAIL, RUN_HEAD, RUN_TAIL, LRU_HEAD, LRU_TAIL = range(8)
RUNNING, DECODING, STEPS, CONTEXT, FREE, IDLE, PARTIAL, ADMITTED, PEAK, PROCESSED, EVENTS = range(8, 19)
# Tokens of requests that are through: by the last iteration but one, and in the last.
LEFT, LEFT_LAST = range(19, 21)
# The rules.
BUDGET, SEATS, BLOCK, BLOCKS, MIXED, ADMISSION, EXHAUSTION, CACHING = range(21, 29)
# Requests of clients who wait: each comes when another one has been served.
HELD_HEAD, HELD_TAIL = range(29, 31)
# What passed since the last look at new requests, and how much must pass until the next.
UNSEEN, INTERVAL = range(31, 33)
COUNTS = 33
# Places in `Now.times`; WINDOW to MIXED_WINDOW are of the step table.
NOW, HALT, RATIO, BUSY, WINDOW, SCORE, MIXED_CONTEXT, MIXED_WINDOW = range(8)
# Seconds from a request's end until its client's next one may be scheduled.
PAUSE = 8
TIMES = 9
# Columns of links in queues, of requests and of prefixes.
FOLLOWING, BEFORE = range(2)
# Further columns of `Now.entries`, by prefix; no blocks: not cached.
ENTRY_BLOCKS, ENTRY_USERS = range(2, 4)
ENTRIES = 4
# Columns of a book of requests: the workload's, the ledger's, and where a request stands.
INPUT, OUTPUT, PREFIX, PREFIX_TOKENS, KEEPS, GIVEN = range(2, 8)
GENERATED, IMPORTED, PREEMPTIONS, CACHED, WASTED = range(8, 13)
# JOINED: the step at which it began to decode, negative while it does not. PLACE: in the heap.
PROMPT, DONE, JOINED, HIT, SHARED, PINNED, ORDER, LAST_STEP, PLACE, CHUNK = range(13, 23)
BOOK = 23
# Columns of the clock of requests.
START, FIRST, FINISH, READY = range(4)
CLOCK = 4


class Now(NamedTuple):
    """The state of one replica; few arrays, since each costs time in every call of compiled code.

    `counts[STEPS]` counts iterations in which requests decoded: a request that joined at step D with `done`
    tokens in memory has done + steps - D now. The request needs a new block at every step that is -(done - D)
    modulo the block size; `residues[(done - D) mod block]` counts the requests of each such class. `heap`
    orders decoding requests by the step of their last token.
    """

    counts: Ints
    times: Floats
    residues: Ints
    heap: Ints
    entries: Ints  # [prefixes, ENTRIES]
    decode: Floats  # rows decode_s, context_s, window_s, beside_s of the step table, by batch
    rows: Floats  # row_knots and rows_s of the step table
    least: Floats  # least_s of the step table


@compiled
def append(counts: Ints, head: int, links: Ints, item: int) -> None:
    """Append `item` to the linked list from counts[head] (first) to counts[head + 1] (last)."""
    tail = counts[head + 1]
    links[item, FOLLOWING], links[item, BEFORE] = -1, tail
    if tail < 0:
        counts[head] = item
    else:
        links[tail, FOLLOWING] = item
    counts[head + 1] = item


@compiled
def prepend(counts: Ints, head: int, links: Ints, item: int) -> None:
    """Put `item` at the front of the linked list whose first item is counts[head]."""
    first = counts[head]
    links[item, FOLLOWING], links[item, BEFORE] = first, -1
    if first < 0:
        counts[head + 1] = item
    else:
        links[first, BEFORE] = item
    counts[head] = item


@compiled
def unlink(counts: Ints, head: int, links: Ints, item: int) -> None:
    """Remove `item` from the linked list whose first item is counts[head]."""
    ahead, behind = links[item, BEFORE], links[item, FOLLOWING]
    if ahead < 0:
        counts[head] = behind
    else:
        links[ahead, FOLLOWING] = behind
    if behind < 0:
        counts[head + 1] = ahead
    else:
        links[behind, BEFORE] = ahead


@compiled
def sooner(book: Ints, request: int, other: int) -> bool:
    """Whether `request` finishes before `other`: at an earlier step, or if equal, admitted earlier."""
    if book[request, LAST_STEP] != book[other, LAST_STEP]:
        return bool(book[request, LAST_STEP] < book[other, LAST_STEP])
    return bool(book[request, ORDER] < book[other, ORDER])


@compiled
def sift(heap: Ints, size: int, book: Ints, place: int) -> None:
    """Restore the order of the heap after the request at `place` changed: move it up or down."""
    item = heap[place]
    while place > 0 and sooner(book, item, heap[(place - 1) // 2]):
        above = (place - 1) // 2
        heap[place] = heap[above]
        book[heap[place], PLACE] = place
        place = above
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and sooner(book, heap[below + 1], heap[below]):
            below += 1
        if not sooner(book, heap[below], item):
            break
        heap[place] = heap[below]
        book[heap[place], PLACE] = place
        place = below
    heap[place] = item
    book[item, PLACE] = place


@compiled
def holds(now: Now, tokens: int) -> int:
    """KV blocks that hold `tokens` tokens, rounded up."""
    return int(-(-tokens // now.counts[BLOCK]))


@compiled
def tokens_of(now: Now, book: Ints, request: int) -> int:
    """Tokens of a running request whose KV is in memory."""
    if book[request, JOINED] >= 0:
        return int(book[request, DONE] + now.counts[STEPS] - book[request, JOINED])
    return int(book[request, DONE])


@compiled
def longest(book: Ints, request: int) -> int:
    """Tokens in the KV cache when a request finishes: prompt and outputs, all but the last output token."""
    return int(book[request, INPUT] + book[request, OUTPUT] - 1)


@compiled
def own_blocks(now: Now, book: Ints, request: int) -> int:
    """KV blocks of a running request, without those that belong to the prefix cache."""
    if now.counts[ADMISSION] == 2:
        tokens = longest(book, request)
    elif book[request, JOINED] >= 0:
        tokens = tokens_of(now, book, request)
    else:
        tokens = book[request, PROMPT]
    return int(holds(now, tokens) - book[request, SHARED])


@compiled
def take(now: Now, blocks: int) -> None:
    """Allocate KV blocks; where too few are free, evict unused prefixes, least recently used first."""
    counts = now.counts
    counts[FREE] -= blocks
    while counts[FREE] < 0 and counts[LRU_HEAD] >= 0:
        prefix = counts[LRU_HEAD]
        unlink(counts, LRU_HEAD, now.entries, prefix)
        counts[FREE] += now.entries[prefix, ENTRY_BLOCKS]
        counts[IDLE] -= now.entries[prefix, ENTRY_BLOCKS]
        now.entries[prefix, ENTRY_BLOCKS] = 0


@compiled
def pin(now: Now, prefix: int) -> None:
    """Count one more running request that uses a cached prefix, so that the prefix is not evicted."""
    if now.entries[prefix, ENTRY_USERS] == 0 and now.entries[prefix, ENTRY_BLOCKS] > 0:
        unlink(now.counts, LRU_HEAD, now.entries, prefix)
        now.counts[IDLE] -= now.entries[prefix, ENTRY_BLOCKS]
    now.entries[prefix, ENTRY_USERS] += 1


@compiled
def share(now: Now, book: Ints, request: int, tokens: int) -> None:
    """Move the whole blocks of a request's first `tokens` that are not cached yet to the prefix cache."""
    prefix, blocks = book[request, PREFIX], tokens // now.counts[BLOCK]
    if now.counts[CACHING] == 0 or prefix < 0 or blocks == 0:
        return
    known = now.entries[prefix, ENTRY_BLOCKS]
    if blocks <= known or (known > 0 and not book[request, PINNED]):
        return
    if not book[request, PINNED]:
        pin(now, prefix)
        book[request, PINNED] = True
    now.entries[prefix, ENTRY_BLOCKS] = blocks
    book[request, SHARED] += blocks - known


@compiled
def join(now: Now, book: Ints, request: int) -> None:
    """Make a running request decode from the next iteration on; `done` of its tokens are in memory."""
    counts, step = now.counts, now.counts[STEPS]
    book[request, JOINED] = step
    book[request, LAST_STEP] = step + book[request, OUTPUT] - book[request, GENERATED]
    now.residues[(book[request, DONE] - step) % now.counts[BLOCK]] += 1
    counts[CONTEXT] += book[request, DONE]
    now.heap[counts[DECODING]] = request
    counts[DECODING] += 1
    sift(now.heap, counts[DECODING], book, counts[DECODING] - 1)


@compiled
def settle(now: Now, book: Ints, request: int) -> None:
    """Stop a request's decoding: add the steps that it took part in to its token counts."""
    counts, heap = now.counts, now.heap
    if book[request, JOINED] < 0:
        return
    size = now.counts[BLOCK]
    now.residues[(book[request, DONE] - book[request, JOINED]) % size] -= 1
    passed = counts[STEPS] - book[request, JOINED]
    book[request, DONE] += passed
    book[request, GENERATED] += passed
    counts[CONTEXT] -= book[request, DONE]
    counts[DECODING] -= 1
    place = book[request, PLACE]
    if place < counts[DECODING]:
        moved = heap[counts[DECODING]]
        heap[place] = moved
        book[moved, PLACE] = place
        sift(heap, counts[DECODING], book, place)
    book[request, JOINED] = -2


@compiled
def leave(now: Now, book: Ints, request: int, blocks: int) -> None:
    """Remove a request that no longer decodes from the running ones; its `blocks` become free."""
    counts = now.counts
    unlink(counts, RUN_HEAD, book, request)
    counts[RUNNING] -= 1
    counts[FREE] += blocks
    book[request, JOINED] = -1
    if counts[PARTIAL] == request:
        counts[PARTIAL] = -1
    if book[request, PINNED]:
        prefix = book[request, PREFIX]
        book[request, PINNED] = False
        now.entries[prefix, ENTRY_USERS] -= 1
        if now.entries[prefix, ENTRY_USERS] == 0:
            append(counts, LRU_HEAD, now.entries, prefix)
            counts[IDLE] += now.entries[prefix, ENTRY_BLOCKS]
    book[request, SHARED] = 0


@compiled
def lose(now: Now, book: Ints, request: int) -> None:
    """Free a running request's KV blocks; the tokens computed for it count as wasted."""
    blocks = own_blocks(now, book, request)
    settle(now, book, request)
    book[request, WASTED] += book[request, DONE] - book[request, HIT]
    book[request, IMPORTED] = False
    leave(now, book, request, blocks)
