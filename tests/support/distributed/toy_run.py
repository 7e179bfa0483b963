"""A small training run that a launcher starts as one or several processes, and what the tests read of it.

`toy_run.py FOLDER train`: five steps, a checkpoint after the third, then questions about weights and bad gradients.
`toy_run.py FOLDER resume`: steps four and five again, from that checkpoint. Rank 0 writes `FOLDER/<verb>.pt`.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agent_rl.algorithms.policy_losses import policy_loss
from agent_rl.distributed.backend import Backend, OptimizerStep, set_learning_rate
from agent_rl.distributed.checkpoint import (
    MODEL_FOLDER,
    get_rng_state,
    latest_checkpoint,
    load_state,
    save_checkpoint,
    set_rng_state,
)
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM

NUM_STEPS, SAVED_STEP, NUM_SAMPLES, LENGTH = 5, 3, 8, 12
CUTS = {
    1: [[range(0, 8)]],
    2: [[range(0, 1), range(1, 5)], [range(5, 7), range(7, 8)]],
    4: [
        [range(0, 1), range(1, 2)],
        [range(2, 5), range(5, 6)],
        [range(6, 7)] * 1 + [range(0)],
        [range(7, 8), range(0)],
    ],
}
"""Samples of each micro-batch of each process, by the number of processes."""


class Scores(NamedTuple):
    logprobs: Tensor
    """[B, T - 1], of every id but the first."""
    values: Tensor | None


class Scorer(nn.Module):
    """Like the trainer's: a named tuple comes out, and the head runs in chunks that are computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        self.model = MiniMindForCausalLM(MiniMindConfig(vocab_size=96, intermediate_size=128, **sizes))

    def forward(self, token_ids_BT: Tensor) -> Scores:
        hidden_BTd = self.model.hidden_states(token_ids_BT[:, :-1])
        halves = zip(hidden_BTd.tensor_split(2, dim=1), token_ids_BT[:, 1:].tensor_split(2, dim=1), strict=True)
        chunks = [checkpoint(self._logprobs, hidden, targets, use_reentrant=False) for hidden, targets in halves]
        return Scores(logprobs=torch.cat(chunks, dim=1), values=None)

    def _logprobs(self, hidden_BTd: Tensor, targets_BT: Tensor) -> Tensor:
        return self.model.logits(hidden_BTd).log_softmax(-1).gather(-1, targets_BT[..., None])[..., 0]


