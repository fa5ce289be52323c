"""Seeded families: the definitions of the papers, to rounding; the laws of the draws; the streams of the seeds."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

import attnlab as al
from attnlab.data import families
from attnlab.errors import InputError

SEEDED = {
    "sphere": lambda **k: al.data.sphere(3, 4, 5, **k),
    "sphere-gap": lambda **k: al.data.sphere(3, 3, 4, gap=0.2, **k),
    "two_clusters": al.data.two_clusters,
    "orthogonal_signal": lambda **k: al.data.orthogonal_signal(4, 3, 6, signal_noise=0.1, **k),
    "antipodal_signal": lambda **k: al.data.antipodal_signal(4, 3, 6, **k),
    "gaussian_signal": lambda **k: al.data.gaussian_signal(4, 3, 6, **k),
}
FIXED = {"two_tokens": al.data.two_tokens, "bad_direction": al.data.bad_direction}


def same(a: al.Tokens, b: al.Tokens) -> bool:
    return a.digest() == b.digest() and all(np.array_equal(a.info[k], b.info[k]) for k in a.info | b.info)


# --- seeds and trials ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SEEDED)
def test_trials_have_their_own_streams(family):
    make = SEEDED[family]
    three, five, alone = make(seed=7, trials=3), make(seed=7, trials=5), make(seed=7)
    assert three.trials == 3
    assert alone.trials is None
    for i in range(3):
        assert same(three[i], five[i]), "trial i does not depend on how many are drawn"
    assert same(three[0], alone)
    assert len({five[i].digest() for i in range(5)}) == 5
    assert alone.digest() != make(seed=8).digest()
    assert same(alone, make(seed=7))
    assert same(make(seed=np.int64(7)), alone)
    assert alone.info["family"] == family.removesuffix("-gap")
    assert alone.info["seed"] == three.info["seed"] == 7
    assert make().digest() == make(seed=0).digest()


@pytest.mark.parametrize("family", FIXED)
def test_fixed_sets_repeat(family):
    batch = FIXED[family](trials=3)
    for i in range(3):
        assert batch[i].digest() == FIXED[family]().digest()
    assert batch.info["family"] == family


def test_same_seed_same_arrays_in_another_process():
    code = (
        "import attnlab as al\n"
        "d = al.data\n"
        "print(d.sphere(seed=3, gap=0.1).digest(), d.orthogonal_signal(seed=3).digest())\n"
        "print(d.gaussian_signal(seed=3).digest(), d.two_clusters(seed=3).digest())\n"
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    d = al.data
    here = [
        t.digest()
        for t in (
            d.sphere(seed=3, gap=0.1),
            d.orthogonal_signal(seed=3),
            d.gaussian_signal(seed=3),
            d.two_clusters(seed=3),
        )
    ]
    assert here == there


@pytest.mark.parametrize("family", SEEDED)
@pytest.mark.parametrize(
    "wrong",
    [{"seed": -1}, {"seed": 1.5}, {"seed": "1"}, {"seed": None}, {"trials": 0}, {"trials": -2}, {"trials": 1.5}],
)
def test_wrong_seeds_and_trials(family, wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"`{name}` is"):
        SEEDED[family](**wrong)


@pytest.mark.parametrize("family", ["sphere", "orthogonal_signal", "antipodal_signal", "gaussian_signal"])
@pytest.mark.parametrize("wrong", [{"n": 0}, {"T": 0}, {"d": 0}, {"n": -1}, {"T": 2.0}, {"d": "3"}])
def test_wrong_sizes(family, wrong):
    (name,) = wrong
    with pytest.raises(InputError, match=f"`{name}` is .*wanted a whole number at least 1"):
        getattr(al.data, family)(**wrong)


# --- sphere --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("n", "T", "d"), [(6, 8, 10), (1, 1, 1), (5, 3, 1), (2, 1, 4)])
def test_sphere_is_made_of_unit_vectors(n, T, d, seed):
    tokens = al.data.sphere(n, T, d, seed=seed)
    assert tokens.x.shape == (n, T, d)
    assert tokens.z.shape == (n, d)
    assert tokens.v is not None
    for array in (tokens.x, tokens.z, tokens.v):
        np.testing.assert_allclose(np.linalg.norm(array, axis=-1), 1.0, rtol=1e-15)
    assert set(np.unique(tokens.y)) <= {-1.0, 1.0}
    np.testing.assert_array_equal(tokens.info["attempts"], np.ones(n))
    assert tokens.mask is None
    if d > 1:
        assert not np.isclose(tokens.z, tokens.x[:, 0]).all(), "cross-attention: queries are drawn, not taken"


def test_sphere_defaults():
    assert al.data.sphere().x.shape == (6, 8, 10)


@pytest.mark.parametrize("gap", [0.05, 0.1, 0.3])
def test_every_sequence_meets_the_gap_and_every_draw_is_counted(gap):
    """Replay of the stream: v, y, x, then failing sequences in rounds, then z."""
    n, T, d, seed = 4, 3, 5, 11
    batch = al.data.sphere(n, T, d, gap=gap, seed=seed, trials=6)
    for i in range(6):
        tokens = batch[i]
        ranked = np.sort(tokens.y[:, None] * (tokens.x @ tokens.v), axis=-1)
        assert (ranked[:, -1] - ranked[:, -2] >= gap).all()
        rng = np.random.default_rng([seed, i])

        def unit(rng=rng):
            g = rng.standard_normal(d)
            return g / np.sqrt(sum(u * u for u in g))

        v = unit()
        y = rng.choice([-1.0, 1.0], n)
        x = [[unit() for _ in range(T)] for _ in range(n)]
        draws = [1] * n
        waiting = list(range(n))
        while waiting:
            failed = []
            for k in waiting:
                first, second = sorted((y[k] * float(np.dot(t, v)) for t in x[k]), reverse=True)[:2]
                if first - second < gap:
                    failed.append(k)
            for k in failed:
                x[k] = [unit() for _ in range(T)]
                draws[k] += 1
            waiting = failed
        np.testing.assert_allclose(tokens.x, x, rtol=1e-14)
        assert tokens.v is not None
        np.testing.assert_allclose(tokens.v, v, rtol=1e-14)
        np.testing.assert_allclose(tokens.z, [unit() for _ in range(n)], rtol=1e-14)
        np.testing.assert_array_equal(tokens.y, y)
        np.testing.assert_array_equal(tokens.info["attempts"], draws)
    assert batch.info["attempts"].max() > 1


def same_law(one, other) -> float:
    """The p-value of the Kolmogorov-Smirnov test of two samples."""
    return float(stats.ks_2samp(one, other)[1])


def test_gap_filter_has_the_law_of_rejecting_whole_sets():
    """Redrawing sequence by sequence gives the same law as redrawing the whole set until every gap is met."""
    n, T, d, gap, count = 2, 3, 2, 0.5, 400
    batch = al.data.sphere(n, T, d, gap=gap, seed=0, trials=count)
    rng = np.random.default_rng(123)
    kept = []
    while len(kept) < count:
        x = rng.standard_normal((n, T, d))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        v = rng.standard_normal(d)
        v /= np.linalg.norm(v)
        y = rng.choice([-1.0, 1.0], n)
        ranked = np.sort(y[:, None] * (x @ v), axis=-1)
        if (ranked[:, -1] - ranked[:, -2] >= gap).all():
            kept.append((x, v, y, ranked))
    assert batch.v is not None
    ranked = np.sort(batch.y[..., None] * np.einsum("rntd,rd->rnt", batch.x, batch.v), axis=-1)
    for k in range(T):
        other = np.array([r[:, k] for *_, r in kept]).ravel()
        assert same_law(ranked[..., k].ravel(), other) > 1e-3
    assert same_law(batch.v[:, 0], [v[0] for _, v, *_ in kept]) > 1e-3
    assert same_law(batch.x[..., 0].ravel(), np.array([x[..., 0] for x, *_ in kept]).ravel()) > 1e-3
    assert abs(batch.y.mean()) < 4 / np.sqrt(batch.y.size)


def test_sphere_is_uniform_and_labels_are_fair():
    """On the sphere in three dimensions every coordinate is uniform on [-1, 1]."""
    batch = al.data.sphere(5, 4, 3, seed=1, trials=200)
    for array in (batch.x, batch.z, batch.v):
        for j in range(3):
            assert stats.kstest(array[..., j].ravel(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert abs(batch.y.mean()) < 4 / np.sqrt(batch.y.size)


def test_gaps_out_of_reach(monkeypatch):
    with pytest.raises(InputError, match="`gap` > 0 with d = 1"):
        al.data.sphere(2, 3, 1, gap=0.1)
    for gap in (-0.1, np.nan):
        with pytest.raises(InputError, match=r"`gap` is .*at least 0"):
            al.data.sphere(gap=gap)
    monkeypatch.setattr(families, "MAX_ATTEMPTS", 50)
    with pytest.raises(InputError, match=r"`gap` = 1\.999 was not met in 50 draws at T = 3, d = 2"):
        al.data.sphere(2, 3, 2, gap=1.999)
    with pytest.raises(InputError, match=r"`gap` is 2\.5; .* never differ by 2"):
        al.data.sphere(2, 3, 2, gap=2.5)
    assert al.data.sphere(2, 1, 1, gap=0.5).T == 1  # one token leads by nobody
    assert al.data.sphere(2, 1, 4, gap=0.5).info["attempts"].tolist() == [1, 1]


def test_last_attempt_counts(monkeypatch):
    """A limit just large enough is enough."""
    tokens = al.data.sphere(4, 3, 5, gap=0.3, seed=11)
    needed = int(tokens.info["attempts"].max())
    assert needed > 1
    monkeypatch.setattr(families, "MAX_ATTEMPTS", needed)
    assert al.data.sphere(4, 3, 5, gap=0.3, seed=11).digest() == tokens.digest()
    monkeypatch.setattr(families, "MAX_ATTEMPTS", needed - 1)
    with pytest.raises(InputError, match="was not met"):
        al.data.sphere(4, 3, 5, gap=0.3, seed=11)


# --- clusters ------------------------------------------------------------------------------------------------------


def test_two_clusters():
    one = al.data.two_clusters(seed=2)
    assert one.x.shape == (2, 3, 2)
    batch = al.data.two_clusters(seed=2, trials=1500)
    np.testing.assert_array_equal(batch.y, 1.0)
    np.testing.assert_allclose(np.linalg.norm(batch.z, axis=-1), 1.0, rtol=1e-15)
    assert batch.v is not None
    np.testing.assert_allclose(np.linalg.norm(batch.v, axis=-1), 1.0, rtol=1e-15)
    for i, centre in enumerate([(-1.0, 0.0), (1.0, 0.0)]):
        noise = (batch.x[:, i] - np.array(centre)).reshape(-1, 2)
        assert np.abs(noise.mean(0)).max() < 4 * 0.3 / np.sqrt(len(noise))
        for j in range(2):
            assert stats.kstest(noise[:, j], stats.norm(0, 0.3).cdf).pvalue > 1e-3
        assert abs(np.corrcoef(noise.T)[0, 1]) < 4 / np.sqrt(len(noise))


# --- signals -------------------------------------------------------------------------------------------------------


def signals(tokens: al.Tokens, directions: int, U: float) -> tuple[np.ndarray, np.ndarray]:
    """mu+ and mu- from the head: v = (mu+ - mu-) / U^2, or mu+ / U^2."""
    if directions == 1:
        plus = tokens.v * U**2
        return plus, -plus
    planted = tokens.x[np.arange(tokens.n), tokens.info["planted"]]
    return planted[tokens.y > 0].mean(0), planted[tokens.y < 0].mean(0)


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("signal_noise", [0.0, 0.3])
@pytest.mark.parametrize("U", [1.0, 2.5])
@pytest.mark.parametrize("seed", range(3))
def test_signal_scores_are_exactly_one_and_zero(seed, U, signal_noise, directions):
    family = al.data.orthogonal_signal if directions == 2 else al.data.antipodal_signal
    tokens = family(20, 6, 30, signal=U, noise=0.2, signal_noise=signal_noise, seed=seed)
    planted = tokens.info["planted"]
    want = (np.arange(6) == planted[:, None]).astype(float)
    np.testing.assert_allclose(al.scores(tokens), want, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(al.optimal_tokens(tokens), planted)
    np.testing.assert_array_equal(tokens.z, tokens.x[:, 0])
    # v = (mu+ - mu-) / U^2 has norm sqrt(2) / U; mu+ / U^2 has norm 1 / U.
    np.testing.assert_allclose(np.linalg.norm(tokens.v), np.sqrt(directions) / U, rtol=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_signals_without_noise(seed):
    """With signal_noise = 0 the planted tokens are the signals themselves."""
    U = 2.0
    tokens = al.data.orthogonal_signal(20, 6, 30, signal=U, noise=0.2, seed=seed)
    plus, minus = signals(tokens, 2, U)
    at = tokens.x[np.arange(20), tokens.info["planted"]]
    np.testing.assert_allclose(at, np.where(tokens.y[:, None] > 0, plus, minus), rtol=0, atol=1e-14)
    np.testing.assert_allclose([plus @ plus, minus @ minus], U**2, rtol=1e-14)
    assert abs(plus @ minus) < 1e-14
    assert tokens.v is not None
    np.testing.assert_allclose(tokens.v, (plus - minus) / U**2, rtol=0, atol=1e-14)
    rest = tokens.x[np.arange(6) != tokens.info["planted"][:, None]]
    assert np.abs(rest @ plus).max() < 1e-13
    assert np.abs(rest @ minus).max() < 1e-13
    anti = al.data.antipodal_signal(20, 6, 30, signal=U, noise=0.2, seed=seed)
    plus, minus = signals(anti, 1, U)
    at = anti.x[np.arange(20), anti.info["planted"]]
    np.testing.assert_allclose(at, np.where(anti.y[:, None] > 0, plus, minus), rtol=0, atol=1e-14)
    np.testing.assert_allclose(plus @ plus, U**2, rtol=1e-14)
    rest = anti.x[np.arange(6) != anti.info["planted"][:, None]]
    assert np.abs(rest @ plus).max() < 1e-13


@pytest.mark.parametrize("directions", [1, 2])
def test_noise_has_the_stated_variance_off_the_signals(directions):
    family = al.data.orthogonal_signal if directions == 2 else al.data.antipodal_signal
    d, noise, signal_noise = 12, 0.2, 0.7
    batch = family(50, 4, d, noise=noise, signal_noise=signal_noise, seed=5, trials=20)
    planted = np.arange(4) == batch.info["planted"][..., None]
    rest = batch.x[~planted]
    free = d - directions  # dimensions left to the noise
    assert abs((rest**2).sum() / (len(rest) * free * noise**2) - 1) < 5 * np.sqrt(2 / (len(rest) * free))
    assert stats.kstest((rest**2).sum(-1) / noise**2, stats.chi2(free).cdf).pvalue > 1e-3
    at = batch.x[planted]
    on_signal = np.ones(len(at))  # |mu|^2 = 1
    extra = (at**2).sum(-1) - on_signal
    assert stats.kstest(extra / signal_noise**2, stats.chi2(free).cdf).pvalue > 1e-3
    counts = np.bincount(batch.info["planted"].ravel(), minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-3
    assert abs(batch.y.mean()) < 4 / np.sqrt(batch.y.size)


@pytest.mark.parametrize("directions", [1, 2])
def test_smallest_dimension_leaves_no_room_for_noise(directions):
    family = al.data.orthogonal_signal if directions == 2 else al.data.antipodal_signal
    tokens = family(6, 3, directions, noise=1.0, signal_noise=1.0)
    rest = tokens.x[np.arange(3) != tokens.info["planted"][:, None]]
    assert np.abs(rest).max() < 1e-12
    np.testing.assert_allclose(al.scores(tokens).max(-1), 1.0, atol=1e-12)


def test_signal_defaults_are_those_of_figure_2():
    for family in (al.data.orthogonal_signal, al.data.antipodal_signal):
        tokens = family(seed=1)
        assert tokens.x.shape == (20, 6, 100)
        planted = np.arange(6) == tokens.info["planted"][:, None]
        np.testing.assert_allclose(np.linalg.norm(tokens.x[planted], axis=-1), 1.0, rtol=1e-14)
        assert abs(np.sqrt((tokens.x[~planted] ** 2).mean()) / 0.05 - 1) < 0.05


@pytest.mark.parametrize("family", ["orthogonal_signal", "antipodal_signal"])
@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan])
def test_wrong_signals(family, wrong):
    with pytest.raises(InputError, match=r"`signal` is .*wanted a finite number at least 1e-300"):
        getattr(al.data, family)(signal=wrong)


def test_two_signals_need_two_dimensions():
    with pytest.raises(InputError, match="`d` is 1; two orthogonal signals need d >= 2"):
        al.data.orthogonal_signal(d=1)


@pytest.mark.parametrize("name", ["noise", "signal_noise"])
def test_noise_must_be_a_number(name):
    with pytest.raises(InputError, match=f"`{name}`"):
        al.data.orthogonal_signal(**{name: np.nan})


# --- the joint-training model --------------------------------------------------------------------------------------


def test_gaussian_signal():
    d, strength, noise = 8, 3.0, 0.1
    batch = al.data.gaussian_signal(40, 3, d, strength=strength, noise=noise, seed=2, trials=30)
    planted = np.arange(3) == batch.info["planted"][..., None]
    assert batch.v is not None
    np.testing.assert_allclose(np.linalg.norm(batch.v, axis=-1), 1.0, rtol=1e-15)
    values = np.einsum("rntd,rd->rnt", batch.x, batch.v)
    np.testing.assert_array_equal(batch.y, np.sign(values[planted]).reshape(batch.y.shape))
    assert stats.kstest((batch.x[planted] / (strength * noise)).ravel(), stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest((batch.x[~planted] / noise).ravel(), stats.norm.cdf).pvalue > 1e-3
    assert stats.chisquare(np.bincount(batch.info["planted"].ravel(), minlength=3)).pvalue > 1e-3
    np.testing.assert_array_equal(batch.z, batch.x[..., 0, :])
    tokens = al.data.gaussian_signal(seed=1)
    assert tokens.x.shape == (10, 2, 100)
    at = np.arange(2) == tokens.info["planted"][:, None]
    assert abs(np.sqrt((tokens.x[at] ** 2).mean()) / 0.3 - 1) < 0.1
    assert abs(np.sqrt((tokens.x[~at] ** 2).mean()) / 0.1 - 1) < 0.1


# --- worked examples -----------------------------------------------------------------------------------------------


def test_two_tokens():
    tokens = al.data.two_tokens()
    np.testing.assert_array_equal(tokens.x, [[[1.0, 0.0], [0.0, 0.0]]])
    np.testing.assert_array_equal(tokens.z, [[1.0, 0.0]])
    np.testing.assert_array_equal(tokens.y, [1.0])
    np.testing.assert_array_equal(tokens.v, [1.0, 0.0])
    np.testing.assert_array_equal(al.scores(tokens), [[1.0, 0.0]])
    np.testing.assert_array_equal(al.optimal_tokens(tokens), [0])


def test_bad_direction():
    tokens = al.data.bad_direction()
    np.testing.assert_array_equal(tokens.x, [[[1.0, 0.2], [-1.0, -0.2]], [[-2.5, 0.5], [2.5, -0.5]]])
    np.testing.assert_array_equal(tokens.z, tokens.x[:, 0])
    np.testing.assert_array_equal(tokens.y, [-1.0, 1.0])
    np.testing.assert_array_equal(tokens.v, [0.0, 1.0])
    np.testing.assert_array_equal(al.scores(tokens), [[-0.2, 0.2], [0.5, -0.5]])
    np.testing.assert_array_equal(al.optimal_tokens(tokens), [1, 0])
    # The best possible exponential loss, and the margin constraints that the stated solution meets with equality.
    W = 1e6 * np.array([[-0.2096645, -0.725], [-0.725, -0.0083866]])
    np.testing.assert_allclose(al.models.loss(tokens, W, loss="exponential"), 0.7126307, rtol=1e-7)
    ahead = tokens.x[[0, 1], [1, 0]] - tokens.x[[0, 1], [0, 1]]
    np.testing.assert_allclose(np.einsum("nd,de,ne->n", ahead, W / 1e6, tokens.z), 1.0, rtol=1e-5)
