"""Compiled loops of shared links: progressive filling, and an event loop over ops and flows.

As for `kernels`: callers pass contiguous int32/float64 columns, bounds are not checked, numba is imported
here. An op with links is a flow: its rate over a link is `weight x bytes/s`, at most its demand (bytes over
uncontended seconds). Rates change only when flows start or end, and only for flows that share a full link
with one of them, directly or over others.
"""

import numpy as np

from tangram_sim.compiling import njit
from tangram_sim.opgraph import FloatArray, IntArray
from tangram_sim.sim.kernels import NONE, elapsed


@njit(cache=True)
def fill(
    flows: IntArray,
    links: IntArray,
    demand: FloatArray,
    link_ptr: IntArray,
    link: IntArray,
    weight: FloatArray,
    capacity: FloatArray,
    crossings: FloatArray,
    load: FloatArray,
    rate: FloatArray,
) -> None:
    """Set the rate of `flows` to their max-min fair share of `links`; other links count as unlimited.

    Bertsekas & Gallager, Data Networks, 2nd ed., 6.5.2: as `fluid.max_min_rates`. `flows` is overwritten;
    crossings and load [links of the graph] are scratch, crossings negative on links not in `links`.
    """
    for where in links:
        load[where] = 0.0
    rising = flows.shape[0]
    level = 0.0
    while rising:
        for where in links:
            crossings[where] = 0.0
        least = np.inf
        for i in range(rising):
            flow = flows[i]
            least = min(least, demand[flow])
            for k in range(link_ptr[flow], link_ptr[flow + 1]):
                if crossings[link[k]] >= 0.0:
                    crossings[link[k]] += weight[k]
        full_level = np.inf
        full = -1
        for where in links:
            if crossings[where] > 0.0:
                # Rounding may put a link's level just below the level already reached.
                reached = max(level, (capacity[where] - load[where]) / crossings[where])
                if reached < full_level:
                    full_level = reached
                    full = where
        satisfied = least <= full_level
        level = least if satisfied else full_level
        kept = 0
        for i in range(rising):
            flow = flows[i]
            frozen = satisfied and demand[flow] <= level
            if not satisfied:
                for k in range(link_ptr[flow], link_ptr[flow + 1]):
                    if link[k] == full:
                        frozen = True
            if not frozen:
                flows[kept] = flow
                kept += 1
                continue
            rate[flow] = level
            for k in range(link_ptr[flow], link_ptr[flow + 1]):
                load[link[k]] += weight[k] * level
        rising = kept
    for where in links:
        crossings[where] = -1.0


@njit(cache=True)
def _before(a: int, b: int, at: FloatArray, running: IntArray) -> bool:
    """Whether slot a's event comes before slot b's: by time, then op."""
    if at[a] != at[b]:
        return bool(at[a] < at[b])
    return bool(running[a] < running[b])


@njit(cache=True)
def _settle(slot: int, size: int, heap: IntArray, place: IntArray, at: FloatArray, running: IntArray) -> None:
    """Restore the binary heap after the event of a slot has changed."""
    i = place[slot]
    while i > 0:
        parent = (i - 1) // 2
        if not _before(slot, heap[parent], at, running):
            break
        heap[i] = heap[parent]
        place[heap[i]] = i
        i = parent
    while 2 * i + 1 < size:
        child = 2 * i + 1
        if child + 1 < size and _before(heap[child + 1], heap[child], at, running):
            child += 1
        if not _before(heap[child], slot, at, running):
            break
        heap[i] = heap[child]
        place[heap[i]] = i
        i = child
    heap[i] = slot
    place[slot] = i


