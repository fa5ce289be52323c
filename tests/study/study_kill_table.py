"""The sweep of examples/best_tokens.py (48 points x 200 trials), killed with SIGKILL so many times.

    python tests/study/study_kill_table.py FOLDER KILLS

prints what was found at every start, finishes, and compares with the table of a run that nobody killed. Call it again
with the same folder and it goes on.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

SWEEP = Path(__file__).parents[2] / "examples" / "best_tokens.py"


def finished(store):
    return len(list((store / "runs").glob("*/run.json"))) if (store / "runs").is_dir() else 0


def start(store):
    code = f"from attnlab.study import read_study; print(read_study({str(SWEEP)!r}).run(jobs=2))"
    environment = {**os.environ, "ATTNLAB_STORE": str(store)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, start_new_session=True)


def table(store):
    code = f"from attnlab.study import read_study; read_study({str(SWEEP)!r}).to_csv({str(store) + '.csv'!r})"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "ATTNLAB_STORE": str(store)}, check=True)
    return Path(f"{store}.csv").read_bytes()


def main(folder, kills):
    store = Path(folder) / "disturbed"
    for kill in range(kills):
        before = finished(store)
        process = start(store)
        wanted = before + random.randint(2, 6)
        while finished(store) < wanted and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print(f"kill {kill + 1}: {before} entries at the start, {finished(store)} when killed", flush=True)
    start(store).wait()
    if (Path(folder) / "store").is_dir():
        print("same table as undisturbed:", table(store) == table(Path(folder) / "store"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
