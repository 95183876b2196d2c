"""The compiled loop of the fast player: prompts iteration by iteration, runs of pure decode in one formula.

Between a finish, an arrival and the exhaustion of blocks a batch of b requests decodes unchanged, and k steps
take k a + beta (k C + b k (k - 1) / 2) seconds, C being the sum of contexts: a run costs the same whatever
its length. Importing this module imports numba, so it is imported inside functions only.
"""

from tangram_sim.serving.admission_kernels import (
    admit_imported,
    admitted,
    available,
    make_room,
    mixed_s,
    run_s,
)
from tangram_sim.serving.batching import (
    DECODE_COUNTS,
    FIRST_RATIO,
    LEAST_RATIO,
    PROMPT_COUNTS,
    RATIO_FALL,
    SAME_S,
)
from tangram_sim.serving.compiled import compiled
from tangram_sim.serving.fast_state import (
    ADMISSION,
    BLOCK,
    BLOCKS,
    BUDGET,
    BUSY,
    CHUNK,
    CONTEXT,
    DECODING,
    DONE,
    EVENTS,
    FINISH,
    FIRST,
    FOLLOWING,
    GENERATED,
    HALT,
    HELD_HEAD,
    INTERVAL,
    KEEPS,
    LAST_STEP,
    LEFT,
    LEFT_LAST,
    MIXED,
    NOW,
    OUTPUT,
    PARTIAL,
    PAUSE,
    PEAK,
    PEND_HEAD,
    PREFIX_TOKENS,
    PROCESSED,
    PROMPT,
    RATIO,
    READY,
    RUN_HEAD,
    RUNNING,
    SEATS,
    STEPS,
    UNSEEN,
    WAIT_HEAD,
    WINDOW,
    Floats,
    Ints,
    Now,
    append,
    join,
    leave,
    longest,
    own_blocks,
    settle,
    share,
    take,
    tokens_of,
    unlink,
)


@compiled
def served(now: Now, book: Ints, clock: Floats, request: int) -> None:
    """Note that a request finished; a closed-loop client's next request becomes ready after its pause."""
    counts = now.counts
    clock[request, FINISH] = now.times[NOW]
    counts[LEFT_LAST] += longest(book, request) + 1
    if counts[HELD_HEAD] >= 0:
        after = counts[HELD_HEAD]
        unlink(counts, HELD_HEAD, book, after)
        clock[after, READY] = now.times[NOW] + now.times[PAUSE]
        append(counts, PEND_HEAD, book, after)


@compiled
def finish_due(now: Now, book: Ints, clock: Floats) -> None:
    """Remove decoding requests that have delivered their last token."""
    while now.counts[DECODING] > 0 and book[now.heap[0], LAST_STEP] <= now.counts[STEPS]:
        request = now.heap[0]
        served(now, book, clock, request)
        if book[request, KEEPS]:
            share(now, book, request, tokens_of(now, book, request))
        blocks = own_blocks(now, book, request)
        settle(now, book, request)
        leave(now, book, request, blocks)


@compiled
def deliver_first(now: Now, book: Ints, clock: Floats, request: int) -> None:
    """Deliver the output token of a computed prompt; the request then decodes or, if done, leaves."""
    share(now, book, request, book[request, PREFIX_TOKENS])
    book[request, GENERATED] += 1
    if book[request, GENERATED] == 1:
        clock[request, FIRST] = now.times[NOW]
    if book[request, GENERATED] < book[request, OUTPUT]:
        join(now, book, request)
        return
    served(now, book, clock, request)
    if book[request, KEEPS]:
        share(now, book, request, book[request, DONE])
    leave(now, book, request, own_blocks(now, book, request))


