"""Time, memory and overhead of many trials at n = T = 5, d = 10: 2000 steps of NGD and the max-margin comparison.

    python tests/study/speed_table.py FOLDER TRIALS PROCESSES

What is in the folder is kept: more trials go on where the last call ended.
"""

import sys

import attnlab as al


def main(folder, trials, jobs):
    study = al.Study("direction", {"n": [5], "T": [5], "d": [10], "steps": [2000]}, trials=trials, store=folder)
    ran = study.run(jobs=jobs)
    print(ran)
    rate = ran.computed / ran.seconds
    print(
        f"{rate:.0f} trials a second; compiling {ran.compile_seconds / ran.busy_seconds:.1%} of the time of functions"
    )
    outside = 1 - ran.busy_seconds / (jobs * ran.seconds)
    print(f"outside of functions (start of processes, disk, waiting): {outside:.1%}")
    print("MB:", {who: round(size / 2**20) for who, size in ran.memory.items()})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
