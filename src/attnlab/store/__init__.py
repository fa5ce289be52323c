"""Runs on disk: computed once, kept under a hash of their configuration, taken up again after a kill.

| name | what |
|---|---|
| `Store` | a folder of runs: `descend`, `keep`, `map`, `runs`, `size`, `clear` |
| `Kept` | arrays and facts of one kept computation |
| `NotKept` | the error of a result that could not be written, with the result |
| `keep_programs` | compiled programs are kept, so that the next process starts sooner |
| `attnlab.store.doctor.examine` | is this installation sound? |
"""

from attnlab.store.compiled import keep_programs as keep_programs
from attnlab.store.folder import NotKept as NotKept
from attnlab.store.results import Kept as Kept
from attnlab.store.store import Store as Store
