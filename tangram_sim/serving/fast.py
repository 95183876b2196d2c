"""The fast player: one replica, simulated from event to event (arrivals, finishes, full memory)."""

import numpy as np

from tangram_sim.serving.batching import FIRST_RATIO, SAME_S, BatchingRules
from tangram_sim.serving.engines import ADMISSION, EXHAUSTION
from tangram_sim.serving.replica import Floats, Ints, ReplicaPlayer, RequestLedger
from tangram_sim.serving.stepcost import StepTable
from tangram_sim.serving.workload import Workload


class FastRun:
    """Shared state of all fast replicas of one run: the table of requests, as arrays for compiled code."""

    def __init__(self, workload: Workload, ledger: RequestLedger) -> None:
        from tangram_sim.serving import fast_books as books
        from tangram_sim.serving import fast_state as at

        self._books, self._ledger = books, ledger
        self.book = np.empty((len(workload), at.BOOK), dtype=np.int64)
        self.clock = np.empty((len(workload), at.CLOCK))
        asked = (workload.input_tokens, workload.output_tokens, workload.prefix, workload.prefix_tokens)
        prefixes: tuple[Ints, Ints] = (workload.keeps.view(np.int8), workload.cached_tokens)
        books.open_book(self.book, self.clock, *asked, *prefixes, *self._told(), *self._times())

    def _told(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Columns of counts in the ledger, in the order of the columns of the array `book`."""
        request_ledger = self._ledger
        return (
            request_ledger.generated,
            request_ledger.imported.view(np.int8),
            request_ledger.preemptions,
            request_ledger.cached,
            request_ledger.wasted,
        )

    def _times(self) -> tuple[Floats, Floats, Floats, Floats]:
        request_ledger = self._ledger
        return request_ledger.ready_s, request_ledger.start_s, request_ledger.first_s, request_ledger.finish_s

    def write(self) -> None:
        """Copy the results of the requests to the ledger."""
        self._books.close_book(self.book, self.clock, *self._told(), *self._times())


class FastReplica(ReplicaPlayer):
    """A replica simulated by compiled code from event to event; the methods are ReplicaPlayer's."""

    def __init__(
        self, rules: BatchingRules, table: StepTable, workload: Workload, ledger: RequestLedger, run: FastRun
    ) -> None:
        super().__init__(rules, table, workload, ledger)
        from tangram_sim.serving import fast_kernels, fast_state

        self._kernels, self._places = fast_kernels, fast_state
        self._book, self._clock = run.book, run.clock
        counts = np.zeros(fast_state.COUNTS, dtype=np.int64)
        counts[: fast_state.LRU_TAIL + 1] = -1
        counts[[fast_state.HELD_HEAD, fast_state.HELD_TAIL]] = -1
        counts[fast_state.PARTIAL], counts[fast_state.FREE] = -1, rules.blocks
        prefixes = max(1, workload.prefixes)
        counts[fast_state.BUDGET : fast_state.CACHING + 1] = (
            *(rules.budget_tokens, rules.seats, rules.block_tokens, rules.blocks, rules.mixed),
            *(ADMISSION.index(rules.admission), EXHAUSTION.index(rules.exhaustion), rules.prefix_cache),
        )
        counts[[fast_state.UNSEEN, fast_state.INTERVAL]] = rules.recv_interval
        slopes = (table.window_tokens, table.score_s, table.mixed_context_s, table.mixed_window_s)
        decode, rows, least = table.stacked
        entries = np.zeros((prefixes, fast_state.ENTRIES), dtype=np.int64)
        entries[:, [fast_state.FOLLOWING, fast_state.BEFORE]] = -1
        self._now = fast_state.Now(
            counts=counts,
            times=np.array([0.0, np.inf, FIRST_RATIO, 0.0, *slopes, 0.0], dtype=np.float64),
            residues=np.zeros(rules.block_tokens, dtype=np.int64),
            heap=np.zeros(rules.seats, dtype=np.int64),
            entries=entries,
            decode=decode,
            rows=rows,
            least=least,
        )

    @property
    def finish_s(self) -> Floats:
        """A view of the finish times of all requests of the run, seconds, up to the time simulated so far."""
        return np.asarray(self._clock[:, self._places.FINISH])

    def push(self, request: int, ready_s: float) -> None:
        """See ReplicaPlayer."""
        places = self._places
        self._clock[request, places.READY] = ready_s
        places.append.py_func(self._now.counts, places.PEND_HEAD, self._book, request)

    def push_all(self, requests: Ints, ready_s: Floats) -> None:
        """See ReplicaPlayer."""
        self._kernels.push_all(self._now, self._book, self._clock, requests, ready_s)

    def hold(self, requests: Ints, pause_s: float) -> None:
        """See ReplicaPlayer."""
        self._now.times[self._places.PAUSE] = pause_s
        self._kernels.hold(self._now, self._book, requests)

    def halt_at(self, time_s: float) -> None:
        """See ReplicaPlayer."""
        self._now.times[self._places.HALT] = time_s

    def advance(self, until_s: float) -> None:
        """See ReplicaPlayer."""
        self._kernels.advance(self._now, self._book, self._clock, until_s)

    def unfinished(self) -> list[int]:
        """See ReplicaPlayer."""
        places, book, counts = self._places, self._book, self._now.counts
        left = []
        while counts[places.RUN_HEAD] >= 0:
            item = int(counts[places.RUN_HEAD])
            places.lose(self._now, book, item)
            left.append(item)
        for head in (places.WAIT_HEAD, places.PEND_HEAD, places.HELD_HEAD):
            while counts[head] >= 0:
                item = int(counts[head])
                places.unlink.py_func(counts, head, book, item)
                left.append(item)
                if book[item, places.IMPORTED]:
                    done = book[item, places.INPUT] + book[item, places.GENERATED] - 1
                    book[item, places.WASTED] += done - book[item, places.CACHED]
                    book[item, places.IMPORTED] = 0
        return left

    def finished_tokens(self, time_s: float) -> int:
        """See ReplicaPlayer."""
        counts, places = self._now.counts, self._places
        # Only the last iteration can have ended later than what the replica was advanced to.
        ended = self._now.times[places.NOW] <= time_s + SAME_S
        return int(counts[places.LEFT] + (counts[places.LEFT_LAST] if ended else 0))

    @property
    def peak_blocks(self) -> int:
        """See ReplicaPlayer."""
        return int(self._now.counts[self._places.PEAK])

    @property
    def busy_s(self) -> float:
        """See ReplicaPlayer."""
        return float(self._now.times[self._places.BUSY])

    @property
    def processed_tokens(self) -> int:
        """See ReplicaPlayer."""
        return int(self._now.counts[self._places.PROCESSED])

    @property
    def events(self) -> int:
        """See ReplicaPlayer."""
        return int(self._now.counts[self._places.EVENTS])
