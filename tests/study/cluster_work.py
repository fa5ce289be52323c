"""A dask cluster of separate processes that can be killed, and studies on it."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import study_work as work

import attnlab as al

GRID = {"p": [0.2, 0.7], "n": [1, 2, 3, 4, 5, 6]}
TRIALS, BLOCK = 40, 10  # 48 blocks


def study(folder, function=work.slow):
    return al.Study(function, GRID, trials=TRIALS, block=BLOCK, store=folder / "store")


def undisturbed(folder):
    """The table of one process that nobody kills."""
    alone = al.Study(work.coins, GRID, trials=TRIALS, store=folder / "alone")
    alone.run()
    return alone.frame()


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Cluster:
    """A scheduler and workers, each a process of its own.

    Args:
        hidden: a folder that workers do not see, as on machines that share no disk; needs the rights of root.
    """

    def __init__(self, folder, workers, hidden=None):
        self.folder, self.hidden = folder, hidden
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.workers = []
        self.start_scheduler()
        work.wait_until(self.listens)
        self.start_workers(workers)

    def listens(self):
        host, _, port = self.address.removeprefix("tcp://").rpartition(":")
        with socket.socket() as asked:
            return asked.connect_ex((host, int(port))) == 0

    def start_scheduler(self):
        port = self.address.rpartition(":")[2]
        self.scheduler = self._process("dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")

    def start_workers(self, count):
        options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "300")
        for _ in range(count):
            self.workers.append(self._process("dask_worker", self.address, *options))

    def kill_worker(self):
        worker = self.workers.pop(0)
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def kill_scheduler(self):
        self.scheduler.send_signal(signal.SIGKILL)
        self.scheduler.wait()

    def close(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()

    def _process(self, name, *options):
        command = [sys.executable, "-m", f"distributed.cli.{name}", *options]
        if self.hidden is not None and name == "dask_worker":
            hide = f'mount -t tmpfs none {self.hidden} && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hide, "sh", *command]
        path = os.pathsep.join([str(Path(al.__file__).parents[1]), str(Path(__file__).parent)])
        env = {**os.environ, "PYTHONPATH": path, "STUDY_WORK": str(self.folder), "PYTHONWARNINGS": "ignore"}
        with open(self.folder / "cluster.log", "a") as log:
            return subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log)


def disturbed(folder, cluster, disturb, after=8, **options):
    """Run the study, and once some blocks are finished, disturb it from another thread."""
    seen = []
    reached = threading.Event()

    def watch(progress):
        seen.append((time.monotonic(), progress))
        if progress.done >= after * BLOCK:
            reached.set()

    def later():
        reached.wait()
        disturb()

    thread = threading.Thread(target=later, daemon=True)
    thread.start()
    ran = study(folder).run(client=cluster.address, on_progress=watch, **options)
    thread.join()
    return ran
