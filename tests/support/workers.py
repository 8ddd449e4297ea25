"""`pytest --workers N`: runs tests in forked processes, after one process has collected them.

Each worker of pytest-xdist imports and collects all tests again, which takes six seconds of processor time, and sends
five messages for each test; a worker here sends one. It begins with a part of the tests, in their order, so that
fixtures of a module or a package are made once; then it takes half of the tests that another worker has left.
"""

import atexit
import gc
import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import pytest

_FORK: Final = multiprocessing.get_context("fork")


class Shares:
    """Which tests each worker has left, in memory that all of them see."""

    def __init__(self, tests: int, workers: int) -> None:
        self._workers = range(workers)
        bounds = [tests * one // workers for one in range(workers + 1)]
        self._left = _FORK.Array("i", [edge for one in self._workers for edge in bounds[one : one + 2]])

    def take(self, worker: int) -> int | None:
        """Take a worker's next test. Returns its number; None if no worker has one left."""
        with self._left.get_lock():
            left = self._left
            if left[2 * worker] == left[2 * worker + 1]:
                most = max(self._workers, key=lambda one: left[2 * one + 1] - left[2 * one])
                begin, end = left[2 * most : 2 * most + 2]
                left[2 * most + 1] = middle = (begin + end) // 2
                left[2 * worker : 2 * worker + 2] = [middle, end]
            test: int = left[2 * worker]
            if test == left[2 * worker + 1]:
                return None
            left[2 * worker] += 1
            return test

    def taken(self, worker: int) -> Iterator[tuple[int, int | None]]:
        """Yield each test that a worker runs, and the next one, because pytest keeps what both use."""
        test = self.take(worker)
        while test is not None:
            following = self.take(worker)
            yield test, following
            test = following

    def end(self) -> None:
        """Leave no tests to take."""
        with self._left.get_lock():
            self._left[:] = [0] * len(self._left)


class _Sender:
    """Sends the reports of each test, instead of showing them."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._reports: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def send(self, test: int) -> None:
        """Send the reports of a test."""
        self._connection.send((test, self._reports))
        self._reports = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--workers", type=int, default=0, help="Run tests in N forked processes (default: in this one).")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in workers and show their reports."""
    config, tests = session.config, session.items
    workers = min(config.getoption("workers"), len(tests))
    if not workers or session.testsfailed or config.option.collectonly or config.option.usepdb:
        return None
    config.pluginmanager.getplugin("terminalreporter").showfspath = False  # the tests of many files take turns
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined] # one folder, with one for each worker
    shares = Shares(len(tests), workers)
    processes: dict[Connection, Any] = {}
    for worker in range(workers):
        connection, other = _FORK.Pipe(duplex=False)
        processes[connection] = process = _FORK.Process(target=_work, args=(session, shares, worker, other, processes))
        process.start()
        other.close()
    missing = dict.fromkeys(range(len(tests)))
    try:
        connections = list(processes)
        while connections:
            for one in wait(connections):
                assert isinstance(one, Connection)
                try:
                    test, reports = one.recv()
                except EOFError:
                    connections.remove(one)
                    continue
                del missing[test]
                _show(session, tests[test], reports)
            if session.shouldfail or session.shouldstop:
                shares.end()
    finally:
        shares.end()
        for process in processes.values():
            process.join()
    codes = [process.exitcode for process in processes.values() if process.exitcode]
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    for test in missing:
        why = f"a worker ended in this test or just before it; exit codes: {codes}"
        report = pytest.TestReport(tests[test].nodeid, tests[test].location, {}, "failed", why, "call")
        _show(session, tests[test], [config.hook.pytest_report_to_serializable(config=config, report=report)])
    if codes and not missing:
        pytest.exit(f"a worker failed after its tests; exit codes: {codes}", returncode=1)
    return True


def _show(session: pytest.Session, item: pytest.Item, reports: list[Any]) -> None:
    hook, config = session.config.hook, session.config
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for one in reports:
        hook.pytest_runtest_logreport(report=hook.pytest_report_from_serializable(config=config, data=one))
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _work(
    session: pytest.Session, shares: Shares, worker: int, connection: Connection, processes: dict[Connection, Any]
) -> None:
    """Run tests in a forked process."""
    for one in processes:
        one.close()  # else a worker that ends would not be noticed
    config: Any = session.config
    plugins = config.pluginmanager
    plugins.unregister(plugins.getplugin("terminalreporter"))
    capture = plugins.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files are those of all workers
    capture.start_global_capturing()
    capture.suspend_global_capture()
    temporary = config._tmp_path_factory
    temporary._basetemp = temporary.mktemp(f"worker{worker}", numbered=False)
    sender = _Sender(config, connection)
    plugins.register(sender)
    try:
        for test, following in shares.taken(worker):
            next_item = None if following is None else session.items[following]
            config.hook.pytest_runtest_protocol(item=session.items[test], nextitem=next_item)
            sender.send(test)
    except KeyboardInterrupt:
        pass
    finally:
        session._setupstate.teardown_exact(None)
        gc.collect()  # a warning about what is left fails the worker
        config._ensure_unconfigure()
        atexit._run_exitfuncs()
