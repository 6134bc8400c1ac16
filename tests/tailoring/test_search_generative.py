"""The generative model learns, and its tokens say what a plan says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailoring_worlds import World

from floe.tailoring.on_torch.lstm import LstmSettings, PlanModel
from floe.tailoring.search.generative import GenerativeSearch, Tokens

WORLD = World(n_layers=5, n_ffn=96)
TOKENS = Tokens(WORLD.space.genes)


@given(levels=st.tuples(*(st.integers(0, g.top) for g in WORLD.space.genes)))
def test_a_sequence_reads_back_as_the_plan(levels):
    written = TOKENS.write(levels)
    assert TOKENS.read(written) == levels
    assert len(written) == sum(n > 0 for n in levels)
    for n, token in enumerate(written):
        assert token in TOKENS.allowed(written[:n])
    assert TOKENS.n_ids in TOKENS.allowed(written)  # a plan may end anywhere


def data(n, seed):
    """Sequences with an additive score, 0 to 1."""
    rng = np.random.default_rng(seed)
    weights = np.random.default_rng(9).normal(size=len(WORLD.space.genes))
    levels = [tuple(int(rng.integers(g.top + 1)) for g in WORLD.space.genes) for _ in range(n)]
    raw = np.array([sum(w * v for w, v in zip(weights, one, strict=True)) for one in levels])
    return [TOKENS.write(one) for one in levels], (np.tanh(raw / 4) + 1) / 2


@pytest.fixture(scope="module")
def trained(one_thread):
    model = PlanModel(
        n_ids=TOKENS.n_ids, seed=0, settings=LstmSettings(batch=64, learning_rate=0.005)
    )
    sequences, scores = data(96, seed=0)
    first = model.fit(sequences, scores, steps=1)
    last = model.fit(sequences, scores, steps=250)
    return model, sequences, first, last


def test_the_joint_loss_falls(trained):
    _, _, first, last = trained
    assert last < 0.4 * first


def test_the_evaluator_ranks_sequences_it_has_not_seen(trained):
    model, *_ = trained
    sequences, scores = data(60, seed=1)
    found = np.array(model.scores(sequences))
    ranks = [np.argsort(np.argsort(x)) for x in (found, scores)]
    assert np.corrcoef(*ranks)[0, 1] > 0.6


def test_the_order_of_a_sequence_hardly_matters(trained):
    model, sequences, *_ = trained
    shuffled = [list(np.random.default_rng(n).permutation(s)) for n, s in enumerate(sequences)]
    apart = np.abs(np.array(model.scores(sequences)) - np.array(model.scores(shuffled)))
    assert apart.mean() < 0.12


def test_the_gradient_leads_to_higher_expected_scores(trained):
    model, sequences, *_ = trained
    starts = sequences[:10]
    still = [model.better(s, step=0.0, allowed=TOKENS.allowed)[1] for s in starts]
    moved = [model.better(s, step=0.5, allowed=TOKENS.allowed)[1] for s in starts]
    assert still == pytest.approx(model.scores(starts), abs=1e-5)
    assert all(b > a for a, b in zip(still, moved, strict=True))


def test_the_decoder_writes_legal_plans_close_to_what_was_read(trained):
    model, sequences, *_ = trained
    errors, chance = [], []
    for one, other in zip(sequences[:12], sequences[12:24], strict=True):
        wanted = TOKENS.read(one)
        found = TOKENS.read(model.better(one, step=0.0, allowed=TOKENS.allowed)[0])
        errors.append(np.mean([a != b for a, b in zip(wanted, found, strict=True)]))
        chance.append(np.mean([a != b for a, b in zip(wanted, TOKENS.read(other), strict=True)]))
    assert np.mean(errors) < 0.75 * np.mean(chance)


def test_a_wide_beam_finds_the_likeliest_of_all_sequences(one_thread):
    """Against every subset of ids in rising order, by mean log-probability."""
    import torch

    model = PlanModel(n_ids=4, seed=1, settings=LstmSettings(beam=64))
    found, _ = model.better([0, 3], step=0.0, allowed=lambda w: range(w[-1] + 1 if w else 0, 5))
    every = [c for n in range(5) for c in itertools.combinations(range(4), n)]
    net, there = model._net, torch.ones(1, 2)
    with torch.no_grad():
        states = net.encode(torch.tensor([[0, 3]]), there)

        def likelihood(one):
            log = net.write(states, there, torch.tensor([[4, *one]]))[0]
            return float(log.gather(1, torch.tensor([*one, 4])[:, None]).mean())

        assert tuple(found) == max(every, key=likelihood)


def test_training_leaves_torchs_own_generator_alone(one_thread):
    import torch

    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    PlanModel(n_ids=5, seed=1).fit([[0, 1], [2]], [0.1, 0.9], steps=2)
    assert torch.equal(before, torch.random.get_rng_state())


def test_what_is_applied_is_the_difference_the_step_makes(one_thread):
    """A model that always adds a level to the first gene: the rest of the plan stays."""

    class Scripted:
        def fit(self, sequences, scores, *, steps, weights=None):
            assert all(0.0 <= s <= 1.0 for s in scores)
            return 0.0

        def scores(self, sequences):
            return [0.0] * len(sequences)

        def better(self, start, *, step, allowed):
            levels = [0] * len(WORLD.space.genes)
            levels[0] = 1 if step else 0
            return TOKENS.write(tuple(levels)), 0.0

    world = World(n_layers=5, n_ffn=96, ratio=0.9)
    low = (0, *world.space.uniform()[1:])
    search = GenerativeSearch(
        space=world.space, seed=0, model=lambda n, seed: Scripted(), n_random=0, seeds=(low, low)
    )
    for _ in range(2):
        search.tell(world.trial(search.ask()))
    best = search.ranked()[0][0]
    asked = world.space.levels(search.ask())
    assert asked[0] >= min(1, best[0] + 1)
    assert world.space.fits(asked)
