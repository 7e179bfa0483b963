"""Values of the states in which tokens were drawn: a linear head on the policy's hidden states, or on a second model.

The value of a trained token is read where the token was predicted, before it is drawn. Not here: the loss
(`algorithms/critic.py`), returns (`algorithms/token_advantages.py`).
"""

import torch
from torch import Tensor, nn

from agent_rl.learning.flat_model import FlatModel
from agent_rl.records import Batch


class ValueHead(nn.Module):
    """`ValueHead(256)(hidden_Nd)`; says 0 until it is trained, so that a fresh critic changes no advantage."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_Nd: Tensor) -> Tensor:
        """Values, float32 [N], computed in the precision of the head's weights whatever autocast says."""
        weight = self.linear.weight
        with torch.autocast(weight.device.type, enabled=False):
            return self.linear(hidden_Nd.to(weight.dtype))[:, 0].float()


class Critic(nn.Module):
    """A value head on a model of its own, as a rule a copy of the policy: `Critic(model)(batch)`."""

    def __init__(self, model: nn.Module, *, packed: bool | None = None) -> None:
        """Takes the model over; its output head is frozen unless its weights are the embedding's as well."""
        super().__init__()
        self.model = model
        self._flat = FlatModel(model, packed=packed)
        self.value_head = ValueHead(self._flat.hidden_size).to(self._flat.head.weight.device)
        used = {id(parameter) for parameter in self._flat.backbone.parameters()}
        for parameter in self._flat.head.parameters():
            parameter.requires_grad_(parameter.requires_grad and id(parameter) in used)

    def forward(self, batch: Batch) -> Tensor:
        """Values of the batch's trained tokens, float32 [N]."""
        return self.value_head(self._flat.hidden_states(batch)[batch.sources])
