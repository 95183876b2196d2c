"""Compiled loop of step lowering: order the passes of all stages so that each follows what it waits for.

Callers always pass read-only int32 columns and writable int32 outputs, so that it is compiled once; importing
this module imports numba, so it is imported inside functions only.
"""

from tangram_sim.compiling import njit
from tangram_sim.opgraph import IntArray
from tangram_sim.training.schedules.base import BACKWARD, FORWARD, SEND_BACKWARD, SEND_FORWARD


@njit(cache=True)
def merge_stages(
    stages: int,
    chunks: int,
    place_of: IntArray,
    stage_of: IntArray,
    stage_ptr: IntArray,
    order_kind: IntArray,
    order_microbatch: IntArray,
    order_chunk: IntArray,
    cursor: IntArray,
    arrived: IntArray,
    rows: IntArray,
    waits: IntArray,
) -> int:
    """Fill rows [4, n] with kind, stage, microbatch, chunk and waits [n] with the one predecessor (-1: none).

    A send follows the pass that produces it, so sends leave in that order; a pass whose successor runs on the
    same stage sends nothing. Sends are named by their target: SEND_FORWARD to the next stage, SEND_BACKWARD
    to the previous. `place_of` [stages, chunks] and `stage_of` [stages * chunks] are the positions of chunks
    in the pipeline of all chunks. `cursor` [stages] is scratch set to stage_ptr[:-1]; `arrived` [2, stages *
    chunks, microbatches] is scratch set to -1: the op after which the input of F (0) or B (1) is available.
    Returns the number of ops; fewer than expected means that stages wait for each other in a cycle, and
    `cursor` says where each is stuck.
    """
    n = 0
    last = stages * chunks - 1
    moved = True
    while moved:
        moved = False
        for stage in range(stages):
            while cursor[stage] < stage_ptr[stage + 1]:
                row = cursor[stage]
                kind, microbatch, chunk = order_kind[row], order_microbatch[row], order_chunk[row]
                place = place_of[stage, chunk]  # in the pipeline of all chunks
                wait = -1
                if kind == FORWARD:
                    if place > 0:
                        wait = arrived[0, place, microbatch]
                        if wait < 0:
                            break
                elif kind == BACKWARD:
                    wait = arrived[1, place, microbatch]
                    if wait < 0:
                        break
                rows[0, n], rows[1, n], rows[2, n], rows[3, n] = kind, stage, microbatch, chunk
                waits[n] = wait
                done = n
                n += 1
                if kind == FORWARD and place == last:
                    arrived[1, place, microbatch] = done
                elif (kind == FORWARD and place < last) or (kind == BACKWARD and place > 0):
                    way = 1 if kind == FORWARD else -1
                    target = stage_of[place + way]
                    ready = done
                    if target != stage:
                        onward = target == (stage + 1) % stages
                        if stages == 2:
                            # The other stage is behind and in front: within one chunk the way leads there or
                            # back, from one chunk to the next around.
                            within = place_of[target, chunk] == place + way
                            onward = target > stage if within else kind == FORWARD
                        send = SEND_FORWARD if onward else SEND_BACKWARD
                        rows[0, n], rows[1, n], rows[2, n], rows[3, n] = send, stage, microbatch, chunk
                        waits[n] = done
                        ready = n
                        n += 1
                    arrived[0 if kind == FORWARD else 1, place + way, microbatch] = ready
                cursor[stage] += 1
                moved = True
    return n
