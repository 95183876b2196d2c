"""A planner in another process: a working one keeps the contract, a failing one gives words, never a hang."""

import json
import sys
import textwrap
import time
from dataclasses import replace

import pytest

from tangram_sim.errors import BadInputError, TangramError
from tangram_sim.layouts import Layout
from tangram_sim.parallelizers.contract import check_parallelizer
from tangram_sim.parallelizers.external import COMMAND, External
from tangram_sim.parallelizers.grid import Grid
from tangram_sim.parallelizers.wire import question_of
from tests.contracts.requests import REQUESTS, request

STAND_IN = '''
"""A stand-in planner: `behave` says how it misbehaves."""
import json, os, sys, time

behave = sys.argv[1]
for number, line in enumerate(sys.stdin):
    asked = json.loads(line)
    gpus = asked["island"]["nodes"] * asked["island"]["gpus_per_node"]
    start, stop = asked["slice"]["start"], asked["slice"]["stop"]
    plans = [{"dp": gpus, "zero_stage": zero} for zero in (0, 1, 3)]
    if behave == "dies" or (behave == "dies later" and number == 1):
        print("out of licences", file=sys.stderr)
        sys.exit(3)
    if behave == "killed":
        os.kill(os.getpid(), 9)
    if behave == "hangs":
        time.sleep(60)
    if behave == "garbage":
        print("Planning... 42 %", flush=True)
        continue
    if behave == "no plans":
        print(json.dumps({"result": []}), flush=True)
        continue
    if behave == "list":
        print("[1, 2]", flush=True)
        continue
    if behave == "infeasible":
        plans = [{"dp": 2 * gpus}, {"tp": gpus, "recompute": "full", "ep": 7}, {"dp": gpus, "pp": gpus}]
    if behave == "nothing":
        print(json.dumps({"plans": [], "infeasible": "no idea"}), flush=True)
        continue
    if behave == "unknown key":
        plans = [{"dp": gpus, "zero": 3}]
    if behave == "bad runs":
        plans = [{"runs": [{"atoms": [start, start + 1], "dp": gpus}]}]
    if behave == "runs" and stop - start > 2:
        middle = (start + stop) // 2
        plans.append({"runs": [{"atoms": [start, middle], "dp": gpus, "zero_stage": 1},
                               {"atoms": [middle, stop], "dp": gpus, "zero_stage": 3}]})
    if behave == "asks":
        print(json.dumps({"price": plans}), flush=True)
        prices = json.loads(sys.stdin.readline())["prices"]
        fit = [(price["latency_s"], number) for number, price in enumerate(prices)
               if price.get("stages_behind", -1) >= 0]
        plans = [plans[number] for _, number in sorted(fit)[:1]]
    print(json.dumps({"plans": plans}), flush=True)
'''


@pytest.fixture
def stand_in(tmp_path):
    """Makes a parallelizer class whose program behaves in a given way."""
    program = tmp_path / "their_planner.py"
    program.write_text(textwrap.dedent(STAND_IN))

    def make(behave, limit_s=20.0):
        class Theirs(External):
            name = "theirs"
            command = (sys.executable, str(program), behave)
            time_limit_s = limit_s

        return Theirs

    return make


@pytest.mark.parametrize("behave", ["well", "runs", "asks", "infeasible", "nothing"])
def test_a_program_keeps_the_contract(stand_in, behave):
    """Whatever it proposes: what makes no sense or does not fit is rejected with a reason."""
    check_parallelizer(stand_in(behave)(), [REQUESTS["tight"], REQUESTS["few atoms"], REQUESTS["one GPU"]])


def test_its_layouts_cost_what_everybodys_cost(stand_in):
    asked = REQUESTS["few atoms"]
    answer = stand_in("well")().parallelize(asked)
    assert answer.partials
    for partial in answer.partials:
        assert partial == Grid().price(asked, partial.layout)


def test_a_program_that_asks_for_prices_is_asked_again_about_other_hardware_data(stand_in):
    asked, kept = REQUESTS["few atoms"], stand_in("asks")()
    for hwdb in (asked.hwdb, asked.hwdb.filled_to(0.5)):
        request = replace(asked, hwdb=hwdb)
        assert kept.parallelize(request).partials == stand_in("asks")().parallelize(request).partials
    assert len(kept._known) == 2


