"""Training and what it tends to.

| name | what |
|---|---|
| `descend` | runs a step rule; a `Trajectory` comes back |
| `flow` | gradient flow in log time, to t = 1e14 and beyond; a `FlowTrajectory` comes back |
| `regularization_path` | the least loss over growing balls; a `RegularizationPath` comes back |
| `cosine`, `misalignment` | compare directions |
"""

from attnlab.data.directions import cosine as cosine, misalignment as misalignment
from attnlab.models.layer_problem import View as View
from attnlab.train.descend import descend as descend, run_config as run_config
from attnlab.train.flow import FlowProgress as FlowProgress, flow as flow
from attnlab.train.flowtrajectory import FlowStatus as FlowStatus, FlowTrajectory as FlowTrajectory
from attnlab.train.loop import Progress as Progress
from attnlab.train.path import regularization_path as regularization_path
from attnlab.train.pathresult import (
    PathProgress as PathProgress,
    PathStatus as PathStatus,
    RegularizationPath as RegularizationPath,
)
from attnlab.train.schedule import log_spaced as log_spaced
from attnlab.train.trajectory import Status as Status, Trajectory as Trajectory
