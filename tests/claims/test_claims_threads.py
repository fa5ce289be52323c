"""Work side by side: results in order, and an end for all where one fails."""

from __future__ import annotations

import threading
import time

import pytest

from attnlab.claims.threads import side_by_side


def test_results_are_in_order_whichever_ends_first():
    second_is_over = threading.Event()

    def work(item, look):
        if item == 0:
            assert second_is_over.wait(30)  # would never come, were they one after the other
        if item == 1:
            second_is_over.set()
        return f"result {item}"

    assert side_by_side(work, range(5)) == [f"result {item}" for item in range(5)]


def test_no_more_at_a_time_than_asked_for():
    lock, running, most = threading.Lock(), set(), []

    def work(item, look):
        with lock:
            running.add(item)
            most.append(len(running))
        time.sleep(0.01)
        with lock:
            running.discard(item)

    side_by_side(work, range(12), at_once=3)
    assert max(most) == 3


def test_an_error_is_told_and_ends_the_others():
    begun = []

    def work(item, look):
        begun.append(item)
        if item == 1:
            raise ValueError("item 1")
        while item == 0:  # for ever, unless it is stopped
            look(None)
            time.sleep(0.001)

    with pytest.raises(ValueError, match="item 1"):
        side_by_side(work, [1, 0, 2, 3, 4, 5, 6, 7])
    assert len(begun) < 8
