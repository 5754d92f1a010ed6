"""Dimension letters and array aliases used throughout the package.

| Letter | Meaning              | Letter | Meaning             |
|--------|----------------------|--------|---------------------|
| `B`    | rows in a batch      | `N`    | query heads         |
| `G`    | samples per prompt   | `K`    | key/value heads     |
| `L`    | sequence length      | `H`    | head size           |
| `P`    | prompt length        | `F`    | MLP width           |
| `R`    | response length      | `V`    | vocabulary          |
| `D`    | model width          | `S`    | cache length        |
| `Y`    | stacked layers       |        |                     |
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Int32, Int64

Array = jax.Array
Params = Any  # nested dict of arrays; its structure is the model's (models/qwen2.py)

__all__ = ["Array", "Bool", "Float", "Float32", "Int", "Int32", "Int64", "Params", "np"]
