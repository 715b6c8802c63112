"""The cost of models: parameters, multiply-adds and training operations."""

from keras_vit.costs.cost import Cost, cost
from keras_vit.costs.trace import LayerCost

__all__ = ["Cost", "cost", "LayerCost"]
