"""Pictures: each is a data function, whose arrays are kept, and a draw function, which only draws.

| name | what |
|---|---|
| `figures`, `find` | all figures or those of a paper; by id |
| `make`, `make_all` | computes or reads the data, draws, and writes picture, data and note; of several in processes |
| `Figure`, `Finding`, `Made` | a figure; what was seen; both with the files |
| `Check` | one thing that a paper says of a figure, judged |
| `demo_data`, `draw_demo` | the demonstration |
"""

from attnlab.figures.demo import demo_data as demo_data, draw_demo as draw_demo
from attnlab.figures.figure import (
    Check as Check,
    Figure as Figure,
    Finding as Finding,
    Made as Made,
    figures as figures,
    find as find,
    make as make,
)
from attnlab.figures.together import make_all as make_all
