"""Statements of the paper that are not measured, and why."""

from __future__ import annotations

from attnlab.claims.claim import LeftOut

LEFT_OUT: list[LeftOut] = []
