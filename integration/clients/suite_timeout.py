"""A pytest plugin: a test that takes longer than SUITE_TIMEOUT seconds fails, and the others go on."""

import os
import signal

import pytest

LIMIT = int(os.environ.get("SUITE_TIMEOUT", "20"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    def expire(signum, frame):
        signal.alarm(5)  # and again, where a clean-up hangs as well
        raise TimeoutError(f"no end after {LIMIT} seconds")

    signal.signal(signal.SIGALRM, expire)
    signal.alarm(LIMIT)
    try:
        return (yield)
    finally:
        signal.alarm(0)
