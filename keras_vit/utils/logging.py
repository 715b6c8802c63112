"""The `keras_vit` logger."""

import logging

logger = logging.getLogger("keras_vit")
