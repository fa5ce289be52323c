"""Tokenized mixtures that the claims of section 5 are measured on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnlab.data.mixture import Noise, tokenized_mixture
from attnlab.data.tokens import Array, Tokens
from attnlab.models.multihead import MultiHead
from attnlab.theory.multihead import Mixture, PhaseOne, centre, phase_one, theta_star
from attnlab.theory.multihead.ntk import slopes

ROUNDING = 1e-12

A3 = "tokenized mixture with bounded noise (Assumption 3)"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Sparsity, signal and noise bounds of a mixture with T = 10, M = 2, d = 4 unless said otherwise."""

    zeta: float
    S: float
    noise: float
    T: int = 10
    M: int = 2
    d: int = 4

    def draw(self, n: int, *, kind: Noise = "bounded", seed: int = 0) -> Tokens:
        """n sequences, Z_mu = Z_nu."""
        return tokenized_mixture(
            n,
            self.T,
            self.d,
            sparsity=self.zeta,
            patterns=self.M,
            signal=self.S,
            noise=kind,
            Z_mu=self.noise,
            Z_nu=self.noise,
            seed=seed,
        )

    def draw_hostile(self, n: int, *, seed: int = 0) -> Tokens:
        """n sequences whose noise takes as much from the margin as it may: at its bounds, against the label."""
        tokens = self.draw(n, kind="extreme", seed=seed)
        against = np.zeros((n, self.d))
        against[:, 0] = -tokens.y * self.noise / self.S
        against[:, 1] = tokens.y * self.noise / self.S
        against[:, 2 : self.M + 2] = -self.noise / (self.M * self.S)
        patterns = np.asarray(tokens.info["patterns"])
        nearest = 2 + (tokens.x @ patterns[2:].T).argmax(-1)  # (n, T), which nu an irrelevant token is
        noisy = patterns[nearest] + against[:, None, :]
        relevant = np.asarray(tokens.info["relevant"])[..., None]
        return Tokens.self_attention(
            np.where(relevant, tokens.x, noisy), tokens.y, tokens.info["oracle"], info=tokens.info
        )

    @property
    def name(self) -> str:
        """For tables."""
        return f"zeta={self.zeta:g}, S={self.S:g}, Z={self.noise:g}, T={self.T}"


# Small noise, where Eq. (7) is positive; and the most noise that Proposition 3 allows.
QUIET = (
    Setting(zeta=0.1, S=2.0, noise=0.02),
    Setting(zeta=0.3, S=2.0, noise=0.05),
    Setting(zeta=0.5, S=3.0, noise=0.1),
)
LOUD = (
    Setting(zeta=0.1, S=2.0, noise=0.5),
    Setting(zeta=0.5, S=1.0, noise=0.125),
    Setting(zeta=0.25, S=3.0, noise=1.125, T=4, M=3, d=6),
)


def every(
    settings: tuple[Setting, ...], n: int, *, kinds: tuple[Noise, ...] = ("bounded", "extreme"), seed: int = 0
) -> Iterator[tuple[str, Mixture, Tokens]]:
    """Name, constants and sequences of each setting and kind of noise, whose bounds were checked."""
    for setting, kind in itertools.product(settings, kinds):
        tokens = setting.draw(n, kind=kind, seed=seed)
        yield f"{setting.name}, {kind}", Mixture.of(tokens), tokens


def assumption_3(mixture: Mixture, tokens: Tokens) -> dict[str, float]:
    """Slack of the noise bounds on these sequences; never below zero but for rounding."""
    patterns = np.asarray(tokens.info["patterns"])
    relevant = np.asarray(tokens.info["relevant"])
    products = tokens.x[~relevant] @ patterns.T
    products[:, 2:] -= mixture.S**2 * (products[:, 2:] > 0.5 * mixture.S**2)
    lengths = np.linalg.norm(tokens.x, axis=-1)
    return {
        "Z_mu - |<z, mu>|": mixture.Z_mu - float(np.abs(products[:, :2]).max()),
        "Z_nu / M - |<z, nu>|": mixture.Z_nu / mixture.M - float(np.abs(products[:, 2:]).max()),
        "R - |x|": mixture.R - float(lengths.max()),
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class Start:
    """Weights after phase one, and how far from its centre it ended."""

    phase: PhaseOne
    P: float


def started(
    setting: Setting, n_1: int, heads: float, *, law: Literal["sign", "uniform"] = "sign", seed: int = 1
) -> Start:
    """Phase one on n_1 sequences of their own."""
    tokens = setting.draw(n_1, seed=seed)
    phase = phase_one(tokens, heads, alpha_law=law, seed=seed)
    return Start(phase=phase, P=float(np.linalg.norm(phase.c - centre(Mixture.of(tokens), tokens.info["oracle"]))))


def linearized_margins(tokens: Tokens, phase: PhaseOne) -> Array:
    """y times the derivative of the output along theta*, for each sequence."""
    along = theta_star(np.asarray(tokens.info["patterns"]), tokens.T, phase.alpha, phase.counts)
    model = MultiHead(int(phase.heads), counts=phase.counts)
    return tokens.y * slopes(tokens, model, phase.weights, along)
