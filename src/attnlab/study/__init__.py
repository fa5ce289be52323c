"""The user's own sweeps: a grid, a block function, many trials; on this machine or a dask cluster; into a table.

| name | what |
|---|---|
| `Study` | a grid, trials and a function; `run`, `status`, `frame`, `summary`, `to_latex`, `plot`, `dataset` |
| `StudyRun` | what one call of `run` did |
| `StudyProgress` | how far it is |
| `StudyStatus` | what the store has of it |
| `attnlab.study.measures` | the ready measures |
| `read_study` | a study from a Python or TOML file |
"""

from attnlab.study.driver import StudyProgress as StudyProgress, StudyRun as StudyRun
from attnlab.study.files import read_study as read_study
from attnlab.study.study import Study as Study, StudyStatus as StudyStatus