def test_infeasible_layouts_are_named_with_their_reason(stand_in):
    asked = REQUESTS["tight"]
    answer = stand_in("infeasible")().parallelize(asked)
    reasons = {item.layout: item.reason for item in answer.rejected}
    assert "occupies 8 GPUs, the island has 4" in reasons[Layout(dp=8)]
    assert not answer.partials
    empty = stand_in("nothing")().parallelize(asked)
    assert [item.reason for item in empty.rejected] == ["no idea"]


def test_runs_of_layers_are_priced(stand_in):
    asked = REQUESTS["tight"]
    roomy = replace(asked, island=replace(asked.island, gpu=replace(asked.island.gpu, memory_bytes=64e9)))
    planner = stand_in("runs")()
    proposals, _ = planner._asked(question_of(roomy), roomy)
    assert [run.layout.zero_stage for run in proposals[-1]] == [1, 3]
    assert planner.parallelize(roomy).considered == 4


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        ("dies", r"ended with exit status 3 without an answer; it said: out of licences"),
        ("killed", r"was ended by signal 9"),
        ("garbage", r"answered what is no JSON: 'Planning... 42 %'"),
        ("list", r"a JSON object is wanted"),
        ("no plans", r"without a list \"plans\" \(keys: result\)"),
        ("unknown key", r"unknown key 'zero'"),
        ("bad runs", r"runs must tile atoms \[0, 26\)"),
    ],
)
def test_a_failing_program_is_an_error_in_words(stand_in, behave, words):
    planner = stand_in(behave)()
    with pytest.raises(TangramError, match=words) as caught:
        planner.parallelize(REQUESTS["tight"])
    assert "'theirs'" in str(caught.value)
    assert planner._conversation._process is None, "nothing is left running"


def test_a_hanging_program_is_stopped_in_time(stand_in):
    planner, begun = stand_in("hangs", limit_s=1.0)(), time.monotonic()
    with pytest.raises(TangramError, match="gave no answer within 1 s and was stopped"):
        planner.parallelize(REQUESTS["tight"])
    assert time.monotonic() - begun < 30
    assert planner._conversation._process is None


def test_a_program_that_died_is_started_anew(stand_in):
    """An answer given before stays known; the next question goes to a new process."""
    planner = stand_in("dies later")()
    first = planner.parallelize(REQUESTS["tight"])
    with pytest.raises(TangramError, match="exit status 3"):
        planner.parallelize(REQUESTS["few atoms"])
    assert planner.parallelize(REQUESTS["tight"]) == first
    assert planner.parallelize(REQUESTS["few atoms"]).partials
    planner._conversation.close()


def test_a_program_named_anew_is_asked_anew(stand_in, monkeypatch):
    planner = External()
    for behave in ("well", "infeasible"):
        monkeypatch.setenv(COMMAND, " ".join(stand_in(behave).command))
        answer = planner.parallelize(REQUESTS["few atoms"])
        assert answer.partials == stand_in(behave)().parallelize(REQUESTS["few atoms"]).partials
    assert not answer.partials


def test_a_missing_program_and_a_missing_command_say_what_to_do(monkeypatch):
    class Missing(External):
        command = ("no-such-planner-anywhere",)

    with pytest.raises(TangramError, match=r"cannot be started: No such file.*is it installed"):
        Missing().parallelize(REQUESTS["tight"])
    monkeypatch.delenv(COMMAND, raising=False)
    with pytest.raises(BadInputError, match=f"set {COMMAND}"):
        External().parallelize(REQUESTS["tight"])
    monkeypatch.setenv(COMMAND, "planner")
    monkeypatch.setenv("TANGRAM_PLANNER_TIME_LIMIT_S", "soon")
    with pytest.raises(BadInputError, match="=soon: give seconds"):
        External().parallelize(REQUESTS["tight"])


def test_the_question_is_plain_json_and_says_all_that_matters():
    document = question_of(request("mixtral-8x7b", atoms=(0, 4)))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert [atom["kind"] for atom in document["slice"]["atoms"]] == ["embedding", "block", "block", "block"]
    assert document["slice"]["atoms"][1]["experts"] == 8
    other = question_of(request("mixtral-8x7b", atoms=(0, 4), microbatch=4))
    assert other != document
