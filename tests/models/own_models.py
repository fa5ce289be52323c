"""Models as a user would write them, for the tests."""

import jax.numpy as jnp

import attnlab as al


class WithValues(al.Model):
    """Attention with a trained value matrix; for each query its own output."""

    factor: float = 1.0

    def shapes(self, data):
        return {"W": al.weights((data.d, data.d)), "V": al.weights((data.d, data.d))}

    def output(self, weights, example):
        logits = self.factor * example.z @ weights["W"].T @ example.x.T
        if example.mask is not None:
            logits = jnp.where(example.mask, logits, -jnp.inf)
        return al.models.softmax(logits) @ example.x @ weights["V"].T @ example.v
