"""A torch training loop that two loader processes feed, and three processes that
use the model it made, all on one copy of the weights in the broker's memory.

    python3 training.py      # with a broker, and torch 2.1 or later
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn

import fsdp
from fsdp.torch import DataLoader  # instead of torch.utils.data

NAME = "demo/torch/"  # of the bundle with the weights
N_LOADERS, N_USERS = 2, 3
CONTEXT = multiprocessing.get_context("fork")
EVERYBODY = CONTEXT.Barrier(N_USERS)


class Points(torch.utils.data.Dataset):
    """Points of a square; which of them are in a disc?"""

    def __init__(self, first, n):
        self.first, self.n = first, n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(self.first + i)
        point = torch.rand(2, generator=generator) * 2 - 1
        return point, (point.norm() < 0.8).float()


def make_model():
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))


def train(model):
    batches = DataLoader(Points(0, 4096), 64, shuffle=True, num_workers=N_LOADERS)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for epoch in range(3):
        losses = []
        for points, is_inside in batches:
            found = model(points).squeeze(1)
            loss = nn.functional.binary_cross_entropy_with_logits(found, is_inside)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        print(f"epoch {epoch}: {len(losses)} batches of {N_LOADERS} loaders, loss {mean:.3f}")


def publish(model):
    """All weights at once: a reader gets those of one moment."""
    with fsdp.default().stage(NAME, replace=True) as bundle:
        for name, weight in model.state_dict().items():
            bundle.put(name, weight)


def use(_):
    """In a process of its own: how many points are judged rightly?"""
    torch.set_num_threads(1)  # OpenMP's other threads were not forked, and would be waited for
    with torch.device("meta"):
        model = make_model()
    model.load_state_dict(fsdp.default().bundle(NAME).state_dict(), assign=True)
    new = Points(10000, 1000)
    points, is_inside = zip(*(new[i] for i in range(len(new))))
    found = model(torch.stack(points)).squeeze(1) > 0
    right = int((found == torch.stack(is_inside)).sum())
    EVERYBODY.wait(300)  # all of them have the model now
    holders = {each["pid"] for each in fsdp.default().who(f"{NAME}0.weight")}
    EVERYBODY.wait(300)
    return f"process {os.getpid()}: {right} of 1000 are right, {len(holders)} processes hold the weights"


if __name__ == "__main__":
    torch.manual_seed(1)
    model = make_model()
    train(model)
    publish(model)
    with ProcessPoolExecutor(N_USERS, CONTEXT) as users:
        for line in users.map(use, range(N_USERS)):
            print(line)
    fsdp.default().remove(NAME)