@compiled
def run_length(now: Now, book: Ints, clock: Floats, until_s: float, preempted: bool) -> tuple[int, float]:
    """(pure decode iterations until the next event, their seconds); 0 iterations: the replica stops first.

    Events: a request finishes, arrives or is polled for, KV blocks run out, `until_s` is reached. The blocks
    for the first of these iterations are already allocated. `preempted`: requests were preempted for these
    blocks, so waiting requests may be admitted after one iteration.
    """
    counts, times = now.counts, now.times
    batch = counts[DECODING]
    steps = book[now.heap[0], LAST_STEP] - counts[STEPS]
    if preempted or (now.counts[ADMISSION] == 1 and counts[WAIT_HEAD] >= 0):
        steps = 1  # the share that is reserved falls with every step: the next one may be let in, too
    size = now.counts[BLOCK]
    if now.counts[ADMISSION] != 2 and batch * (steps // size + 1) > available(now):
        left, most = available(now), 1
        most += size * (left // batch)
        left -= batch * (left // batch)
        place = -(counts[STEPS] + most) % size
        while most < steps:
            left -= now.residues[place]
            if left < 0:
                break
            place = place - 1 if place else size - 1
            most += 1
        steps = min(steps, most)
    end_s = until_s
    # Looked for now and then, requests go to the queue at their times even while others wait in it.
    if counts[PEND_HEAD] >= 0 and (counts[WAIT_HEAD] < 0 or counts[INTERVAL] > 1):
        if clock[counts[PEND_HEAD], READY] <= times[NOW] + SAME_S:
            steps = min(steps, counts[INTERVAL] - counts[UNSEEN])
        else:
            end_s = min(end_s, clock[counts[PEND_HEAD], READY])
    tokens, rows = float(counts[CONTEXT] + batch), now.decode
    pace = rows[0, batch], rows[1, batch], rows[2, batch], batch * times[WINDOW]
    now_s, halt_s = times[NOW], times[HALT]
    seconds = run_s(steps, batch, tokens, pace)
    if now_s + seconds + SAME_S >= end_s:
        # The first iteration whose end is not before `end_s`.
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            if now_s + run_s(middle, batch, tokens, pace) + SAME_S >= end_s:
                high = middle
            else:
                low = middle
        steps = high
        seconds = run_s(steps, batch, tokens, pace)
    if now_s + seconds > halt_s:
        low, high = 0, steps
        while high - low > 1:
            middle = (low + high) // 2
            if now_s + run_s(middle, batch, tokens, pace) > halt_s:
                high = middle
            else:
                low = middle
        steps = low
        seconds = run_s(steps, batch, tokens, pace)
    return steps, seconds


@compiled
def decode_run(now: Now, book: Ints, clock: Floats, until_s: float, preempted: bool) -> bool:
    """Run pure decode up to the next event; False if the replica stops before one iteration ends."""
    counts, times, size = now.counts, now.times, now.counts[BLOCK]
    steps, seconds = run_length(now, book, clock, until_s, preempted)
    times[RATIO] = max(LEAST_RATIO, times[RATIO] - max(1, steps) * RATIO_FALL)
    if steps == 0:
        times[NOW] = times[HALT]
        return False
    if now.counts[ADMISSION] != 2:
        # Every block size steps each request takes one block; what is left is counted step by step.
        more, left = counts[DECODING] * ((steps - 1) // size), (steps - 1) % size
        place = -(counts[STEPS] + steps - left) % size
        for _ in range(left):
            more += now.residues[place]
            place = place - 1 if place else size - 1
        take(now, more)
    counts[UNSEEN] = (counts[UNSEEN] + steps - 1) % counts[INTERVAL] + DECODE_COUNTS
    times[NOW] += seconds
    times[BUSY] += seconds
    counts[PROCESSED] += steps * counts[DECODING]
    counts[PEAK] = max(counts[PEAK], now.counts[BLOCKS] - available(now))
    counts[STEPS] += steps
    counts[CONTEXT] += steps * counts[DECODING]
    finish_due(now, book, clock)
    return True


@compiled
def iterate(now: Now, book: Ints, clock: Floats, until_s: float) -> bool:
    """Run one iteration with prompts, or a run of pure decode; False if the replica stops before it ends."""
    counts, times = now.counts, now.times
    counts[EVENTS] += 1
    counts[LEFT] += counts[LEFT_LAST]
    counts[LEFT_LAST] = 0
    if counts[UNSEEN] >= counts[INTERVAL]:
        counts[UNSEEN] = 0
    admit_imported(now, book, clock)
    mixed = now.counts[MIXED] == 1
    budget, preempted, decodes = now.counts[BUDGET], False, 0
    if mixed:
        preempted = make_room(now, book)
        decodes = counts[DECODING]
        budget -= decodes
    rows, scores = 0, 0.0
    first, begun = -1, counts[PARTIAL]  # newly admitted requests are the last ones that run
    if begun >= 0:
        book[begun, CHUNK] = min(book[begun, PROMPT] - book[begun, DONE], budget)
        budget -= book[begun, CHUNK]
        rows += book[begun, CHUNK]
        scores += book[begun, CHUNK] * (book[begun, DONE] + 0.5 * book[begun, CHUNK])
    while not preempted and budget > 0 and counts[WAIT_HEAD] >= 0 and counts[RUNNING] < now.counts[SEATS]:
        request = counts[WAIT_HEAD]
        if not admitted(now, book, clock):
            break
        if first < 0:
            first = request
        book[request, CHUNK] = min(book[request, PROMPT] - book[request, DONE], budget)
        budget -= book[request, CHUNK]
        rows += book[request, CHUNK]
        scores += book[request, CHUNK] * (book[request, DONE] + 0.5 * book[request, CHUNK])
    if rows == 0:
        if not mixed:
            preempted = make_room(now, book)
        if counts[DECODING] > 0:
            return decode_run(now, book, clock, until_s, preempted)
        counts[UNSEEN] += DECODE_COUNTS
        return True
    counts[UNSEEN] += PROMPT_COUNTS
    seconds = mixed_s(now, rows, scores, decodes, counts[CONTEXT] + decodes if mixed else 0)
    if times[NOW] + seconds > times[HALT]:
        times[NOW] = times[HALT]
        return False
    times[NOW] += seconds
    times[BUSY] += seconds
    counts[PROCESSED] += rows + decodes
    counts[PEAK] = max(counts[PEAK], now.counts[BLOCKS] - available(now))
    if decodes > 0:
        counts[STEPS] += 1
        counts[CONTEXT] += decodes
        finish_due(now, book, clock)
    counts[PARTIAL] = -1
    if begun >= 0:
        worked_on(now, book, clock, begun)
    while first >= 0:
        behind = book[first, FOLLOWING]
        worked_on(now, book, clock, first)
        first = behind
    return True


@compiled
def worked_on(now: Now, book: Ints, clock: Floats, request: int) -> None:
    """Record a finished prompt chunk; after the last chunk, deliver the first output token."""
    book[request, DONE] += book[request, CHUNK]
    if book[request, DONE] == book[request, PROMPT]:
        deliver_first(now, book, clock, request)
    else:
        now.counts[PARTIAL] = request


@compiled
def advance(now: Now, book: Ints, clock: Floats, until_s: float) -> None:
    """Run all iterations that start before `until_s`, but none after the replica is halted."""
    counts, times = now.counts, now.times
    until_s = min(until_s, times[HALT])
    while True:
        looks = counts[UNSEEN] >= counts[INTERVAL]
        while looks and counts[PEND_HEAD] >= 0 and clock[counts[PEND_HEAD], READY] <= times[NOW] + SAME_S:
            request = counts[PEND_HEAD]
            unlink(counts, PEND_HEAD, book, request)
            append(counts, WAIT_HEAD, book, request)
        if counts[RUN_HEAD] < 0 and counts[WAIT_HEAD] < 0:
            times[RATIO] = FIRST_RATIO
            counts[UNSEEN] = counts[INTERVAL]  # an idle engine looks all the time
            if counts[PEND_HEAD] < 0 or clock[counts[PEND_HEAD], READY] + SAME_S >= until_s:
                return
            times[NOW] = max(times[NOW], clock[counts[PEND_HEAD], READY])
        elif times[NOW] + SAME_S >= until_s or not iterate(now, book, clock, until_s):
            return


@compiled
def push_all(now: Now, book: Ints, clock: Floats, requests: Ints, ready_s: Floats) -> None:
    """Queue requests that may be scheduled from `ready_s` on; they are in the order of these times."""
    for k in range(len(requests)):
        clock[requests[k], READY] = ready_s[k]
        append(now.counts, PEND_HEAD, book, requests[k])


@compiled
def hold(now: Now, book: Ints, requests: Ints) -> None:
    """Set requests aside for closed-loop clients: one becomes ready after each request that finishes."""
    for k in range(len(requests)):
        append(now.counts, HELD_HEAD, book, requests[k])
