"""A lane finds out what a server takes: the real lane against models of servers, in virtual time."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.limited import Crowd, Limited, crowd, per_second
from support.soak import few
from support.virtual import loop_time, run_virtually

from agac.engine.ask.adaptive import CUT, Adaptive, LanePhase, TriedBound

LATENCIES = [(0.001, 64), (0.05, 64), (0.5, 64), (5.0, 256)]


def asked(
    server: Limited, calls: int = 2000, most: int = 64, lift: tuple[float, float, float] | None = None
) -> tuple[Limited, Crowd, float]:
    """So many calls, `most` at once; `lift`: after so many seconds the server has another rate and another bucket.

    Gives the server, those who asked it, and the seconds that it took.
    """

    async def scenario() -> tuple[Limited, Crowd, float]:
        asking = crowd(server, calls, most)
        if lift:
            asyncio.get_running_loop().call_later(lift[0], server.lift, lift[1], lift[2])
        start = loop_time()
        await asking.work(most)
        return server, asking, loop_time() - start

    return run_virtually(scenario())


def settled(server: Limited, after: float = 15.0) -> float:
    """Calls accepted a second, once the first seconds are over."""
    return per_second(server.accepted, 1000 + after, server.accepted[-1])


def refused_share(server: Limited) -> float:
    return len(server.refused) / (len(server.refused) + len(server.accepted))


@pytest.mark.parametrize("headers", ["none", "early", "late"])
@pytest.mark.parametrize(("latency", "most"), few(LATENCIES, 2))
def test_a_run_settles_at_the_servers_rate_and_few_calls_are_refused(latency: float, most: int, headers: str) -> None:
    server, asking, _ = asked(Limited(rate=20, latency=latency, headers=headers), most=most)
    assert settled(server) == pytest.approx(20, rel=0.1)
    assert refused_share(server) < 0.02
    assert asking.most_tries <= 5


OTHERS: list[tuple[dict[str, Any], int, float]] = [
    ({"rate": 20, "says_when": False}, 64, 0.02),
    *(({"rate": 20, "latency": latency, "spread": 0.4, "trip": 0.05}, most, 0.02) for latency, most in LATENCIES[1:]),
    *few(
        [
            ({"rate": n, "burst": n, "latency": 0.5}, 64, share)
            for n, share in ((2, 0.08), (8, 0.04), (50, 0.02), (100, 0.02))
        ],
        2,
    ),
]


@pytest.mark.parametrize(("server", "most", "share"), OTHERS)
def test_the_same_at_other_rates_with_times_that_vary_and_none_to_come_again(
    server: dict[str, Any], most: int, share: float
) -> None:
    found, _, _ = asked(Limited(**server), calls=100 * server["rate"], most=most)
    assert settled(found) == pytest.approx(server["rate"], rel=0.1)
    assert refused_share(found) < share


@pytest.mark.parametrize("headers", ["early", "late"])
@pytest.mark.parametrize("latency", [0.001, 0.5])
def test_headers_of_a_large_bucket_are_followed_and_not_waited_out(headers: str, latency: float) -> None:
    """A minute's worth at once, then twenty a second; its reset says when the bucket will be full, a minute later."""
    server, _, seconds = asked(Limited(rate=20, burst=1200, latency=latency, headers=headers))
    assert refused_share(server) < 0.02
    assert seconds < 45  # 800 calls at 20 a second, and what the first 1,200 took


@pytest.mark.parametrize("headers", few(["none", "early", "late"], 2))
def test_windows_are_used_up_and_waited_out(headers: str) -> None:
    server, _, seconds = asked(Limited(rate=20, burst=1200, window=60, headers=headers), calls=6000)
    assert refused_share(server) < 0.02
    assert seconds < 300


GROWING = [(*each, headers) for each in [(0.001, 64), (0.5, 64), (5.0, 1000)] for headers in ("none", "late")]


