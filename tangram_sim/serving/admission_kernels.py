"""Compiled code of the fast player between iterations: seconds of a batch, KV blocks, admission of requests.

Importing this module imports numba, so it is imported inside functions only.
"""

import numpy as np

from tangram_sim.serving.batching import (
    LONGEST_RESERVED,
    RETRACT_STEPS,
)
from tangram_sim.serving.compiled import compiled
from tangram_sim.serving.fast_state import (
    ADMISSION,
    ADMITTED,
    BEFORE,
    BLOCK,
    CACHED,
    CACHING,
    DECODING,
    DONE,
    ENTRY_BLOCKS,
    ENTRY_USERS,
    EXHAUSTION,
    FOLLOWING,
    FREE,
    GENERATED,
    GIVEN,
    HIT,
    IDLE,
    IMPORTED,
    INPUT,
    JOINED,
    MIXED_CONTEXT,
    MIXED_WINDOW,
    NOW,
    ORDER,
    OUTPUT,
    PINNED,
    PREEMPTIONS,
    PREFIX,
    PREFIX_TOKENS,
    PROMPT,
    RATIO,
    RUN_HEAD,
    RUN_TAIL,
    RUNNING,
    SCORE,
    SEATS,
    SHARED,
    START,
    STEPS,
    WAIT_HEAD,
    WINDOW,
    Floats,
    Ints,
    Now,
    append,
    holds,
    join,
    longest,
    lose,
    pin,
    prepend,
    take,
    unlink,
)


@compiled
def need(now: Now) -> int:
    """New KV blocks that the decoding requests need for the next iteration."""
    if now.counts[ADMISSION] == 2:
        return 0
    return int(now.residues[-now.counts[STEPS] % now.counts[BLOCK]])


@compiled
def available(now: Now) -> int:
    """KV blocks that can be allocated: free ones, and those of cached prefixes that no request uses."""
    return int(now.counts[FREE] + now.counts[IDLE])


@compiled
def run_s(steps: int, batch: int, tokens: float, pace: tuple[float, float, float, float]) -> float:
    """Seconds of `steps` pure decode iterations of `batch` requests, `tokens` of context in all at first.

    `pace` is (first_s, slope_s, window_s, bend): an iteration takes first_s + slope_s C + window_s min(C,
    bend), C being the total context at that time; `bend` is the total context at which all sliding windows
    are full.
    """
    first_s, slope_s, window_s, bend = pace
    half = 0.5 * batch * steps * (steps - 1.0)
    seconds = steps * first_s + slope_s * (steps * tokens + half)
    if window_s != 0.0:
        inside = min(float(steps), max(0.0, np.ceil((bend - tokens) / batch)))
        summed = inside * tokens + 0.5 * batch * inside * (inside - 1.0) + (steps - inside) * bend
        seconds += window_s * summed
    return float(seconds)


@compiled
def mixed_s(now: Now, rows: int, scores: float, decodes: int, contexts: int) -> float:
    """Seconds of an iteration that processes prompts, from the step table (see StepTable).

    `rows` prompt tokens, `scores` query-key pairs, `decodes` requests with `contexts` tokens in total.
    """
    knots, values, x = now.rows[0], now.rows[1], float(rows + decodes)
    last = len(knots) - 1
    if x <= knots[0]:
        seconds = values[0]
    elif x >= knots[last]:
        seconds = values[last]
    else:
        place = np.searchsorted(knots, x, side="right") - 1
        slope = (values[place + 1] - values[place]) / (knots[place + 1] - knots[place])
        seconds = slope * (x - knots[place]) + values[place]
    own = now.decode[:, decodes]
    inside = min(float(contexts), now.times[WINDOW] * decodes)
    seconds += now.times[SCORE] * scores + now.times[MIXED_CONTEXT] * contexts + own[3]
    seconds += now.times[MIXED_WINDOW] * inside
    item, row, score, decode, context, seen, inner = now.least
    least = item + row * rows + score * scores + decode * decodes + context * contexts
    least += seen * min(scores, now.times[WINDOW] * rows) + inner * inside
    return float(max(seconds, least, own[0] + own[1] * contexts + own[2] * inside))


@compiled
def preempt(now: Now, book: Ints, request: int) -> None:
    """Preempt a running request: free its KV blocks and its slot; the caller puts it back into the queue."""
    lose(now, book, request)
    book[request, PREEMPTIONS] += 1


