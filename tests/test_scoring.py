"""The scorer: log-probs and entropies of drawn ids are those of one plain forward pass, whatever the model is."""

from pathlib import Path

import pytest
import torch
from fakes import save_tiny_model
from tiny_models import tiny_causal_lm
from torch import Tensor, nn

from agent_rl.core import scoring
from agent_rl.core.scoring import TokenScorer
from model.model_minimind import MiniMindForCausalLM

IDS = torch.tensor([[5, 9, 2, 14, 7, 3], [7, 7, 1, 19, 0, 0]])
"""The second row is two ids shorter."""
MASK = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 1, 0, 1, 0, 0]])
PLACES = [(0, 2), (0, 3), (0, 5), (1, 1), (1, 3)]
"""Row and column of every trained id, in order."""
NAMES = ["Llama", "Qwen2", "Gemma2", "Phi", "GPT2"]


def plain(logits_BTV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy at every trained id, from all logits."""
    log_softmax = torch.log_softmax(logits_BTV.float() / temperature, dim=-1)
    rows = torch.stack([log_softmax[row, column - 1] for row, column in PLACES])
    ids = torch.tensor([IDS[row, column] for row, column in PLACES])
    return rows.gather(1, ids[:, None])[:, 0], -(rows.exp() * rows).sum(dim=-1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_of_a_hugging_face_model_are_those_of_its_logits(name: str, temperature: float) -> None:
    model = tiny_causal_lm(name, scale=30.0)
    logprobs_N, entropies_N = TokenScorer(model, temperature=temperature)(IDS, MASK)
    expected, entropies = plain(model(input_ids=IDS).logits, temperature)
    torch.testing.assert_close(logprobs_N, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies_N, entropies, atol=1e-4, rtol=1e-4)
    assert logprobs_N.std() > 0.5
    assert not entropies_N.requires_grad


def test_scores_of_minimind_are_those_of_its_logits(tmp_path: Path) -> None:
    model = MiniMindForCausalLM.from_pretrained(save_tiny_model(tmp_path))
    logprobs_N, entropies_N = TokenScorer(model, temperature=0.7)(IDS, MASK)
    expected, entropies = plain(model(IDS), 0.7)
    torch.testing.assert_close(logprobs_N, expected)
    torch.testing.assert_close(entropies_N, entropies)


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    scorer = TokenScorer(tiny_causal_lm(name, scale=30.0), temperature=1.0)
    longer = torch.cat([IDS, torch.full((2, 3), 11)], dim=1)
    longer[1, 4:6] = 12
    padded, _ = scorer(longer, torch.cat([MASK, torch.zeros(2, 3, dtype=torch.long)], dim=1))
    torch.testing.assert_close(padded, scorer(IDS, MASK)[0], atol=1e-5, rtol=1e-5)


def gradients(model: nn.Module, scorer: TokenScorer) -> list[Tensor | None]:
    model.zero_grad()
    scorer(IDS, MASK)[0].sum().backward()
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_all_logits_in_one_piece(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_causal_lm(name, scale=30.0)
    plain(model(input_ids=IDS).logits, 1.0)[0].sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    monkeypatch.setattr(scoring, "_LOGITS_AT_A_TIME", 2 * 64)  # two rows of logits at a time
    for got, wanted in zip(gradients(model, TokenScorer(model, temperature=1.0)), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-3)


def test_the_scorer_holds_the_weights_of_the_model_once() -> None:
    model = tiny_causal_lm()
    scorer = TokenScorer(model, temperature=1.0)
    assert [id(p) for p in scorer.parameters()] == [id(p) for p in model.parameters()]
    assert set(scorer.state_dict()) == {f"model.{name}" for name in model.state_dict()}
