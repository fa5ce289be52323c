"""Theorems, lemmas and errata as claims that are measured.

| name | what |
|---|---|
| `claims`, `find` | all claims or those of a paper; by id |
| `check` | measures claims at a scale, keeps outcomes in the store |
| `Claim`, `Outcome`, `Verdict`, `Checked` | a statement; what was measured; the conclusion; both together |
| `Scale` | smoke, quick or paper |
"""

from attnlab.claims.check import Checked as Checked, check as check, claims as claims, find as find
from attnlab.claims.claim import Claim as Claim, Outcome as Outcome, Verdict as Verdict
from attnlab.claims.scale import Scale as Scale