@pytest.mark.parametrize(("latency", "most", "headers"), few(GROWING, 3))
def test_a_run_grows_again_when_the_limit_is_lifted(latency: float, most: int, headers: str) -> None:
    server, _, _ = asked(Limited(rate=20, latency=latency, headers=headers), 8000, most, lift=(40, 2000, 2000))
    assert per_second(server.accepted, 1025, 1040) == pytest.approx(20, rel=0.1)
    assert per_second(server.accepted, 1070, 1075) >= 100
    assert refused_share(server) < 0.02


def test_a_run_slows_down_when_the_limit_is_lowered() -> None:
    server, _, _ = asked(Limited(rate=100, burst=100), calls=4000, lift=(30, 10, 10))
    assert per_second(server.accepted, 1015, 1030) == pytest.approx(100, rel=0.1)
    assert per_second(server.accepted, 1045, 1080) == pytest.approx(10, rel=0.1)
    assert refused_share(server) < 0.02


@pytest.mark.parametrize(
    ("room", "latency", "most"), few([(10, 0.5, 64), (10, 0.05, 64), (30, 5.0, 64), (50, 0.5, 200)], 2)
)
def test_a_server_that_takes_so_many_at_once_gets_about_so_many(room: int, latency: float, most: int) -> None:
    ideal = room / latency
    server, asking, seconds = asked(Limited(room=room, latency=latency), calls=int(60 * ideal), most=most)
    assert server.most_inside == room
    assert 60 * ideal / seconds >= 0.8 * ideal
    assert refused_share(server) < 0.08
    assert asking.most_tries <= 5


def test_a_model_that_takes_long_is_soon_at_full_width() -> None:
    server, _, seconds = asked(Limited(latency=0.5, trip=0.0), calls=2000)
    assert seconds <= 1.05 * 2000 * 0.5 / 64
    assert server.most_inside == 64


@pytest.mark.parametrize(("share", "trouble"), [(0.01, False), (0.05, False), (0.1, False), (0.01, True)])
def test_refusals_without_a_reason_do_not_bring_a_run_to_its_knees(share: float, trouble: bool) -> None:
    server, asking, seconds = asked(Limited(latency=0.05, noise=share, noise_is_trouble=trouble), calls=2000)
    assert len(server.accepted) == 2000
    assert seconds < 200
    assert asking.most_tries <= 10


def test_a_lane_that_is_refused_from_the_first_call_on_is_not_slowed_down_for_it() -> None:
    """Nothing was ever accepted: a wrong pace is not the reason, and only the pauses asked for are kept."""
    adaptive = Adaptive(64, 0.0)
    for attempt in range(1, 20):
        adaptive.refused(adaptive.sent(attempt / 10), attempt / 10 + 0.01, took=0.01, in_flight=0, delay=0.0)
        assert adaptive.interval == 0.0


def test_calls_that_were_under_way_together_are_cut_for_once() -> None:
    adaptive = Adaptive(64, 0.0)
    numbers = [adaptive.sent(i / 100) for i in range(100)]
    for number in numbers[40:80]:
        adaptive.refused(number, 1.0, took=0.1, in_flight=20, delay=0.05)
    once = adaptive.interval
    assert once > 0
    adaptive.refused(numbers[-1], 1.1, took=0.1, in_flight=0, delay=0.05)
    assert adaptive.interval == once
    adaptive.refused(adaptive.sent(1.2), 1.3, took=0.1, in_flight=0, delay=0.05)
    assert adaptive.interval > once


def widened() -> tuple[Adaptive, list[int]]:
    """Bounds at full width, and the numbers of sixty calls that were sent."""
    adaptive = Adaptive(64, 0.0)
    adaptive.held_by_limit(10.0)
    assert adaptive.limit == 64
    return adaptive, [adaptive.sent(0.0) for _ in range(60)]


