"""Conversion of workload and ledger to the fast player's table of requests (the book), and back.

Compiled, request by request: a book has a row for each request, so a pass over each column would read the
whole table every time. Importing this module imports numba, so it is imported inside functions only.
"""

from tangram_sim.serving.compiled import compiled
from tangram_sim.serving.fast_state import (
    BEFORE,
    CACHED,
    FINISH,
    FIRST,
    FOLLOWING,
    GENERATED,
    GIVEN,
    IMPORTED,
    INPUT,
    JOINED,
    KEEPS,
    OUTPUT,
    PREEMPTIONS,
    PREFIX,
    PREFIX_TOKENS,
    READY,
    START,
    WASTED,
    Floats,
    Ints,
)


@compiled
def open_book(
    book: Ints,
    clock: Floats,
    inputs: Ints,
    outputs: Ints,
    prefix: Ints,
    prefix_tokens: Ints,
    keeps: Ints,
    given: Ints,
    generated: Ints,
    imported: Ints,
    preemptions: Ints,
    cached: Ints,
    wasted: Ints,
    ready_s: Floats,
    start_s: Floats,
    first_s: Floats,
    finish_s: Floats,
) -> None:
    """Fill the arrays `book` and `clock` from the columns of a workload and a ledger.

    Initially no request waits or runs. Columns have one entry for each request; times are in seconds.
    """
    for k in range(len(book)):
        book[k, :] = 0
        book[k, FOLLOWING] = book[k, BEFORE] = book[k, JOINED] = -1
        book[k, INPUT], book[k, OUTPUT] = inputs[k], outputs[k]
        book[k, PREFIX], book[k, PREFIX_TOKENS] = prefix[k], prefix_tokens[k]
        book[k, KEEPS], book[k, GIVEN] = keeps[k], given[k]
        book[k, GENERATED], book[k, IMPORTED], book[k, PREEMPTIONS] = (
            generated[k],
            imported[k],
            preemptions[k],
        )
        book[k, CACHED], book[k, WASTED] = cached[k], wasted[k]
        clock[k, READY], clock[k, START] = ready_s[k], start_s[k]
        clock[k, FIRST], clock[k, FINISH] = first_s[k], finish_s[k]


@compiled
def close_book(
    book: Ints,
    clock: Floats,
    generated: Ints,
    imported: Ints,
    preemptions: Ints,
    cached: Ints,
    wasted: Ints,
    ready_s: Floats,
    start_s: Floats,
    first_s: Floats,
    finish_s: Floats,
) -> None:
    """Copy the results of the requests from `book` and `clock` into the columns of a ledger."""
    for k in range(len(book)):
        generated[k], imported[k], preemptions[k] = (
            book[k, GENERATED],
            book[k, IMPORTED],
            book[k, PREEMPTIONS],
        )
        cached[k], wasted[k] = book[k, CACHED], book[k, WASTED]
        ready_s[k], start_s[k] = clock[k, READY], clock[k, START]
        first_s[k], finish_s[k] = clock[k, FIRST], clock[k, FINISH]
