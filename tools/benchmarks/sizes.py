"""Sizes of Vision Transformers, as arguments of the libraries."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Size:
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    patch_size: int = 16
    image_size: int = 224
    classes: int = 1000

    @property
    def patches(self):
        return (self.image_size // self.patch_size) ** 2

    def of(self, image_size):
        return dataclasses.replace(self, image_size=image_size)

    def flops(self, batch):
        """Returns the operations of one forward pass's matrix products, with a
        class token; a multiplication and an addition are two."""
        tokens, hidden = self.patches + 1, self.hidden_size
        dense = tokens * (4 * hidden**2 + 2 * hidden * self.mlp_dim)
        attention = 2 * tokens**2 * hidden
        stem = self.patches * hidden * 3 * self.patch_size**2
        head = hidden * self.classes
        blocks = self.num_layers * (dense + attention)
        return 2 * batch * (stem + blocks + head)


# "An Image is Worth 16x16 Words", Table 1; "How to train your ViT?", Table 2.
SIZES = {
    "Ti16": Size(192, 12, 3, 768),
    "S16": Size(384, 12, 6, 1536),
    "B16": Size(768, 12, 12, 3072),
    "L16": Size(1024, 24, 16, 4096),
    "H14": Size(1280, 32, 16, 5120, patch_size=14),
}
