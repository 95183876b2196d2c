"""Histories of nodes against a walk through their events, second by second."""

from hypothesis import given
from hypothesis import strategies as st

from tangram_sim.availability import Availability, FleetChange, NodeEvent
from tangram_sim.units import HOUR_S

KINDS = ("H100", "A100")
PRICES = {"H100": 3.0, "A100": 1.25}


@st.composite
def histories(draw: st.DrawFn) -> Availability:
    """Nodes that come, slow down, recover and go at whole seconds, and prices that change."""
    events: list[NodeEvent] = []
    there: dict[str, str] = {}
    end = draw(st.integers(5, 30))
    for second in range(end):
        for _ in range(draw(st.integers(0, 2))):
            what = draw(st.sampled_from(("add", "remove", "slow", "recover", "price", "notice")))
            if what == "add":
                node, kind = f"n{len(events)}", draw(st.sampled_from(KINDS))
                there[node] = kind
                events.append(NodeEvent(second, "add", node, kind))
            elif what == "price":
                kind = draw(st.sampled_from(("", *KINDS)))
                events.append(NodeEvent(second, "price", "", kind, float(draw(st.integers(1, 9)))))
            elif there:
                node = draw(st.sampled_from(sorted(there)))
                value = float(draw(st.integers(2, 5))) if what == "slow" else 0.0
                events.append(NodeEvent(second, what, node, there[node], value))
                if what == "remove":
                    del there[node]
    return Availability(tuple(events), float(end), "drawn")


def _walk(history: Availability) -> list[tuple[dict[str, float], dict[str, float]]]:
    """For every second: how many times slower each node there runs, and USD/h of each kind."""
    found = []
    paces: dict[str, float] = {}
    prices = dict(PRICES)
    for second in range(int(history.until_s)):
        for event in history.events:
            if event.time_s != second:
                continue
            if event.event == "add":
                paces[event.node] = 1.0
            elif event.event == "remove":
                del paces[event.node]
            elif event.event == "slow":
                paces[event.node] = event.value
            elif event.event == "recover":
                paces[event.node] = 1.0
            elif event.event == "price":
                prices |= dict.fromkeys([event.kind] if event.kind else history.kinds, event.value)
        found.append((dict(paces), dict(prices)))
    return found


@given(histories())
def test_times_and_money_are_those_of_a_walk(history: Availability) -> None:
    walk, kinds = _walk(history), history.kind_of
    assert history.node_seconds() == sum(len(there) for there, _ in walk)
    paid = sum(usd[kinds[node]] for there, usd in walk for node in there)
    assert abs(history.usd(PRICES) - paid / HOUR_S) < 1e-9
    assert history.losses == sum(
        event.event == "remove" and not _at_once(history, event.node) for event in history.events
    )
    counts = [count for _, count in history.counts()]
    assert all(
        count >= 0 and time == change.time_s
        for (time, count), change in zip(history.counts(), _moves(history), strict=True)
    )
    assert not counts or counts[-1] == len(walk[-1][0])


@given(histories())
def test_changes_lead_from_one_second_to_the_next(history: Availability) -> None:
    walk = _walk(history)
    paces: dict[str, float] = {}
    changes = {change.time_s: change for change in history.changes}
    assert list(changes) == sorted(changes) and len(changes) == len(history.changes)
    for second, (expected, _) in enumerate(walk):
        change = changes.pop(second, None)
        if change is not None:
            assert not set(change.added) & set(paces) and set(change.removed) <= set(paces)
            assert change.added or change.removed or change.paced
            paces |= dict.fromkeys(change.added, 1.0)
            for node in change.removed:
                del paces[node]
            paces |= dict(change.paced)
        assert paces == expected
    assert not changes


@given(histories(), st.data())
def test_a_window_is_the_history_between_two_seconds(history: Availability, data: st.DataObject) -> None:
    whole = _walk(history)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start, len(whole) + 3))
    window = history.window(start, stop)
    assert window.until_s == min(stop, history.until_s) - start
    assert window.name == history.name
    seconds = whole[start : int(start + window.until_s)]
    assert [there for there, _ in _walk(window)] == [there for there, _ in seconds]
    assert abs(window.usd(PRICES) - _paid(history, seconds)) < 1e-9


@given(histories())
def test_kinds_part_a_history(history: Availability) -> None:
    for kind in KINDS:
        alone = history.of_kind(kind)
        assert set(alone.kind_of.values()) <= {kind}
        of_it = [
            {node: pace for node, pace in there.items() if history.kind_of[node] == kind}
            for there, _ in _walk(history)
        ]
        assert [there for there, _ in _walk(alone)] == of_it
    parts = [history.of_kind(kind).usd(PRICES) for kind in KINDS]
    assert abs(sum(parts) - history.usd(PRICES)) < 1e-9


@given(histories(), st.integers(0, 6))
def test_nodes_are_used_when_they_have_booted(history: Availability, boot_s: int) -> None:
    came = {event.node: event.time_s for event in history.events if event.event == "add"}
    gone = {event.node: event.time_s for event in history.events if event.event == "remove"}
    seen = {
        node for node, at in came.items() if not boot_s or gone.get(node, history.until_s + 99) > at + boot_s
    }
    late = history.delayed(boot_s)
    assert set(late.kind_of) == seen
    for event in late.events:
        if event.event == "add":
            assert event.time_s == came[event.node] + boot_s
        elif event.event == "remove":
            assert event.time_s == gone[event.node]
    assert [event.time_s for event in late.events] == sorted(event.time_s for event in late.events)
    for second, ((there, _), (usable, _)) in enumerate(zip(_walk(history), _walk(late), strict=True)):
        assert usable == {node: pace for node, pace in there.items() if second >= came[node] + boot_s}


def _paid(history: Availability, seconds: list[tuple[dict[str, float], dict[str, float]]]) -> float:
    return sum(usd[history.kind_of[node]] for there, usd in seconds for node in there) / HOUR_S


def _moves(history: Availability) -> list[FleetChange]:
    return [change for change in history.changes if change.added or change.removed]


def _at_once(history: Availability, node: str) -> bool:
    """Whether a node goes in the second in which it came."""
    return (
        len(
            {
                event.time_s
                for event in history.events
                if event.node == node and event.event in ("add", "remove")
            }
        )
        == 1
    )
