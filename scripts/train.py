"""Train a small CNN on images from a packed folder; a run can be stopped and resumed at any step.

    .venv/bin/python scripts/train.py WORK [--epochs 4] [--workers 2] [--stop-after STEPS]
        [--block SAMPLES --window BLOCKS] [--seed 1]

The script makes a folder of images in WORK and packs it, unless the archive exists. With
--stop-after, it writes a checkpoint and stops. The next call resumes from the checkpoint, even with
another number of workers. The final weights are the same, bit for bit, as without the stop: the
order of the samples, their random flips and the model's dropout are resumed too.

With --block and --window, blocks of neighbours are shuffled in place of single images. The images
are packed class by class, so neighbours are of one class. The accuracy is that of new images.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from ffrecord import pack_folder
from ffrecord.torch import BlockShuffleSampler, DataLoader, PackedFolderDataset, ShuffleSampler

CLASSES = ("bars", "dots", "rings")
IMAGES_EACH = 64
SIDE = 24
BATCH = 16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path, help="folder for the data and the checkpoint")
    parser.add_argument("--epochs", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--workers", type=int, default=2, help="default: %(default)s")
    parser.add_argument(
        "--stop-after",
        type=int,
        metavar="STEPS",
        help="stop after STEPS steps, and write a checkpoint",
    )
    parser.add_argument("--block", type=int, metavar="SAMPLES", help="shuffle blocks of neighbours")
    parser.add_argument(
        "--window", type=int, default=8, metavar="BLOCKS",
        help="with --block: mix so many blocks (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the order (default: %(default)s)")
    train(parser.parse_args())


def train(options: argparse.Namespace) -> None:
    work, epochs, stop_after = options.work, options.epochs, options.stop_after
    archive = make_data(work)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    dataset = PackedFolderDataset(archive, transform=augmented)
    sampler = make_sampler(dataset, options)
    loader = DataLoader(dataset, BATCH, sampler=sampler, num_workers=options.workers)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    checkpoint = work / "checkpoint.pt"
    steps_each = len(loader)  # steps of a whole epoch; a loaded state makes the first one shorter
    first = step = 0
    loss = torch.tensor(float("nan"))  # until the first step
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"])
        step = state["step"]
        first = step // steps_each  # after an epoch's last step: the next epoch, as in the loader
        print(f"resuming in epoch {first} after {step} steps")
    for epoch in range(first, epochs):
        for images, targets in loader:
            loss = nn.functional.cross_entropy(model(images), targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
            if step == stop_after:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"loader": loader.state_dict(), "random": torch.get_rng_state()}
                save(state | {"step": step}, checkpoint)
                print(f"stopped in epoch {epoch} after {step} steps")
                return
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"accuracy {accuracy(model):.1%}")
    print(f"weights {digest(model)}")


def make_sampler(dataset: PackedFolderDataset, options: argparse.Namespace) -> ShuffleSampler:
    """Return a sampler that shuffles images, or blocks of them."""
    if options.block is None:
        return ShuffleSampler(dataset, seed=options.seed)
    return BlockShuffleSampler(
        dataset, block=options.block, window=options.window, seed=options.seed
    )


def make_data(work: Path) -> Path:
    """Return the archive of the images; make it if it does not exist."""
    archive = work / "images.ffr"
    if not archive.exists():
        generator = random.Random(0)
        for name in CLASSES:
            folder = work / "images" / name
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(IMAGES_EACH):
                picture(name, generator).save(folder / f"{number:03}.png")
        pack_folder(work / "images", archive)
        print(f"packed {len(CLASSES) * IMAGES_EACH} images")
    return archive


def picture(kind: str, generator: random.Random) -> Image.Image:
    """Draw bars, dots or rings of random size and place, with some noise."""
    y, x = np.mgrid[:SIDE, :SIDE] + generator.uniform(0, SIDE)
    wave = generator.uniform(0.6, 1.4)
    shapes = {
        "bars": np.sin(x * wave),
        "dots": np.sin(x * wave) * np.sin(y * wave),
        "rings": np.sin(np.hypot(x - SIDE, y - SIDE) * wave),
    }
    noise = np.random.default_rng(generator.getrandbits(32)).normal(0, 30, (SIDE, SIDE, 3))
    pixels = 128 + 90 * shapes[kind][..., None] + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def augmented(image: Image.Image) -> torch.Tensor:
    """Return an image as a tensor, flipped and brightened at random."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    if random.random() < 0.5:
        pixels = pixels.flip(2)
    return (pixels - 0.5) * float(np.random.uniform(1.6, 2.4)) + 0.02 * torch.randn(())


def accuracy(model: nn.Module) -> float:
    """Return the share of new images whose class the model finds."""
    generator = random.Random(1)
    targets = torch.arange(100 * len(CLASSES)) % len(CLASSES)
    images = [picture(CLASSES[target], generator) for target in targets.tolist()]
    pixels = np.stack([np.array(image) for image in images])
    model.eval()
    with torch.no_grad():
        found = model((torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 - 0.5) * 2)
    return float((found.argmax(1) == targets).float().mean())


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * 16, len(CLASSES)),
    )  # fmt: skip


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint completely or not at all: a run may be killed while it saves."""
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def digest(model: nn.Module) -> str:
    whole = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        whole.update(name.encode() + tensor.numpy().tobytes())
    return whole.hexdigest()


if __name__ == "__main__":
    main()