@compiled
def retract(now: Now, book: Ints) -> None:
    """Preempt as SGLang does when blocks run out, then set the ratio by which it reserves for outputs.

    Requests with the fewest output tokens (of equals the longest prompt) go to the end of the queue until the
    others have room for some more steps.
    """
    counts = now.counts
    while True:
        room = available(now) * now.counts[BLOCK]
        enough = need(now) <= available(now) and room >= RETRACT_STEPS * counts[DECODING]
        if counts[DECODING] <= 1 or enough:
            break
        victim, fewest, prompt = -1, 0, 0
        request = counts[RUN_TAIL]
        while request >= 0:
            if book[request, JOINED] >= 0:
                outputs = book[request, GENERATED] + counts[STEPS] - book[request, JOINED]
                longer = outputs == fewest and book[request, INPUT] > prompt
                if victim < 0 or outputs < fewest or longer:
                    victim, fewest, prompt = request, outputs, book[request, INPUT]
            request = book[request, BEFORE]
        preempt(now, book, victim)
        append(counts, WAIT_HEAD, book, victim)
    given, most = 0, 0
    request = counts[RUN_HEAD]
    while request >= 0:
        if book[request, JOINED] >= 0:
            given += book[request, GENERATED] + counts[STEPS] - book[request, JOINED]
            most += book[request, OUTPUT]
        request = book[request, FOLLOWING]
    now.times[RATIO] = min(1.0, (given + RETRACT_STEPS * counts[DECODING]) / (most + 1))


@compiled
def make_room(now: Now, book: Ints) -> bool:
    """Give every decoding request the KV block for its next token; True if that preempted requests."""
    preempted = need(now) > available(now)
    if preempted and now.counts[EXHAUSTION] == 1:
        retract(now, book)
    while need(now) > available(now):
        request = now.counts[RUN_TAIL]
        preempt(now, book, request)
        prepend(now.counts, WAIT_HEAD, book, request)
    take(now, need(now))
    return preempted


@compiled
def admit_imported(now: Now, book: Ints, clock: Floats) -> None:
    """Start decoding queued requests whose KV was imported, while there is room for their next token."""
    counts = now.counts
    while counts[WAIT_HEAD] >= 0 and counts[RUNNING] < now.counts[SEATS]:
        request = counts[WAIT_HEAD]
        if not book[request, IMPORTED]:
            return
        done = book[request, INPUT] + book[request, GENERATED] - 1
        whole = now.counts[ADMISSION] == 2
        wanted = holds(now, longest(book, request) if whole else done + 1)
        if wanted + need(now) > available(now):
            return
        take(now, wanted if whole else holds(now, done))
        seat(now, book, clock, request, done, book[request, CACHED])
        book[request, DONE] = done
        join(now, book, request)


@compiled
def seat(now: Now, book: Ints, clock: Floats, request: int, prompt: int, hit: int) -> None:
    """Move the request at the head of the queue to the running ones; `hit` prompt tokens were cached."""
    counts = now.counts
    unlink(counts, WAIT_HEAD, book, request)
    append(counts, RUN_HEAD, book, request)
    counts[RUNNING] += 1
    book[request, ORDER] = counts[ADMITTED]
    counts[ADMITTED] += 1
    book[request, PROMPT], book[request, HIT] = prompt, hit
    book[request, JOINED] = -1
    if np.isnan(clock[request, START]):
        clock[request, START] = now.times[NOW]


@compiled
def admitted(now: Now, book: Ints, clock: Floats) -> bool:
    """Admit the request at the head of the queue if its KV blocks fit; False while it must wait."""
    counts, request = now.counts, now.counts[WAIT_HEAD]
    if book[request, IMPORTED]:
        return False
    prompt, prefix = book[request, INPUT] + book[request, GENERATED], book[request, PREFIX]
    whole = holds(now, longest(book, request) if now.counts[ADMISSION] == 2 else prompt)
    shared, claimed = 0, 0
    if now.counts[CACHING] == 1 and prefix >= 0 and now.entries[prefix, ENTRY_BLOCKS] > 0:
        reusable = min(book[request, PREFIX_TOKENS], prompt - 1) // now.counts[BLOCK]
        shared = min(reusable, now.entries[prefix, ENTRY_BLOCKS])
        if shared > 0 and now.entries[prefix, ENTRY_USERS] == 0:
            claimed = now.entries[prefix, ENTRY_BLOCKS]
        if claimed > 0 and whole - shared + claimed > available(now):
            shared, claimed = 0, 0
    blocks = whole - shared
    if blocks + claimed > available(now):
        return False
    if now.counts[ADMISSION] == 1 and counts[RUNNING] > 0:
        ahead = 0
        other = counts[RUN_HEAD]
        while other >= 0:
            ahead += book[other, OUTPUT] - book[other, GENERATED]
            if book[other, JOINED] >= 0:
                ahead -= counts[STEPS] - book[other, JOINED]
            other = book[other, FOLLOWING]
        outputs = book[request, OUTPUT] - book[request, GENERATED]
        wanted = prompt - shared * now.counts[BLOCK] + min(outputs, LONGEST_RESERVED)
        if wanted + now.times[RATIO] * ahead >= (available(now) - claimed) * now.counts[BLOCK]:
            return False
    if shared > 0:
        pin(now, prefix)
    take(now, blocks)
    hit = max(shared * now.counts[BLOCK], min(book[request, GIVEN], prompt - 1))
    seat(now, book, clock, request, prompt, hit)
    book[request, DONE], book[request, SHARED], book[request, PINNED] = hit, shared, shared > 0
    book[request, CACHED] = hit
    return True