def make_step(step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, mask, advantages and sampling log-probs of one step's samples, the same on every process."""
    random = torch.Generator().manual_seed(step)
    token_ids_BT = torch.randint(0, 96, (NUM_SAMPLES, LENGTH), generator=random)
    mask_BT = torch.rand(NUM_SAMPLES, LENGTH - 1, generator=random) < 0.7
    advantages_BT = torch.randn(NUM_SAMPLES, 1, generator=random).expand(-1, LENGTH - 1)
    sampling_logprobs_BT = -4.5 + 0.1 * torch.randn(NUM_SAMPLES, LENGTH - 1, generator=random)
    return token_ids_BT, mask_BT, advantages_BT, sampling_logprobs_BT


class ToyRun:
    def __init__(self, device: str = "cpu") -> None:
        self.backend = Backend(device, timeout_s=60)
        self.first_gradient: Tensor | None = None
        """Of one weight after the first micro-step of a step, where the set-up keeps it."""
        torch.manual_seed(0)
        module = Scorer()
        groups = [
            {"params": [p for p in module.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in module.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.module, self.optimizer = self.backend.prepare(
            module, torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.99), fused=True)
        )

    def step(self, step: int, *, poisoned_rank: int | None = None, is_loss_finite: bool = True) -> dict[str, Any]:
        """One step over all samples; `poisoned_rank` has a gradient that is not a number."""
        backend = self.backend
        token_ids, mask, advantages, sampling_logprobs = make_step(step)
        cuts = CUTS[backend.num_processes][backend.rank]
        loss = 0.0
        with torch.no_grad():  # as for log-probs from before the step
            self.module(token_ids[:2])
        for i, rows in enumerate(cuts):
            with backend.micro_step(self.module, is_last=i == len(cuts) - 1):
                # A filler has real tokens, so that every process makes the same calls, and no weight in the loss.
                taken, weight = (list(rows), 1.0) if len(rows) else ([0], 0.0)
                logprobs = self.module(token_ids[taken]).logprobs
                token_loss = policy_loss(
                    logprobs, sampling_logprobs[taken], advantages[taken], mask[taken], clip_low=0.2, clip_high=0.28
                )
                share = weight * token_loss.sum() / mask.sum()
                backend.backward(share * float("nan") if backend.rank == poisoned_rank else share)
                loss += float(share.detach())
            if i == 0:
                gradient = self.backend.unwrap(self.module).model.model.norm.weight.grad
                self.first_gradient = None if gradient is None else gradient.clone()
        set_learning_rate(self.optimizer, [1e-2 / step, 5e-3 / step])
        result = backend.step(self.module, self.optimizer, max_grad_norm=0.5, is_loss_finite=is_loss_finite)
        return {"loss": backend.sum(float(loss)), "result": result}

    def save(self, folder: Path) -> None:
        save_checkpoint(
            folder,
            SAVED_STEP,
            write_model=self.write_model,
            write_rank=self.write_rank,
            state={"step": SAVED_STEP},
            keep=2,
            score=0.5,
            processes=self.backend,
        )

    def write_model(self, folder: Path) -> None:
        weights = self.backend.full_state_dict(self.module)
        if self.backend.is_main_process:
            folder.mkdir()
            torch.save(weights, folder / "weights.pt")

    def write_rank(self, folder: Path) -> dict[Path, str]:
        written = self.backend.save_state(folder, self.module, self.optimizer)
        torch.save(get_rng_state(), folder / f"rank_{self.backend.rank:05d}.pt")  # of which nobody knows the hash
        return written

    def load(self, path: Path) -> None:
        if self.backend.kind != "deepspeed":
            weights = torch.load(path / MODEL_FOLDER / "weights.pt", weights_only=True)
            self.backend.unwrap(self.module).load_state_dict(weights)
        self.backend.load_state(path, self.module, self.optimizer)
        set_rng_state(torch.load(path / f"rank_{self.backend.rank:05d}.pt", weights_only=True))

    def weights(self) -> dict[str, Tensor]:
        return self.backend.full_state_dict(self.module)


def train(run: ToyRun, folder: Path) -> dict[str, Any]:
    backend = run.backend
    torch.manual_seed(100 + backend.rank)  # every process has random numbers of its own
    frozen = backend.prepare_frozen(Scorer())
    steps = []
    for step in range(1, NUM_STEPS + 1):
        steps.append(run.step(step))
        if step == 1:
            first_gradients = backend.all_gather_object(run.first_gradient)
        if step == SAVED_STEP:
            run.save(folder / "checkpoints")
            sampled = torch.rand(3).tolist()
    report = {"kind": backend.kind, "zero_stage": backend.zero_stage, "steps": steps, "weights": run.weights()}
    report["first_gradients"] = first_gradients
    report |= {"sampled": backend.all_gather_object(sampled), "ranks": backend.all_gather_object(backend.rank)}
    report["sharded_elements"] = [p.numel() for p in backend.unwrap(run.module).parameters()]
    report["replicas"] = replicas(run)
    report["frozen"] = frozen_logprobs(run, frozen)
    report["refused"] = refused_steps(run)
    report["sum"] = backend.sum(backend.rank + 1)
    report["broadcast"] = backend.all_gather_object(backend.broadcast_object(f"from {backend.rank}"))
    return report


def replicas(run: ToyRun) -> list[dict[str, Tensor]]:
    """Every process's unsharded replica, made from the whole module and then from a part of it."""
    replica = Scorer()
    run.backend.copy_weights(run.module, replica)
    part = Scorer().model
    run.backend.copy_weights(run.backend.unwrap(run.module).model, part)
    assert all(torch.equal(a, b) for a, b in zip(replica.model.parameters(), part.parameters(), strict=True))
    return run.backend.all_gather_object(replica.state_dict())


def frozen_logprobs(run: ToyRun, frozen: nn.Module) -> bool:
    """Whether the frozen module gives the log-probs of the same weights in one piece."""
    torch.manual_seed(100 + run.backend.rank)
    plain = Scorer()
    if whole := run.backend.full_state_dict(frozen):
        assert all(torch.equal(whole[name], weight) for name, weight in plain.state_dict().items())
    token_ids = make_step(1)[0]
    with torch.no_grad():
        expected = plain(token_ids).logprobs
        # Under ZeRO-3 the weights of process 0 were broadcast as they were sharded.
        got = run.backend.broadcast_object(frozen(token_ids).logprobs)
        return torch.equal(got, run.backend.broadcast_object(expected))


def refused_steps(run: ToyRun) -> list[tuple[OptimizerStep, bool]]:
    """Results of steps with a bad gradient on the last process, a bad loss on the first, and a good one, each with
    whether weights moved."""
    backend, results = run.backend, []
    for options in (
        {"poisoned_rank": backend.num_processes - 1},
        {"is_loss_finite": backend.rank != 0},
        {},
    ):
        before = run.weights()
        result = run.step(NUM_STEPS + 1, **options)["result"]
        after = run.weights()
        moved = any(not torch.equal(before[name], after[name]) for name in before)
        assert len(set(backend.all_gather_object(result.applied))) == 1
        results.append((result, moved))
    return results


def resume(run: ToyRun, folder: Path) -> dict[str, Any]:
    path = latest_checkpoint(folder / "checkpoints")
    state = load_state(path, run.backend)
    run.load(path)
    sampled = run.backend.all_gather_object(torch.rand(3).tolist())
    steps = [run.step(step) for step in range(state["step"] + 1, NUM_STEPS + 1)]
    return {"steps": steps, "weights": run.weights(), "sampled": sampled}


def main(folder: Path, verb: str, device: str = "cpu") -> None:
    run = ToyRun(device)
    report = {"train": train, "resume": resume}[verb](run, folder)
    if run.backend.is_main_process:
        torch.save(report, folder / f"{verb}.pt")
    run.backend.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
