"""The standing process behind quick answers: whoever ends it, the next question has an answer."""

import os
import signal
import sys

import pytest

anyio = pytest.importorskip("anyio", reason="anyio comes with the extra `web`")


def said(words, report) -> int:
    """A verb that says what it was asked."""
    sys.stdout.write(" ".join(words))
    return 0


def test_a_process_that_was_ended_is_replaced_when_the_next_question_comes(monkeypatch):
    from tangram_sim.web import processes
    from tangram_sim.web.quick import QuickAnswers

    monkeypatch.setattr(processes, "_WARM", "json")  # nothing heavy is asked

    async def ask_twice() -> tuple[str, str]:
        quick = QuickAnswers(said, processes.Starter())
        try:
            first = await quick.answer(["one"], {})
            standing = quick._standing
            assert standing is not None
            os.kill(standing.process.pid, signal.SIGKILL)
            standing.process.join()
            second = await quick.answer(["two"], {})
            return first.out, second.out
        finally:
            quick.end()

    assert anyio.run(ask_twice) == ("one", "two")
