"""All training problems, by name."""

from __future__ import annotations

from .image_problems import Autoencoder, CifarResNet, SmallCnn
from .problem import Problem
from .text_problems import LstmText, TransformerText

PROBLEMS: dict[str, type[Problem]] = {
    problem.name: problem
    for problem in (SmallCnn, CifarResNet, Autoencoder, TransformerText, LstmText)
}
