"""What models cost: parameters, multiply-adds, computation."""

from keras_vit.costs.cost import Cost as Cost
from keras_vit.costs.cost import cost as cost
from keras_vit.costs.trace import LayerCost as LayerCost