def test_a_refusal_by_rate_slows_down_trouble_narrows_and_a_refusal_without_a_time_does_both() -> None:
    adaptive, numbers = widened()
    adaptive.refused(numbers[30], 0.1, took=0.1, in_flight=59, delay=1.0)
    assert (adaptive.limit, adaptive.interval > 0) == (64, True)
    slow = adaptive.interval
    adaptive.overloaded(numbers[31], took=0.1, in_flight=40)
    assert (adaptive.limit, adaptive.interval) == (int(40 * CUT), slow)
    adaptive.held_by_limit(6.0)
    assert adaptive.limit == 40
    adaptive.held_by_limit(600.0)
    assert adaptive.limit == 64
    adaptive, numbers = widened()
    adaptive.refused(numbers[30], 0.1, took=0.1, in_flight=40, delay=None)
    assert (adaptive.limit, adaptive.interval > 0) == (int(40 * CUT), True)


EVENTS: Any = st.lists(
    st.tuples(
        st.sampled_from(["sent", "limit", "pace", "refused", "overloaded", "marked"]),
        st.floats(0, 100, allow_subnormal=False),
        st.one_of(st.none(), st.floats(0, 900)),
    ),
    max_size=200,
)


@given(st.integers(1, 500), EVENTS)
def test_bounds_stay_bounds_whatever_happens(most: int, events: Any) -> None:
    adaptive, now, sent = Adaptive(most, 0.0), 0.0, 0
    for what, seconds, delay in events:
        now += seconds
        number = max(1, sent - int(seconds))
        match what:
            case "sent":
                sent = adaptive.sent(now)
            case "limit":
                adaptive.held_by_limit(seconds)
            case "pace" if adaptive.interval:
                adaptive.held_by_pace(seconds)
            case "refused" if sent:
                adaptive.refused(number, now, took=seconds, in_flight=int(seconds), delay=delay)
            case "overloaded" if sent:
                adaptive.overloaded(number, took=seconds, in_flight=int(seconds))
            case "marked" if sent:
                adaptive.marked(number, now, took=seconds)
        assert 1 <= adaptive.limit <= most
        assert 0 <= adaptive.interval < 1e6


def test_a_curve_comes_back_to_its_top_and_leaves_it_faster_and_faster() -> None:
    curve = TriedBound(0.2)
    curve.cut(1, 20.0, 6.0)
    seen = []
    for _ in range(5):
        seen.append(curve.value)
        curve.grow(6.0)
    assert seen == pytest.approx([17, 20, 23, 44, 101])


class Placed(TriedBound):
    """A bound that stands where the test says."""

    phase = LanePhase.TRYING

    def noise(self, phase: LanePhase, calls: int) -> bool:
        """So many calls in this phase, the last of them refused: whether that is noise."""
        self.phase = phase
        for _ in range(calls):
            self.count_call()
        return self.is_noise()


def test_refusals_where_there_should_be_none_are_noise_once_the_bound_was_measured_anew() -> None:
    bound = Placed(0.2)
    assert [bound.noise(LanePhase.CALM, 30) for _ in range(3)] == [True, True, False]
    assert bound.noise(LanePhase.CUT, 1)
    assert [bound.noise(LanePhase.CALM, 30) for _ in range(6)] == [True] * 6
    assert bound.noise(LanePhase.TRYING, 60)
    assert [bound.is_noise() for _ in range(5)] == [True] * 4 + [False]  # one of thirty was usual


def test_refusals_where_they_were_to_be_expected_or_many_where_there_should_be_none_are_no_noise() -> None:
    bound = Placed(0.2)
    assert bound.noise(LanePhase.CALM, 30)
    assert not bound.noise(LanePhase.TRYING, 60)
    bound = Placed(0.2)
    assert [bound.noise(LanePhase.CALM, 30) for _ in range(3)] == [True, True, False]
    assert bound.noise(LanePhase.CUT, 1)
    assert [bound.noise(LanePhase.CALM, 3) for _ in range(5)] == [True, True, False, False, False]
