"""Training: `descend` runs a step rule, `Trajectory` is what comes back; `cosine` and `misalignment` compare."""

from attnlab.train.alignment import cosine as cosine, misalignment as misalignment
from attnlab.train.descend import Progress as Progress, descend as descend, run_config as run_config
from attnlab.train.metrics import View as View
from attnlab.train.schedule import log_spaced as log_spaced
from attnlab.train.trajectory import Status as Status, Trajectory as Trajectory
