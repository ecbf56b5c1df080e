"""Turns of a data worker's threads."""

from threading import Thread

from hindcast.pipeline.turn_lock import hold_turn, release_turn


def take_turn_in_other_thread() -> bool:
    """Return True if another thread gets the turn while this thread waits for a moment."""
    has_turn = []

    def take_turn() -> None:
        with hold_turn():
            has_turn.append(True)

    thread = Thread(target=take_turn, daemon=True)
    thread.start()
    thread.join(timeout=0.2)
    return bool(has_turn)


def test_nested_release_of_turn_releases_once() -> None:
    with hold_turn(), release_turn():
        with release_turn():
            assert take_turn_in_other_thread()
        assert take_turn_in_other_thread()
    with hold_turn():
        assert not take_turn_in_other_thread()
