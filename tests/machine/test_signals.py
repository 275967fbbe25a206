"""The effect of signals at each point of a run."""

import os
import select
import signal
import time

import pytest

from parallel_ppo.exits import ExitCode, Interrupted
from parallel_ppo.machine.signals import ENDINGS, Signals


@pytest.fixture
def signals():
    for number in ENDINGS:  # a test runner in the background may have been started with some of them ignored
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    made = Signals()
    yield made
    made.close()


def exit_code_of(action):
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def send(number):
    os.kill(os.getpid(), number)
    time.sleep(0.01)


@pytest.mark.parametrize("number", ENDINGS)
def test_before_training_the_process_leaves_at_once(signals, number):
    assert exit_code_of(lambda: send(number)) == ENDINGS[number]


def test_during_training_a_signal_waits_for_a_safe_place(signals):
    signals.started()
    send(signal.SIGTERM)
    send(signal.SIGTERM)  # a second one changes nothing
    assert signals.waker.recv(10)  # whoever waits is woken
    with pytest.raises(Interrupted) as caught:
        signals.check()
    assert caught.value.code == ExitCode.PREEMPTED and caught.value.signal_name == "SIGTERM"


def test_work_that_is_thrown_away_is_broken_off_at_once(signals):
    signals.started()
    with pytest.raises(Interrupted), signals.interruptible():
        send(signal.SIGUSR1)
        pytest.fail("went on")
    with pytest.raises(Interrupted), signals.interruptible():
        pytest.fail("started again")


def test_a_second_ctrl_c_ends_the_process(signals):
    signals.started()

    def twice():
        send(signal.SIGINT)
        send(signal.SIGINT)

    assert exit_code_of(twice) == ExitCode.INTERRUPTED


def test_what_was_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        made = Signals()
        made.started()
        send(signal.SIGHUP)
        made.check()
        made.close()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_foreign_signal_wakes_once() -> None:
    """Signals of other libraries must not keep the waker readable, because a waiting pool would spin."""
    previous, signals = signal.signal(signal.SIGUSR2, lambda *_: None), Signals()
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert select.select([signals.waker], [], [], 5)[0]
        signals.check()
        assert not select.select([signals.waker], [], [], 0)[0]
    finally:
        signals.close()
        signal.signal(signal.SIGUSR2, previous)
