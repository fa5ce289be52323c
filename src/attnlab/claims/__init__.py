"""Theorems, lemmas and errata as claims that are measured.

| name | what |
|---|---|
| `claims`, `find`, `left_out` | all claims or those of a paper; by id; statements that are not measured, and why |
| `check` | measures claims at a scale, keeps outcomes in the store |
| `Claim`, `Outcome`, `Verdict`, `Checked` | a statement; what was measured; the conclusion; both together |
| `outcome`, `within` | an outcome from tallies of its parts; from one number and a tolerance |
| `Bound`, `Identity`, `Limit`, `Count`, `Share`, `Mean` | tallies, each with how much it could have noticed |
| `erratum`, `Slip`, `Kind` | what is printed and not right, or not clear, and how much it weighs |
| `claims_page` | outcomes as a page of Markdown |
| `Scale` | smoke, quick or paper |
"""

from attnlab.claims.check import (
    Checked as Checked,
    check as check,
    claims as claims,
    find as find,
    left_out as left_out,
)
from attnlab.claims.claim import (
    Claim as Claim,
    Outcome as Outcome,
    erratum as erratum,
    outcome as outcome,
    within as within,
)
from attnlab.claims.leftout import LeftOut as LeftOut
from attnlab.claims.page import claims_page as claims_page
from attnlab.claims.parts import (
    Bound as Bound,
    Count as Count,
    Identity as Identity,
    Limit as Limit,
    Mean as Mean,
    Part as Part,
    Share as Share,
)
from attnlab.claims.scale import Scale as Scale
from attnlab.claims.verdict import Kind as Kind, Slip as Slip, Verdict as Verdict
