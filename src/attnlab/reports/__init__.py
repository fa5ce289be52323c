"""What a user asks of their own data or model, answered by training, solving and theory together.

| name | what |
|---|---|
| `rates` | step rules side by side: how fast does each come to the max-margin direction? |
| `good_initialization` | does this multi-head model, from these weights, satisfy the theory? heads, step, bounds |
| `encoder_report` | is gradient descent on this encoder guaranteed to converge, how fast, and what is missing? |
| `stability` | how far do the weights move if one sequence is left out? |
| `probe` | what have the heads of a trained model learned? their margins, against chance and a ceiling |
| `probe_arrays` | hidden states and weights of a language model, as `probe` takes them |
| `report` | what any model has learned on a data set: fit, attention, max-margin directions, tangent kernel |
| `inspect` | what the W of one attention layer of your own selects: margin, best margin, cosines, chance |
| `limits` | where can descent go on these tokens? locally optimal selections, and the share of starts of each |
| `Report`, `Section`, `Fact` | what a report is: a verdict, rows, one printer, `to_json()`, `frame()` |
"""

from attnlab.reports.encoder import EncoderReport as EncoderReport, encoder_report as encoder_report
from attnlab.reports.initialization import (
    InitializationReport as InitializationReport,
    good_initialization as good_initialization,
)
from attnlab.reports.inspection import (
    Chance as Chance,
    Inspection as Inspection,
    NormRow as NormRow,
    QueryRow as QueryRow,
    inspect as inspect,
)
from attnlab.reports.limits import limits as limits
from attnlab.reports.limittable import Limit as Limit, LimitsReport as LimitsReport
from attnlab.reports.model import HeadRow as HeadRow, ModelReport as ModelReport, report as report
from attnlab.reports.probing.judged import HeadVerdict as HeadVerdict, Judged as Judged
from attnlab.reports.probing.probe import probe as probe
from attnlab.reports.probing.report import ProbedHead as ProbedHead, ProbeReport as ProbeReport
from attnlab.reports.probing.texts import probe_arrays as probe_arrays
from attnlab.reports.rates import rates as rates
from attnlab.reports.report import Fact as Fact, Report as Report, Section as Section
from attnlab.reports.stability import Stability as Stability, stability as stability
from attnlab.reports.table import RatesRow as RatesRow, RatesTable as RatesTable