@njit(cache=True)
def _order(values: IntArray, count: int) -> None:
    """Sort the first `count` values (Shell, with Knuth's gaps): numpy's sort takes seconds to compile."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            value, j = values[i], i
            while j >= gap and values[j - gap] > value:
                values[j] = values[j - gap]
                j -= gap
            values[j] = value
        gap //= 3


@njit(cache=True)
def play_shared(
    pred_ptr: IntArray,
    succ_ptr: IntArray,
    succ: IntArray,
    previous: IntArray,
    following: IntArray,
    resource: IntArray,
    resources: int,
    speed_ptr: IntArray,
    speed_since: FloatArray,
    speed: FloatArray,
    duration: FloatArray,
    demand: FloatArray,
    link_ptr: IntArray,
    link: IntArray,
    weight: FloatArray,
    capacity: FloatArray,
    start: FloatArray,
    end: FloatArray,
    log_time: FloatArray,
    log_op: IntArray,
    log_rate: FloatArray,
) -> int:
    """Fill start and end [n]; returns the number of rate changes and logs as many as the log holds.

    `demand` [n] is bytes/s of flows and 0 for ops that load no link. Events at one time: by op index. Rates
    are set once all ends and starts of that time are known. Heap slots are resources: each runs one op.
    """
    n, links, entries = duration.shape[0], capacity.shape[0], link.shape[0]
    missing = np.empty(n, np.int32)
    for op in range(n):
        missing[op] = pred_ptr[op + 1] - pred_ptr[op] + (1 if previous[op] >= 0 else 0)
    # Flows on each link: doubly linked lists of entries (op, link) of the op graph's CSR.
    owner, after, before = (
        np.empty(entries, np.int32),
        np.empty(entries, np.int32),
        np.empty(entries, np.int32),
    )
    for op in range(n):
        for k in range(link_ptr[op], link_ptr[op + 1]):
            owner[k] = op
    head = np.full(links, -1, np.int32)
    tight = np.zeros(links, np.bool_)  # the flows on it together demand more than it carries
    dirty_mark, seen = np.zeros(links, np.bool_), np.zeros(links, np.bool_)
    dirty, walk, bound = np.empty(links, np.int32), np.empty(links, np.int32), np.empty(links, np.int32)
    crossings, load = np.full(links, -1.0), np.zeros(links)
    taken = np.zeros(n, np.bool_)
    fresh, touched = np.empty(resources, np.int32), np.empty(resources, np.int32)
    rising = np.empty(resources, np.int32)
    rate, set_rate = np.zeros(n), np.zeros(n)
    work, since = np.zeros(n), np.zeros(n)  # seconds at full speed left at `since`
    heap, place = np.empty(resources, np.int32), np.full(resources, -1, np.int32)
    at, running = np.empty(resources), np.empty(resources, np.int32)
    ready = np.empty(n, np.int32)
    size = changes = dirties = fresh_flows = begun = 0
    now = 0.0
    for op in range(n):
        if missing[op] == 0:
            ready[begun] = op
            begun += 1
    while True:
        for i in range(begun):
            op = ready[i]
            start[op] = now
            running[resource[op]] = op
            if demand[op] <= 0.0:
                at[resource[op]] = now + elapsed(
                    now, duration[op], resource[op], speed_ptr, speed_since, speed
                )
                place[resource[op]] = size
                size += 1
                _settle(resource[op], size, heap, place, at, running)
                continue
            work[op], since[op] = duration[op], now
            fresh[fresh_flows] = op
            fresh_flows += 1
            for k in range(link_ptr[op], link_ptr[op + 1]):
                where = link[k]
                before[k], after[k] = -1, head[where]
                if head[where] >= 0:
                    before[head[where]] = k
                head[where] = k
                if not dirty_mark[where]:
                    dirty_mark[where] = True
                    dirty[dirties] = where
                    dirties += 1
        begun = 0
        if size and at[heap[0]] <= now:
            slot = heap[0]
            size -= 1
            place[slot] = -1
            if size:
                place[heap[size]] = 0
                _settle(heap[size], size, heap, place, at, running)
            op = running[slot]
            end[op] = at[slot]
            if demand[op] > 0.0:
                if changes < log_time.shape[0]:
                    log_time[changes], log_op[changes], log_rate[changes] = now, op, 0.0
                changes += 1
                for k in range(link_ptr[op], link_ptr[op + 1]):
                    where = link[k]
                    if before[k] >= 0:
                        after[before[k]] = after[k]
                    else:
                        head[where] = after[k]
                    if after[k] >= 0:
                        before[after[k]] = before[k]
                    if not dirty_mark[where]:
                        dirty_mark[where] = True
                        dirty[dirties] = where
                        dirties += 1
            for k in range(succ_ptr[op], succ_ptr[op + 1]):
                missing[succ[k]] -= 1
                if missing[succ[k]] == 0:
                    ready[begun] = succ[k]
                    begun += 1
            if following[op] >= 0:
                missing[following[op]] -= 1
                if missing[following[op]] == 0:
                    ready[begun] = following[op]
                    begun += 1
        elif dirties:
            # What changed: flows that start, and all that full links join to a link of one that came or went.
            count = walked = bounds = NONE
            for i in range(fresh_flows):
                taken[fresh[i]] = True
                touched[count] = fresh[i]
                count += 1
            for i in range(dirties):
                where = dirty[i]
                dirty_mark[where] = False
                asked = 0.0
                k = head[where]
                while k >= 0:
                    asked += weight[k] * demand[owner[k]]
                    k = after[k]
                was = tight[where]
                tight[where] = asked > capacity[where]
                if was or tight[where]:
                    seen[where] = True
                    walk[walked] = where
                    walked += 1
            step = 0
            while step < walked:
                k = head[walk[step]]
                step += 1
                while k >= 0:
                    op = owner[k]
                    if not taken[op]:
                        taken[op] = True
                        touched[count] = op
                        count += 1
                    for e in range(link_ptr[op], link_ptr[op + 1]):
                        if tight[link[e]] and not seen[link[e]]:
                            seen[link[e]] = True
                            walk[walked] = link[e]
                            walked += 1
                    k = after[k]
            for i in range(walked):
                seen[walk[i]] = False
                if tight[walk[i]]:
                    bound[bounds] = walk[i]
                    bounds += 1
                    crossings[walk[i]] = 0.0
            _order(touched, count)
            _order(bound, bounds)
            limited = 0
            for i in range(count):
                op = touched[i]
                taken[op] = False
                set_rate[op] = demand[op]
                for k in range(link_ptr[op], link_ptr[op + 1]):
                    if tight[link[k]]:
                        rising[limited] = op
                        limited += 1
                        break
            fill(
                flows=rising[:limited],
                links=bound[:bounds],
                demand=demand,
                link_ptr=link_ptr,
                link=link,
                weight=weight,
                capacity=capacity,
                crossings=crossings,
                load=load,
                rate=set_rate,
            )
            for i in range(count):
                op = touched[i]
                if set_rate[op] == rate[op]:
                    continue
                work[op] = max(0.0, work[op] - (now - since[op]) * (rate[op] / demand[op]))
                since[op], rate[op] = now, set_rate[op]
                if changes < log_time.shape[0]:
                    log_time[changes], log_op[changes], log_rate[changes] = now, op, rate[op]
                changes += 1
                slot = resource[op]
                left = work[op] if rate[op] == demand[op] else work[op] * demand[op] / rate[op]
                at[slot] = now + left
                if place[slot] < 0:
                    place[slot] = size
                    size += 1
                _settle(slot, size, heap, place, at, running)
            dirties = fresh_flows = 0
        elif size:
            now = at[heap[0]]
        else:
            return changes


@njit(cache=True)
def overfull(where: IntArray, change: FloatArray, capacity: FloatArray, full: IntArray) -> None:
    """Set full [links] to 1 where a load exceeds its capacity; load changes are sorted by link, then time."""
    load = 0.0
    for i in range(where.shape[0]):
        if i and where[i] != where[i - 1]:
            load = 0.0
        load += change[i]
        if load > capacity[where[i]]:
            full[where[i]] = 1
