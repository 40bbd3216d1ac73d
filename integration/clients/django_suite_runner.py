"""Django's test runner, with a limit of time for each test, and a report in the form of pytest's --junitxml.

SUITE_REPORT says where the report goes.
"""

import os
import signal
import unittest
from xml.etree import ElementTree

from django.test.runner import DiscoverRunner

LIMIT = 120  # seconds: some tests make hundreds of tables


def expire(signum, frame):
    raise TimeoutError(f"no end after {LIMIT} seconds")


class Result(unittest.TextTestResult):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.report = ElementTree.Element("testsuite")

    def startTest(self, test):
        super().startTest(test)
        signal.signal(signal.SIGALRM, expire)
        signal.alarm(LIMIT)

    def stopTest(self, test):
        signal.alarm(0)
        super().stopTest(test)

    def note(self, test, kind=None, message=""):
        of, _, name = test.id().rpartition(".")
        case = ElementTree.SubElement(self.report, "testcase", classname=of, name=name)
        if kind:
            ElementTree.SubElement(case, kind, message=message)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test)

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.note(test)

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "failure", "unexpected success")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "failure", str(err[1]))

    def addError(self, test, err):
        super().addError(test, err)
        self.note(test, "error", str(err[1]))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.note(test, "failure", f"{subtest}: {err[1]}")


class Runner(DiscoverRunner):
    def get_resultclass(self):
        return Result

    def run_suite(self, suite, **kwargs):
        result = super().run_suite(suite, **kwargs)
        self.result = result
        return result

    def teardown_databases(self, old_config, **kwargs):
        """The databases are dropped as a test of its own: nobody may be connected to them."""
        outcome = ElementTree.SubElement(self.result.report, "testcase", classname="databases", name="dropped")
        try:
            super().teardown_databases(old_config, **kwargs)
        except Exception as e:
            ElementTree.SubElement(outcome, "error", message=str(e))
        root = ElementTree.Element("testsuites")
        root.append(self.result.report)
        ElementTree.ElementTree(root).write(os.environ["SUITE_REPORT"])
