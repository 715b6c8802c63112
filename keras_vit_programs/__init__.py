"""What the recipes, the tools and the command `keras-vit` share."""
