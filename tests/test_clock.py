"""Clocks: setting the time does not change how much has elapsed."""

from headwater.clock import SteadyClock
from headwater.testing import SettableClock


def test_a_steady_clock_continues_from_its_start_whatever_the_time_is_set_to():
    clock = SettableClock()
    steady = SteadyClock(clock)
    start_ms = steady.now_ms()
    for jump, pause in [(-86_400, 1.5), (366 * 86_400, 2.0), (0, 0.5)]:
        clock.jump(jump)
        clock.advance(pause)

    assert start_ms == SettableClock().now_ms()
    assert steady.now_ms() == start_ms + 4_000
    assert steady.monotonic() == clock.monotonic()
    assert SteadyClock(clock).now_ms() == clock.now_ms()
