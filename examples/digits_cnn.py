"""Trains a convolutional net on scikit-learn's handwritten digits: an ordinary PyTorch program.

    python examples/digits_cnn.py --device tpu

Only the device string is special. Asserts over 98% of the held-out digits right.
"""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

TARGET_ACCURACY = 0.98


class DigitsNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
        )
        self.head = nn.Sequential(nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10))

    def forward(self, images):
        return self.head(self.features(images).flatten(1))


def load_data():
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = torch.tensor(labels)
    train, test = train_test_split(range(len(images)), test_size=0.2, random_state=0, stratify=labels.numpy())
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def accuracy(model, dataset, device):
    model.eval()
    with torch.no_grad():
        images, labels = (tensor.to(device) for tensor in dataset.tensors)
        right = (model(images).argmax(1) == labels).float().mean()
    model.train()
    return right.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="three epochs; asserts only 90%%")
    args = parser.parse_args()
    target = TARGET_ACCURACY
    if args.smoke:
        args.epochs, target = 3, 0.9

    torch.manual_seed(args.seed)
    train_set, test_set = load_data()
    loader = DataLoader(train_set, batch_size=args.batch, shuffle=True, drop_last=True, pin_memory=args.device != "cpu")
    model = DigitsNet().to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=args.epochs * len(loader))
    for epoch in range(args.epochs):
        start = time.perf_counter()
        total = torch.zeros((), device=args.device)
        for images, labels in loader:
            images = images.to(args.device, non_blocking=True)
            labels = labels.to(args.device, non_blocking=True)
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.detach()
        mean = total.item() / len(loader)  # the one read of the epoch
        seconds = time.perf_counter() - start
        right = accuracy(model, test_set, args.device)
        print(
            f"{args.device} epoch {epoch + 1:2d} loss {mean:.4f} test accuracy {right:.4f} in {seconds:.2f} s",
            flush=True,
        )
    assert right > target, f"test accuracy {right} is not over {target}"
    print("digits_cnn: ok")


if __name__ == "__main__":
    main()
