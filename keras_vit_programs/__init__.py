"""Code shared by the recipes, the tools and the command `keras-vit`."""
