"""Bounds, margins and phase one of *On the Optimization and Generalization of Multi-head Attention*.

| name | what |
|---|---|
| `Shape`, `token_bounds`, `segment_condition` | how fast gradient and Hessian can change |
| `head_requirement`, `heads_needed`, `smoothness`, `growth`, `largest_step` | heads and step size of the theorems |
| `theorem_1`, `theorem_2`, `lemma_3`, `lemma_8`, `lemma_9`, `lemma_11` | train loss, stability, generalization |
| `GoodStart`, `proposition_7`, `realizable_bounds`, `corollary_2` | what a good start, or a target nearby, promises |
| `Mixture`, `gamma_lin`, `gamma_star`, `gamma_attn`, `attention_scale`, `saturation_scale` | margins on the mixture |
| `oracle_weights`, `theta_opt`, `theta_star` | the weights that have them |
| `ntk_gram`, `ntk_margin` | the linearized model and its best margin |
| `phase_one`, `centre`, `parts`, `lemma_2_bound`, `proposition_2` | one step with random signs, as a start |
"""

from attnlab.theory.multihead.bounds import (
    GENERALIZATION as GENERALIZATION,
    TRAINING as TRAINING,
    Shape as Shape,
    TokenBounds as TokenBounds,
    growth as growth,
    head_requirement as head_requirement,
    heads_needed as heads_needed,
    largest_step as largest_step,
    segment_condition as segment_condition,
    smoothness as smoothness,
    token_bounds as token_bounds,
)
from attnlab.theory.multihead.guarantees import (
    Bound as Bound,
    GoodStart as GoodStart,
    GoodStartBounds as GoodStartBounds,
    RealizableBounds as RealizableBounds,
    corollary_2 as corollary_2,
    lemma_3 as lemma_3,
    lemma_8 as lemma_8,
    lemma_9 as lemma_9,
    lemma_11 as lemma_11,
    proposition_7 as proposition_7,
    realizable_bounds as realizable_bounds,
    theorem_1 as theorem_1,
    theorem_2 as theorem_2,
)
from attnlab.theory.multihead.margins import (
    HeadWeights as HeadWeights,
    Mixture as Mixture,
    attention_gain as attention_gain,
    attention_of as attention_of,
    attention_scale as attention_scale,
    gamma_attn as gamma_attn,
    gamma_lin as gamma_lin,
    gamma_star as gamma_star,
    largest_ordered_signal as largest_ordered_signal,
    oracle_weights as oracle_weights,
    saturation_scale as saturation_scale,
    score_bounds as score_bounds,
    theta_opt as theta_opt,
    theta_star as theta_star,
)
from attnlab.theory.multihead.ntk import ntk_gram as ntk_gram, ntk_margin as ntk_margin
from attnlab.theory.multihead.phase_one import (
    PhaseOne as PhaseOne,
    Promise as Promise,
    centre as centre,
    lemma_2_bound as lemma_2_bound,
    mean_row as mean_row,
    parts as parts,
    phase_one as phase_one,
    proposition_2 as proposition_2,
)

# What trains or reports is a room further.
_MOVED = {"good_initialization": "al.good_initialization", "stability": "al.reports.stability"}


def __getattr__(name: str) -> object:
    if name in _MOVED:
        raise AttributeError(f"`{name}` is now `{_MOVED[name]}`; attnlab.theory only measures, it does not train.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
