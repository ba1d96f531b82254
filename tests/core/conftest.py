"""Real processes for the tests of what processes do to each other."""

from __future__ import annotations

import os
import signal
import traceback
import warnings

import pytest

from fastvec._core.launch import ForkedProcess, wait_for_exit


@pytest.fixture
def forked():
    """Run functions in forked children, which end with 0, or 1 where the function raised; none outlives the test."""
    children = []

    def start(function):
        with warnings.catch_warnings():
            # Newer Pythons warn of every other thread, and the test runner's watchdog is one.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(ForkedProcess(pid))
        return children[-1]

    yield start
    for child in children:
        child.kill(signal.SIGKILL)
        assert wait_for_exit([child], 60) == []
        child.release()


@pytest.fixture
def exit_code_of():
    """Wait for a process to end, however busy the machine is, and tell how: ``-N`` for signal N."""

    def wait(process):
        assert wait_for_exit([process], 60) == [], f"process {process.pid} does not end"
        return process.poll()

    return wait
